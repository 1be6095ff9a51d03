#include "tools/job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <system_error>

#include "base/fail.h"
#include "dsl/library/registry.h"
#include "dsl/traffic.h"
#include "tools/file.h"
#include "tools/model_suite.h"

namespace rowjit {
namespace {

void add_model(const std::string& path, std::vector<Job>* jobs) {
    for (const SuiteEntry& entry : model_suite(read_text(path, "model configuration"), path)) {
        jobs->push_back({entry.name, entry.op, std::string(name(entry.request.dtype)),
                         make_graph(entry.op, entry.request), entry.count_per_step, entry.rows_per_token});
    }
}

// What models have, by what an op's columns are; the most common one first.
struct UsualWidths {
    std::string_view columns;  // CompositeInfo::columns
    std::vector<std::int64_t> widths;
};

std::vector<std::int64_t> usual_widths(const CompositeInfo& op) {
    static const std::vector<UsualWidths> rows = {
        {"hidden size", {4096, 1024, 8192, 16384}},
        {"intermediate size", {14336, 4096, 28672}},
        {"head width", {128, 64}},
        {"classes", {4096, 128, 32768, 131072}},
        {"vocabulary", {128256, 32000}},
    };
    for (const UsualWidths& row : rows) {
        if (row.columns == op.columns) return row.widths;
    }
    return {4096};
}

bool asks_for_all(const JobOptions& options) { return options.ops == std::vector<std::string>{"all"}; }

void add_ops(const JobOptions& options, std::vector<Job>* jobs) {
    const bool all = asks_for_all(options);
    const std::vector<std::string> ops = chosen_ops(options);
    const OptionMap values = chosen_options(options, ops.size());
    const std::vector<std::string> dtypes = options.dtypes.empty() ? std::vector<std::string>{"bf16"} : options.dtypes;
    for (const std::string& op : ops) {
        std::vector<std::int64_t> columns = options.columns;
        if (columns.empty()) columns = usual_widths(find_composite(op));
        if (options.columns.empty() && !all) columns.resize(1);
        for (const std::int64_t width : columns) {
            for (const std::string& dtype : dtypes) jobs->push_back(op_job(op, {width, parse_dtype(dtype), values}));
        }
    }
}

std::string first_output_dtype(const Graph& graph) {
    const GraphData& data = *graph.data();
    if (data.outputs().empty()) return "";
    return std::string(name(data.node(data.outputs().front().node).dtype));
}

// None: every float input.
std::vector<std::string> differentiated_inputs(const Job& job) {
    return job.op == "graph" ? std::vector<std::string>{} : trained_inputs(job.op, job.graph);
}

// "tokens=4096" each.
RowExtents chosen_rows(const std::vector<std::string>& words) {
    RowExtents rows;
    for (const std::string& word : words) {
        const std::size_t equals = word.find('=');
        const char* const end = word.data() + word.size();
        std::int64_t count = 0;
        const auto [last, error] = equals == std::string::npos
                                       ? std::from_chars_result{end, std::errc::invalid_argument}
                                       : std::from_chars(word.data() + equals + 1, end, count);
        if (equals == 0 || error != std::errc() || last != end || count <= 0) {
            fail(ErrorCode::kInvalidArgument,
                 "--rows '{}' gives no axis a positive whole number of rows; write it as tokens=4096", word);
        }
        if (!rows.emplace(word.substr(0, equals), count).second)
            fail(ErrorCode::kInvalidArgument, "--rows gives '{}' twice; leave out one", word.substr(0, equals));
    }
    return rows;
}

// An axis that a launch gives no extent for, or that the graph does not have.
[[noreturn]] void refuse_rows(const std::string& job, const GraphData& graph, const std::string& wanted) {
    std::vector<std::string> given;
    std::string what = "is none of its row axes";
    for (const AxisInfo& axis : graph.axes()) {
        if (axis.is_given()) given.push_back(axis.name);
        if (axis.name != wanted) continue;
        if (!axis.is_row) {
            what = fmt::format("is {} columns", axis.extent);
        } else if (!axis.follows.empty()) {
            what = fmt::format("has as many rows as {} and {} more", graph.label_of_product(axis.follows), axis.more);
        } else {
            what = fmt::format("always has {} rows", axis.extent);
        }
    }
    fail(ErrorCode::kInvalidArgument, "--rows '{}': in '{}' it {}; {}", wanted, job, what,
         given.empty() ? "a launch gives none of its row axes: leave out --rows"
                       : fmt::format("give {}", fmt::join(given, " or ")));
}

void take_rows(const RowExtents& rows, Job* job) {
    RowExtents taken = all_rows(*job->graph.data(), 0);
    if (job->differentiated) taken.merge(all_rows(*job->differentiated->forward.data(), 0));
    for (const auto& [name, count] : rows) {
        if (!taken.contains(name)) refuse_rows(job->name, *job->graph.data(), name);
    }
    job->rows = rows;
}

RowExtents rows_of(const GraphData& graph, std::int64_t extent, const RowExtents& named) {
    RowExtents rows = all_rows(graph, extent);
    for (auto& [name, count] : rows) {
        if (const auto found = named.find(name); found != named.end()) count = found->second;
    }
    return rows;
}

}  // namespace

std::vector<Job> make_jobs(const JobOptions& options) {
    std::vector<Job> jobs;
    if (!options.model.empty()) add_model(options.model, &jobs);
    if (!options.graph.empty()) {
        Graph graph = Graph::parse(read_text(options.graph, "graph"), options.graph);
        jobs.push_back({options.graph, "graph", first_output_dtype(graph), std::move(graph), 1});
    }
    if (!options.ops.empty()) add_ops(options, &jobs);
    if (jobs.empty()) fail(ErrorCode::kInvalidArgument, "nothing to do: give --model, --graph or --op");
    require_one_pass(options);
    if (options.backward || options.joint) {
        std::erase_if(jobs, [](const Job& job) { return !has_backward(job); });
        if (jobs.empty()) fail(ErrorCode::kInvalidArgument, "none of the operations has a backward");
        for (Job& job : jobs) options.joint ? make_joint(&job) : make_backward(&job);
    }
    const RowExtents rows = chosen_rows(options.rows);
    for (Job& job : jobs) take_rows(rows, &job);
    return jobs;
}

std::vector<std::string> chosen_ops(const JobOptions& options) {
    if (!asks_for_all(options)) return options.ops;
    std::vector<std::string> ops;
    for (const CompositeInfo& row : composites()) ops.emplace_back(row.name);
    return ops;
}

OptionMap chosen_options(const JobOptions& options, std::size_t ops) {
    OptionMap chosen;
    for (const std::string& word : options.options) {
        const std::size_t equals = word.find('=');
        if (equals == std::string::npos || equals == 0) {
            fail(ErrorCode::kInvalidArgument, "--option '{}' names no value; write it as name=value", word);
        }
        chosen[word.substr(0, equals)] = word.substr(equals + 1);
    }
    if (!chosen.empty() && ops > 1)
        fail(ErrorCode::kInvalidArgument, "--option is given for {} ops; give one --op with it", ops);
    return chosen;
}

void require_one_pass(const JobOptions& options) {
    if (options.backward && options.joint)
        fail(ErrorCode::kInvalidArgument, "--backward and --joint are of the same graphs; give one of them");
}

Job op_job(const std::string& op, const OpRequest& request) {
    const std::string dtype(name(request.dtype));
    return {fmt::format("{} {} {}", op, request.columns, dtype), op, dtype, make_graph(op, request)};
}

bool has_backward(const Job& job) { return job.op == "graph" || !trained_inputs(job.op, job.graph).empty(); }

void make_backward(Job* job) {
    const std::vector<std::string> inputs = differentiated_inputs(*job);
    job->differentiated = differentiate(job->graph, inputs);
    job->graph = job->differentiated->backward;
    job->name += " backward";
    job->op += " backward";
}

void make_joint(Job* job) {
    const std::vector<std::string> inputs = differentiated_inputs(*job);
    job->graph = gradient(job->graph, inputs, {.joint = true, .unit_cotangent = true});
    job->name += " joint";
    job->op += " joint";
}

RowExtents bounded_rows(const Job& job, std::int64_t tokens, std::int64_t max_bytes) {
    const GraphData& graph = *job.graph.data();
    const auto bytes = [&](std::int64_t extent) { return least_bytes(graph, rows_of(graph, extent, job.rows)); };
    // What is taken from must have room too: a vocabulary of which tokens take a part, and the sequences of which each
    // one's last row is.
    constexpr std::int64_t kMostHeld = 8;
    const auto fits = [&](std::int64_t extent) {
        const std::int64_t held = held_bytes(graph, rows_of(graph, extent, job.rows));
        return bytes(extent) <= max_bytes && held / kMostHeld <= max_bytes;
    };
    std::int64_t extent = tokens;
    while (extent > 1 && !fits(extent)) extent = (extent + 1) / 2;
    if (!job.rows.empty() && bytes(extent) > max_bytes) {
        fail(ErrorCode::kInvalidArgument,
             "{}: with these --rows a launch moves {} bytes or more, and may move {}; give fewer rows or a larger "
             "--max-bytes",
             job.name, bytes(extent), max_bytes);
    }
    return rows_of(graph, extent, job.rows);
}

Bindings job_inputs(const Job& job, std::int64_t extent, const RowExtents& named, const RandomOptions& options) {
    RowExtents rows = rows_of(*job.graph.data(), extent, named);
    if (!job.differentiated) return random_inputs(*job.graph.data(), rows, options);
    rows.merge(rows_of(*job.differentiated->forward.data(), extent, named));
    return random_inputs(*job.differentiated, rows, options);
}

std::string shape_text(const GraphData& graph, const RowExtents& rows) {
    std::vector<std::int64_t> widest;
    const auto consider = [&](const Node& node) {
        std::vector<std::int64_t> extents;
        for (const AxisId axis : node.axes) extents.push_back(extent_of(graph, axis, rows));
        if (element_count(extents) > element_count(widest) || widest.empty()) widest = extents;
    };
    for (NodeId id = 0; id < graph.size(); ++id) {
        if (graph.node(id).kind == NodeKind::kInput) consider(graph.node(id));
    }
    for (const OutputInfo& output : graph.outputs()) consider(graph.node(output.node));
    return fmt::format("{}", fmt::join(widest, "x"));
}

}  // namespace rowjit
