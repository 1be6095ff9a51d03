// The exceptions of rowjit: Error, and below it classes that are Python's own kinds as well, so that `except
// ValueError` finds what it should.
#include <array>
#include <exception>
#include <new>

#include "python/core/object.h"
#include "rowjit/error.h"
#include "runtime/c_call.h"

namespace rowjit::python {
namespace {

struct ErrorKind {
    rowjit_status status;
    const char* name;
    PyObject** also;  // the exception of Python's that it is besides
};

const std::array kKinds = {
    ErrorKind{ROWJIT_INVALID_GRAPH, "rowjit.InvalidGraph", &PyExc_ValueError},
    ErrorKind{ROWJIT_INVALID_ARGUMENT, "rowjit.InvalidArgument", &PyExc_ValueError},
    ErrorKind{ROWJIT_PARSE, "rowjit.ParseError", &PyExc_ValueError},
    ErrorKind{ROWJIT_UNSUPPORTED, "rowjit.Unsupported", &PyExc_NotImplementedError},
};

// They live as long as the process, as the types of a module do.
PyObject* error_class = nullptr;
std::array<PyObject*, kKinds.size()> kind_classes{};

PyObject* class_of(rowjit_status status) {
    if (status == ROWJIT_OUT_OF_MEMORY) return PyExc_MemoryError;
    for (std::size_t i = 0; i < kKinds.size(); ++i) {
        if (kKinds[i].status == status) return kind_classes[i];
    }
    return error_class;
}

void set_error(rowjit_status status, const char* message) {
    PyObject* const kind = class_of(status);
    const Owned raised(PyObject_CallFunction(kind, "s", message));
    if (!raised) return;
    const Owned code = text(rowjit_status_name(status));
    if (PyObject_SetAttrString(raised.get(), "code", code.get()) == 0) PyErr_SetObject(kind, raised.get());
}

void add(PyObject* module, const char* name, PyObject* object) { checked(PyModule_AddObjectRef(module, name, object)); }

}  // namespace

void check(rowjit_status status) {
    if (status == ROWJIT_OK) return;
    set_error(status, rowjit_last_error());
    throw PythonError();
}

void set_python_error() noexcept {
    try {
        throw;
    } catch (const PythonError&) {
        return;  // who threw it has set Python's
    } catch (const Error& error) {
        set_error(status_of(error.code()), error.what());
    } catch (const std::bad_alloc&) {
        PyErr_NoMemory();
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_SystemError, error.what());
    }
}

Owned text(const char* utf8) { return checked(PyUnicode_FromString(utf8)); }

std::string to_string(PyObject* object) {
    Py_ssize_t length = 0;
    const char* const utf8 = PyUnicode_AsUTF8AndSize(object, &length);
    if (utf8 == nullptr) throw PythonError();
    return {utf8, static_cast<std::size_t>(length)};
}

std::int64_t to_integer(PyObject* object) {
    const std::int64_t value = PyLong_AsLongLong(object);
    if (value == -1 && PyErr_Occurred() != nullptr) throw PythonError();
    return value;
}

Py_ssize_t size(PyObject* tuple) {
    const Py_ssize_t count = PyTuple_Size(tuple);
    if (count < 0) throw PythonError();
    return count;
}

PyObject* item(PyObject* tuple, Py_ssize_t index) {
    PyObject* const element = PyTuple_GetItem(tuple, index);
    if (element == nullptr) throw PythonError();
    return element;
}

void add_errors(PyObject* module) {
    error_class = checked(PyErr_NewExceptionWithDoc(
                              "rowjit.Error",
                              "What a user or a machine can cause; `code` names the kind, the message what to do.",
                              PyExc_RuntimeError, nullptr))
                      .release();
    const Owned internal = text("internal");
    checked(PyObject_SetAttrString(error_class, "code", internal.get()));
    add(module, "Error", error_class);
    for (std::size_t i = 0; i < kKinds.size(); ++i) {
        const Owned bases = checked(PyTuple_Pack(2, error_class, *kKinds[i].also));
        kind_classes[i] = checked(PyErr_NewException(kKinds[i].name, bases.get(), nullptr)).release();
        add(module, kKinds[i].name + sizeof("rowjit.") - 1, kind_classes[i]);
    }
}

}  // namespace rowjit::python
