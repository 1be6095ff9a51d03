// What a command works on: graphs, from a model's configuration, a .rj file or a named operation, each with the row
// counts that the bounds on the work allow.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dsl/library/registry.h"
#include "dsl/random_inputs.h"
#include "dsl/tensor.h"
#include "rowjit/chunk_options.h"
#include "rowjit/gradient.h"
#include "rowjit/graph.h"

namespace rowjit {

// Where the graphs come from and how large they may be, as the command line gives it.
struct JobOptions {
    std::string model;                  // a Hugging Face config.json
    std::string graph;                  // a .rj file
    std::vector<std::string> ops;       // names of `rowjit ops`; "all" alone is every one
    std::vector<std::int64_t> columns;  // empty: an op's usual width, and with "all" each of its usual widths
    std::vector<std::string> dtypes;    // empty: bf16
    std::vector<std::string> options;   // name=value, of the one op
    bool backward = false;              // of each graph its backward, with everything its forward saves given
    bool joint = false;                 // of each graph its outputs and, for cotangents of 1, its gradients in one pass
    ChunkOptions chunks = {};
    std::int64_t tokens = 0;             // rows; 0: the device's default
    std::vector<std::string> rows = {};  // name=count, of row axes that are not `tokens` long
    std::int64_t max_bytes = 0;          // moved by one launch; 0: the device's default
};

struct Job {
    std::string name;  // unique among the jobs of a command
    std::string op;
    std::string dtype;
    Graph graph;
    int per_step = 1;                 // launches of it in one training step's forward, for a model
    std::int64_t rows_per_token = 1;  // rows of a launch for each token: a norm of every head has one per head
    std::optional<Differentiated> differentiated = std::nullopt;  // where `graph` is the backward of it
    RowExtents rows = {};                                         // of the row axes that JobOptions::rows names
};

// Throws Error: kParse for a file that cannot be read, kUnsupported for an architecture that is not known, and what the
// registry throws for an op; kInvalidArgument for rows that one of the graphs does not have. At least one of model,
// graph and ops must be given.
std::vector<Job> make_jobs(const JobOptions& options);

// The names of `ops`, of which "all" alone is every one.
std::vector<std::string> chosen_ops(const JobOptions& options);

// "name=value" each. Throws Error(kInvalidArgument) for one without a value, and where they are given for many ops.
OptionMap chosen_options(const JobOptions& options, std::size_t ops);

// Throws Error(kInvalidArgument) where both the backward and the joint graph are asked for.
void require_one_pass(const JobOptions& options);

// The forward of an operation.
Job op_job(const std::string& op, const OpRequest& request);

// Whether training differentiates anything of it; then of the job its backward, or its outputs and gradients in one
// pass: of an op for what training differentiates, of a graph of one's own for every float input.
bool has_backward(const Job& job);
void make_backward(Job* job);
void make_joint(Job* job);

// Row extents for a launch of the job's graph: the named ones as they are given, every other run-time row axis at
// `tokens`, or fewer where the launch would move more than `max_bytes`. Throws Error(kInvalidArgument) where it would
// with a row of those too.
RowExtents bounded_rows(const Job& job, std::int64_t tokens, std::int64_t max_bytes);

// Inputs for a launch of the job's graph with every run-time row axis at `extent` but those that are `named`; those of
// a backward are what a training step's are.
Bindings job_inputs(const Job& job, std::int64_t extent, const RowExtents& named, const RandomOptions& options);

// "8192x4096": the extents of the widest input or output.
std::string shape_text(const GraphData& graph, const RowExtents& rows);

}  // namespace rowjit
