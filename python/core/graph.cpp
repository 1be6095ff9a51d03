// rowjit._core.Graph: a graph of the C ABI.
#include <vector>

#include "python/core/object.h"

namespace rowjit::python {
namespace {

struct GraphHandle {
    rowjit_graph* handle = nullptr;
    ~GraphHandle() { rowjit_graph_destroy(handle); }
};

PyTypeObject* graph_type = nullptr;

rowjit_counts counts_of(PyObject* self) {
    rowjit_counts counts{};
    counts.size = sizeof counts;
    check(rowjit_graph_counts(held<GraphHandle>(self).handle, &counts));
    return counts;
}

PyObject* parse(PyObject*, PyObject* arguments) {
    return guarded([&] {
        const char* source = nullptr;
        const char* name = nullptr;
        if (PyArg_ParseTuple(arguments, "s|z:parse", &source, &name) == 0) throw PythonError();
        rowjit_graph* graph = nullptr;
        check(rowjit_graph_parse(source, name, &graph));
        return make_graph(graph);
    });
}

// Strings of a dict of options, kept while the C ABI reads them.
struct Options {
    explicit Options(PyObject* dict) {
        PyObject* key = nullptr;
        PyObject* value = nullptr;
        Py_ssize_t position = 0;
        while (PyDict_Next(dict, &position, &key, &value) != 0) {
            texts.push_back(to_string(key));
            texts.push_back(to_string(value));
        }
        for (std::size_t i = 0; i < texts.size(); i += 2) list.push_back({texts[i].c_str(), texts[i + 1].c_str()});
    }
    std::vector<std::string> texts;
    std::vector<rowjit_option> list;
};

PyObject* of_op(PyObject*, PyObject* arguments) {
    return guarded([&] {
        const char* op = nullptr;
        long long columns = 0;
        const char* dtype = nullptr;
        PyObject* dict = nullptr;
        if (PyArg_ParseTuple(arguments, "sLsO!:of_op", &op, &columns, &dtype, &PyDict_Type, &dict) == 0)
            throw PythonError();
        const Options options(dict);
        const rowjit_op_request request = {sizeof request,     op, columns, dtype, options.list.data(),
                                           options.list.size()};
        rowjit_graph* graph = nullptr;
        check(rowjit_graph_of_op(&request, &graph));
        return make_graph(graph);
    });
}

// A tuple of names, kept while the C ABI reads them.
struct Names {
    explicit Names(PyObject* tuple) {
        for (Py_ssize_t i = 0; i < size(tuple); ++i) texts.push_back(to_string(item(tuple, i)));
        for (const std::string& name : texts) pointers.push_back(name.c_str());
    }
    rowjit_names list() const { return {pointers.data(), pointers.size()}; }
    std::vector<std::string> texts;
    std::vector<const char*> pointers;
};

PyObject* differentiate(PyObject* self, PyObject* arguments) {
    return guarded([&] {
        PyObject* tuples[5];
        if (PyArg_ParseTuple(arguments, "O!O!O!O!O!:differentiate", &PyTuple_Type, &tuples[0], &PyTuple_Type,
                             &tuples[1], &PyTuple_Type, &tuples[2], &PyTuple_Type, &tuples[3], &PyTuple_Type,
                             &tuples[4]) == 0)
            throw PythonError();
        const Names inputs(tuples[0]), outputs(tuples[1]), save(tuples[2]), in_place(tuples[3]), added(tuples[4]);
        rowjit_gradient_options options{};
        options.size = sizeof options;
        options.inputs = inputs.list();
        options.outputs = outputs.list();
        options.save = save.list();
        options.in_place = in_place.list();
        options.accumulate = added.list();
        rowjit_graph* forward = nullptr;
        rowjit_graph* backward = nullptr;
        check(rowjit_differentiate(held<GraphHandle>(self).handle, &options, &forward, &backward));
        const Owned first = make_graph(forward);
        const Owned second = make_graph(backward);
        return checked(PyTuple_Pack(2, first.get(), second.get()));
    });
}

PyObject* gradient(PyObject* self, PyObject* arguments) {
    return guarded([&] {
        PyObject* tuples[3];
        int joint = 0;
        int unit_cotangent = 0;
        if (PyArg_ParseTuple(arguments, "O!O!O!pp:gradient", &PyTuple_Type, &tuples[0], &PyTuple_Type, &tuples[1],
                             &PyTuple_Type, &tuples[2], &joint, &unit_cotangent) == 0)
            throw PythonError();
        const Names inputs(tuples[0]), outputs(tuples[1]), in_place(tuples[2]);
        rowjit_gradient_options options{};
        options.size = sizeof options;
        options.inputs = inputs.list();
        options.outputs = outputs.list();
        options.in_place = in_place.list();
        options.joint = joint;
        options.unit_cotangent = unit_cotangent;
        rowjit_graph* backward = nullptr;
        check(rowjit_gradient(held<GraphHandle>(self).handle, &options, &backward));
        return make_graph(backward);
    });
}

PyObject* graph_text(PyObject* self, PyObject*) {
    return guarded([&] {
        return written([&](char* buffer, std::size_t capacity, std::size_t* length) {
            return rowjit_graph_text(held<GraphHandle>(self).handle, buffer, capacity, length);
        });
    });
}

PyObject* digest(PyObject* self, PyObject*) {
    return guarded([&] {
        return written([&](char* buffer, std::size_t capacity, std::size_t* length) {
            return rowjit_graph_digest(held<GraphHandle>(self).handle, buffer, capacity, length);
        });
    });
}

Owned describe(const rowjit_tensor_info& info) {
    const Owned axes = checked(PyTuple_New(info.axes));
    for (std::int32_t i = 0; i < info.axes; ++i) {
        PyObject* const axis = Py_BuildValue("(sL)", info.axis_names[i], static_cast<long long>(info.extents[i]));
        checked(PyTuple_SetItem(axes.get(), i, checked(axis).release()));
    }
    return checked(Py_BuildValue("(sizOi)", info.name, info.dtype, info.alias, axes.get(), info.row_axes));
}

// ((name, dtype, alias or None, ((axis name, extent), …), number of row axes), …), those of the inputs or the outputs.
PyObject* tensors(PyObject* self, int from, int to) {
    return guarded([&] {
        Owned list = checked(PyTuple_New(to - from));
        for (int i = from; i < to; ++i) {
            rowjit_tensor_info info{};
            info.size = sizeof info;
            check(rowjit_graph_tensor(held<GraphHandle>(self).handle, i, &info));
            checked(PyTuple_SetItem(list.get(), i - from, describe(info).release()));
        }
        return list;
    });
}

PyObject* inputs(PyObject* self, void*) {
    return guarded([&] { return checked(tensors(self, 0, counts_of(self).inputs)); });
}

PyObject* outputs(PyObject* self, void*) {
    return guarded([&] {
        const rowjit_counts counts = counts_of(self);
        return checked(tensors(self, counts.inputs, counts.inputs + counts.outputs));
    });
}

PyObject* scalars(PyObject* self, void*) {
    return guarded([&] {
        Owned list = checked(PyTuple_New(counts_of(self).scalars));
        for (Py_ssize_t i = 0; i < size(list.get()); ++i) {
            rowjit_scalar_info info{};
            info.size = sizeof info;
            check(rowjit_graph_scalar(held<GraphHandle>(self).handle, static_cast<std::int32_t>(i), &info));
            Owned pair = checked(Py_BuildValue("(sd)", info.name, info.default_value));
            checked(PyTuple_SetItem(list.get(), i, pair.release()));
        }
        return list;
    });
}

PyObject* row_axes(PyObject* self, void*) {
    return guarded([&] {
        Owned list = checked(PyTuple_New(counts_of(self).row_axes));
        for (Py_ssize_t i = 0; i < size(list.get()); ++i) {
            const char* name = nullptr;
            check(rowjit_graph_row_axis(held<GraphHandle>(self).handle, static_cast<std::int32_t>(i), &name));
            checked(PyTuple_SetItem(list.get(), i, text(name).release()));
        }
        return list;
    });
}

PyMethodDef graph_methods[] = {
    {"parse", parse, METH_VARARGS | METH_STATIC,
     "parse(text, source_name=None): the graph of a text, docs/text-form.md"},
    {"of_op", of_op, METH_VARARGS | METH_STATIC,
     "of_op(name, columns, dtype, options): an operation's canonical graph"},
    {"differentiate", differentiate, METH_VARARGS,
     "differentiate(inputs, outputs, save, in_place, accumulate): a forward that saves and a backward that reads it"},
    {"gradient", gradient, METH_VARARGS,
     "gradient(inputs, outputs, in_place, joint, unit_cotangent): the backward that needs nothing saved"},
    {"text", graph_text, METH_NOARGS, "text(): the text form"},
    {"digest", digest, METH_NOARGS, "digest(): SHA-256 of the text form"},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef graph_attributes[] = {
    {"inputs", inputs, nullptr, "(name, dtype, alias, axes, row axes) of every input", nullptr},
    {"outputs", outputs, nullptr, "the same of every output", nullptr},
    {"scalars", scalars, nullptr, "(name, default) of every number given at launch", nullptr},
    {"row_axes", row_axes, nullptr, "names of the row axes with a run-time extent", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

}  // namespace

rowjit_graph* graph_handle(PyObject* object) {
    if (PyObject_TypeCheck(object, graph_type) == 0) raise(PyExc_TypeError, "a rowjit graph is wanted here");
    return held<GraphHandle>(object).handle;
}

Owned make_graph(rowjit_graph* handle) { return hold(graph_type, std::make_unique<GraphHandle>(handle)); }

void add_graph(PyObject* module) {
    static PyType_Slot slots[] = {{Py_tp_doc, const_cast<char*>("A computation over rows; never changes.")},
                                  {Py_tp_methods, graph_methods},
                                  {Py_tp_getset, graph_attributes},
                                  {Py_tp_dealloc, reinterpret_cast<void*>(free_held<GraphHandle>)},
                                  {0, nullptr}};
    static PyType_Spec spec = {"rowjit._core.Graph", sizeof(Held<GraphHandle>), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
    graph_type = reinterpret_cast<PyTypeObject*>(checked(PyType_FromSpec(&spec)).release());
    checked(PyModule_AddObjectRef(module, "Graph", reinterpret_cast<PyObject*>(graph_type)));
}

}  // namespace rowjit::python
