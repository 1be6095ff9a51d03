#include "runtime/measure.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "dsl/random_inputs.h"
#include "dsl/traffic.h"
#include "runtime/device.h"

namespace rowjit {
namespace {

constexpr std::int64_t kUnknownCacheBytes = std::int64_t{64} << 20;
constexpr int kMaxSets = 16;

double median(std::vector<double> values) {
    if (values.empty()) return 0;
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

Timing summarize(std::vector<double> samples) {
    Timing timing;
    timing.samples_ms = samples;
    std::sort(samples.begin(), samples.end());
    timing.median_ms = median(samples);
    if (timing.median_ms > 0) {
        timing.spread = (samples[samples.size() * 3 / 4] - samples[samples.size() / 4]) / timing.median_ms;
    }
    return timing;
}

class Allocation {
  public:
    Allocation(const Device& device, std::size_t bytes)
        : device_(device), data_(device.allocate(std::max<std::size_t>(bytes, 1))) {}
    ~Allocation() { device_.release(data_); }
    Allocation(const Allocation&) = delete;
    Allocation& operator=(const Allocation&) = delete;
    void* data() const { return data_; }

  private:
    const Device& device_;
    void* data_;
};

// The buffers of one rotation position, filled with random inputs.
class BufferSet {
  public:
    struct Bound {
        std::string name;
        void* data = nullptr;
        std::vector<std::int64_t> row_strides;  // empty: rows follow each other
    };

    BufferSet(const Device& device, const GraphData& graph, const RowExtents& rows, const BufferSet* like) {
        for (NodeId id = 0; id < graph.size(); ++id) {
            const Node& node = graph.node(id);
            if (node.kind != NodeKind::kInput) continue;
            const Layout layout = input_layout(graph, node.name, rows);
            const std::size_t bytes = static_cast<std::size_t>(buffer_elements(layout)) * size_bytes(layout.dtype);
            add(device, node.name, bytes, promoted_row_strides(graph, node.axes, layout));
            if (like != nullptr) {
                device.impl().copy_on_device(find(node.name), like->find(node.name), bytes, nullptr);
            } else {
                fill(device, graph, id, rows, bytes, find(node.name));
            }
        }
        for (const OutputInfo& output : graph.outputs()) {
            const Layout layout = output_layout(graph, output.name, rows);
            std::vector<std::int64_t> strides = promoted_row_strides(graph, graph.node(output.node).axes, layout);
            if (!output.alias.empty()) {
                tensors_.push_back({output.name, find(output.alias), std::move(strides)});
                continue;
            }
            add(device, output.name, static_cast<std::size_t>(buffer_elements(layout)) * size_bytes(layout.dtype),
                std::move(strides));
        }
    }

    void* find(const std::string& name) const {
        for (const Bound& tensor : tensors_) {
            if (tensor.name == name) return tensor.data;
        }
        return nullptr;
    }
    const std::vector<Bound>& tensors() const { return tensors_; }
    std::int64_t bytes() const { return bytes_; }

  private:
    void add(const Device& device, const std::string& name, std::size_t bytes, std::vector<std::int64_t> row_strides) {
        allocations_.push_back(std::make_unique<Allocation>(device, bytes));
        tensors_.push_back({name, allocations_.back()->data(), std::move(row_strides)});
        bytes_ += static_cast<std::int64_t>(bytes);
    }

    // Random floats for a few rows are repeated over the tensor: generating gigabytes would dominate, and neither the
    // memory system nor the arithmetic notices the repetition. What indexes is not repeated: an embedding's gradient of
    // two tokens is nothing like one of thousands, and offsets ascend.
    static void fill(const Device& device, const GraphData& graph, NodeId input, const RowExtents& rows,
                     std::size_t bytes, void* destination) {
        constexpr std::size_t kMostBytes = std::size_t{512} << 20;
        const Node& node = graph.node(input);
        const RowExtents made = is_integer(node.dtype) && bytes <= kMostBytes ? rows : all_rows(graph, 2);
        const Layout layout = input_layout(graph, node.name, made);
        std::vector<unsigned char> block(static_cast<std::size_t>(buffer_elements(layout)) * size_bytes(layout.dtype));
        write_tensor(layout, random_input(graph, input, made), block.data());
        std::vector<unsigned char> whole(bytes);
        for (std::size_t at = 0; at < bytes; at += block.size()) {
            std::memcpy(whole.data() + at, block.data(), std::min(block.size(), bytes - at));
        }
        device.copy_to_device(destination, whole.data(), bytes);
    }

    std::vector<std::unique_ptr<Allocation>> allocations_;
    std::vector<Bound> tensors_;
    std::int64_t bytes_ = 0;
};

// One executable over the rotation.
class LaunchWork : public TimedWork {
  public:
    LaunchWork(const Executable& executable, std::vector<Arguments> arguments)
        : executable_(executable), arguments_(std::move(arguments)) {}

    void queue(int repetition) const override {
        executable_.launch(nullptr, arguments_[static_cast<std::size_t>(repetition) % arguments_.size()]).or_throw();
    }

  private:
    const Executable& executable_;
    std::vector<Arguments> arguments_;
};

class CopyWork : public TimedWork {
  public:
    CopyWork(const Device& device, std::size_t bytes, std::size_t sets) : device_(device), bytes_(bytes) {
        for (std::size_t i = 0; i < 2 * sets; ++i) {
            buffers_.push_back(std::make_unique<Allocation>(device, bytes));
            device.impl().fill(buffers_.back()->data(), static_cast<std::uint8_t>(0x3C + i), bytes, nullptr);
        }
    }

    void queue(int repetition) const override {
        const std::size_t pair = static_cast<std::size_t>(repetition) % (buffers_.size() / 2) * 2;
        device_.impl().copy_on_device(buffers_[pair]->data(), buffers_[pair + 1]->data(), bytes_, nullptr);
    }

  private:
    const Device& device_;
    std::size_t bytes_;
    std::vector<std::unique_ptr<Allocation>> buffers_;
};

}  // namespace

Measurement measure(const Device& device, const std::vector<Executable>& executables, const GraphData& graph,
                    const RowExtents& rows, const MeasureOptions& options) {
    Measurement result;
    result.least_bytes = least_bytes(graph, rows);
    const std::int64_t cache = std::max(kUnknownCacheBytes, device.impl().target().l2_bytes);
    const std::int64_t cold = options.cold_bytes > 0 ? options.cold_bytes : 4 * cache;
    std::vector<std::unique_ptr<BufferSet>> sets;
    sets.push_back(std::make_unique<BufferSet>(device, graph, rows, nullptr));
    const std::int64_t wanted = (cold + sets[0]->bytes()) / std::max<std::int64_t>(1, sets[0]->bytes());
    while (std::ssize(sets) < std::clamp<std::int64_t>(wanted, 2, kMaxSets)) {
        sets.push_back(std::make_unique<BufferSet>(device, graph, rows, sets[0].get()));
    }
    std::vector<std::unique_ptr<TimedWork>> works;
    std::vector<std::unique_ptr<Allocation>> workspaces;
    for (const Executable& executable : executables) {
        std::vector<Arguments> rotation;
        for (const auto& set : sets) {
            Arguments arguments = executable.arguments();
            for (const auto& [axis, extent] : rows) arguments.rows(axis, extent);
            for (const auto& [name, data, strides] : set->tensors()) arguments.tensor(name, data, strides);
            const std::size_t bytes = executable.workspace_bytes(arguments);
            if (bytes > 0) {
                workspaces.push_back(std::make_unique<Allocation>(device, bytes));
                arguments.workspace(workspaces.back()->data(), bytes);
            }
            rotation.push_back(std::move(arguments));
        }
        works.push_back(std::make_unique<LaunchWork>(executable, std::move(rotation)));
    }
    works.push_back(std::make_unique<CopyWork>(device, static_cast<std::size_t>(result.least_bytes / 2), sets.size()));

    const auto time_ms = [&](std::size_t i, int times) {
        if (options.before && i < executables.size()) options.before(i);
        return median(device.impl().time_ms(nullptr, times, *works[i]));
    };
    std::vector<int> repetitions;
    for (std::size_t i = 0; i < works.size(); ++i) {
        const double once_ms = time_ms(i, 3);  // warms up as well
        repetitions.push_back(static_cast<int>(
            std::clamp(options.target_ms / std::max(once_ms, 1e-3), 2.0, double(options.max_repetitions))));
    }
    std::vector<std::vector<double>> samples(works.size());
    for (int round = 0; round < options.rounds; ++round) {
        for (std::size_t i = 0; i < works.size(); ++i) samples[i].push_back(time_ms(i, repetitions[i]));
    }
    for (std::size_t i = 0; i + 1 < works.size(); ++i) result.candidates.push_back(summarize(std::move(samples[i])));
    result.copy = summarize(std::move(samples.back()));
    return result;
}

double share_of_copy(const Measurement& measurement, std::size_t candidate) {
    const double ms = measurement.candidates[candidate].median_ms;
    return ms > 0 ? measurement.copy.median_ms / ms : 0;
}

}  // namespace rowjit
