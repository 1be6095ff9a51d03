// DLPack's exchange in C between extensions, read from its layout as runtime/c_dlpack.h reads tensors: the standard is
// https://dmlc.github.io/dlpack/latest/c_api.html, and no distribution has a header as new.
#pragma once

#include "runtime/c_dlpack.h"

namespace rowjit::python {

struct DlpackVersion {
    std::uint32_t major;
    std::uint32_t minor;
};

// Behind a capsule "dltensor".
struct DlpackManaged {
    DlpackTensor tensor;
    void* context;
    void (*deleter)(DlpackManaged* self);
};

// Behind a capsule "dltensor_versioned".
struct DlpackManagedVersioned {
    DlpackVersion version;
    void* context;
    void (*deleter)(DlpackManagedVersioned* self);
    std::uint64_t flags;
    DlpackTensor tensor;
};

// Behind the capsule "dlpack_exchange_api" that a tensor's type has as __dlpack_c_exchange_api__: functions that
// describe a tensor without an object of its own, and give the stream that its library works on.
struct DlpackExchange {
    DlpackVersion version;
    DlpackExchange* previous;
    void* allocate;
    void* from_object;
    void* to_object;
    int (*describe)(void* object, DlpackTensor* tensor);  // may be null; -1: an exception is set
    int (*current_stream)(std::int32_t device_type, std::int32_t device_id, void** stream);
};

constexpr std::uint32_t kDlpackMajor = 1;
constexpr std::int32_t kDlpackCpu = 1;

}  // namespace rowjit::python
