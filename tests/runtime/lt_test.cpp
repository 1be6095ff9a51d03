// Products through a vendor's matrix library, by stub libraries that record and compute them.
#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "base/dtype.h"
#include "runtime/gemm/cpu.h"
#include "runtime/gemm/lt.h"
#include "tests/runtime/device_fixture.h"
#include "tests/runtime/products.h"
#include "tests/runtime/stub_lt.h"
#include "tests/support/refusal.h"

using namespace rowjit;

namespace {

// A stub library in the place of one vendor's; fresh for each test.
class StubbedLt {
  public:
    explicit StubbedLt(Backend backend)
        : variable_(backend == Backend::kCuda ? "ROWJIT_CUBLASLT" : "ROWJIT_HIPBLASLT", file(backend)),
          library_(std::move(*DynamicLibrary::open(file(backend)))) {
        StubLt* (*find)() = nullptr;
        library_.find("stub_lt", find);
        state_ = find();
        state_->products.clear();
        state_->multiply_status = 0;
        state_->computes = true;
        state_->least_side = 0;
        state_->only_exact = false;
        state_->reduction_schemes = 0;
        state_->searches = 0;
        state_->proposals = {{}};
        opened_ = *open_lt(backend);
    }

    StubLt* operator->() { return state_; }
    const std::shared_ptr<const LtLibrary>& library() const { return opened_; }

  private:
    static const char* file(Backend backend) {
        return backend == Backend::kCuda ? ROWJIT_STUB_CUBLASLT : ROWJIT_STUB_HIPBLASLT;
    }

    ScopedVariable variable_;
    DynamicLibrary library_;
    StubLt* state_ = nullptr;
    std::shared_ptr<const LtLibrary> opened_;
};

// For products that are recorded alone.
const GemmCall& somewhere() {
    alignas(kGemmWorkspaceAlignment) static std::byte block[kGemmWorkspaceAlignment];
    static const GemmCall call = {block, block, block, false, block};
    return call;
}

constexpr GemmShape kShape = {5, 7, 9, 11, 13, 10};

}  // namespace

TEST_CASE("a product through a vendor's library is the CPU's, for every layout, with padding between rows") {
    for (const Backend backend : {Backend::kCuda, Backend::kHip}) {
        StubbedLt stub(backend);
        for (const Dtype dtype : {bf16, f16, f32}) {
            for (const Dtype result : {dtype, f32}) {
                for (int turned = 0; turned < 8; ++turned) {
                    GemmType type{dtype, dtype, result, (turned & 1) != 0, (turned & 2) != 0};
                    const auto gemm = make_lt_gemm(stub.library(), type, kShape);
                    const bool add = (turned & 4) != 0;
                    CHECK(multiply(*gemm, type, kShape, add) == multiply(*make_cpu_gemm(type), type, kShape, add));
                }
            }
        }
    }
}

TEST_CASE("the library is told how far addresses and strides are aligned, and to add no parts in a narrow dtype") {
    StubbedLt stub(Backend::kCuda);
    GemmType type{bf16, bf16, f32};
    type.left_alignment_bytes = 2;
    type.right_alignment_bytes = 16;
    type.result_alignment_bytes = 4;
    make_lt_gemm(stub.library(), type, kShape);
    CHECK(stub->alignments == std::vector<std::uint32_t>{16, 2, 4, 4});  // its a is our right operand
    CHECK(stub->reduction_schemes == 2);
}

TEST_CASE(
    "a side that comes at launch takes the algorithm of the next power of two, and no algorithm is looked for then") {
    StubbedLt stub(Backend::kCuda);
    stub->computes = false;
    const GemmType type{bf16, bf16, bf16, false, true};
    const auto gemm = make_lt_gemm(stub.library(), type, {0, 256, 64});
    for (const std::int64_t rows : {1, 2, 3, 100, 128, 129}) {
        CHECK(gemm->queue({rows, 256, 64, 64, 64, 256}, somewhere(), nullptr) == nullptr);
        std::uint64_t power = 1;
        while (power < static_cast<std::uint64_t>(rows)) power *= 2;
        CHECK(stub->products.back().algorithm == power * 256 * 64);
        CHECK(stub->products.back().d_columns == static_cast<std::uint64_t>(rows));
        CHECK(stub->products.back().workspace_bytes == stub->proposals[0].workspace_bytes);
    }
}

TEST_CASE("a shape without an algorithm takes that of the nearest larger one") {
    StubbedLt stub(Backend::kCuda);
    stub->computes = false;
    stub->least_side = 16;
    const GemmType type{bf16, bf16, bf16, false, true};
    const auto gemm = make_lt_gemm(stub.library(), type, {0, 256, 64});
    CHECK(gemm->queue({3, 256, 64, 64, 64, 256}, somewhere(), nullptr) == nullptr);
    CHECK(stub->products.back().algorithm == 16 * 256 * 64);
}

TEST_CASE("a product of many tiles takes the smallest that a library proposes, where that takes no more workspace") {
    const auto chosen = [](Backend backend, const GemmType& type, std::vector<StubProposal> proposals) {
        StubbedLt stub(backend);
        stub->computes = false;
        stub->proposals = std::move(proposals);
        const auto gemm = make_lt_gemm(stub.library(), type, kShape);
        CHECK(gemm->queue(kShape, somewhere(), nullptr) == nullptr);
        return stub->products.back().proposal;
    };
    const GemmType type = {bf16, bf16, f32};
    const GemmType first = {bf16, bf16, f32, false, false, 1, 1, 1, true};
    const std::vector<StubProposal> many = {{72, 0}, {66, 0}, {115, 4}, {98, 0}};
    CHECK(chosen(Backend::kCuda, type, many) == 2);
    CHECK(chosen(Backend::kCuda, first, many) == 0);
    CHECK(chosen(Backend::kHip, type, many) == 0);
    CHECK(chosen(Backend::kCuda, type, {{72, 0}, {115, 1 << 20}, {98, 0}}) == 2);
    CHECK(chosen(Backend::kCuda, type, {{0.97F, 0}, {1.94F, 0}}) == 0);
}

TEST_CASE("a library without any algorithm, and dtypes that it does not pair, are refused by name") {
    StubbedLt stub(Backend::kCuda);
    const auto make = [&](const GemmType& type) { make_lt_gemm(stub.library(), type, kShape); };
    CHECK(refusal(ErrorCode::kUnsupported, [&] { make({bf16, f32, f32}); }).find("cast one operand") !=
          std::string::npos);
    CHECK(refusal(ErrorCode::kUnsupported, [&] { make({bf16, bf16, f16}); }).find("cast the result") !=
          std::string::npos);
    stub->least_side = 1000;
    CHECK(refusal(ErrorCode::kEnvironment, [&] { make({bf16, bf16, bf16}); }).find("no algorithm multiplies bf16") !=
          std::string::npos);
}

TEST_CASE("a product that its algorithm is refused for gets one of its own, which is remembered") {
    for (const Backend backend : {Backend::kCuda, Backend::kHip}) {
        StubbedLt stub(backend);
        stub->computes = false;
        const GemmType type{bf16, bf16, bf16, false, true};
        const auto gemm = make_lt_gemm(stub.library(), type, {0, 256, 64});
        stub->only_exact = true;
        stub->searches = 0;
        const GemmShape shape = {100, 256, 64, 64, 64, 256};
        for (int launch = 0; launch < 3; ++launch) CHECK(gemm->queue(shape, somewhere(), nullptr) == nullptr);
        CHECK(stub->searches == 1);
        CHECK(stub->products.size() == 4);
        CHECK(stub->products.back().algorithm == 100 * 256 * 64);
        CHECK(stub->products.back().workspace_bytes == stub->proposals[0].workspace_bytes);
    }
}

TEST_CASE("an address less aligned than was promised gets another algorithm") {
    StubbedLt stub(Backend::kCuda);
    stub->computes = false;
    GemmType type{bf16, bf16, f32};
    type.left_alignment_bytes = 16;
    const auto gemm = make_lt_gemm(stub.library(), type, {5, 8, 16});
    GemmCall call = somewhere();
    call.left = static_cast<const std::byte*>(call.left) + 2;
    CHECK(gemm->queue({5, 8, 16, 16, 8, 8}, call, nullptr) == nullptr);
    CHECK(stub->alignments == std::vector<std::uint32_t>{16, 2, 32, 32});  // of 8 bf16, the address, and 8 f32
}

TEST_CASE("what the library refuses at a launch is said with every number, without an exception") {
    StubbedLt stub(Backend::kHip);
    const auto gemm = make_lt_gemm(stub.library(), {f32, f32, f32}, kShape);
    stub->multiply_status = 13;
    const std::string text = gemm->queue(kShape, somewhere(), nullptr);
    CHECK(text.find("the execution failed (status 13, 1 algorithms tried): m 5, n 7, k 9; left f32 stride 11 aligned "
                    "to 4 (promised 1); right f32 stride 13 aligned to 4 (promised 1); result f32 stride 10 aligned "
                    "to 8 (promised 1); workspace of 4096 bytes at 0x") == 0);
    CHECK(text.find("typical m 5, n 7, k 9") != std::string::npos);
    CHECK(text.find("stub_hipblaslt") != std::string::npos);
}

TEST_CASE("a workspace that is not aligned to 256 bytes is refused") {
    StubbedLt stub(Backend::kCuda);
    const auto gemm = make_lt_gemm(stub.library(), {f32, f32, f32}, kShape);
    GemmCall call = somewhere();
    call.workspace = static_cast<std::byte*>(call.workspace) + 64;
    CHECK(std::string(gemm->queue(kShape, call, nullptr)).find("an invalid value (status 7, 2 algorithms tried)") == 0);
}

TEST_CASE("a missing library declines with what was looked for and the variable that names another") {
    const ScopedVariable variable("ROWJIT_CUBLASLT", "/nonexistent/libcublasLt.so.13");
    const auto opened = open_lt(Backend::kCuda);
    REQUIRE(!opened);
    CHECK(opened.reason().find("/nonexistent/libcublasLt.so.13") != std::string::npos);
    CHECK(opened.reason().find("ROWJIT_CUBLASLT") != std::string::npos);
}
