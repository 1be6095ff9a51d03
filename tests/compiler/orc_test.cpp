// Compiling for named CPU levels, loading from bytes, and the text that keys the cache.
#include <doctest/doctest.h>

#include <thread>

#include "rowjit/error.h"
#include "tests/compiler/cpu_kernel.h"

namespace rowjit {
namespace {

// y = x · factor
Kernel scale_kernel(const std::string& name, double factor) {
    KernelWriter w(name, 100, 16);
    const int x = w.tensor("x", Dtype::kF32, {w.rows(), w.columns()});
    const int y = w.tensor("y", Dtype::kF32, {w.rows(), w.columns()}, true);
    w.open_loop();
    w.store(y, w.map(Op::kMul, {w.load(x), w.constant(Dtype::kF32, factor)}));
    w.close_loop();
    return w.kernel();
}

float run_scale(CpuCode& code, const std::string& name, float value) {
    std::vector<float> x(100, value);
    std::vector<float> y(100, 0);
    std::int64_t rows = 1;
    std::int64_t stride = 100;
    void* x_pointer = x.data();
    void* y_pointer = y.data();
    void* arguments[] = {&rows, &x_pointer, &stride, &y_pointer, &stride};
    reinterpret_cast<CpuFunction>(code.symbol(name))(arguments, 0, 1);
    for (const float element : y) {
        if (element != y[0]) return -1;
    }
    return y[0];
}

}  // namespace

TEST_CASE("an object's bytes, copied elsewhere, load and run without compiling") {
    const Artifact compiled = compile_cpu(scale_kernel("scale", 3), host_cpu_target());
    CHECK(compiled.format == "object");
    REQUIRE(compiled.functions.size() == 1);
    CHECK(compiled.functions[0].name == "scale");
    Artifact restored;
    restored.target = compiled.target;
    restored.format = compiled.format;
    restored.binary = std::string(compiled.binary.begin(), compiled.binary.end());
    restored.functions = compiled.functions;
    const auto code = load_cpu_object(restored);
    CHECK(run_scale(*code, "scale", 2) == 6);
    CHECK(code->symbol("absent") == nullptr);
}

TEST_CASE("every named x86-64 level compiles, and the older ones run here") {
    for (const std::string level : {"x86-64-v2", "x86-64-v3", "x86-64-v4"}) {
        const Artifact artifact = compile_cpu(scale_kernel("scale", 0.5), find_target(level));
        CHECK(artifact.target == level);
        if (level == "x86-64-v4") continue;
        CHECK(run_scale(*load_cpu_object(artifact), "scale", 2) == 1);
    }
    const Kernel kernel = scale_kernel("scale", 0.5);
    CHECK(print_assembly(kernel, find_target("x86-64-v4")).find("zmm") != std::string::npos);
    CHECK(print_assembly(kernel, find_target("x86-64-v3")).find("zmm") == std::string::npos);
    CHECK(print_assembly(kernel, find_target("x86-64-v2")).find("ymm") == std::string::npos);
}

TEST_CASE("eight threads compile and load at once") {
    std::vector<float> results(8);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < results.size(); ++i) {
        threads.emplace_back([&results, i] {
            const std::string name = "scale_" + std::to_string(i);
            const auto code =
                load_cpu_object(compile_cpu(scale_kernel(name, static_cast<double>(i)), host_cpu_target()));
            results[i] = run_scale(*code, name, 2);
        });
    }
    for (std::thread& thread : threads) thread.join();
    for (std::size_t i = 0; i < results.size(); ++i) CHECK(results[i] == 2 * static_cast<float>(i));
}

TEST_CASE("two objects with one entry point's name do not meet") {
    const auto doubled = load_cpu_object(compile_cpu(scale_kernel("scale", 2), host_cpu_target()));
    const auto tripled = load_cpu_object(compile_cpu(scale_kernel("scale", 3), host_cpu_target()));
    CHECK(run_scale(*doubled, "scale", 1) == 2);
    CHECK(run_scale(*tripled, "scale", 1) == 3);
}

TEST_CASE("the key text tells kernels, CPUs and features apart, and repeats itself") {
    const Kernel kernel = scale_kernel("scale", 2);
    const Target host = host_cpu_target();
    const std::string text = cpu_key_text(kernel, host);
    CHECK(text == cpu_key_text(kernel, host_cpu_target()));
    CHECK(text == cpu_key_text(kernel, find_target("native")));
    CHECK(text.find(host.label) != std::string::npos);
    CHECK(text.find(cpu_toolchain_version()) != std::string::npos);
    CHECK(text != cpu_key_text(scale_kernel("scale", 3), host));
    CHECK(cpu_key_text(kernel, find_target("x86-64-v3")) != cpu_key_text(kernel, find_target("x86-64-v4")));
    Target fewer = host;
    fewer.cpu_features += ",-avx512f";
    CHECK(text != cpu_key_text(kernel, fewer));
}

TEST_CASE("the host's features are LLVM's, and named") {
    const Target host = host_cpu_target();
    CHECK(host.backend == Backend::kCpu);
    CHECK(host.name == "native");
    CHECK(host.cpu_features.find("+sse2") != std::string::npos);
}

TEST_CASE("damaged bytes and foreign formats are refused with an error, not loaded") {
    Artifact artifact = compile_cpu(scale_kernel("scale", 2), host_cpu_target());
    Artifact cut = artifact;
    cut.binary.resize(cut.binary.size() / 2);
    CHECK_THROWS_AS(load_cpu_object(cut), Error);
    Artifact empty = artifact;
    empty.binary.clear();
    CHECK_THROWS_AS(load_cpu_object(empty), Error);
    Artifact absent = artifact;
    absent.functions[0].name = "other";
    CHECK_THROWS_AS(load_cpu_object(absent), Error);
    Artifact cubin = artifact;
    cubin.format = "cubin";
    CHECK_THROWS_AS(load_cpu_object(cubin), Error);
}

TEST_CASE("a GPU target is refused by name") {
    CHECK_THROWS_WITH_AS(compile_cpu(scale_kernel("scale", 2), find_target("sm_90a")),
                         "the CPU toolchain cannot compile for 'sm_90a'; use native or an x86-64 level", Error);
}

}  // namespace rowjit
