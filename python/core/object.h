// Python objects in C++: references that are released, failures that become exceptions of Python. The extension is
// built for the limited API of 3.11, so one binary serves that version and all later ones.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "rowjit/rowjit_c.h"

namespace rowjit::python {

// A reference that this side owns, or none.
class Owned {
  public:
    Owned() = default;
    explicit Owned(PyObject* object) : object_(object) {}
    Owned(Owned&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
    Owned& operator=(Owned&& other) noexcept {
        std::swap(object_, other.object_);
        return *this;
    }
    Owned(const Owned&) = delete;
    Owned& operator=(const Owned&) = delete;
    ~Owned() { Py_XDECREF(object_); }

    static Owned of_borrowed(PyObject* object) {
        Py_XINCREF(object);
        return Owned(object);
    }
    PyObject* get() const { return object_; }
    PyObject* release() { return std::exchange(object_, nullptr); }
    explicit operator bool() const { return object_ != nullptr; }

  private:
    PyObject* object_ = nullptr;
};

// Thrown where Python's error indicator is set.
struct PythonError {};

// The same for the result of a call of Python's: a new reference, or the exception it left.
inline Owned checked(PyObject* object) {
    if (object == nullptr) throw PythonError();
    return Owned(object);
}
inline void checked(int result) {
    if (result < 0) throw PythonError();
}

[[noreturn]] inline void raise(PyObject* kind, const std::string& message) {
    PyErr_SetString(kind, message.c_str());
    throw PythonError();
}

// Raises rowjit.Error, or the subclass that fits, for a status that is not ROWJIT_OK.
void check(rowjit_status status);

// Python's exception for whatever C++ exception is in flight. To be called in a catch clause.
void set_python_error() noexcept;

// Runs `work`, a function that gives an Owned, as the body of a function that Python calls.
template <class Work>
PyObject* guarded(const Work& work) noexcept try {
    return work().release();
} catch (...) {
    set_python_error();
    return nullptr;
}

inline Owned none() { return Owned::of_borrowed(Py_None); }
Owned text(const char* utf8);
std::string to_string(PyObject* object);            // raises TypeError
std::int64_t to_integer(PyObject* object);          // raises
PyObject* item(PyObject* tuple, Py_ssize_t index);  // borrowed; raises
Py_ssize_t size(PyObject* tuple);                   // raises

// The whole of a text that the C ABI writes as snprintf does.
template <class Write>
Owned written(const Write& write) {
    std::size_t length = 0;
    check(write(nullptr, 0, &length));
    std::string buffer(length + 1, '\0');
    check(write(buffer.data(), buffer.size(), &length));
    return text(buffer.c_str());
}

// Each adds its types to the module.
void add_errors(PyObject* module);
void add_graph(PyObject* module);
void add_engine(PyObject* module);
void add_kernel(PyObject* module);
void add_program(PyObject* module);

// The handles behind objects of those types; raise TypeError for others.
rowjit_graph* graph_handle(PyObject* object);
rowjit_executable* executable_handle(PyObject* object);
Owned make_graph(rowjit_graph* handle);
Owned make_executable(rowjit_executable* handle);

// A type of the extension whose instances hold a T, made by `make`, or by nobody but the extension where that is null.
template <class T>
struct Held {
    PyObject_HEAD T* value;
};

template <class T>
void free_held(PyObject* self) {
    PyTypeObject* const type = Py_TYPE(self);
    delete reinterpret_cast<Held<T>*>(self)->value;
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

template <class T>
T& held(PyObject* self) {
    return *reinterpret_cast<Held<T>*>(self)->value;
}

// A new instance of `type` that owns `value`.
template <class T>
Owned hold(PyTypeObject* type, std::unique_ptr<T> value) {
    const auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
    Owned self = checked(allocate(type, 0));
    reinterpret_cast<Held<T>*>(self.get())->value = value.release();
    return self;
}

}  // namespace rowjit::python
