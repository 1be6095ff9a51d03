// What the tests of devices share: a stub driver put in a vendor's place for the length of a test.
#pragma once

#include <string>

#include "base/dynamic_library.h"
#include "compiler/toolchain/artifact.h"
#include "tests/cache/fixture.h"
#include "tests/runtime/stub_driver.h"

namespace rowjit {

// No driver of either vendor, whatever this machine has.
struct WithoutDrivers {
    ScopedVariable cuda{"ROWJIT_CUDA_DRIVER", "/nonexistent/libcuda.so.1"};
    ScopedVariable hip{"ROWJIT_HIP_DRIVER", "/nonexistent/libamdhip64.so"};
};

// A stub library in the place of one vendor's driver and nothing in the other's; fresh for each test.
class StubbedDriver {
  public:
    StubbedDriver(const char* variable, const char* library)
        : variable_(variable, library), library_(std::move(*DynamicLibrary::open(library))) {
        StubDriver* (*find)() = nullptr;
        library_.find("stub_driver", find);
        state_ = find();
        reset();
    }

    StubAnswers* operator->() { return &state_->answers; }

    // The calls since the last take, one a line.
    std::string take_calls() {
        std::string text;
        for (const std::string& call : state_->calls) text += call + "\n";
        state_->calls.clear();
        return text;
    }

  private:
    // The library stays loaded from test to test, and its state with it.
    void reset() {
        state_->calls.clear();
        state_->answers = {};
    }

    WithoutDrivers none_;
    ScopedVariable variable_;
    DynamicLibrary library_;
    StubDriver* state_ = nullptr;
};

// The stubs take the binary for text.
inline Artifact stub_artifact(const std::string& target) {
    Artifact artifact;
    artifact.target = target;
    artifact.format = "cubin";
    artifact.binary = "image";
    artifact.toolchain = "nvrtc 13.0";
    artifact.functions.resize(1);
    artifact.functions[0].name = "norm";
    return artifact;
}

}  // namespace rowjit
