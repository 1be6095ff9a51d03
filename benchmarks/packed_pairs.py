#!/usr/bin/env python3
"""Whether what is computed on words of two bf16 or f16 is what f32 gives that is rounded: on a GPU, for every pair of
operands. Needs NVRTC and the driver, and nothing of rowjit's: the instructions are those of templates/prelude_cuda.h.

    python3 benchmarks/packed_pairs.py /path/to/libnvrtc.so sm_90a pairs.json
"""

import ctypes
import json
import sys

SOURCE = r"""
template <bool kF16> __device__ float widen(unsigned bits) {
    if (!kF16) return __uint_as_float(bits << 16);
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<unsigned short>(bits)));
    return value;
}
template <bool kF16> __device__ unsigned pack(float low, float high) {
    unsigned word;
    if (kF16) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}
template <bool kF16, int kOp> __device__ unsigned on_words(unsigned a, unsigned b) {
    unsigned word;
    if (kF16 && kOp == 0) asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
    if (kF16 && kOp == 1) asm("add.rn.f16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
    if (kF16 && kOp == 2) asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
    if (!kF16 && kOp == 0) asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(word) : "r"(a), "r"(b), "r"(0x80008000u));
    if (!kF16 && kOp == 1) asm("fma.rn.bf16x2 %0, %1, %3, %2;" : "=r"(word) : "r"(a), "r"(b), "r"(0x3f803f80u));
    if (!kF16 && kOp == 2) asm("fma.rn.bf16x2 %0, %2, %3, %1;" : "=r"(word) : "r"(a), "r"(b), "r"(0xbf80bf80u));
    return word;
}
template <int kOp> __device__ float in_f32(float a, float b) { return kOp == 0 ? a * b : kOp == 1 ? a + b : a - b; }
template <bool kF16, int kOp> __device__ void sweep(unsigned long long* differ) {
    const unsigned a = blockIdx.x;
    unsigned long long count = 0;
    for (unsigned b = 2 * threadIdx.x; b < 65536; b += 2 * blockDim.x) {
        const unsigned word = on_words<kF16, kOp>(a | a << 16, b | (b + 1) << 16);
        const float x = widen<kF16>(a);
        const unsigned rounded =
            pack<kF16>(in_f32<kOp>(x, widen<kF16>(b)), in_f32<kOp>(x, widen<kF16>(b + 1)));
        for (int shift = 0; shift < 32; shift += 16) {
            const unsigned got = word >> shift & 0xffff, wanted = rounded >> shift & 0xffff;
            const unsigned infinity = kF16 ? 0x7c00 : 0x7f80;
            const bool both_nan = (got & 0x7fff) > infinity && (wanted & 0x7fff) > infinity;
            if (got != wanted && !both_nan) ++count;
        }
    }
    if (count > 0) atomicAdd(differ, count);
}
extern "C" __global__ void all(unsigned long long* differ) {
    sweep<false, 0>(differ), sweep<false, 1>(differ + 1), sweep<false, 2>(differ + 2);
    sweep<true, 0>(differ + 3), sweep<true, 1>(differ + 4), sweep<true, 2>(differ + 5);
}
"""
SWEEPS = [f"{dtype} {op}" for dtype in ("bf16", "f16") for op in ("mul", "add", "sub")]


def check(status, what):
    if status != 0:
        raise SystemExit(f"{what}: {status}")


def compile_source(library, architecture):
    nvrtc = ctypes.CDLL(library)
    program = ctypes.c_void_p()
    check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), SOURCE.encode(), b"pairs.cu", 0, None, None), "nvrtc")
    options = [f"--gpu-architecture={architecture}".encode(), b"--fmad=false", b"-std=c++17"]
    check(nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options)), "compiling")
    size = ctypes.c_size_t()
    check(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)), "cubin")
    cubin = ctypes.create_string_buffer(size.value)
    check(nvrtc.nvrtcGetCUBIN(program, cubin), "cubin")
    return cubin.raw


def count_differing(cubin):
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context, module, function = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    check(cuda.cuInit(0), "driver")
    check(cuda.cuDeviceGet(ctypes.byref(device), 0), "device")
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "context")
    check(cuda.cuCtxSetCurrent(context), "context")
    check(cuda.cuModuleLoadData(ctypes.byref(module), cubin), "loading")
    check(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"all"), "loading")
    counts = (ctypes.c_uint64 * len(SWEEPS))()
    buffer = ctypes.c_uint64()
    check(cuda.cuMemAlloc_v2(ctypes.byref(buffer), ctypes.sizeof(counts)), "memory")
    check(cuda.cuMemsetD8_v2(buffer, 0, ctypes.sizeof(counts)), "memory")
    arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(buffer), ctypes.c_void_p))
    check(cuda.cuLaunchKernel(function, 65536, 1, 1, 256, 1, 1, 0, None, arguments, None), "launching")
    check(cuda.cuCtxSynchronize(), "running")
    check(cuda.cuMemcpyDtoH_v2(counts, buffer, ctypes.sizeof(counts)), "copying")
    return dict(zip(SWEEPS, counts))


def main():
    library, architecture, output = sys.argv[1:]
    differing = count_differing(compile_source(library, architecture))
    with open(output, "w", encoding="utf-8") as file:
        json.dump({"architecture": architecture, "pairs": 2**32, "differing": differing}, file, indent=1)
    print(differing)


if __name__ == "__main__":
    main()
