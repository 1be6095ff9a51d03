// rowjit._core.Engine and Executable: compiling, which lets other threads of Python run.
#include <vector>

#include "python/core/object.h"

namespace rowjit::python {
namespace {

struct EngineHandle {
    rowjit_engine* handle = nullptr;
    ~EngineHandle() { rowjit_engine_destroy(handle); }
};

struct ExecutableHandle {
    rowjit_executable* handle = nullptr;
    ~ExecutableHandle() { rowjit_executable_destroy(handle); }
};

PyTypeObject* executable_type = nullptr;

// `work` gives a status, and touches nothing of Python's. The message of a failure belongs to the thread, which is the
// same before and after.
template <class Work>
void check_without_lock(const Work& work) {
    PyThreadState* const state = PyEval_SaveThread();
    const rowjit_status status = work();
    PyEval_RestoreThread(state);
    check(status);
}

PyObject* make_engine(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
    return guarded([&] {
        static const char* names[] = {"device", "cache_directory", "ignore_tuning", nullptr};
        const char* device = nullptr;
        const char* cache_directory = nullptr;
        int ignore_tuning = 0;
        if (PyArg_ParseTupleAndKeywords(arguments, keywords, "|zzp:Engine", const_cast<char**>(names), &device,
                                        &cache_directory, &ignore_tuning) == 0)
            throw PythonError();
        const rowjit_engine_options options = {sizeof options, device, cache_directory, ignore_tuning, 0};
        auto made = std::make_unique<EngineHandle>();
        check_without_lock([&] { return rowjit_engine_create(&options, &made->handle); });
        return hold(type, std::move(made));
    });
}

PyObject* engine_info(PyObject* self, PyObject*) {
    return guarded([&] {
        return written([&](char* buffer, std::size_t capacity, std::size_t* length) {
            return rowjit_engine_info(held<EngineHandle>(self).handle, buffer, capacity, length);
        });
    });
}

PyObject* compile(PyObject* self, PyObject* arguments) {
    return guarded([&] {
        PyObject* graph = nullptr;
        unsigned long long stream = 0;
        int low_memory = 0;
        if (PyArg_ParseTuple(arguments, "O|Kp:compile", &graph, &stream, &low_memory) == 0) throw PythonError();
        rowjit_graph* const of = graph_handle(graph);
        rowjit_executable* made = nullptr;
        check_without_lock([&] {
            const rowjit_chunk_options chunks = {sizeof chunks, 0, 0, 0, low_memory, 0};
            return rowjit_compile_chunked(held<EngineHandle>(self).handle, of, &chunks, reinterpret_cast<void*>(stream),
                                          &made);
        });
        return make_executable(made);
    });
}

PyObject* tune(PyObject* self, PyObject* arguments) {
    return guarded([&] {
        PyObject* graph = nullptr;
        PyObject* rows = nullptr;
        int max_candidates = 0;
        int force = 0;
        if (PyArg_ParseTuple(arguments, "OO!|ip:tune", &graph, &PyDict_Type, &rows, &max_candidates, &force) == 0)
            throw PythonError();
        rowjit_graph* const of = graph_handle(graph);
        std::vector<std::string> names;
        std::vector<rowjit_row_extent> extents;
        PyObject* key = nullptr;
        PyObject* value = nullptr;
        Py_ssize_t position = 0;
        while (PyDict_Next(rows, &position, &key, &value) != 0) {
            names.push_back(to_string(key));
            extents.push_back({nullptr, to_integer(value)});
        }
        for (std::size_t i = 0; i < names.size(); ++i) extents[i].axis = names[i].c_str();
        const rowjit_tune_options options = {sizeof options, extents.data(), extents.size(), max_candidates, force};
        check_without_lock([&] { return rowjit_tune(held<EngineHandle>(self).handle, of, &options); });
        return none();
    });
}

PyObject* executable_info(PyObject* self, PyObject*) {
    return guarded([&] {
        return written([&](char* buffer, std::size_t capacity, std::size_t* length) {
            return rowjit_executable_info(held<ExecutableHandle>(self).handle, buffer, capacity, length);
        });
    });
}

PyMethodDef engine_methods[] = {
    {"info", engine_info, METH_NOARGS, "info(): JSON of the device and of what was compiled so far"},
    {"compile", compile, METH_VARARGS, "compile(graph, stream=0, low_memory=False): memory, disk, else a compiler"},
    {"tune", tune, METH_VARARGS,
     "tune(graph, rows, max_candidates=0, force=False): measure schedules for these row extents and keep the best"},
    {nullptr, nullptr, 0, nullptr}};

PyMethodDef executable_methods[] = {
    {"info", executable_info, METH_NOARGS, "info(): JSON of the kernels, their schedules and the planner's notes"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

rowjit_executable* executable_handle(PyObject* object) {
    if (PyObject_TypeCheck(object, executable_type) == 0) raise(PyExc_TypeError, "an executable is wanted here");
    return held<ExecutableHandle>(object).handle;
}

Owned make_executable(rowjit_executable* handle) {
    return hold(executable_type, std::unique_ptr<ExecutableHandle>(new ExecutableHandle{handle}));
}

void add_engine(PyObject* module) {
    static PyType_Slot engine_slots[] = {
        {Py_tp_doc, const_cast<char*>("Engine(device=None, cache_directory=None, ignore_tuning=False)")},
        {Py_tp_new, reinterpret_cast<void*>(make_engine)},
        {Py_tp_methods, engine_methods},
        {Py_tp_dealloc, reinterpret_cast<void*>(free_held<EngineHandle>)},
        {0, nullptr}};
    static PyType_Spec engine_spec = {"rowjit._core.Engine", sizeof(Held<EngineHandle>), 0, Py_TPFLAGS_DEFAULT,
                                      engine_slots};
    const Owned engine_type = checked(PyType_FromSpec(&engine_spec));
    checked(PyModule_AddObjectRef(module, "Engine", engine_type.get()));

    static PyType_Slot slots[] = {{Py_tp_doc, const_cast<char*>("A compiled graph.")},
                                  {Py_tp_methods, executable_methods},
                                  {Py_tp_dealloc, reinterpret_cast<void*>(free_held<ExecutableHandle>)},
                                  {0, nullptr}};
    static PyType_Spec spec = {"rowjit._core.Executable", sizeof(Held<ExecutableHandle>), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
    executable_type = reinterpret_cast<PyTypeObject*>(checked(PyType_FromSpec(&spec)).release());
    checked(PyModule_AddObjectRef(module, "Executable", reinterpret_cast<PyObject*>(executable_type)));
}

}  // namespace rowjit::python
