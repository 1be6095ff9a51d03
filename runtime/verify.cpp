#include "runtime/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>

#include "base/check.h"

namespace rowjit {
namespace {

constexpr unsigned char kPoison = 0xFF;  // NaN in every float format, −1 in every integer one
// Behind the end, a number in every format: a kernel that reads NaN there would write the same NaN back and not be
// seen.
constexpr unsigned char kGuard = 0x5A;

// Device memory with a poisoned body and guard bytes behind it.
class GuardedBuffer {
  public:
    GuardedBuffer(const Device& device, std::string name, std::size_t bytes, std::size_t guard_bytes)
        : device_(device), name_(std::move(name)), bytes_(bytes), host_(bytes + guard_bytes, kPoison) {
        std::fill(host_.begin() + static_cast<std::ptrdiff_t>(bytes_), host_.end(), kGuard);
        data_ = device_.allocate(host_.size());
        upload();
    }
    ~GuardedBuffer() { device_.release(data_); }
    GuardedBuffer(const GuardedBuffer&) = delete;
    GuardedBuffer& operator=(const GuardedBuffer&) = delete;

    void* data() const { return data_; }
    unsigned char* host() { return host_.data(); }
    std::size_t bytes() const { return bytes_; }
    void upload() { device_.copy_to_device(data_, host_.data(), host_.size()); }

    void download() {
        device_.copy_to_host(host_.data(), data_, host_.size());
        const bool intact = std::all_of(host_.begin() + static_cast<std::ptrdiff_t>(bytes_), host_.end(),
                                        [](unsigned char byte) { return byte == kGuard; });
        RJ_CHECK(intact, "'{}' was written past its end", name_);
    }

  private:
    const Device& device_;
    std::string name_;
    std::size_t bytes_;
    std::vector<unsigned char> host_;
    void* data_ = nullptr;
};

// One tensor argument: where it lies and what its buffer holds.
struct Argument {
    Layout layout;
    std::vector<std::int64_t> row_strides;
    std::shared_ptr<GuardedBuffer> buffer;
};

class Run {
  public:
    Run(const Device& device, const Executable& executable, const GraphData& graph, const Bindings& bindings,
        const RunOptions& options)
        : device_(device), executable_(executable), graph_(graph), bindings_(bindings), options_(options) {}

    Tensors run() {
        Arguments arguments = executable_.arguments();
        for (const auto& [axis, extent] : bindings_.rows) arguments.rows(axis, extent);
        for (const auto& [name, value] : bindings_.scalars) arguments.scalar(name, value);
        for (NodeId id = 0; id < graph_.size(); ++id) {
            if (graph_.node(id).kind == NodeKind::kInput) add_input(graph_.node(id), &arguments);
        }
        for (const OutputInfo& output : graph_.outputs()) add_output(output, &arguments);
        GuardedBuffer workspace(device_, "workspace", executable_.workspace_bytes(arguments), options_.guard_bytes);
        arguments.workspace(workspace.data(), workspace.bytes());
        executable_.launch(nullptr, arguments).or_throw();
        device_.synchronize(nullptr);
        workspace.download();
        Tensors outputs;
        for (const OutputInfo& output : graph_.outputs()) {
            Argument& argument = arguments_.at(output.name);
            argument.buffer->download();
            check_padding(output.name, argument);
            outputs[output.name] = read_tensor(argument.layout, argument.buffer->host());
        }
        return outputs;
    }

  private:
    // Strides that leave row_padding elements after each innermost row.
    std::vector<std::int64_t> padded_strides(const Node& node, const Layout& contiguous) {
        const std::size_t row_axes = graph_.row_axes(node).size();
        const std::int64_t padding = options_.row_padding + padded_++ * options_.padding_growth;
        if (padding == 0) return promoted_row_strides(graph_, node.axes, contiguous);
        if (row_axes == 0) return {};
        std::vector<std::int64_t> strides(row_axes);
        std::int64_t stride = 1;
        for (std::size_t i = row_axes; i < contiguous.extents.size(); ++i) {
            stride += (contiguous.extents[i] - 1) * contiguous.strides[i];
        }
        stride += padding;
        for (std::size_t i = row_axes; i-- > 0;) {
            strides[i] = stride;
            stride *= std::max<std::int64_t>(1, contiguous.extents[i]);
        }
        return strides;
    }

    static std::size_t buffer_bytes(const Layout& layout) {
        return static_cast<std::size_t>(buffer_elements(layout)) * size_bytes(layout.dtype);
    }

    void add_input(const Node& node, Arguments* arguments) {
        Argument argument;
        argument.row_strides = padded_strides(node, input_layout(graph_, node.name, bindings_.rows));
        argument.layout = input_layout(graph_, node.name, bindings_.rows, argument.row_strides);
        argument.buffer =
            std::make_shared<GuardedBuffer>(device_, node.name, buffer_bytes(argument.layout), options_.guard_bytes);
        write_tensor(argument.layout, bindings_.tensors.at(node.name), argument.buffer->host());
        argument.buffer->upload();
        arguments->tensor(node.name, argument.buffer->data(), argument.row_strides);
        arguments_[node.name] = std::move(argument);
    }

    void add_output(const OutputInfo& output, Arguments* arguments) {
        const Node& node = graph_.node(output.node);
        Argument argument;
        const bool shares = options_.in_place && !output.alias.empty();
        argument.row_strides = shares ? arguments_.at(output.alias).row_strides
                                      : padded_strides(node, output_layout(graph_, output.name, bindings_.rows));
        argument.layout = output_layout(graph_, output.name, bindings_.rows, argument.row_strides);
        if (shares) {
            argument.buffer = arguments_.at(output.alias).buffer;
        } else {
            argument.buffer = std::make_shared<GuardedBuffer>(device_, output.name, buffer_bytes(argument.layout),
                                                              options_.guard_bytes);
            const std::string& before = output.alias.empty() ? output.name : output.alias;
            if (output.accumulate) {
                write_tensor(argument.layout, bindings_.tensors.at(before), argument.buffer->host());
                argument.buffer->upload();
            }
        }
        arguments->tensor(output.name, argument.buffer->data(), argument.row_strides);
        arguments_[output.name] = std::move(argument);
    }

    // What lies between rows must still be poison.
    void check_padding(const std::string& name, Argument& argument) const {
        if (argument.row_strides.empty()) return;
        Layout bytes = argument.layout;
        const std::size_t size = size_bytes(bytes.dtype);
        Tensor ones{Dtype::kBool, bytes.extents,
                    std::vector<double>(static_cast<std::size_t>(element_count(bytes.extents)), 1.0)};
        std::vector<unsigned char> elements(argument.buffer->bytes() / size + 1, 0);
        bytes.dtype = Dtype::kBool;
        write_tensor(bytes, ones, elements.data());
        for (std::size_t i = 0; i < argument.buffer->bytes(); ++i) {
            RJ_CHECK(elements[i / size] != 0 || argument.buffer->host()[i] == kPoison,
                     "'{}': byte {} of the row padding was written", name, i);
        }
    }

    const Device& device_;
    const Executable& executable_;
    const GraphData& graph_;
    const Bindings& bindings_;
    const RunOptions& options_;
    std::map<std::string, Argument> arguments_;
    std::int64_t padded_ = 0;  // tensors that have their strides
};

}  // namespace

Tensors run(const Device& device, const Executable& executable, const GraphData& graph, const Bindings& bindings,
            const RunOptions& options) {
    return Run(device, executable, graph, bindings, options).run();
}

std::vector<Verification> verify(const Device& device, const Executable& executable, const GraphData& graph,
                                 const Bindings& bindings, const RunOptions& options) {
    return verify(device, executable, graph, std::span(&bindings, 1), options);
}

std::vector<Verification> verify(const Device& device, const Executable& executable, const GraphData& graph,
                                 std::span<const Bindings> launches, const RunOptions& options) {
    Tensors got;
    Tensors exact;
    Tensors eager;
    for (const Bindings& bindings : launches) {
        append(run(device, executable, graph, bindings, options), &got);
        append(interpret(graph, bindings, Rounding::kExact), &exact);
        append(interpret(graph, bindings, Rounding::kEager), &eager);
    }
    std::vector<Verification> outputs;
    for (const OutputInfo& output : graph.outputs()) {
        outputs.push_back({output.name, compare(got.at(output.name), exact.at(output.name), eager.at(output.name),
                                                graph.node(output.node).dtype)});
    }
    return outputs;
}

std::uint64_t launch_count(const GraphData& graph, const RowExtents& rows, std::int64_t elements) {
    std::int64_t fewest = elements;
    for (const OutputInfo& output : graph.outputs())
        fewest = std::min(fewest, element_count(output_layout(graph, output.name, rows).extents));
    return fewest == 0 ? 1 : static_cast<std::uint64_t>((elements + fewest - 1) / fewest);
}

std::vector<Verification> verify_several(const Device& device, const Executable& executable, const GraphData& graph,
                                         const std::function<Bindings(std::uint64_t)>& inputs,
                                         const RunOptions& options) {
    constexpr std::int64_t kFewestElements = 4;
    const auto over = [&](std::uint64_t times) {
        std::vector<Bindings> launches = {inputs(0)};
        const std::uint64_t count = times * launch_count(graph, launches[0].rows, kFewestElements);
        for (std::uint64_t launch = 1; launch < count; ++launch) launches.push_back(inputs(launch));
        return verify(device, executable, graph, launches, options);
    };
    const std::vector<Verification> outputs = over(1);
    return within_bar(outputs) ? outputs : over(kMoreLaunches);
}

bool within_bar(const std::vector<Verification>& outputs) {
    return std::all_of(outputs.begin(), outputs.end(),
                       [](const Verification& output) { return output.report.within_bar; });
}

std::string describe(const std::vector<Verification>& outputs) {
    std::string text;
    for (const Verification& output : outputs) text += fmt::format("{}: {}\n", output.output, describe(output.report));
    return text;
}

}  // namespace rowjit
