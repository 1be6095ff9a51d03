// What the tests of emitted source on the SIMT machine share: programs under schedules of the test's choice as cases,
// and running them against the oracle; and kernels whose text a test breaks on purpose.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/compile.h"
#include "dsl/library/registry.h"
#include "dsl/random_inputs.h"
#include "rowjit/gradient.h"
#include "rowjit/graph.h"
#include "tests/simt/simt_device.h"

namespace rowjit {

// One program to run: an operation at a width, with one schedule for its row kernel. A backward that reads what its
// forward saved has that forward.
struct Case {
    std::string name;
    Graph graph;
    Program program;
    std::shared_ptr<const Differentiated> differentiated = nullptr;
};

// A graph whose every schedule is a case.
struct Request {
    std::string_view op;
    OpRequest made;
    bool backward = false;
};

// An RMS norm's backward from its saved statistic, rounded as eager rounds, with the gradients of its weight and bias.
Graph norm_backward(std::int64_t columns, Dtype dtype);

// Every legal schedule of every kernel of the graph, one program each.
void add_cases(const std::string& name, const Graph& graph, const Target& target, std::vector<Case>* cases);

// The same of a derived backward.
void add_backward_cases(const std::string& name, const Graph& graph, const std::vector<std::string>& trained,
                        const Target& target, std::vector<Case>* cases);

void add_request(const Request& request, const Target& target, std::vector<Case>* cases);

Bindings inputs_of(const Case& one, const RowExtents& rows, const RandomOptions& options);
RowExtents extents_of(const Case& one, std::int64_t rows);

constexpr std::size_t kKernelsAtOnce = 24;  // per run of the compiler: its start costs as much as a few kernels

// Builds the cases, some at a time, and calls check(i, device, executable) for each.
template <typename Check>
void each_built(const std::vector<Case>& cases, const Target& target, const Check& check) {
    const Device device = simt::device(target);
    for (std::size_t first = 0; first < cases.size(); first += kKernelsAtOnce) {
        const std::size_t last = std::min(first + kKernelsAtOnce, cases.size());
        std::vector<Program> programs;
        for (std::size_t i = first; i < last; ++i) programs.push_back(cases[i].program);
        const std::vector<Executable> executables = simt::build(std::move(programs), target, device);
        for (std::size_t i = first; i < last; ++i) check(i, device, executables[i - first]);
    }
}

// `extremes`: huge values, infinities and NaN in every fourth case, of forwards. A sum over rows of both signs
// overflows, or not, by the order it is taken in.
void check_cases(const std::vector<Case>& cases, const Target& target, std::int64_t rows = 5, bool extremes = true);

// Runs one program whose emitted text was changed; the first fault or wrong output, or "" when nothing was noticed.
std::string outcome_of(const Graph& graph, const Schedule& schedule, const Target& target,
                       const simt::Sabotage& sabotage, std::int64_t rows = 7);

// Removes the last occurrence; the test is void when there is none.
std::string without(std::string text, std::string_view what);

// Replaces the first occurrence likewise.
simt::Sabotage replacing(const std::string& what, const std::string& with);

// The first kernel that reduces columns.
const Kernel& main_kernel(const Program& program);

// The case with its stages filled again by their loops where they were not, and the other way.
Case refilled(Case of);

// The case with the rows of its kernels in the other order, where they have one.
Case turned(Case of);

// Rows in the registers of 256 threads each.
Schedule block_schedule(int vector);

// The schedule for the kernel that reduces columns, which has to take it; the static rules' for others.
std::optional<Schedule> if_main(const Group& group, const Schedule& schedule, const Target& target,
                                const std::string& name);

}  // namespace rowjit
