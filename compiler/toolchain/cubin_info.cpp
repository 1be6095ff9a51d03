#include "compiler/toolchain/cubin_info.h"

#include <elf.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "compiler/toolchain/elf_view.h"
#include "compiler/toolchain/load_waits.h"

namespace rowjit {
namespace {

// NVIDIA does not document the format; the numbers below are those `cuobjdump -elf` prints. An attribute is a format
// byte, an attribute byte, and either 16 bits of value or, for kSized, a 16-bit byte count with that many bytes after.
constexpr std::uint8_t kSized = 0x04;
constexpr std::uint8_t kEntryPoint = 0x10;  // st_other of a __global__ function's symbol

enum Attribute : std::uint8_t {
    kMaxThreads = 0x05,      // x, y, z of the launch bounds
    kFrameSize = 0x11,       // symbol, bytes of local memory
    kMinStackSize = 0x12,    // symbol, bytes of local memory with its callees'
    kParameterInfo = 0x17,   // index, ordinal : 16, offset : 16, flags : 18 and size : 14
    kParameterBytes = 0x19,  // in the 16-bit value
    kRegisterCount = 0x2f,   // symbol, registers
};

// From sm_90 on the first 1024 bytes of a block's shared memory are the system's. The assembler counts them in the
// kernel's section when the kernel has static shared memory at all, and says so by this section.
constexpr std::string_view kReservedSection = ".nv.shared.reserved.0";
constexpr std::uint64_t kReservedBytes = 1024;

int to_int(std::uint64_t value) {
    return static_cast<int>(std::min<std::uint64_t>(value, std::numeric_limits<int>::max()));
}

FunctionInfo* find_function(std::vector<FunctionInfo>& functions, std::string_view name) {
    const auto found =
        std::find_if(functions.begin(), functions.end(), [&](const FunctionInfo& f) { return f.name == name; });
    return found == functions.end() ? nullptr : &*found;
}

// The attributes that name their function by symbol.
void apply_symbol_attribute(std::uint8_t attribute, std::string_view payload, const ElfView& elf,
                            std::vector<FunctionInfo>& functions) {
    std::uint32_t symbol = 0;
    std::uint32_t value = 0;
    if (!read_at(payload, 0, symbol) || !read_at(payload, 4, value) || symbol >= elf.symbols.size()) return;
    FunctionInfo* function = find_function(functions, elf.symbols[symbol].name);
    if (function == nullptr) return;
    if (attribute == kRegisterCount) {
        function->registers = to_int(value);
    } else {
        function->spill_bytes = std::max(function->spill_bytes, to_int(value));
    }
}

void apply_parameter(std::string_view payload, FunctionInfo& function) {
    std::uint16_t offset = 0;
    std::uint32_t size = 0;
    if (!read_at(payload, 6, offset) || !read_at(payload, 8, size)) return;
    function.arguments.push_back({offset, to_int(size >> 18), "by_value"});
}

void apply_launch_bounds(std::string_view payload, FunctionInfo& function) {
    std::uint32_t extent[3] = {};
    for (std::size_t i = 0; i < 3; ++i) {
        if (!read_at(payload, 4 * i, extent[i])) return;
    }
    // A damaged entry must not overflow the product.
    const std::uint64_t plane = std::uint64_t{extent[0]} * extent[1];
    function.max_threads = plane > 1024 ? 0 : to_int(plane * std::min(extent[2], 1024U));
}

// `function` is the one whose section this is, null for the file's own.
void apply_attributes(std::string_view data, const ElfView& elf, std::vector<FunctionInfo>& functions,
                      FunctionInfo* function) {
    std::uint64_t at = 0;
    std::uint8_t format = 0;
    std::uint8_t attribute = 0;
    std::uint16_t value = 0;
    while (read_at(data, at, format) && read_at(data, at + 1, attribute) && read_at(data, at + 2, value)) {
        at += 4;
        std::string_view payload;
        if (format == kSized) {
            if (value > data.size() - at) return;
            payload = data.substr(at, value);
            at += value;
        }
        switch (attribute) {
            case kFrameSize:
            case kMinStackSize:
            case kRegisterCount: apply_symbol_attribute(attribute, payload, elf, functions); break;
            case kMaxThreads:
                if (function != nullptr) apply_launch_bounds(payload, *function);
                break;
            case kParameterInfo:
                if (function != nullptr) apply_parameter(payload, *function);
                break;
            case kParameterBytes:
                if (function != nullptr) function->kernarg_bytes = value;
                break;
            default: break;
        }
    }
}

}  // namespace

Offer<std::vector<FunctionInfo>> cubin_info(std::string_view cubin) {
    const Offer<ElfView> elf = ElfView::parse(cubin);
    if (!elf) return Declined{elf.reason()};

    std::vector<FunctionInfo> functions;
    for (const ElfSymbol& symbol : elf->symbols) {
        if (symbol.type != STT_FUNC || (symbol.other & kEntryPoint) == 0) continue;
        FunctionInfo function;
        function.name = symbol.name;
        functions.push_back(std::move(function));
    }
    if (functions.empty()) return Declined{"no kernel in the cubin"};

    const std::uint64_t reserved_bytes = elf->find(kReservedSection) != nullptr ? kReservedBytes : 0;
    for (FunctionInfo& function : functions) {
        if (const ElfSection* shared = elf->find(".nv.shared." + function.name)) {
            function.shared_bytes = to_int(shared->size_bytes - std::min(shared->size_bytes, reserved_bytes));
        }
        if (const ElfSection* info = elf->find(".nv.info." + function.name)) {
            apply_attributes(info->data, *elf, functions, &function);
        }
        if (const ElfSection* code = elf->find(".text." + function.name)) {
            const LoadWaits loads = count_load_waits(code->data);
            function.load_waits = loads.waits;
            function.bytes_in_flight = loads.bytes_in_flight;
        }
        std::sort(function.arguments.begin(), function.arguments.end(),
                  [](const ArgumentInfo& a, const ArgumentInfo& b) { return a.offset_bytes < b.offset_bytes; });
    }
    if (const ElfSection* info = elf->find(".nv.info")) apply_attributes(info->data, *elf, functions, nullptr);
    return functions;
}

}  // namespace rowjit
