// rowjit._core: the C ABI as Python meets it, and the call that launches. Everything a user sees is in the modules
// above it, in Python.
#include "cache/directory.h"
#include "python/core/object.h"

namespace rowjit::python {
namespace {

PyObject* ops(PyObject*, PyObject*) {
    return guarded([] {
        return written([](char* buffer, std::size_t capacity, std::size_t* length) {
            return rowjit_ops(buffer, capacity, length);
        });
    });
}

PyObject* cache_directory(PyObject*, PyObject*) {
    return guarded([] { return text(default_cache_directory().c_str()); });
}

// Messages that belong to no call go to a function of (level, message), which any thread may call.
void log_to_python(void* function, const char* level, const char* message) {
    if (Py_IsInitialized() == 0) return;
    const PyGILState_STATE state = PyGILState_Ensure();
    const Owned result(PyObject_CallFunction(static_cast<PyObject*>(function), "ss", level, message));
    if (!result) PyErr_WriteUnraisable(static_cast<PyObject*>(function));
    PyGILState_Release(state);
}

// The function stays for the process: a message may be under way.
PyObject* set_log(PyObject*, PyObject* function) {
    return guarded([&] {
        Py_INCREF(function);
        check(function == Py_None ? rowjit_set_log(nullptr, nullptr) : rowjit_set_log(log_to_python, function));
        return none();
    });
}

PyMethodDef functions[] = {
    {"cache_directory", cache_directory, METH_NOARGS, "cache_directory(): the default one, \"\" for none"},
    {"ops", ops, METH_NOARGS, "ops(): the operations, JSON"},
    {"set_log", set_log, METH_O, "set_log(function or None): where messages go"},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "rowjit._core",
                          "rowjit's C interface in Python",
                          -1,
                          functions,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

}  // namespace
}  // namespace rowjit::python

PyMODINIT_FUNC PyInit__core(void) {
    using namespace rowjit::python;
    return guarded([] {
        Owned module = checked(PyModule_Create(&definition));
        checked(PyModule_AddStringConstant(module.get(), "__version__", rowjit_version()));
        add_errors(module.get());
        add_graph(module.get());
        add_engine(module.get());
        add_kernel(module.get());
        add_program(module.get());
        return module;
    });
}
