#include "runtime/c_dlpack.h"

#include <array>

#include "base/fail.h"

namespace rowjit {
namespace {

struct DtypeRow {
    std::uint8_t code;
    std::uint8_t bits;
    std::int32_t dtype;
};

// Codes: 0 signed, 2 floating, 4 bfloat, 6 bool, 10 and 12 the floats of eight bits (DLPack 1.1).
constexpr std::array kDtypes = {
    DtypeRow{6, 8, ROWJIT_DTYPE_BOOL},  DtypeRow{0, 32, ROWJIT_DTYPE_I32}, DtypeRow{0, 64, ROWJIT_DTYPE_I64},
    DtypeRow{4, 16, ROWJIT_DTYPE_BF16}, DtypeRow{2, 16, ROWJIT_DTYPE_F16}, DtypeRow{2, 32, ROWJIT_DTYPE_F32},
    DtypeRow{2, 64, ROWJIT_DTYPE_F64},  DtypeRow{0, 8, ROWJIT_DTYPE_I8},   DtypeRow{10, 8, ROWJIT_DTYPE_E4M3},
    DtypeRow{12, 8, ROWJIT_DTYPE_E5M2},
};

struct DeviceRow {
    std::int32_t type;
    Backend backend;
};

// Pinned memory is the host's to the CPU, managed memory the device's to a GPU.
constexpr std::array kDevices = {
    DeviceRow{1, Backend::kCpu},  DeviceRow{3, Backend::kCpu},   DeviceRow{11, Backend::kCpu},
    DeviceRow{2, Backend::kCuda}, DeviceRow{13, Backend::kCuda}, DeviceRow{10, Backend::kHip},
};

}  // namespace

rowjit_tensor from_dlpack(const DlpackTensor& tensor, Backend backend) {
    bool reachable = false;
    for (const DeviceRow& row : kDevices)
        reachable = reachable || (row.type == tensor.device.type && row.backend == backend);
    if (!reachable) {
        fail(ErrorCode::kInvalidArgument, "the tensor's memory is of DLPack device type {}, and the kernel runs on {}",
             tensor.device.type, name(backend));
    }
    for (const DtypeRow& row : kDtypes) {
        if (row.code != tensor.dtype.code || row.bits != tensor.dtype.bits || tensor.dtype.lanes != 1) continue;
        auto* const data = static_cast<std::byte*>(tensor.data);
        return {sizeof(rowjit_tensor),
                data == nullptr ? nullptr : data + tensor.byte_offset,
                row.dtype,
                tensor.dimensions,
                tensor.shape,
                tensor.strides};
    }
    fail(ErrorCode::kInvalidArgument, "DLPack dtype of code {}, {} bits, {} lanes is none that rowjit has",
         tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes);
}

}  // namespace rowjit
