#include "python/core/kernel.h"

#include <algorithm>

namespace rowjit::python {
namespace {

constexpr char kAllocateCapsule[] = "rowjit.allocate";

PyTypeObject* kernel_type = nullptr;

struct KernelHandle {
    explicit KernelHandle(PyObject* specification) : kernel(specification) {}
    Kernel kernel;
};

std::vector<MergedAxis> read_axes(PyObject* tuple) {
    std::vector<MergedAxis> axes;
    for (Py_ssize_t i = 0; i < size(tuple); ++i) {
        PyObject* const pair = item(tuple, i);
        axes.push_back({static_cast<int>(to_integer(item(pair, 0))), static_cast<int>(to_integer(item(pair, 1)))});
    }
    return axes;
}

std::vector<std::int64_t> read_integers(PyObject* tuple) {
    std::vector<std::int64_t> values;
    for (Py_ssize_t i = 0; i < size(tuple); ++i) values.push_back(to_integer(item(tuple, i)));
    return values;
}

int integer_at(PyObject* tuple, Py_ssize_t index) { return static_cast<int>(to_integer(item(tuple, index))); }

DlpackDtype dlpack_dtype(std::int64_t packed) {
    return {static_cast<std::uint8_t>(packed & 0xff), static_cast<std::uint8_t>(packed >> 8), 1};
}

std::int64_t product(const GroupExtents& group, MergedAxis axis) {
    std::int64_t extent = 1;
    for (int d = axis.from; d < axis.to; ++d) extent *= group.extents[static_cast<std::size_t>(d)];
    return extent;
}

// Of the operand's last dimensions.
bool are_contiguous(const Operand& operand, int dimensions) {
    std::int64_t stride = 1;
    for (int i = operand.dimensions(); i-- > operand.dimensions() - dimensions; stride *= operand.extent(i)) {
        if (operand.extent(i) != 1 && operand.stride(i) != stride) return false;
    }
    return true;
}

// Whether the operand's memory can be seen as the layout says.
bool fits(const Operand& operand, const Layout& layout, int group_dimensions) {
    if (!are_contiguous(operand, layout.suffix)) return false;
    const int first = group_dimensions - layout.lead;
    for (const MergedAxis axis : layout.axes) {
        for (int d = axis.from; d + 1 < axis.to; ++d) {
            if (!merges(operand, layout.prefix, first, d)) return false;
        }
    }
    return true;
}

// A tensor on the stack, for rowjit_arguments_set_dlpack.
struct Shaped {
    std::array<std::int64_t, ROWJIT_MAX_AXES> shape;
    std::array<std::int64_t, ROWJIT_MAX_AXES> strides;
    std::size_t count = 0;

    void add(std::int64_t extent, std::int64_t stride) {
        if (count == ROWJIT_MAX_AXES) raise(PyExc_ValueError, "a tensor has too many dimensions");
        shape[count] = extent;
        strides[count++] = stride;
    }
    DlpackTensor of(const DlpackTensor& memory) const {
        DlpackTensor tensor = memory;
        tensor.dimensions = static_cast<std::int32_t>(count);
        tensor.shape = shape.data();
        tensor.strides = strides.data();
        return tensor;
    }
};

std::string device_name(DlpackDevice device) {
    if (device.type == kDlpackCpu) return "cpu";
    return (device.type == 10 ? "hip:" : device.type == 2 ? "cuda:" : "DLPack device ") + std::to_string(device.id);
}

}  // namespace

bool merges(const Operand& operand, int prefix, int first, int d) {
    const int outer = prefix + d - first;
    // The stride of a batch of one says nothing; of another extent of one it is what the extent outside must fit.
    if (d == 0 && operand.extent(outer) == 1) return true;
    return operand.stride(outer) == operand.extent(outer + 1) * operand.stride(outer + 1);
}

// (executable, owner, allocate, workspace options, (device type, id), operand names, dimensions of each group,
//  inputs: (operand, group, prefix, lead, has, suffix, axes) each,
//  outputs: (alias, group, dtype, shape parts, prefix, axes, suffix, allocate options) each, scalar names, "" for one
//  that the graph has not, single, witnesses: as inputs)
Kernel::Kernel(PyObject* specification) {
    executable_ = Owned::of_borrowed(item(specification, 0));
    executable_handle(executable_.get());
    owner_ = Owned::of_borrowed(item(specification, 1));
    allocate_ = Owned::of_borrowed(item(specification, 2));
    if (PyCapsule_IsValid(allocate_.get(), kAllocateCapsule) != 0)
        allocate_in_c_ = reinterpret_cast<Allocate>(PyCapsule_GetPointer(allocate_.get(), kAllocateCapsule));
    workspace_options_ = Owned::of_borrowed(item(specification, 3));
    device_ = {integer_at(item(specification, 4), 0), integer_at(item(specification, 4), 1)};
    PyObject* const names = item(specification, 5);
    for (Py_ssize_t i = 0; i < size(names); ++i) names_.push_back(to_string(item(names, i)));
    for (const std::int64_t dimensions : read_integers(item(specification, 6)))
        group_dimensions_.push_back(static_cast<int>(dimensions));
    if (group_dimensions_.size() > kMaxGroups || names_.size() > kMaxOperands)
        raise(PyExc_ValueError, "a kernel has too many operands");
    inputs_ = read_inputs(item(specification, 7));
    witnesses_ = read_inputs(item(specification, 11));
    PyObject* const outputs = item(specification, 8);
    for (Py_ssize_t i = 0; i < size(outputs); ++i) {
        PyObject* const output = item(outputs, i);
        Output made;
        made.alias = integer_at(output, 0);
        made.group = integer_at(output, 1);
        made.dtype = dlpack_dtype(to_integer(item(output, 2)));
        PyObject* const parts = item(output, 3);
        for (Py_ssize_t part = 0; part < size(parts); ++part)
            made.shape.push_back({integer_at(item(parts, part), 0), to_integer(item(item(parts, part), 1))});
        if (made.shape.size() > ROWJIT_MAX_AXES) raise(PyExc_ValueError, "an output has too many dimensions");
        made.prefix = read_integers(item(output, 4));
        made.axes = read_axes(item(output, 5));
        made.suffix = read_integers(item(output, 6));
        made.allocate_options = Owned::of_borrowed(item(output, 7));
        outputs_.push_back(std::move(made));
    }
    PyObject* const scalars = item(specification, 9);
    for (Py_ssize_t i = 0; i < size(scalars); ++i) scalar_names_.push_back(to_string(item(scalars, i)));
    single_ = PyObject_IsTrue(item(specification, 10)) == 1;
}

std::vector<Kernel::Input> Kernel::read_inputs(PyObject* tuple) {
    std::vector<Input> inputs;
    for (Py_ssize_t i = 0; i < size(tuple); ++i) {
        PyObject* const input = item(tuple, i);
        inputs.push_back({integer_at(input, 0),
                          {integer_at(input, 1), integer_at(input, 2), integer_at(input, 3),
                           static_cast<std::uint32_t>(to_integer(item(input, 4))), integer_at(input, 5),
                           read_axes(item(input, 6))}});
    }
    return inputs;
}

Kernel::~Kernel() {
    for (const Slot& slot : slots_) rowjit_arguments_destroy(slot.arguments);
}

Kernel::Slot Kernel::take_slot() {
    if (!slots_.empty()) {
        Slot slot = std::move(slots_.back());
        slots_.pop_back();
        return slot;
    }
    Slot slot;
    check(rowjit_arguments_create(executable_handle(executable_.get()), &slot.arguments));
    return slot;
}

// The extents of every group's dimensions, which all operands that have them must agree on.
void Kernel::read_groups(const Operand* operands, GroupExtents* groups) const {
    std::array<std::uint32_t, kMaxGroups> known{};
    for (std::size_t g = 0; g < group_dimensions_.size(); ++g) groups[g].dimensions = group_dimensions_[g];
    for (const Input& input : inputs_) read_extents(input, operands[input.operand], groups, known.data());
    for (const Input& input : witnesses_) read_extents(input, operands[input.operand], groups, known.data());
}

void Kernel::read_extents(const Input& input, const Operand& operand, GroupExtents* groups,
                          std::uint32_t* known) const {
    const Layout& layout = input.layout;
    const std::string& name = names_[static_cast<std::size_t>(input.operand)];
    const int dimensions = layout.prefix + layout.lead + layout.suffix;
    if (operand.is_absent()) raise(PyExc_TypeError, name + " is None; this kernel was made for a tensor");
    if (operand.dimensions() != dimensions) {
        raise(PyExc_ValueError, name + " has " + std::to_string(operand.dimensions()) + " dimensions; " +
                                    std::to_string(dimensions) + " are expected");
    }
    if (operand.tensor().device.type != device_.type || operand.tensor().device.id != device_.id) {
        raise(PyExc_ValueError, name + " is on " + device_name(operand.tensor().device) + ", other operands on " +
                                    device_name(device_) + "; move it there");
    }
    if (layout.group < 0) return;
    GroupExtents& group = groups[layout.group];
    const int first = group.dimensions - layout.lead;
    for (int d = first; d < group.dimensions; ++d) {
        const int dimension = layout.prefix + d - first;
        const std::int64_t extent = operand.extent(dimension);
        const std::uint32_t bit = 1U << d;
        const bool has = (layout.has & bit) != 0;
        std::int64_t& shared = group.extents[static_cast<std::size_t>(d)];
        const bool agrees = !has ? extent == 1 : (known[layout.group] & bit) == 0 || shared == extent;
        if (!agrees) {
            raise(PyExc_ValueError, name + " has extent " + std::to_string(extent) + " in dimension " +
                                        std::to_string(dimension) + "; " + std::to_string(has ? shared : 1) +
                                        " is expected");
        }
        if (!has) continue;
        shared = extent;
        known[layout.group] |= bit;
    }
}

void Kernel::set_inputs(Slot& slot, Operand* operands, const GroupExtents* groups) const {
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
        const Layout& layout = inputs_[i].layout;
        Operand& operand = operands[inputs_[i].operand];
        const char* const name = names_[static_cast<std::size_t>(inputs_[i].operand)].c_str();
        const int dimensions = layout.group < 0 ? 0 : groups[layout.group].dimensions;
        if (!fits(operand, layout, dimensions)) operand.make_contiguous(name);
        Shaped shaped;
        for (int d = 0; d < layout.prefix; ++d) shaped.add(operand.extent(d), operand.stride(d));
        const int first = dimensions - layout.lead;
        for (const MergedAxis axis : layout.axes) {
            // No dimensions at all are one row.
            const std::int64_t stride = axis.to == axis.from ? 0 : operand.stride(layout.prefix + axis.to - 1 - first);
            shaped.add(product(groups[layout.group], axis), stride);
        }
        for (int d = layout.prefix + layout.lead; d < operand.dimensions(); ++d)
            shaped.add(operand.extent(d), operand.stride(d));
        const DlpackTensor tensor = shaped.of(operand.tensor());
        check(rowjit_arguments_set_dlpack(slot.arguments, static_cast<std::int32_t>(i), &tensor));
    }
}

void Kernel::set_scalars(Slot& slot, PyObject* scalars) const {
    if (scalars == Py_None) return;
    const auto given = static_cast<std::size_t>(size(scalars));
    if (given != scalar_names_.size()) raise(PyExc_ValueError, "a kernel is given another number of scalars");
    const bool fresh = slot.scalars.size() != given;
    slot.scalars.resize(given);
    for (std::size_t i = 0; i < given; ++i) {
        const double value = PyFloat_AsDouble(item(scalars, static_cast<Py_ssize_t>(i)));
        if (value == -1 && PyErr_Occurred() != nullptr) throw PythonError();
        if (scalar_names_[i].empty() || (!fresh && slot.scalars[i] == value)) continue;
        check(rowjit_arguments_set_scalar(slot.arguments, scalar_names_[i].c_str(), value));
        slot.scalars[i] = value;
    }
}

// Python's functions are given extents one by one where there are any: torch.empty takes 1.0 us so, 1.5 with a tuple of
// them, and a call of rms_norm with its backward makes five tensors.
Owned Kernel::allocate(const std::int64_t* extents, std::size_t count, DlpackDtype dtype, PyObject* options) const {
    if (allocate_in_c_ != nullptr) {
        const std::uint32_t code_and_bits = dtype.code | static_cast<std::uint32_t>(dtype.bits) << 8;
        return checked(allocate_in_c_(extents, count, code_and_bits, device_.type, device_.id));
    }
    Owned shape = checked(PyTuple_New(static_cast<Py_ssize_t>(count)));
    for (std::size_t i = 0; i < count; ++i)
        checked(PyTuple_SetItem(shape.get(), static_cast<Py_ssize_t>(i), PyLong_FromLongLong(extents[i])));
    if (count > 0) return checked(PyObject_Call(allocate_.get(), shape.get(), options));
    const Owned empty = checked(PyTuple_Pack(1, shape.get()));
    return checked(PyObject_Call(allocate_.get(), empty.get(), options));
}

Owned Kernel::set_outputs(Slot& slot, const Operand* operands, const GroupExtents* groups) {
    Owned list = checked(PyTuple_New(static_cast<Py_ssize_t>(outputs_.size())));
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
        const Output& output = outputs_[i];
        Owned object;
        if (output.alias >= 0) {
            const Operand& overwritten = operands[output.alias];
            if (overwritten.is_copy() || !are_contiguous(overwritten, overwritten.dimensions())) {
                raise(PyExc_ValueError, names_[static_cast<std::size_t>(output.alias)] +
                                            " is written in place and has to be contiguous; it is a view that is not");
            }
            object = Owned::of_borrowed(overwritten.object());
        } else {
            std::array<std::int64_t, ROWJIT_MAX_AXES> shape;
            for (std::size_t part = 0; part < output.shape.size(); ++part) {
                const auto [dimension, fixed] = output.shape[part];
                shape[part] = dimension < 0 ? fixed : groups[output.group].extents[static_cast<std::size_t>(dimension)];
            }
            object = allocate(shape.data(), output.shape.size(), output.dtype, output.allocate_options.get());
        }
        Operand written;
        written.borrow(object.get(), "an output");
        Shaped shaped;
        for (const std::int64_t extent : output.prefix) shaped.add(extent, 0);
        for (const MergedAxis axis : output.axes) shaped.add(product(groups[output.group], axis), 0);
        for (const std::int64_t extent : output.suffix) shaped.add(extent, 0);
        DlpackTensor tensor = shaped.of(written.tensor());
        tensor.strides = nullptr;
        tensor.dtype = output.dtype;
        check(rowjit_arguments_set_dlpack(slot.arguments, static_cast<std::int32_t>(inputs_.size() + i), &tensor));
        checked(PyTuple_SetItem(list.get(), static_cast<Py_ssize_t>(i), object.release()));
    }
    return list;
}

// A library's allocator need not align as a workspace must be.
Owned Kernel::set_workspace(Slot& slot) {
    std::size_t bytes = 0;
    check(rowjit_arguments_workspace_bytes(slot.arguments, &bytes));
    if (bytes == 0) return {};
    constexpr DlpackDtype kBytes{1, 8, 1};  // unsigned
    const auto extent = static_cast<std::int64_t>(bytes + ROWJIT_WORKSPACE_ALIGNMENT);
    Owned block = allocate(&extent, 1, kBytes, workspace_options_.get());
    Operand memory;
    memory.borrow(block.get(), "the workspace");
    const auto address = reinterpret_cast<std::uintptr_t>(memory.tensor().data) + memory.tensor().byte_offset;
    const std::uintptr_t aligned =
        (address + ROWJIT_WORKSPACE_ALIGNMENT - 1) / ROWJIT_WORKSPACE_ALIGNMENT * ROWJIT_WORKSPACE_ALIGNMENT;
    check(rowjit_arguments_set_workspace(slot.arguments, reinterpret_cast<void*>(aligned), bytes));
    return block;
}

// Operands whose address or rows no vector access can take, replaced by copies; whether there was one.
bool Kernel::copy_misaligned(Operand* operands) const {
    constexpr std::int64_t kAccessBytes = 16;
    bool copied = false;
    for (const Input& input : inputs_) {
        Operand& operand = operands[input.operand];
        const DlpackTensor& tensor = operand.tensor();
        bool aligned = (reinterpret_cast<std::uintptr_t>(tensor.data) + tensor.byte_offset) % kAccessBytes == 0;
        for (int d = 0; d < input.layout.prefix + input.layout.lead; ++d)
            aligned = aligned && operand.stride(d) * (tensor.dtype.bits / 8) % kAccessBytes == 0;
        const bool written = std::any_of(outputs_.begin(), outputs_.end(),
                                         [&](const Output& output) { return output.alias == input.operand; });
        if (aligned || written) continue;
        operand.copy(names_[static_cast<std::size_t>(input.operand)].c_str());
        copied = true;
    }
    return copied;
}

void Kernel::launch(Slot& slot, Operand* operands, const GroupExtents* groups) {
    void* stream = nullptr;
    const auto launched = [&] {
        if (device_.type != kDlpackCpu) return rowjit_launch(slot.arguments, stream);
        // A kernel on the CPU runs here and now.
        PyThreadState* const state = PyEval_SaveThread();
        const rowjit_status status = rowjit_launch(slot.arguments, nullptr);
        PyEval_RestoreThread(state);
        return status;
    };
    if (device_.type != kDlpackCpu) {
        for (const Input& input : inputs_) {
            const DlpackExchange* const exchange = operands[input.operand].exchange();
            if (exchange == nullptr) continue;
            checked(exchange->current_stream(device_.type, device_.id, &stream));
            break;
        }
    }
    const rowjit_status status = launched();
    if (status != ROWJIT_INVALID_ARGUMENT || !copy_misaligned(operands)) return check(status);
    set_inputs(slot, operands, groups);
    check(launched());
}

Owned Kernel::run(PyObject* scalars, Operand* operands, std::size_t count) {
    if (count != names_.size()) raise(PyExc_TypeError, "a kernel is given another number of operands");
    std::array<GroupExtents, kMaxGroups> groups;
    read_groups(operands, groups.data());
    Slot slot = take_slot();
    Owned outputs;
    try {
        set_scalars(slot, scalars);
        set_inputs(slot, operands, groups.data());
        outputs = set_outputs(slot, operands, groups.data());
        const Owned workspace = set_workspace(slot);
        launch(slot, operands, groups.data());
    } catch (...) {
        rowjit_arguments_destroy(slot.arguments);
        throw;
    }
    slots_.push_back(std::move(slot));
    if (single_) return Owned::of_borrowed(item(outputs.get(), 0));
    return outputs;
}

Kernel& kernel_of(PyObject* object) {
    if (PyObject_TypeCheck(object, kernel_type) == 0) raise(PyExc_TypeError, "a rowjit kernel is wanted here");
    return held<KernelHandle>(object).kernel;
}

void borrow_all(PyObject* const* arguments, std::size_t count, const std::vector<std::string>& names,
                Operand* operands) {
    if (count != names.size()) {
        raise(PyExc_TypeError,
              std::to_string(count) + " operands are given; " + std::to_string(names.size()) + " are expected");
    }
    for (std::size_t i = 0; i < count; ++i) {
        if (arguments[i] != Py_None) operands[i].borrow(arguments[i], names[i].c_str());
    }
}

namespace {

PyObject* make_kernel(PyTypeObject* type, PyObject* arguments, PyObject*) {
    return guarded([&] { return hold(type, std::unique_ptr<KernelHandle>(new KernelHandle(item(arguments, 0)))); });
}

PyObject* run(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
    return guarded([&] {
        Kernel& kernel = held<KernelHandle>(self).kernel;
        if (count < 1) raise(PyExc_TypeError, "run(scalars, *operands)");
        std::array<Operand, kMaxOperands> operands;
        const auto given = static_cast<std::size_t>(count - 1);
        borrow_all(arguments + 1, given, kernel.names(), operands.data());
        return kernel.run(arguments[0], operands.data(), given);
    });
}

PyObject* owner(PyObject* self, void*) {
    PyObject* const of = held<KernelHandle>(self).kernel.owner();
    Py_INCREF(of);
    return of;
}

PyMethodDef kernel_methods[] = {{"run", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(run)), METH_FASTCALL,
                                 "run(scalars, *operands): launches, and gives the outputs"},
                                {nullptr, nullptr, 0, nullptr}};

PyGetSetDef kernel_attributes[] = {{"owner", owner, nullptr, "what the specification named as such", nullptr},
                                   {nullptr, nullptr, nullptr, nullptr, nullptr}};

}  // namespace

void add_kernel(PyObject* module) {
    static PyType_Slot slots[] = {
        {Py_tp_doc, const_cast<char*>("Kernel(specification): a compiled graph, ready to be called.")},
        {Py_tp_new, reinterpret_cast<void*>(make_kernel)},
        {Py_tp_methods, kernel_methods},
        {Py_tp_getset, kernel_attributes},
        {Py_tp_dealloc, reinterpret_cast<void*>(free_held<KernelHandle>)},
        {0, nullptr}};
    static PyType_Spec spec = {"rowjit._core.Kernel", sizeof(Held<KernelHandle>), 0, Py_TPFLAGS_DEFAULT, slots};
    kernel_type = reinterpret_cast<PyTypeObject*>(checked(PyType_FromSpec(&spec)).release());
    checked(PyModule_AddObjectRef(module, "Kernel", reinterpret_cast<PyObject*>(kernel_type)));
}

}  // namespace rowjit::python
