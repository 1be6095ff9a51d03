// A driver library without a GPU. Compiled once as a CUDA driver (STUB_CUDA) and once as a HIP runtime; STUB_OLD leaves
// out what older versions of either lack. Device memory is host memory; every call is recorded with its arguments.
#include "tests/runtime/stub_driver.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define STUB_EXPORT extern "C" __attribute__((visibility("default")))
#ifdef STUB_CUDA
#define STUB_ENTRY(cuda_symbol, hip_symbol) STUB_EXPORT int cuda_symbol
#define STUB_NAME(cuda_symbol, hip_symbol) #cuda_symbol
#else
#define STUB_ENTRY(cuda_symbol, hip_symbol) STUB_EXPORT int hip_symbol
#define STUB_NAME(cuda_symbol, hip_symbol) #hip_symbol
#endif

namespace {

StubDriver& state() {
    static StubDriver driver;
    return driver;
}

StubAnswers& answers() { return state().answers; }

template <class... Args>
int record(const char* symbol, const Args&... args) {
    const std::lock_guard<std::mutex> lock(state().mutex);
    std::string call = symbol;
    ((call += fmt::format(" {}", args)), ...);
    state().calls.push_back(call);
    const auto result = answers().results.find(symbol);
    return result == answers().results.end() ? 0 : result->second;
}

std::uintptr_t number(const void* handle) { return reinterpret_cast<std::uintptr_t>(handle); }
void* handle(std::uintptr_t number) { return reinterpret_cast<void*>(number); }

// The same text for every error, with its number.
const char* error_text(int result) {
    static std::map<int, std::string> texts;
    const std::lock_guard<std::mutex> lock(state().mutex);
    return texts.try_emplace(result, fmt::format("stub error {}", result)).first->second.c_str();
}

constexpr std::uintptr_t kModule = 0x30;
constexpr std::uintptr_t kFunction = 0x40;
constexpr std::uintptr_t kStream = 0x50;
constexpr std::uintptr_t kEvent = 0x60;

int copy(int result, void* to, const void* from, std::size_t bytes) {
    if (result == 0) std::memcpy(to, from, bytes);
    return result;
}

}  // namespace

STUB_EXPORT StubDriver* stub_driver() { return &state(); }

STUB_ENTRY(cuInit, hipInit)(unsigned flags) { return record(STUB_NAME(cuInit, hipInit), flags); }

STUB_ENTRY(cuDriverGetVersion, hipDriverGetVersion)(int* version) {
    *version = answers().driver_version;
    return 0;
}

STUB_ENTRY(cuDeviceGetCount, hipGetDeviceCount)(int* count) {
    *count = answers().device_count;
    return 0;
}

STUB_ENTRY(cuDeviceGetName, hipDeviceGetName)(char* name, int bytes, int /*device*/) {
    std::strncpy(name, answers().device_name.c_str(), static_cast<std::size_t>(bytes));
    return 0;
}

STUB_ENTRY(cuDeviceGetAttribute, hipDeviceGetAttribute)(int* value, int attribute, int /*device*/) {
    const auto known = answers().attributes.find(attribute);
    if (known == answers().attributes.end()) return 1;
    *value = known->second;
    return 0;
}

STUB_ENTRY(cuMemGetInfo_v2, hipMemGetInfo)(std::size_t* free_bytes, std::size_t* total_bytes) {
    *free_bytes = 1000;
    *total_bytes = 4000;
    return 0;
}

STUB_ENTRY(cuMemAlloc_v2, hipMalloc)(void** address, std::size_t bytes) {
    const int result = record(STUB_NAME(cuMemAlloc_v2, hipMalloc), bytes);
    if (result == 0) *address = std::malloc(bytes);
    return result;
}

STUB_ENTRY(cuMemFree_v2, hipFree)(void* address) {
    std::free(address);
    return record(STUB_NAME(cuMemFree_v2, hipFree));
}

STUB_ENTRY(cuMemcpyHtoD_v2, hipMemcpyHtoD)(void* to, const void* from, std::size_t bytes) {
    return copy(record(STUB_NAME(cuMemcpyHtoD_v2, hipMemcpyHtoD), bytes), to, from, bytes);
}

STUB_ENTRY(cuMemcpyDtoH_v2, hipMemcpyDtoH)(void* to, const void* from, std::size_t bytes) {
    return copy(record(STUB_NAME(cuMemcpyDtoH_v2, hipMemcpyDtoH), bytes), to, from, bytes);
}

STUB_ENTRY(cuMemcpyDtoDAsync_v2, hipMemcpyDtoDAsync)(void* to, const void* from, std::size_t bytes, void* stream) {
    return copy(record(STUB_NAME(cuMemcpyDtoDAsync_v2, hipMemcpyDtoDAsync), bytes, number(stream)), to, from, bytes);
}

STUB_ENTRY(cuMemsetD8Async, hipMemsetD8Async)(void* to, unsigned char byte, std::size_t bytes, void* stream) {
    std::memset(to, byte, bytes);
    return record(STUB_NAME(cuMemsetD8Async, hipMemsetD8Async), byte, bytes, number(stream));
}

STUB_ENTRY(cuStreamCreate, hipStreamCreateWithFlags)(void** stream, unsigned flags) {
    *stream = handle(kStream);
    return record(STUB_NAME(cuStreamCreate, hipStreamCreateWithFlags), flags);
}

STUB_ENTRY(cuStreamDestroy_v2, hipStreamDestroy)(void* stream) {
    return record(STUB_NAME(cuStreamDestroy_v2, hipStreamDestroy), number(stream));
}

STUB_ENTRY(cuStreamSynchronize, hipStreamSynchronize)(void* stream) {
    return record(STUB_NAME(cuStreamSynchronize, hipStreamSynchronize), number(stream));
}

STUB_ENTRY(cuStreamIsCapturing, hipStreamIsCapturing)(void* stream, int* status) {
    *status = answers().capture_status;
    return record(STUB_NAME(cuStreamIsCapturing, hipStreamIsCapturing), number(stream));
}

// Events are numbered in the order they are made; the elapsed time is the difference of the numbers.
STUB_ENTRY(cuEventCreate, hipEventCreateWithFlags)(void** event, unsigned flags) {
    static std::uintptr_t made = 0;
    *event = handle(kEvent + made++);
    return record(STUB_NAME(cuEventCreate, hipEventCreateWithFlags), flags);
}

STUB_ENTRY(cuEventDestroy_v2, hipEventDestroy)(void* /*event*/) {
    return record(STUB_NAME(cuEventDestroy_v2, hipEventDestroy));
}

STUB_ENTRY(cuEventRecord, hipEventRecord)(void* /*event*/, void* stream) {
    return record(STUB_NAME(cuEventRecord, hipEventRecord), number(stream));
}

STUB_ENTRY(cuEventElapsedTime, hipEventElapsedTime)(float* ms, void* start, void* stop) {
    *ms = static_cast<float>(number(stop) - number(start));
    return record(STUB_NAME(cuEventElapsedTime, hipEventElapsedTime));
}

STUB_ENTRY(cuModuleLoadData, hipModuleLoadData)(void** module, const void* image) {
    *module = handle(kModule);
    return record(STUB_NAME(cuModuleLoadData, hipModuleLoadData), static_cast<const char*>(image));
}

STUB_ENTRY(cuModuleUnload, hipModuleUnload)(void* module) {
    return record(STUB_NAME(cuModuleUnload, hipModuleUnload), number(module));
}

STUB_ENTRY(cuModuleGetFunction, hipModuleGetFunction)(void** function, void* /*module*/, const char* name) {
    *function = handle(kFunction);
    return record(STUB_NAME(cuModuleGetFunction, hipModuleGetFunction), name);
}

// Records the first argument's value too, an int by the tests' agreement.
STUB_ENTRY(cuLaunchKernel, hipModuleLaunchKernel)
(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
 unsigned block_z, unsigned shared_bytes, void* stream, void** arguments, void** /*extra*/) {
    return record(STUB_NAME(cuLaunchKernel, hipModuleLaunchKernel), number(function), grid_x, grid_y, grid_z, block_x,
                  block_y, block_z, shared_bytes, number(stream), *static_cast<int*>(arguments[0]));
}

#ifdef STUB_CUDA

namespace {
thread_local void* current_context = nullptr;
constexpr std::uintptr_t kPrimaryContext = 0x10;  // plus the device's number
}  // namespace

STUB_EXPORT int cuGetErrorName(int result, const char** text) {
    *text = result == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_STUB";
    return 0;
}

STUB_EXPORT int cuGetErrorString(int result, const char** text) {
    *text = error_text(result);
    return 0;
}

STUB_EXPORT int cuDevicePrimaryCtxRetain(void** context, int device) {
    *context = handle(kPrimaryContext + static_cast<unsigned>(device));
    return record("cuDevicePrimaryCtxRetain", device);
}

STUB_EXPORT int cuDevicePrimaryCtxRelease_v2(int device) { return record("cuDevicePrimaryCtxRelease_v2", device); }

STUB_EXPORT int cuCtxGetCurrent(void** context) {
    *context = current_context;
    return 0;
}

STUB_EXPORT int cuCtxSetCurrent(void* context) {
    current_context = context;
    return record("cuCtxSetCurrent", number(context));
}

STUB_EXPORT int cuFuncGetAttribute(int* value, int /*attribute*/, void* /*function*/) {
    *value = answers().static_shared_bytes;
    return 0;
}

STUB_EXPORT int cuFuncSetAttribute(void* function, int attribute, int value) {
    return record("cuFuncSetAttribute", number(function), attribute, value);
}

#ifndef STUB_OLD

STUB_EXPORT int cuLibraryLoadData(void** library, const void* code, void* /*jit_options*/, void* /*jit_values*/,
                                  unsigned jit_count, void* /*library_options*/, void* /*library_values*/,
                                  unsigned library_count) {
    *library = handle(kModule);
    return record("cuLibraryLoadData", static_cast<const char*>(code), jit_count, library_count);
}

STUB_EXPORT int cuLibraryUnload(void* library) { return record("cuLibraryUnload", number(library)); }

STUB_EXPORT int cuLibraryGetKernel(void** kernel, void* /*library*/, const char* name) {
    *kernel = handle(kFunction + 1);
    return record("cuLibraryGetKernel", name);
}

STUB_EXPORT int cuKernelGetFunction(void** function, void* kernel) {
    *function = handle(kFunction);
    return record("cuKernelGetFunction", number(kernel));
}

// CUlaunchConfig and its one attribute, read by position as the driver reads them.
namespace {

std::uint32_t word(const std::byte* at, std::size_t offset) {
    std::uint32_t value = 0;
    std::memcpy(&value, at + offset, sizeof value);
    return value;
}

const std::byte* pointer(const std::byte* at, std::size_t offset) {
    const std::byte* value = nullptr;
    std::memcpy(&value, at + offset, sizeof value);
    return value;
}

}  // namespace

// As if seven blocks of 16 multiprocessors each were to be had.
STUB_EXPORT int cuOccupancyMaxActiveClusters(int* clusters, void* function, const std::byte* config) {
    const std::byte* attribute = pointer(config, 40);
    *clusters = static_cast<int>(7 * 16 / word(attribute, 8));
    return record("cuOccupancyMaxActiveClusters", number(function), word(config, 12), word(attribute, 8));
}

STUB_EXPORT int cuLaunchKernelEx(const std::byte* config, void* function, void** arguments, void** /*extra*/) {
    const std::byte* attribute = pointer(config, 40);
    return record("cuLaunchKernelEx", number(function), word(config, 0), word(config, 12), word(config, 24),
                  number(pointer(config, 32)), word(config, 48), word(attribute, 0), word(attribute, 8),
                  *static_cast<int*>(arguments[0]));
}

#endif  // STUB_OLD

#else  // HIP

namespace {
thread_local int current_device = 0;
}

STUB_EXPORT const char* hipGetErrorName(int /*result*/) { return "hipErrorStub"; }
STUB_EXPORT const char* hipGetErrorString(int result) { return error_text(result); }

STUB_EXPORT int hipGetDevice(int* device) {
    *device = current_device;
    return 0;
}

STUB_EXPORT int hipSetDevice(int device) {
    current_device = device;
    return record("hipSetDevice", device);
}

// The two layouts of hipDeviceProp_t, of which rowjit reads gcnArchName.
#ifdef STUB_OLD
constexpr std::size_t kPropertiesBytes = 792;
constexpr std::size_t kArchitectureOffset = 396;
#define STUB_PROPERTIES hipGetDeviceProperties
#else
constexpr std::size_t kPropertiesBytes = 1472;
constexpr std::size_t kArchitectureOffset = 1160;
#define STUB_PROPERTIES hipGetDevicePropertiesR0600
#endif

STUB_EXPORT int STUB_PROPERTIES(char* properties, int /*device*/) {
    std::memset(properties, 0x7F, kPropertiesBytes);
    std::strncpy(properties, answers().device_name.c_str(), 256);
    std::strncpy(properties + kArchitectureOffset, answers().architecture.c_str(), 256);
    return record("hipGetDeviceProperties");
}

#endif  // STUB_CUDA
