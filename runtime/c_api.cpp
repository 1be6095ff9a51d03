// The C ABI over the C++ interface. Every function is a guard around a few lines; what they have in common is in
// c_call.h, what a graph's tensors look like from C in c_signature.h.
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "base/digest.h"
#include "base/log.h"
#include "dsl/library/registry_json.h"
#include "dsl/traffic.h"
#include "rowjit/gradient.h"
#include "rowjit/rowjit_c.h"
#include "runtime/c_call.h"
#include "runtime/c_dlpack.h"
#include "runtime/c_signature.h"
#include "runtime/engine_impl.h"
#include "runtime/tuner.h"

using namespace rowjit;

namespace {

// What a compiled graph's handle and the arguments made from it share, so that the order in which they are destroyed
// is free.
struct Compiled {
    Graph graph;  // the strings of the signature are its own
    Signature signature;
    Executable executable;
    Backend backend;
    std::string info;
};

}  // namespace

struct rowjit_engine {
    mutable Engine engine;  // safe to use from several threads
};

struct rowjit_graph {
    explicit rowjit_graph(Graph made) : graph(std::move(made)), signature(make_signature(*graph.data())) {}

    Graph graph;
    Signature signature;
};

struct rowjit_executable {
    std::shared_ptr<const Compiled> compiled;
};

struct rowjit_arguments {
    explicit rowjit_arguments(std::shared_ptr<const Compiled> of)
        : compiled(std::move(of)),
          arguments(compiled->executable.arguments()),
          shapes(compiled->signature.tensors.size()),
          extents(compiled->signature.row_axes.size(), ROWJIT_RUNTIME_EXTENT) {}

    std::shared_ptr<const Compiled> compiled;
    Arguments arguments;
    std::vector<std::vector<std::int64_t>> shapes;  // by tensor, as it was given; empty where it was given without
    std::vector<std::int64_t> extents;              // by run-time row axis, as the arguments have them
};

namespace {

// An embedding program's standard error is its own.
[[maybe_unused]] const bool messages_are_dropped = (set_log_sink([](LogLevel, std::string_view) {}), true);

std::string dump(const nlohmann::json& json) {
    return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

template <class T>
std::span<const T> list(const T* first, std::size_t count, const char* what) {
    return count == 0 ? std::span<const T>() : std::span<const T>(&required(first, what), count);
}

std::vector<std::string> read_names(const rowjit_names& given, const char* what) {
    std::vector<std::string> names;
    for (const char* const name : list(given.names, given.count, what)) names.emplace_back(&required(name, what));
    return names;
}

// The inputs whose gradients are wanted, and the rest.
struct GradientRequest {
    std::vector<std::string> inputs;
    GradientOptions options;
};

GradientRequest read_gradient(const rowjit_gradient_options* options) {
    if (options == nullptr) return {};
    const auto given = read_struct(*options, "rowjit_gradient_options");
    return {read_names(given.inputs, "rowjit_gradient_options.inputs"),
            {.of = read_names(given.outputs, "rowjit_gradient_options.outputs"),
             .save = read_names(given.save, "rowjit_gradient_options.save"),
             .recompute = read_names(given.recompute, "rowjit_gradient_options.recompute"),
             .joint = given.joint != 0,
             .in_place = read_names(given.in_place, "rowjit_gradient_options.in_place"),
             .unit_cotangent = given.unit_cotangent != 0,
             .accumulate = read_names(given.accumulate, "rowjit_gradient_options.accumulate")}};
}

RowExtents read_rows(const rowjit_row_extent* rows, std::size_t count) {
    RowExtents extents;
    for (const rowjit_row_extent& row : list(rows, count, "rows")) extents[&required(row.axis, "axis")] = row.extent;
    return extents;
}

template <class T>
const T& at(const std::vector<T>& elements, std::int32_t index, const char* what) {
    if (index < 0 || index >= std::ssize(elements))
        fail(ErrorCode::kInvalidArgument, "there is no {} {}; there are {}", what, index, elements.size());
    return elements[static_cast<std::size_t>(index)];
}

std::string operations() {
    nlohmann::json rows = nlohmann::json::array();
    for (const CompositeInfo& op : composites()) rows.push_back(to_json(op));
    return dump(rows);
}

Compiled compile_graph(Engine& engine, const Graph& graph, void* stream, const ChunkOptions& chunks = {}) {
    Engine::Impl& impl = engine.impl();
    BuiltProgram built = impl.build(*graph.data(), chunks);
    nlohmann::json info = {{"kernels", nlohmann::json::array()}, {"notes", built.program.notes}};
    for (const Step& step : built.program.steps) {
        info["kernels"].push_back({{"name", step.kernel.name}, {"schedule", print(step.kernel.schedule)}});
    }
    return {graph, make_signature(*graph.data()), impl.load(std::move(built), stream), impl.target().backend,
            dump(info)};
}

void set_extent(rowjit_arguments& arguments, std::size_t axis, std::int64_t extent) {
    if (arguments.extents[axis] == extent) return;
    arguments.arguments.rows(arguments.compiled->signature.row_axes[axis], extent);
    arguments.extents[axis] = extent;
}

void set_tensor(rowjit_arguments& arguments, std::int32_t index, const rowjit_tensor& value) {
    const Signature& signature = arguments.compiled->signature;
    const rowjit_tensor_info& declared = at(signature.tensors, index, "tensor");
    check_fits(declared, value);
    const auto tensor = static_cast<std::size_t>(index);
    const auto row_axes = static_cast<std::size_t>(declared.row_axes);
    arguments.arguments.tensor(
        index, value.data,
        value.strides == nullptr ? std::span<const std::int64_t>() : std::span(value.strides, row_axes));
    arguments.shapes[tensor].assign(value.shape, value.shape + declared.row_axes);
    for (std::size_t i = 0; i < row_axes; ++i) {
        const RowPlace& place = signature.row_places[tensor][i];
        if (place.gives_extent())
            set_extent(arguments, static_cast<std::size_t>(place.places[0]), value.shape[i] - place.more);
    }
}

// The tensor whose shape is not that of the others, or null.
const rowjit_tensor_info* odd_tensor(const rowjit_arguments& arguments) {
    const Signature& signature = arguments.compiled->signature;
    for (std::size_t tensor = 0; tensor < arguments.shapes.size(); ++tensor) {
        for (std::size_t i = 0; i < arguments.shapes[tensor].size(); ++i) {
            const RowPlace& place = signature.row_places[tensor][i];
            if (place.places.empty() || !place.is_known) continue;
            std::int64_t extent = place.times;
            for (const int axis : place.places) extent *= arguments.extents[static_cast<std::size_t>(axis)];
            if (arguments.shapes[tensor][i] != extent + place.more) return &signature.tensors[tensor];
        }
    }
    return nullptr;
}

}  // namespace

extern "C" {

int32_t rowjit_abi_version(void) { return ROWJIT_ABI_VERSION; }
const char* rowjit_version(void) { return ROWJIT_VERSION; }
const char* rowjit_last_error(void) { return last_failure(); }

const char* rowjit_status_name(rowjit_status status) {
    switch (status) {
        case ROWJIT_OK: return "ok";
        case ROWJIT_OUT_OF_MEMORY: return "out_of_memory";
        case ROWJIT_INTERNAL: return "internal";
        default: break;
    }
    // The others are the codes of rowjit/error.h, in their order, from 1 on.
    if (status < ROWJIT_INVALID_GRAPH || status > ROWJIT_TIMEOUT) return "unknown";
    return name(static_cast<ErrorCode>(status - ROWJIT_INVALID_GRAPH));
}

rowjit_status rowjit_set_log(rowjit_log_function function, void* context) {
    return guarded([&] {
        if (function == nullptr) return set_log_sink([](LogLevel, std::string_view) {});
        set_log_sink([=](LogLevel level, std::string_view message) {
            function(context, std::string(name(level)).c_str(), std::string(message).c_str());
        });
    });
}

rowjit_status rowjit_engine_create(const rowjit_engine_options* options, rowjit_engine** engine) {
    return guarded([&] {
        required(engine, "engine") = nullptr;
        const auto given =
            options == nullptr ? rowjit_engine_options{} : read_struct(*options, "rowjit_engine_options");
        EngineOptions chosen;
        if (given.cache_directory != nullptr) chosen.cache_directory = given.cache_directory;
        chosen.use_tuning = given.ignore_tuning == 0;
        const Device device = given.device == nullptr ? Device::best() : Device(given.device);
        *engine = new rowjit_engine{Engine(device, chosen)};
    });
}

void rowjit_engine_destroy(rowjit_engine* engine) { delete engine; }

rowjit_status rowjit_engine_info(const rowjit_engine* engine, char* buffer, size_t capacity, size_t* length) {
    return guarded([&] {
        const Engine& of = required(engine, "engine").engine;
        const EngineStatistics statistics = of.statistics();
        const nlohmann::json info = {{"rowjit", ROWJIT_VERSION},
                                     {"device", of.device().description()},
                                     {"target", of.device().target()},
                                     {"compiled", statistics.compiled},
                                     {"memory_hits", statistics.memory_hits},
                                     {"disk_hits", statistics.disk_hits},
                                     {"bundle_hits", statistics.bundle_hits},
                                     {"compile_ms", statistics.compile_ms}};
        write_text(dump(info), buffer, capacity, length);
    });
}

rowjit_status rowjit_allocate(const rowjit_engine* engine, size_t bytes, void** address) {
    return guarded([&] {
        required(address, "address") = nullptr;
        *address = required(engine, "engine").engine.device().allocate(bytes);
    });
}

rowjit_status rowjit_release(const rowjit_engine* engine, void* address) {
    return guarded([&] { required(engine, "engine").engine.device().release(address); });
}

rowjit_status rowjit_copy_to_device(const rowjit_engine* engine, void* destination, const void* source, size_t bytes) {
    return guarded([&] { required(engine, "engine").engine.device().copy_to_device(destination, source, bytes); });
}

rowjit_status rowjit_copy_to_host(const rowjit_engine* engine, void* destination, const void* source, size_t bytes) {
    return guarded([&] { required(engine, "engine").engine.device().copy_to_host(destination, source, bytes); });
}

rowjit_status rowjit_stream_create(const rowjit_engine* engine, void** stream) {
    return guarded([&] {
        required(stream, "stream") = nullptr;
        *stream = required(engine, "engine").engine.device().create_stream();
    });
}

rowjit_status rowjit_stream_destroy(const rowjit_engine* engine, void* stream) {
    return guarded([&] { required(engine, "engine").engine.device().destroy_stream(stream); });
}

rowjit_status rowjit_synchronize(const rowjit_engine* engine, void* stream) {
    return guarded([&] { required(engine, "engine").engine.device().synchronize(stream); });
}

rowjit_status rowjit_graph_parse(const char* text, const char* source_name, rowjit_graph** graph) {
    return guarded([&] {
        required(graph, "graph") = nullptr;
        *graph =
            new rowjit_graph(Graph::parse(&required(text, "text"), source_name == nullptr ? "<text>" : source_name));
    });
}

rowjit_status rowjit_graph_of_op(const rowjit_op_request* request, rowjit_graph** graph) {
    return guarded([&] {
        required(graph, "graph") = nullptr;
        const auto given = read_struct(required(request, "request"), "rowjit_op_request");
        OpRequest wanted;
        if (given.columns != 0) wanted.columns = given.columns;
        if (given.dtype != nullptr) wanted.dtype = parse_dtype(given.dtype);
        for (const rowjit_option& option : list(given.options, given.option_count, "rowjit_op_request.options"))
            wanted.options[&required(option.name, "option.name")] = &required(option.value, "option.value");
        *graph = new rowjit_graph(make_graph(&required(given.op, "rowjit_op_request.op"), wanted));
    });
}

void rowjit_graph_destroy(rowjit_graph* graph) { delete graph; }

rowjit_status rowjit_ops(char* buffer, size_t capacity, size_t* length) {
    return guarded([&] { write_text(operations(), buffer, capacity, length); });
}

rowjit_status rowjit_graph_text(const rowjit_graph* graph, char* buffer, size_t capacity, size_t* length) {
    return guarded([&] { write_text(required(graph, "graph").graph.print(), buffer, capacity, length); });
}

rowjit_status rowjit_graph_digest(const rowjit_graph* graph, char* buffer, size_t capacity, size_t* length) {
    return guarded([&] { write_text(sha256(required(graph, "graph").graph.print()).hex(), buffer, capacity, length); });
}

rowjit_status rowjit_differentiate(const rowjit_graph* graph, const rowjit_gradient_options* options,
                                   rowjit_graph** forward, rowjit_graph** backward) {
    return guarded([&] {
        required(forward, "forward") = nullptr;
        required(backward, "backward") = nullptr;
        GradientRequest request = read_gradient(options);
        Differentiated both = differentiate(required(graph, "graph").graph, std::move(request.inputs), request.options);
        auto made = std::make_unique<rowjit_graph>(std::move(both.forward));
        *backward = new rowjit_graph(std::move(both.backward));
        *forward = made.release();
    });
}

rowjit_status rowjit_gradient(const rowjit_graph* graph, const rowjit_gradient_options* options,
                              rowjit_graph** backward) {
    return guarded([&] {
        required(backward, "backward") = nullptr;
        GradientRequest request = read_gradient(options);
        *backward =
            new rowjit_graph(gradient(required(graph, "graph").graph, std::move(request.inputs), request.options));
    });
}

rowjit_status rowjit_graph_counts(const rowjit_graph* graph, rowjit_counts* counts) {
    return guarded([&] {
        const Signature& signature = required(graph, "graph").signature;
        rowjit_counts values{};
        values.inputs = signature.inputs;
        values.outputs = static_cast<std::int32_t>(signature.tensors.size()) - signature.inputs;
        values.scalars = static_cast<std::int32_t>(signature.scalars.size());
        values.row_axes = static_cast<std::int32_t>(signature.row_axes.size());
        write_struct(values, counts, "rowjit_counts");
    });
}

rowjit_status rowjit_graph_tensor(const rowjit_graph* graph, int32_t tensor, rowjit_tensor_info* info) {
    return guarded([&] {
        write_struct(at(required(graph, "graph").signature.tensors, tensor, "tensor"), info, "rowjit_tensor_info");
    });
}

rowjit_status rowjit_graph_scalar(const rowjit_graph* graph, int32_t scalar, rowjit_scalar_info* info) {
    return guarded([&] {
        write_struct(at(required(graph, "graph").signature.scalars, scalar, "scalar"), info, "rowjit_scalar_info");
    });
}

rowjit_status rowjit_graph_row_axis(const rowjit_graph* graph, int32_t axis, const char** name) {
    return guarded([&] {
        required(name, "name") = nullptr;
        *name = at(required(graph, "graph").signature.row_axes, axis, "run-time row axis");
    });
}

rowjit_status rowjit_graph_find_tensor(const rowjit_graph* graph, const char* name, int32_t* tensor) {
    return guarded([&] {
        required(tensor, "tensor") = -1;
        const std::vector<rowjit_tensor_info>& tensors = required(graph, "graph").signature.tensors;
        std::string known;
        for (const rowjit_tensor_info& info : tensors) {
            if (info.name == std::string_view(&required(name, "name"))) {
                *tensor = static_cast<std::int32_t>(&info - tensors.data());
                return;
            }
            known += known.empty() ? "" : ", ";
            known += info.name;
        }
        fail(ErrorCode::kInvalidArgument, "no input or output '{}'; this graph has {}", name, known);
    });
}

rowjit_status rowjit_graph_least_bytes(const rowjit_graph* graph, const rowjit_row_extent* rows, size_t row_count,
                                       int64_t* bytes) {
    return guarded([&] {
        required(bytes, "bytes") = 0;
        *bytes = least_bytes(*required(graph, "graph").graph.data(), read_rows(rows, row_count));
    });
}

rowjit_status rowjit_compile(rowjit_engine* engine, const rowjit_graph* graph, void* stream,
                             rowjit_executable** executable) {
    return guarded([&] {
        required(executable, "executable") = nullptr;
        *executable = new rowjit_executable{std::make_shared<Compiled>(
            compile_graph(required(engine, "engine").engine, required(graph, "graph").graph, stream))};
    });
}

rowjit_status rowjit_compile_chunked(rowjit_engine* engine, const rowjit_graph* graph,
                                     const rowjit_chunk_options* options, void* stream,
                                     rowjit_executable** executable) {
    return guarded([&] {
        required(executable, "executable") = nullptr;
        const auto given = read_struct(required(options, "options"), "rowjit_chunk_options");
        const ChunkOptions chunks = {.workspace_limit_bytes = given.workspace_limit_bytes,
                                     .chunk_rows = given.chunk_rows,
                                     .low_memory = given.low_memory != 0,
                                     .part_columns = given.part_columns,
                                     .round_each_chunk = given.round_each_chunk != 0};
        *executable = new rowjit_executable{std::make_shared<Compiled>(
            compile_graph(required(engine, "engine").engine, required(graph, "graph").graph, stream, chunks))};
    });
}

void rowjit_executable_destroy(rowjit_executable* executable) { delete executable; }

rowjit_status rowjit_executable_info(const rowjit_executable* executable, char* buffer, size_t capacity,
                                     size_t* length) {
    return guarded([&] { write_text(required(executable, "executable").compiled->info, buffer, capacity, length); });
}

rowjit_status rowjit_tune(rowjit_engine* engine, const rowjit_graph* graph, const rowjit_tune_options* options) {
    return guarded([&] {
        const auto given = read_struct(required(options, "options"), "rowjit_tune_options");
        TuneOptions chosen{.force = given.force != 0};
        if (given.max_candidates > 0) chosen.max_candidates = given.max_candidates;
        tune(required(engine, "engine").engine, *required(graph, "graph").graph.data(),
             read_rows(given.rows, given.row_count), chosen);
    });
}

rowjit_status rowjit_arguments_create(const rowjit_executable* executable, rowjit_arguments** arguments) {
    return guarded([&] {
        required(arguments, "arguments") = nullptr;
        *arguments = new rowjit_arguments(required(executable, "executable").compiled);
    });
}

void rowjit_arguments_destroy(rowjit_arguments* arguments) { delete arguments; }

rowjit_status rowjit_arguments_set_tensor(rowjit_arguments* arguments, int32_t tensor, const rowjit_tensor* value) {
    return guarded([&] {
        set_tensor(required(arguments, "arguments"), tensor, read_struct(required(value, "value"), "rowjit_tensor"));
    });
}

rowjit_status rowjit_arguments_set_dlpack(rowjit_arguments* arguments, int32_t tensor, const void* dl_tensor) {
    return guarded([&] {
        rowjit_arguments& of = required(arguments, "arguments");
        const DlpackTensor& given = required(static_cast<const DlpackTensor*>(dl_tensor), "dl_tensor");
        set_tensor(of, tensor, from_dlpack(given, of.compiled->backend));
    });
}

rowjit_status rowjit_arguments_set_data(rowjit_arguments* arguments, int32_t tensor, void* data,
                                        const int64_t* row_strides, size_t row_stride_count) {
    return guarded([&] {
        rowjit_arguments& of = required(arguments, "arguments");
        at(of.shapes, tensor, "tensor");
        of.arguments.tensor(tensor, data, list(row_strides, row_stride_count, "row_strides"));
        of.shapes[static_cast<std::size_t>(tensor)].clear();
    });
}

rowjit_status rowjit_arguments_set_rows(rowjit_arguments* arguments, const char* axis, int64_t extent) {
    return guarded([&] {
        rowjit_arguments& of = required(arguments, "arguments");
        of.arguments.rows(&required(axis, "axis"), extent);
        const std::vector<const char*>& axes = of.compiled->signature.row_axes;
        for (std::size_t i = 0; i < axes.size(); ++i) {
            if (axes[i] == std::string_view(axis)) of.extents[i] = extent;
        }
    });
}

rowjit_status rowjit_arguments_set_scalar(rowjit_arguments* arguments, const char* name, double value) {
    return guarded([&] { required(arguments, "arguments").arguments.scalar(&required(name, "name"), value); });
}

rowjit_status rowjit_arguments_workspace_bytes(const rowjit_arguments* arguments, size_t* bytes) {
    return guarded([&] {
        required(bytes, "bytes") = 0;
        const rowjit_arguments& of = required(arguments, "arguments");
        *bytes = of.compiled->executable.workspace_bytes(of.arguments);
    });
}

rowjit_status rowjit_arguments_set_workspace(rowjit_arguments* arguments, void* block, size_t bytes) {
    return guarded([&] { required(arguments, "arguments").arguments.workspace(block, bytes); });
}

rowjit_status rowjit_launch(const rowjit_arguments* arguments, void* stream) {
    if (arguments == nullptr) return keep_failure(ROWJIT_INVALID_ARGUMENT, "arguments is NULL");
    if (const rowjit_tensor_info* const odd = odd_tensor(*arguments)) {
        return guarded([&] {
            fail(ErrorCode::kInvalidArgument,
                 "tensor '{}' has other row extents than the tensors set after it; set every tensor for this launch",
                 odd->name);
        });
    }
    const Status status = arguments->compiled->executable.launch(stream, arguments->arguments);
    return status.ok() ? ROWJIT_OK : keep_failure(status_of(status.code()), status.message());
}

}  // extern "C"
