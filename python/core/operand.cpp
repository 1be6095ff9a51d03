#include "python/core/operand.h"

#include <algorithm>
#include <cstdint>

namespace rowjit::python {
namespace {

// The exchange of a tensor's type, or null. Types are looked up once: the last few are remembered, with a reference
// that keeps a type from being freed and its address from being used again.
const DlpackExchange* exchange_of(PyTypeObject* type) {
    struct Known {
        PyTypeObject* type = nullptr;
        const DlpackExchange* exchange = nullptr;
    };
    static std::array<Known, 16> known;
    static std::size_t next = 0;
    for (const Known& entry : known) {
        if (entry.type == type) return entry.exchange;
    }
    const DlpackExchange* exchange = nullptr;
    const Owned capsule(PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__"));
    if (capsule && PyCapsule_IsValid(capsule.get(), "dlpack_exchange_api") != 0) {
        exchange = static_cast<const DlpackExchange*>(PyCapsule_GetPointer(capsule.get(), "dlpack_exchange_api"));
        while (exchange != nullptr && exchange->version.major != kDlpackMajor) exchange = exchange->previous;
        if (exchange != nullptr && exchange->describe == nullptr) exchange = nullptr;
    }
    PyErr_Clear();  // a type without the attribute
    Known& entry = known[next++ % known.size()];
    Py_XDECREF(reinterpret_cast<PyObject*>(entry.type));
    Py_INCREF(reinterpret_cast<PyObject*>(type));
    entry = {type, exchange};
    return exchange;
}

// The library's message may go on with a trace of its own.
[[noreturn]] void refuse(const char* name) {
    PyObject* type = nullptr;
    PyObject* value = nullptr;
    PyObject* trace = nullptr;
    PyErr_Fetch(&type, &value, &trace);
    const Owned kept[] = {Owned(type), Owned(value), Owned(trace)};
    const Owned message = checked(PyObject_Str(value == nullptr ? Py_None : value));
    const std::string said = to_string(message.get());
    raise(PyExc_TypeError,
          std::string(name) + " has no memory that a kernel could read: " + said.substr(0, said.find('\n')));
}

// A capsule of the newest form that the object gives.
Owned ask_for_capsule(PyObject* object, const char* name) {
    const Owned method(PyObject_GetAttrString(object, "__dlpack__"));
    if (!method) {
        PyErr_Clear();
        const Owned type = checked(PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(object)), "__name__"));
        raise(PyExc_TypeError, std::string(name) + " is a " + to_string(type.get()) +
                                   "; give a tensor that has __dlpack__, as torch's, numpy's and JAX's have");
    }
    const Owned none_given = checked(PyTuple_New(0));
    const Owned keywords = checked(Py_BuildValue("{s:(ii)}", "max_version", 1, 0));
    Owned capsule(PyObject_Call(method.get(), none_given.get(), keywords.get()));
    if (capsule) return capsule;
    if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) throw PythonError();
    PyErr_Clear();  // a library from before version 1 knows no keyword
    return checked(PyObject_CallNoArgs(method.get()));
}

}  // namespace

void Operand::borrow(PyObject* object, const char* name) {
    object_ = object;
    exchange_ = exchange_of(Py_TYPE(object));
    if (exchange_ == nullptr) {
        borrow_capsule(object, name);
    } else if (exchange_->describe(object, &tensor_) != 0) {
        refuse(name);
    }
    if (tensor_.dimensions > ROWJIT_MAX_AXES) {
        raise(PyExc_ValueError, std::string(name) + " has " + std::to_string(tensor_.dimensions) +
                                    " dimensions; kernels have at most " + std::to_string(ROWJIT_MAX_AXES));
    }
    // Of memory that holds nothing a library may say any strides, and takes it for contiguous.
    const bool is_empty =
        std::find(tensor_.shape, tensor_.shape + tensor_.dimensions, 0) != tensor_.shape + tensor_.dimensions;
    if (tensor_.strides != nullptr && !is_empty) return;
    std::int64_t stride = 1;
    for (int i = tensor_.dimensions; i-- > 0; stride *= tensor_.shape[i])
        strides_[static_cast<std::size_t>(i)] = stride;
    tensor_.strides = strides_.data();
}

// The capsule is not consumed: it frees the tensor when this operand goes, and the kernel has been queued by then, on
// the stream that the library works on.
void Operand::borrow_capsule(PyObject* object, const char* name) {
    capsule_ = ask_for_capsule(object, name);
    if (PyCapsule_IsValid(capsule_.get(), "dltensor_versioned") != 0) {
        const auto* const managed =
            static_cast<const DlpackManagedVersioned*>(PyCapsule_GetPointer(capsule_.get(), "dltensor_versioned"));
        tensor_ = managed->tensor;
        return;
    }
    const auto* const managed = static_cast<const DlpackManaged*>(PyCapsule_GetPointer(capsule_.get(), "dltensor"));
    if (managed == nullptr) throw PythonError();
    tensor_ = managed->tensor;
}

void Operand::take(Owned copied, const char* name) {
    copy_ = std::move(copied);
    borrow(copy_.get(), name);
}

void Operand::make_contiguous(const char* name) {
    Owned copied(PyObject_CallMethod(object_, "contiguous", nullptr));
    if (!copied) {
        PyErr_Clear();
        raise(PyExc_ValueError, std::string(name) + " is not contiguous, and its library offers no contiguous()");
    }
    take(std::move(copied), name);
}

void Operand::copy(const char* name) {
    Owned copied(PyObject_CallMethod(object_, "clone", nullptr));
    if (!copied) {
        PyErr_Clear();
        copied = checked(PyObject_CallMethod(object_, "copy", nullptr));
    }
    take(std::move(copied), name);
    if (copy_) make_contiguous(name);
}

}  // namespace rowjit::python
