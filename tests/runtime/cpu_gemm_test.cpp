// Products on the CPU, by whichever libraries are there; CTest runs these again with none.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "base/dtype.h"
#include "runtime/cpu/thread_pool.h"
#include "runtime/gemm/cpu.h"
#include "tests/runtime/products.h"

using namespace rowjit;

namespace {

// What multiply() of tests/runtime/products.h must give, in double.
std::vector<std::byte> expected(const GemmType& type, const GemmShape& shape, bool add) {
    const auto left = filled(type.left, (type.left_transposed ? shape.k : shape.m) * shape.left_stride, 1);
    const auto right = filled(type.right, (type.right_transposed ? shape.n : shape.k) * shape.right_stride, 2);
    auto result = filled(type.result, shape.m * shape.result_stride, 3);
    const auto widened = [](Dtype dtype, const std::vector<std::byte>& matrix, bool transposed, std::int64_t stride,
                            std::int64_t rows, std::int64_t columns) {
        std::vector<double> values;
        for (std::int64_t row = 0; row < rows; ++row) {
            for (std::int64_t column = 0; column < columns; ++column) {
                const std::int64_t at = transposed ? column * stride + row : row * stride + column;
                values.push_back(load_element(dtype, matrix.data() + static_cast<std::size_t>(at) * size_bytes(dtype)));
            }
        }
        return values;
    };
    const auto a = widened(type.left, left, type.left_transposed, shape.left_stride, shape.m, shape.k);
    const auto b = widened(type.right, right, type.right_transposed, shape.right_stride, shape.k, shape.n);
    std::vector<double> sums(static_cast<std::size_t>(shape.n));
    for (std::int64_t m = 0; m < shape.m; ++m) {
        std::byte* row = result.data() + static_cast<std::size_t>(m * shape.result_stride) * size_bytes(type.result);
        for (std::size_t n = 0; n < sums.size(); ++n)
            sums[n] = add ? load_element(type.result, row + n * size_bytes(type.result)) : 0;
        for (std::int64_t k = 0; k < shape.k; ++k) {
            const double factor = a[static_cast<std::size_t>(m * shape.k + k)];
            for (std::size_t n = 0; n < sums.size(); ++n)
                sums[n] += factor * b[static_cast<std::size_t>(k * shape.n) + n];
        }
        for (std::size_t n = 0; n < sums.size(); ++n)
            store_element(type.result, row + n * size_bytes(type.result), sums[n]);
    }
    return result;
}

CpuWorkers workers_of(ThreadPool& pool) {
    const auto run = [](void* context, std::int64_t count, RangeBody body, void* body_context) {
        static_cast<ThreadPool*>(context)->run(count, body, body_context);
    };
    return {{run, &pool}, pool.threads()};
}

GemmShape shape_of(const GemmType& type, std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t padding) {
    return {m, n, k, (type.left_transposed ? m : k) + padding, (type.right_transposed ? k : n) + padding, n + padding};
}

}  // namespace

TEST_CASE("a product is exact sums rounded once, for every layout and dtype, with padding between rows") {
    ThreadPool pool(3);
    for (const Dtype dtype : {bf16, f16, f32, f64}) {
        for (const Dtype result : {bf16, f16, f32, f64}) {
            if ((dtype == f64) != (result == f64)) continue;
            for (int turned = 0; turned < 8; ++turned) {
                const GemmType type{dtype, dtype, result, (turned & 1) != 0, (turned & 2) != 0};
                const bool add = (turned & 4) != 0;
                const auto gemm = make_cpu_gemm(type, workers_of(pool));
                INFO(name(dtype), " ", name(result), " ", turned);
                for (const GemmShape& shape :
                     {shape_of(type, 1, 1, 1, 0), shape_of(type, 5, 7, 9, 4), shape_of(type, 130, 257, 33, 1)}) {
                    CHECK(multiply(*gemm, type, shape, add) == expected(type, shape, add));
                }
            }
        }
    }
}

TEST_CASE("a product of more than one block of each side is exact") {
    ThreadPool pool(2);
    for (const auto& [left, right, result] : {std::tuple(bf16, bf16, bf16), std::tuple(bf16, bf16, f32),
                                              std::tuple(f32, bf16, bf16), std::tuple(f32, f32, f16)}) {
        const GemmType type{left, right, result, true, false};
        const GemmShape shape = shape_of(type, 530, 1040, 1050, 2);
        CHECK(multiply(*make_cpu_gemm(type, workers_of(pool)), type, shape, true) == expected(type, shape, true));
    }
}

// Operands whose sums depend on their order.
TEST_CASE("the number of workers does not change a bit of a product of bf16") {
    const GemmType type{bf16, bf16, f32};
    for (const GemmShape& shape : {shape_of(type, 40, 90, 3000, 0), shape_of(type, 700, 600, 500, 0)}) {
        std::vector<std::uint16_t> left;
        std::vector<std::uint16_t> right;
        for (std::int64_t i = 0; i < shape.m * shape.k; ++i) left.push_back(f32_to_bf16(std::sin(float(i))));
        for (std::int64_t i = 0; i < shape.k * shape.n; ++i) right.push_back(f32_to_bf16(std::cos(float(i))));
        std::vector<float> first;
        for (const int threads : {1, 2, 5}) {
            ThreadPool pool(threads);
            const auto gemm = make_cpu_gemm(type, workers_of(pool));
            // What was in the result is gone, a NaN too.
            std::vector<float> result(static_cast<std::size_t>(shape.m * shape.n),
                                      std::numeric_limits<float>::quiet_NaN());
            Workspace workspace(gemm->workspace_bytes(shape));
            REQUIRE(gemm->queue(shape, {left.data(), right.data(), result.data(), false, workspace.data()}, nullptr) ==
                    nullptr);
            if (first.empty()) first = result;
            CHECK(std::memcmp(first.data(), result.data(), result.size() * sizeof(float)) == 0);
            CHECK(std::isfinite(result.front()));
        }
    }
}

TEST_CASE("a product says what is wrong with its workspace") {
    const GemmType type{bf16, bf16, bf16};
    const GemmShape shape = shape_of(type, 5, 7, 9, 0);
    const auto gemm = make_cpu_gemm(type);
    REQUIRE(gemm->workspace_bytes(shape) > 0);
    Workspace workspace(gemm->workspace_bytes(shape) + kGemmWorkspaceAlignment);
    const auto matrix = filled(bf16, 100, 1);
    auto result = filled(bf16, 100, 1);
    const char* refused =
        gemm->queue(shape, {matrix.data(), matrix.data(), result.data(), false, workspace.data() + 64}, nullptr);
    REQUIRE(refused != nullptr);
    CHECK(std::string(refused) == "its workspace is not aligned to 256 bytes");
}

TEST_CASE("of the libraries that multiply on the CPU each is found, or said what is missing and how to get it") {
    const std::vector<CpuGemmLibrary> libraries = cpu_gemm_libraries();
    REQUIRE(libraries.size() == 2);
    for (const CpuGemmLibrary& library : libraries) {
        INFO(library.what);
        CHECK(library.found == library.what.starts_with("/"));
        CHECK((library.found || library.what.find("; install ") != std::string::npos));
    }
}
