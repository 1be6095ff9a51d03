// DLPack's tensor, read from its layout: the distributions' headers are older than version 1, and the layout is the
// standard (https://dmlc.github.io/dlpack/latest/c_api.html).
#pragma once

#include <cstdint>

#include "base/target.h"
#include "rowjit/rowjit_c.h"

namespace rowjit {

struct DlpackDevice {
    std::int32_t type;
    std::int32_t id;
};

struct DlpackDtype {
    std::uint8_t code;
    std::uint8_t bits;
    std::uint16_t lanes;
};

struct DlpackTensor {
    void* data;
    DlpackDevice device;
    std::int32_t dimensions;
    DlpackDtype dtype;
    const std::int64_t* shape;
    const std::int64_t* strides;  // in elements; null: contiguous
    std::uint64_t byte_offset;
};

// The same tensor in our words; shape and strides stay its own. Throws Error(kInvalidArgument) for a dtype that we have
// not and for memory that kernels of `backend` cannot reach.
rowjit_tensor from_dlpack(const DlpackTensor& tensor, Backend backend);

}  // namespace rowjit
