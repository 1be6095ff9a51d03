#include "compiler/toolchain/code_object_info.h"

#include <elf.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "compiler/toolchain/elf_view.h"

namespace rowjit {
namespace {

using nlohmann::json;

// "User Guide for AMDGPU Backend", section Note Records: owner "AMDGPU", type NT_AMDGPU_METADATA, a MessagePack map.
constexpr std::string_view kOwner = "AMDGPU";
constexpr std::uint32_t kMetadataType = 32;

// The map nests five deep (file, kernels, kernel, arguments, argument). The parser recurses for each level, so damaged
// bytes that open a million arrays must be refused before it has the stack for them.
constexpr int kMaxDepth = 16;

std::size_t aligned_to_4(std::size_t bytes) { return (bytes + 3) / 4 * 4; }

// The metadata note's descriptor; empty when this section does not hold it.
std::string_view metadata_in(std::string_view notes) {
    Elf64_Nhdr header;
    while (read_at(notes, 0, header)) {
        notes.remove_prefix(sizeof(header));
        const std::size_t name_bytes = aligned_to_4(header.n_namesz);
        const std::size_t bytes = header.n_descsz;
        if (name_bytes > notes.size() || bytes > notes.size() - name_bytes) return {};
        const bool ours = header.n_type == kMetadataType && notes.starts_with(kOwner);
        if (ours) return notes.substr(name_bytes, bytes);
        notes.remove_prefix(std::min(name_bytes + aligned_to_4(bytes), notes.size()));
    }
    return {};
}

// Reads MessagePack without building anything and stops where it nests too deeply.
class DepthCheck : public nlohmann::json_sax<json> {
  public:
    bool null() override { return true; }
    bool boolean(bool) override { return true; }
    bool number_integer(number_integer_t) override { return true; }
    bool number_unsigned(number_unsigned_t) override { return true; }
    bool number_float(number_float_t, const string_t&) override { return true; }
    bool string(string_t&) override { return true; }
    bool binary(binary_t&) override { return true; }
    bool key(string_t&) override { return true; }
    bool start_object(std::size_t) override { return ++depth_ <= kMaxDepth; }
    bool end_object() override { return --depth_ >= 0; }
    bool start_array(std::size_t) override { return ++depth_ <= kMaxDepth; }
    bool end_array() override { return --depth_ >= 0; }
    bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

  private:
    int depth_ = 0;
};

FunctionInfo function_of(const json& kernel) {
    FunctionInfo function;
    function.name = kernel.at(".name").get<std::string>();
    function.registers = kernel.at(".vgpr_count").get<int>();
    function.scalar_registers = kernel.at(".sgpr_count").get<int>();
    function.spill_bytes = kernel.at(".private_segment_fixed_size").get<int>();
    function.spilled_registers = kernel.value(".vgpr_spill_count", 0) + kernel.value(".sgpr_spill_count", 0);
    function.shared_bytes = kernel.at(".group_segment_fixed_size").get<int>();
    function.max_threads = kernel.value(".max_flat_workgroup_size", 0);
    function.wave_size = kernel.at(".wavefront_size").get<int>();
    function.kernarg_bytes = kernel.at(".kernarg_segment_size").get<int>();
    for (const json& argument : kernel.value(".args", json::array())) {
        function.arguments.push_back({argument.at(".offset").get<int>(), argument.at(".size").get<int>(),
                                      argument.at(".value_kind").get<std::string>()});
    }
    return function;
}

}  // namespace

Offer<std::vector<FunctionInfo>> code_object_info(std::string_view code_object) {
    const Offer<ElfView> elf = ElfView::parse(code_object);
    if (!elf) return Declined{elf.reason()};
    std::string_view metadata;
    for (const ElfSection& section : elf->sections) {
        if (section.type == SHT_NOTE && metadata.empty()) metadata = metadata_in(section.data);
    }
    if (metadata.empty()) return Declined{"no AMDGPU metadata note"};
    DepthCheck depth;
    if (!json::sax_parse(metadata, &depth, json::input_format_t::msgpack))
        return Declined{"the AMDGPU metadata is no MessagePack"};
    try {
        const json root = json::from_msgpack(metadata);
        std::vector<FunctionInfo> functions;
        for (const json& kernel : root.at("amdhsa.kernels")) functions.push_back(function_of(kernel));
        if (functions.empty()) return Declined{"no kernel in the code object"};
        return functions;
    } catch (const json::exception& error) {
        return Declined{std::string("the AMDGPU metadata is incomplete: ") + error.what()};
    }
}

}  // namespace rowjit
