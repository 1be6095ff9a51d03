#include "tools/launch_description.h"

#include <array>

#include "base/check.h"
#include "compiler/emit/gpu.h"

namespace rowjit {
namespace {

nlohmann::json axis_json(const AxisInfo& axis) {
    nlohmann::json json = {{"name", axis.label()}, {"space", axis.is_row ? "row" : "column"}};
    json["extent"] = axis.extent == kRuntimeExtent ? nlohmann::json(nullptr) : nlohmann::json(axis.extent);
    return json;
}

nlohmann::json argument_json(const Kernel& kernel, const KernelArgument& argument) {
    nlohmann::json json = {{"name", argument.name}};
    switch (argument.kind) {
        case KernelArgument::Kind::kPointer: {
            const KernelTensor& tensor = kernel.tensors[static_cast<std::size_t>(argument.index)];
            json.update({{"kind", "pointer"},
                         {"size_bytes", 8},
                         {"dtype", name(tensor.dtype)},
                         {"read", tensor.read},
                         {"written", tensor.written},
                         {"alignment_bytes", std::min<std::size_t>(16, size_bytes(tensor.dtype) *
                                                                           static_cast<std::size_t>(tensor.alignment))},
                         {"column_strides", tensor.column_strides}});
            json["axes"] = nlohmann::json::array();
            for (const AxisId axis : tensor.axes) json["axes"].push_back(axis_json(kernel.axis(axis)));
            return json;
        }
        case KernelArgument::Kind::kStride:
            json.update({{"kind", "row_stride"},
                         {"size_bytes", 8},
                         {"unit", "elements"},
                         {"tensor", kernel.tensors[static_cast<std::size_t>(argument.index)].name},
                         {"axis", kernel.axis(argument.axis).label()}});
            if (const auto elements = kernel.known_stride(argument)) json["elements"] = *elements;
            return json;
        case KernelArgument::Kind::kExtent:
            json.update({{"kind", "extent"}, {"size_bytes", 8}, {"axis", kernel.axis(argument.axis).label()}});
            return json;
        case KernelArgument::Kind::kScalar: {
            const Dtype dtype = kernel.scalars[static_cast<std::size_t>(argument.index)].dtype;
            const Dtype carried = size_bytes(dtype) == 2 ? Dtype::kF32 : dtype;
            json.update({{"kind", "scalar"}, {"size_bytes", size_bytes(carried)}, {"dtype", name(carried)}});
            return json;
        }
        case KernelArgument::Kind::kMatrix:
            json.update(
                {{"kind", "tensor_map"}, {"size_bytes", 128}, {"operand", argument.index == 0 ? "left" : "right"}});
            return json;
        case KernelArgument::Kind::kSide: {
            constexpr std::array kSides = {"rows", "columns", "depth"};
            json.update({{"kind", "product_extent"}, {"size_bytes", 8}});
            json["side"] = kSides[static_cast<std::size_t>(argument.index)];
            return json;
        }
    }
    RJ_CHECK(false, "argument kind {}", static_cast<int>(argument.kind));
}

}  // namespace

nlohmann::json launch_description(const Program& program, const Step& step, const Target& target,
                                  const Artifact& artifact) {
    const Kernel& kernel = step.kernel;
    nlohmann::json json = {
        {"kernel", kernel.name},
        {"target", target.name},
        {"format", artifact.format},
        {"toolchain", artifact.toolchain},
        {"schedule", print(kernel.schedule)},
        {"block", {kernel.launched_threads(), 1, 1}},
        {"shared_bytes", kernel.shared_bytes},
        {"rows_per_block", kernel.schedule.rows_per_block * kernel.row_lanes()},
        {"column_blocks", kernel.schedule.column_blocks},
        {"cluster", {kernel.launched_cluster(), 1, 1}},
        {"grid", kernel.outer.empty()
                     ? "ceil(rows / rows_per_block) * column_blocks; fewer blocks loop, in multiples of column_blocks"
                     : "positions along outer_axes * parts * column_blocks, where parts is any extent of the axis of "
                       "parts; fewer blocks loop, in multiples of column_blocks"}};
    json["row_axes"] = nlohmann::json::array();
    for (const AxisId axis : kernel.row_axes) json["row_axes"].push_back(axis_json(kernel.axis(axis)));
    json["outer_axes"] = nlohmann::json::array();
    for (const AxisId axis : kernel.outer) json["outer_axes"].push_back(axis_json(kernel.axis(axis)));
    json["arguments"] = nlohmann::json::array();
    for (const KernelArgument& argument : kernel.arguments)
        json["arguments"].push_back(argument_json(kernel, argument));
    json["scalar_defaults"] = nlohmann::json::object();
    for (const int scalar : step.scalars) {
        const ProgramScalar& info = program.scalars[static_cast<std::size_t>(scalar)];
        json["scalar_defaults"][info.name] = info.default_value;
    }
    const FunctionInfo& resources = artifact.functions.front();
    json["resources"] = {{"registers", resources.registers},
                         {"scalar_registers", resources.scalar_registers},
                         {"spill_bytes", resources.spill_bytes},
                         {"load_waits", resources.load_waits},
                         {"bytes_in_flight", resources.bytes_in_flight},
                         {"static_shared_bytes", resources.shared_bytes}};
    return json;
}

std::string full_source(const Kernel& kernel, const Target& target) { return emit_gpu(kernel, target).text; }

}  // namespace rowjit
