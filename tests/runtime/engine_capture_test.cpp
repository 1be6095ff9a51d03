// The engine while the caller's stream is being captured, against a stub driver: a kernel that is not loaded yet is
// refused, one that is loaded is not. The kernels are real, so these cases need a toolchain for sm_90a.
#include <doctest/doctest.h>

#include <sstream>

#include "dsl/graph.h"
#include "dsl/library/registry.h"
#include "rowjit/gradient.h"
#include "tests/runtime/stub_lt.h"
#include "tests/runtime/stubbed_engine.h"

using namespace rowjit;

namespace {

constexpr std::uintptr_t kStream = 7;

Graph doubled() {
    Graph g;
    g.output("y", g.input("x", f32, {g.rows("t"), 64}) * 2.0);
    return g;
}

// Of pairs, whose chunks have copies, products and kernels.
Graph preference_step() {
    const OptionMap options = {{"hidden", "64"}, {"reference_width", "64"}};
    const Graph loss = make_graph("fused_linear_dpo", {.columns = 512, .dtype = bf16, .options = options});
    return gradient(loss, {"hidden", "weight"}, {.joint = true, .unit_cotangent = true});
}

// Each tensor at an address of its own, which nothing reads.
void place_tensors(const GraphData& graph, Arguments* arguments) {
    std::uintptr_t address = std::uintptr_t{1} << 32;
    const auto next = [&] {
        return reinterpret_cast<void*>(address += std::uintptr_t{1} << 24);  // NOLINT(performance-no-int-to-ptr)
    };
    for (NodeId id = 0; id < graph.size(); ++id) {
        if (graph.node(id).kind == NodeKind::kInput) arguments->tensor(graph.node(id).name, next());
    }
    for (const OutputInfo& output : graph.outputs()) arguments->tensor(output.name, next());
    arguments->workspace(next(), std::size_t{1} << 24);
}

Stream stream() { return reinterpret_cast<Stream>(kStream); }  // NOLINT(performance-no-int-to-ptr): a stub's handle

}  // namespace

TEST_CASE("a kernel that is not loaded is refused while the caller's stream is being captured") {
    StubbedEngine on;
    if (!on.can_compile()) return;
    Engine engine = StubbedEngine::engine();
    on.stub->capture_status = 1;
    try {
        engine.compile(doubled(), stream());
        FAIL("compiled");
    } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::kLaunch);
        CHECK_MESSAGE(std::string(error.what()).find("before the capture begins") != std::string::npos, error.what());
    }
    const std::string calls = on.stub.take_calls();
    CHECK(calls.find("cuStreamIsCapturing 7\n") != std::string::npos);
    CHECK(calls.find("cuLibraryLoadData") == std::string::npos);
}

TEST_CASE("a graph compiled before the capture is ready during it, and asks the driver nothing") {
    StubbedEngine on;
    if (!on.can_compile()) return;
    Engine engine = StubbedEngine::engine();
    engine.compile(doubled(), stream());
    on.stub->capture_status = 1;
    on.stub.take_calls();
    CHECK(engine.compile(doubled(), stream()).kernel_count() == 1);
    CHECK(on.stub.take_calls().empty());
}

TEST_CASE("after a capture that refused it, a kernel loads, without being compiled again") {
    StubbedEngine on;
    if (!on.can_compile()) return;
    Engine engine = StubbedEngine::engine();
    on.stub->capture_status = 1;
    CHECK_THROWS_AS(engine.compile(doubled(), stream()), Error);
    on.stub->capture_status = 0;
    CHECK(engine.compile(doubled(), stream()).kernel_count() == 1);
    CHECK(engine.statistics().compiled == 1);
}

TEST_CASE("during a capture a program of chunks queues kernels and products on the caller's stream, and nothing else") {
    StubbedEngine on;
    if (!on.can_compile()) return;
    const ScopedVariable variable("ROWJIT_CUBLASLT", ROWJIT_STUB_CUBLASLT);
    const DynamicLibrary library = std::move(*DynamicLibrary::open(ROWJIT_STUB_CUBLASLT));
    StubLt* (*lt)() = nullptr;
    library.find("stub_lt", lt);
    lt()->computes = false;
    Engine engine = StubbedEngine::engine();
    const Graph step = preference_step();
    const Executable executable = engine.compile(step, stream(), {.chunk_rows = 1});
    Arguments arguments = executable.arguments();
    arguments.rows("tokens", 3);
    place_tensors(*step.data(), &arguments);
    on.stub->capture_status = 1;
    on.stub.take_calls();
    lt()->products.clear();
    executable.launch(stream(), arguments).or_throw();
    CHECK(lt()->products.size() == 3 * 4);
    for (const StubProduct& product : lt()->products) CHECK(product.stream == stream());
    std::istringstream calls(on.stub.take_calls());
    int launches = 0;
    for (std::string call; std::getline(calls, call);) {
        CAPTURE(call);
        const bool is_launch = call.starts_with("cuLaunchKernel");
        CHECK((is_launch || call.starts_with("cuCtxSetCurrent")));
        if (!is_launch) continue;
        // Before the first argument; of a launch that overlaps, before its one attribute too.
        const std::string_view before = std::string_view(call).substr(0, call.rfind(' '));
        CHECK((before.ends_with(" 7") || (call.starts_with("cuLaunchKernelEx") && before.ends_with(" 7 1 6 1"))));
        ++launches;
    }
    CHECK(launches > 3 * 4);
}
