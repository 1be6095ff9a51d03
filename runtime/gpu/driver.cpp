#include "runtime/gpu/driver.h"

#include <fmt/ranges.h>

#include <array>
#include <optional>
#include <utility>

#include "base/environment.h"
#include "base/fail.h"

namespace rowjit {

Offer<DynamicLibrary> open_driver_library(const DriverLibrary& wanted) {
    std::vector<std::string> names = wanted.names;
    if (const std::optional<std::string> chosen = environment_text(wanted.path_variable)) names = {*chosen};
    std::string reason;
    for (const std::string& file : names) {
        Offer<DynamicLibrary> library = DynamicLibrary::open(file);
        if (library) return library;
        if (reason.empty()) reason = library.reason();
    }
    return Declined{fmt::format("the {} driver library ({}) cannot be opened: {}; {}, or set {} to the library's path",
                                name(wanted.backend), fmt::join(names, ", "), reason, wanted.remedy,
                                wanted.path_variable)};
}

Offer<DriverEntries> find_driver_entries(const DynamicLibrary& library, Backend backend) {
    DriverEntries entries;
    const bool cuda = backend == Backend::kCuda;
#define ROWJIT_ENTRY(name, cuda_symbol, hip_symbol, parameters)                                      \
    if (const char* symbol = cuda ? #cuda_symbol : #hip_symbol; !library.find(symbol, entries.name)) \
        return Declined{fmt::format("{} has no {}; install a newer driver", library.path(), symbol)};
#include "runtime/gpu/driver.def"
#undef ROWJIT_ENTRY
    return entries;
}

GpuDriver::GpuDriver(DynamicLibrary library, const DriverEntries& entries)
    : library_(std::move(library)), entries_(entries) {}

int GpuDriver::device_count() const {
    int count = 0;
    return entries_.device_count(&count) == 0 ? count : 0;
}

std::string GpuDriver::device_name(int device) const {
    std::array<char, 256> text = {};
    if (entries_.device_name(text.data(), static_cast<int>(text.size()) - 1, device) != 0) return "unnamed GPU";
    return text.data();
}

int GpuDriver::attribute(int attribute, int device) const {
    int value = 0;
    return entries_.device_attribute(&value, attribute, device) == 0 ? value : 0;
}

void GpuDriver::fail_uncovered(int device, const std::string& architecture) const {
    std::vector<std::string> known;
    for (const Target& row : all_targets()) {
        if (row.backend == backend()) known.push_back(row.name);
    }
    fail(ErrorCode::kUnsupported, "{}:{} {} has {}, which no target covers; supported: {}", name(backend()), device,
         device_name(device), architecture, fmt::join(known, ", "));
}

void GpuDriver::require(DriverResult result, ErrorCode code, const std::string& what, const std::string& remedy) const {
    if (result != 0) fail(code, "{}: {}; {}", what, error_name_and_text(result), remedy);
}

}  // namespace rowjit
