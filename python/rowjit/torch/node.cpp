// What costs the host less in C++ than in Python: a node of autograd, which does what `_Differentiable` of call.py
// does, and memory for what kernels write. Kernels are called as Python has them, so that all that is known of their
// operands stays in rowjit._core.
//
// native.py compiles this file with the headers of the torch that it is for, of 2.11 and later. They cost seconds to
// compile: those named here are the least that have Node and a tensor's PyObject.
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include <algorithm>
#include <mutex>
#include <type_traits>
#include <vector>

namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using NodePointer = decltype(Edge::function);

// Of call.py: the function of (gradients, tensors that they depend on) that gives gradients an edge which raises.
PyObject* refuse_second_derivative = nullptr;

class Gil {
  public:
    Gil() : state_(PyGILState_Ensure()) {}
    ~Gil() { PyGILState_Release(state_); }
    Gil(const Gil&) = delete;
    Gil& operator=(const Gil&) = delete;

  private:
    PyGILState_STATE state_;
};

PyObject* checked(PyObject* object) {
    if (object != nullptr) return object;
    // The engine carries it to the thread that asked for the backward.
    python_error error;
    error.persist();
    throw error;
}

THPObjectPtr attribute(PyObject* object, PyObject* name) {
    return THPObjectPtr(checked(PyObject_GetAttr(object, name)));
}

// An attribute's name, made once for the process.
template <const char* kName>
PyObject* interned() {
    static PyObject* const name = checked(PyUnicode_InternFromString(kName));
    return name;
}

constexpr char kRunForOwner[] = "run_for_owner";
constexpr char kRun[] = "run";
constexpr char kBackward[] = "backward";
constexpr char kKept[] = "kept";
constexpr char kResults[] = "results";
constexpr char kWhole[] = "whole";
constexpr char kOfOperands[] = "of_operands";

std::vector<Py_ssize_t> integers(PyObject* tuple) {
    std::vector<Py_ssize_t> values(static_cast<std::size_t>(PyTuple_GET_SIZE(tuple)));
    for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = PyLong_AsSsize_t(PyTuple_GET_ITEM(tuple, static_cast<Py_ssize_t>(i)));
    return values;
}

at::Tensor tensor_of(PyObject* object) {
    if (object == Py_None) return {};
    if (!THPVariable_Check(object)) throw torch::TypeError("rowjit's node of autograd is given what is no tensor");
    return THPVariable_Unpack(object);
}

// A method's result, computed as what is no part of autograd's graph.
PyObject* without_gradients(PyObject* method, PyObject* const* self_and_arguments, std::size_t count) {
    const at::AutoGradMode off(false);
    return checked(PyObject_VectorcallMethod(method, self_and_arguments, count, nullptr));
}

class Differentiable final : public Node {
  public:
    Differentiable(THPObjectPtr pair, THPObjectPtr scalars) : pair_(pair.release()), scalars_(scalars.release()) {}
    ~Differentiable() override {
        if (Py_IsInitialized() == 0) return;
        const Gil gil;
        Py_DECREF(pair_);
        Py_DECREF(scalars_);
    }

    // Of the kernel's outputs, gives the results a history: those that have a gradient.
    void own(PyObject* outputs, std::size_t results, const std::vector<Py_ssize_t>& whole, const NodePointer& self) {
        cotangents_.assign(results, kNone);
        for (std::size_t i = 0; i < results; ++i) {
            if (std::find(whole.begin(), whole.end(), static_cast<Py_ssize_t>(i)) != whole.end()) continue;
            cotangents_[i] = num_inputs();
            torch::autograd::set_history(tensor_of(PyTuple_GET_ITEM(outputs, static_cast<Py_ssize_t>(i))), self);
        }
    }

    void keep(const at::Tensor& tensor, bool is_result) { saved_.emplace_back(tensor, is_result); }

    void release_variables() override {
        const std::lock_guard lock(mutex_);
        for (SavedVariable& saved : saved_) saved.reset_data();
    }

    std::string name() const override { return "RowjitBackward"; }

    void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {
        TORCH_CHECK_NOT_IMPLEMENTED(false,
                                    "compiled autograd traces no node in C++ of rowjit; set "
                                    "rowjit.torch.native.enabled = False before a gradient is first needed");
    }

  protected:
    variable_list apply(variable_list&& given) override {
        const std::lock_guard lock(mutex_);
        const Gil gil;
        // Of Kernel.run: itself, scalars, what was kept, cotangents.
        std::vector<THPObjectPtr> arguments;
        arguments.reserve(2 + saved_.size() + cotangents_.size());
        arguments.push_back(attribute(pair_, interned<kBackward>()));
        arguments.emplace_back(Py_NewRef(scalars_));
        const NodePointer self = getptr();
        for (const SavedVariable& saved : saved_) arguments.emplace_back(checked(THPVariable_Wrap(saved.unpack(self))));
        for (const std::size_t place : cotangents_)
            arguments.emplace_back(checked(THPVariable_Wrap(cotangent(given, place))));
        std::vector<PyObject*> borrowed;
        borrowed.reserve(arguments.size());
        for (THPObjectPtr& argument : arguments) borrowed.push_back(argument.get());
        THPObjectPtr found(without_gradients(interned<kRun>(), borrowed.data(), borrowed.size()));
        // Autograd computes with gradients enabled only when a second derivative may be asked for.
        if (at::GradMode::is_enabled()) found = refusing(found.get(), borrowed);
        variable_list gradients;
        gradients.reserve(next_edges().size());
        // Place 0 stands for none.
        for (const Py_ssize_t place : integers(attribute(pair_, interned<kOfOperands>()).get()))
            gradients.push_back(place == 0 ? at::Tensor() : tensor_of(PyTuple_GET_ITEM(found.get(), place - 1)));
        return gradients;
    }

  private:
    static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

    at::Tensor cotangent(const variable_list& given, std::size_t place) const {
        if (place == kNone) return {};
        return given[place].defined() ? given[place].resolve_neg() : input_metadata(place).zeros_like();
    }

    static THPObjectPtr refusing(PyObject* found, const std::vector<PyObject*>& arguments) {
        THPObjectPtr sources(checked(PyTuple_New(static_cast<Py_ssize_t>(arguments.size() - 2))));
        for (std::size_t i = 2; i < arguments.size(); ++i)
            PyTuple_SET_ITEM(sources.get(), static_cast<Py_ssize_t>(i - 2), Py_NewRef(arguments[i]));
        return THPObjectPtr(
            checked(PyObject_CallFunctionObjArgs(refuse_second_derivative, found, sources.get(), nullptr)));
    }

    PyObject* pair_;     // rowjit.programs.Pair
    PyObject* scalars_;  // a tuple of numbers
    std::vector<SavedVariable> saved_;
    std::vector<std::size_t> cotangents_;  // of every result: which of the node's inputs is its gradient, or kNone
};

// Nodes were in shared pointers up to torch 2.12.
template <class Pointer>
std::pair<Pointer, Differentiable*> made(THPObjectPtr pair, THPObjectPtr scalars) {
    if constexpr (std::is_same_v<Pointer, std::shared_ptr<Node>>) {
        auto* const node = new Differentiable(std::move(pair), std::move(scalars));
        // Theirs for them, which frees a deep graph without recursion.
        return {Pointer(node, [](auto* freed) { deleteNode(freed); }), node};
    } else {
        auto node = c10::make_intrusive<Differentiable>(std::move(pair), std::move(scalars));
        Differentiable* const address = node.get();
        return {Pointer(std::move(node)), address};
    }
}

PyObject* apply(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    HANDLE_TH_ERRORS
    if (count < 2) throw torch::TypeError("apply(program, scalars, *operands)");
    const auto given = static_cast<std::size_t>(count);
    variable_list tensors;
    tensors.reserve(given);
    for (std::size_t i = 2; i < given; ++i) tensors.push_back(tensor_of(arguments[i]));
    THPObjectPtr computed(without_gradients(interned<kRunForOwner>(), arguments, given));
    PyObject* const pair = PyTuple_GET_ITEM(computed.get(), 0);
    PyObject* const outputs = PyTuple_GET_ITEM(computed.get(), 1);
    const auto [node, differentiable] =
        made<NodePointer>(THPObjectPtr(Py_NewRef(pair)), THPObjectPtr(Py_NewRef(arguments[1])));
    torch::autograd::edge_list edges;
    edges.reserve(tensors.size());
    for (const at::Tensor& tensor : tensors)
        edges.push_back(tensor.defined() ? torch::autograd::impl::gradient_edge(tensor) : Edge());
    node->set_next_edges(std::move(edges));
    const auto results = static_cast<std::size_t>(PyLong_AsSsize_t(attribute(pair, interned<kResults>()).get()));
    differentiable->own(outputs, results, integers(attribute(pair, interned<kWhole>()).get()), node);
    const auto operands = static_cast<Py_ssize_t>(tensors.size());
    for (const Py_ssize_t place : integers(attribute(pair, interned<kKept>()).get())) {
        if (place < operands) {
            differentiable->keep(tensors[static_cast<std::size_t>(place)], false);
        } else {
            const at::Tensor output = tensor_of(PyTuple_GET_ITEM(outputs, place - operands));
            differentiable->keep(output, output.grad_fn() == node);
        }
    }
    if (results == 1) return Py_NewRef(PyTuple_GET_ITEM(outputs, 0));
    return PyTuple_GetSlice(outputs, 0, static_cast<Py_ssize_t>(results));
    END_HANDLE_TH_ERRORS
}

PyObject* install(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (count != 1) return PyErr_Format(PyExc_TypeError, "install(refuse_second_derivative)");
    refuse_second_derivative = Py_NewRef(arguments[0]);
    Py_RETURN_NONE;
}

// The dtypes that kernels have, and "u8" of workspaces, as DLPack says them: code and bits.
at::ScalarType dtype_of(std::uint32_t code_and_bits) {
    const auto is = [code_and_bits](std::uint32_t code, std::uint32_t bits) {
        return code_and_bits == (code | bits << 8);
    };
    if (is(4, 16)) return at::kBFloat16;
    if (is(2, 32)) return at::kFloat;
    if (is(1, 8)) return at::kByte;
    if (is(2, 16)) return at::kHalf;
    if (is(2, 64)) return at::kDouble;
    if (is(0, 64)) return at::kLong;
    if (is(0, 32)) return at::kInt;
    if (is(0, 8)) return at::kChar;
    if (is(6, 8)) return at::kBool;
    if (is(10, 8)) return at::kFloat8_e4m3fn;
    if (is(12, 8)) return at::kFloat8_e5m2;
    throw torch::TypeError("rowjit's node of autograd knows no dtype of these bits");
}

// rowjit::python::Allocate of core/kernel.h: torch.empty without what Python's calls cost, half of its time.
PyObject* empty(const std::int64_t* extents, std::size_t count, std::uint32_t dtype, std::int32_t device_type,
                std::int32_t device_id) {
    HANDLE_TH_ERRORS
    constexpr std::int32_t kDlpackCpu = 1;
    // What torch calls CUDA may be HIP.
    const at::Device device = device_type == kDlpackCpu
                                  ? at::Device(at::kCPU)
                                  : at::Device(at::kCUDA, static_cast<at::DeviceIndex>(device_id));
    return THPVariable_Wrap(
        at::empty(at::IntArrayRef(extents, count), at::TensorOptions(device).dtype(dtype_of(dtype))));
    END_HANDLE_TH_ERRORS
}

PyObject* allocator(PyObject*, PyObject*) {
    return PyCapsule_New(reinterpret_cast<void*>(&empty), "rowjit.allocate", nullptr);
}

PyMethodDef functions[] = {
    {"allocator", allocator, METH_NOARGS, "allocator(): a capsule of what a rowjit._core.Kernel allocates with"},
    {"apply", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(apply)), METH_FASTCALL,
     "apply(program, scalars, *operands): the results, of operands some of which need a gradient"},
    {"install", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(install)), METH_FASTCALL,
     "install(refuse_second_derivative): what it leaves to Python, before the first call"},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_node", "rowjit's node of autograd", -1, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__node(void) { return PyModule_Create(&definition); }
