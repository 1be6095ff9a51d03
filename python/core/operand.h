// A tensor of any library as a kernel's operand: borrowed through DLPack, so that nothing is copied and, where the
// library has DLPack's exchange in C, no object is made.
#pragma once

#include <array>

#include "python/core/dlpack_exchange.h"
#include "python/core/object.h"

namespace rowjit::python {

class Operand {
  public:
    // `name` is for messages. Raises TypeError for what is no tensor.
    void borrow(PyObject* object, const char* name);

    // The same elements in contiguous memory, copied by the tensor's own library.
    void make_contiguous(const char* name);
    // The same, also where they are contiguous already: for memory that begins where no vector access may.
    void copy(const char* name);

    PyObject* object() const { return object_; }
    bool is_absent() const { return object_ == nullptr; }
    bool is_copy() const { return static_cast<bool>(copy_); }
    const DlpackTensor& tensor() const { return tensor_; }
    int dimensions() const { return tensor_.dimensions; }
    std::int64_t extent(int dimension) const { return tensor_.shape[dimension]; }
    std::int64_t stride(int dimension) const { return tensor_.strides[dimension]; }
    const DlpackExchange* exchange() const { return exchange_; }

  private:
    void borrow_capsule(PyObject* object, const char* name);
    void take(Owned copied, const char* name);

    PyObject* object_ = nullptr;  // the caller's, or copy_
    Owned copy_;
    Owned capsule_;
    const DlpackExchange* exchange_ = nullptr;
    DlpackTensor tensor_{};
    std::array<std::int64_t, ROWJIT_MAX_AXES> strides_;  // where the library leaves those of contiguous memory out
};

}  // namespace rowjit::python
