// rowjit._core.Program: a computation whose kernels are made as operands need them. What distinguishes kernels —
// dtypes, static extents, which leading dimensions are one row axis — is the signature of the operands; the number of
// rows is no part of it. A signature that was seen before costs a comparison; for a new one a Python function makes the
// kernel.
#include <algorithm>
#include <cstring>

#include "python/core/kernel.h"

namespace rowjit::python {
namespace {

// What is known of an operand before its shape: see Layout.
struct Declared {
    int group;
    int prefix;
    int suffix;
    bool table;  // lacks a leading dimension of extent 1 even where the others have no more than 1 either
};

// Leading dimensions of the operands of one group.
struct Group {
    GroupExtents extents;
    std::array<bool, ROWJIT_MAX_AXES> merged{};  // whether dimension d and the next are one axis
};

class Signature {
  public:
    void add(std::int64_t value) {
        if (count_ == values_.size()) raise(PyExc_ValueError, "the operands have too many dimensions");
        values_[count_++] = value;
    }
    bool operator==(const Signature& other) const {
        return count_ == other.count_ && std::memcmp(values_.data(), other.values_.data(), count_ * 8) == 0;
    }

  private:
    std::size_t count_ = 0;
    std::array<std::int64_t, 256> values_;
};

// Everything about the operands that a kernel depends on.
struct Analysis {
    std::array<Group, kMaxGroups> groups;
    std::array<std::uint32_t, kMaxOperands> has{};
    DlpackDevice device{};
    const DlpackExchange* exchange = nullptr;
};

class Program {
  public:
    // names, ((group, prefix, suffix, table), …), number of groups, build
    explicit Program(PyObject* arguments);
    Owned run(PyObject* scalars, PyObject* const* operands, std::size_t count, bool with_owner);

  private:
    void analyse(Operand* operands, std::size_t count, Analysis* analysis) const;
    void read_device(const Operand* operands, std::size_t count, Analysis* analysis) const;
    void read_extents(const Operand* operands, std::size_t count, Analysis* analysis) const;
    void find_missing(const Operand* operands, std::size_t count, Analysis* analysis) const;
    void merge(const Operand* operands, std::size_t count, Analysis* analysis) const;
    Signature sign(const Operand* operands, std::size_t count, const Analysis& analysis) const;
    Owned describe(const Operand* operands, std::size_t count, const Analysis& analysis) const;
    Kernel& find(Operand* operands, std::size_t count);

    struct Entry {
        Signature signature;
        Owned kernel;
    };
    std::vector<std::string> names_;
    std::vector<Declared> declared_;
    std::size_t group_count_ = 0;
    Owned build_;
    std::vector<Entry> entries_;
    std::size_t last_ = 0;
};

int lead_of(const Operand& operand, const Declared& declared) {
    return operand.dimensions() - declared.prefix - declared.suffix;
}

Program::Program(PyObject* arguments) {
    PyObject* const names = item(arguments, 0);
    for (Py_ssize_t i = 0; i < size(names); ++i) names_.push_back(to_string(item(names, i)));
    PyObject* const declared = item(arguments, 1);
    for (Py_ssize_t i = 0; i < size(declared); ++i) {
        PyObject* const operand = item(declared, i);
        declared_.push_back({static_cast<int>(to_integer(item(operand, 0))),
                             static_cast<int>(to_integer(item(operand, 1))),
                             static_cast<int>(to_integer(item(operand, 2))), to_integer(item(operand, 3)) != 0});
    }
    group_count_ = static_cast<std::size_t>(to_integer(item(arguments, 2)));
    build_ = Owned::of_borrowed(item(arguments, 3));
    if (names_.size() != declared_.size() || names_.size() > kMaxOperands || group_count_ > kMaxGroups)
        raise(PyExc_ValueError, "a program has too many operands, or another number of names");
}

void Program::read_device(const Operand* operands, std::size_t count, Analysis* analysis) const {
    const Operand* first = nullptr;
    for (std::size_t i = 0; i < count; ++i) {
        if (operands[i].is_absent()) continue;
        const DlpackDevice device = operands[i].tensor().device;
        if (analysis->exchange == nullptr) analysis->exchange = operands[i].exchange();
        if (first == nullptr) {
            first = &operands[i];
            analysis->device = device;
        } else if (device.type != analysis->device.type || device.id != analysis->device.id) {
            raise(PyExc_ValueError, names_[i] + " is on another device than " +
                                        names_[static_cast<std::size_t>(first - operands)] + "; move it there");
        }
    }
    if (first == nullptr) raise(PyExc_TypeError, "no operand is a tensor");
}

void Program::read_extents(const Operand* operands, std::size_t count, Analysis* analysis) const {
    for (std::size_t i = 0; i < count; ++i) {
        if (operands[i].is_absent()) continue;
        const Declared& declared = declared_[i];
        const int lead = lead_of(operands[i], declared);
        if (lead < 0 || (declared.group < 0 && lead != 0)) {
            raise(PyExc_ValueError, names_[i] + " has " + std::to_string(operands[i].dimensions()) + " dimensions; " +
                                        std::to_string(declared.prefix + declared.suffix) +
                                        (declared.group < 0 ? " are expected" : " or more are expected"));
        }
        if (declared.group < 0) continue;
        GroupExtents& extents = analysis->groups[static_cast<std::size_t>(declared.group)].extents;
        if (lead > extents.dimensions) {
            // Aligned at the end: what is there moves up.
            std::copy_backward(extents.extents.begin(), extents.extents.begin() + extents.dimensions,
                               extents.extents.begin() + lead);
            std::fill(extents.extents.begin(), extents.extents.begin() + (lead - extents.dimensions), 1);
            extents.dimensions = lead;
        }
        for (int d = extents.dimensions - lead; d < extents.dimensions; ++d) {
            const std::int64_t extent = operands[i].extent(declared.prefix + d - (extents.dimensions - lead));
            std::int64_t& shared = extents.extents[static_cast<std::size_t>(d)];
            if (shared == 1) shared = extent;
            if (extent == shared || extent == 1) continue;
            raise(PyExc_ValueError, names_[i] + " has extent " + std::to_string(extent) + " in dimension " +
                                        std::to_string(declared.prefix + d - (extents.dimensions - lead)) +
                                        ", where other operands have " + std::to_string(shared));
        }
    }
}

void Program::find_missing(const Operand* operands, std::size_t count, Analysis* analysis) const {
    for (std::size_t i = 0; i < count; ++i) {
        if (operands[i].is_absent() || declared_[i].group < 0) continue;
        const GroupExtents& extents = analysis->groups[static_cast<std::size_t>(declared_[i].group)].extents;
        const int first = extents.dimensions - lead_of(operands[i], declared_[i]);
        for (int d = first; d < extents.dimensions; ++d) {
            const std::int64_t extent = operands[i].extent(declared_[i].prefix + d - first);
            const bool broadcast = extent == 1 && extents.extents[static_cast<std::size_t>(d)] != 1;
            const bool of_table = extent == 1 && declared_[i].table && d + 1 < extents.dimensions;
            if (!broadcast && !of_table) analysis->has[i] |= 1U << d;
        }
    }
}

void Program::merge(const Operand* operands, std::size_t count, Analysis* analysis) const {
    for (std::size_t g = 0; g < group_count_; ++g) {
        Group& group = analysis->groups[g];
        for (int d = 0; d + 1 < group.extents.dimensions; ++d) {
            bool merged = true;
            for (std::size_t i = 0; i < count && merged; ++i) {
                if (operands[i].is_absent() || declared_[i].group != static_cast<int>(g)) continue;
                const std::uint32_t both = analysis->has[i] >> d & 3U;
                const int first = group.extents.dimensions - lead_of(operands[i], declared_[i]);
                merged = both == 0 || (both == 3 && merges(operands[i], declared_[i].prefix, first, d));
            }
            group.merged[static_cast<std::size_t>(d)] = merged;
        }
    }
}

void Program::analyse(Operand* operands, std::size_t count, Analysis* analysis) const {
    read_device(operands, count, analysis);
    read_extents(operands, count, analysis);
    find_missing(operands, count, analysis);
    merge(operands, count, analysis);
}

Signature Program::sign(const Operand* operands, std::size_t count, const Analysis& analysis) const {
    Signature signature;
    signature.add((static_cast<std::int64_t>(analysis.device.type) << 32) + analysis.device.id);
    for (std::size_t g = 0; g < group_count_; ++g) {
        const Group& group = analysis.groups[g];
        std::int64_t bits = group.extents.dimensions;
        for (int d = 0; d + 1 < group.extents.dimensions; ++d)
            bits |= static_cast<std::int64_t>(group.merged[static_cast<std::size_t>(d)]) << (8 + d);
        signature.add(bits);
    }
    for (std::size_t i = 0; i < count; ++i) {
        if (operands[i].is_absent()) {
            signature.add(-1);
            continue;
        }
        const DlpackTensor& tensor = operands[i].tensor();
        const int lead = lead_of(operands[i], declared_[i]);
        signature.add(tensor.dtype.code | tensor.dtype.bits << 8 | tensor.dtype.lanes << 16);
        signature.add(lead | static_cast<std::int64_t>(analysis.has[i]) << 8);
        for (int d = 0; d < declared_[i].prefix; ++d) signature.add(operands[i].extent(d));
        for (int d = declared_[i].prefix + lead; d < tensor.dimensions; ++d) signature.add(operands[i].extent(d));
    }
    return signature;
}

Owned extents_of(const Operand& operand, int from, int to) {
    Owned tuple = checked(PyTuple_New(to - from));
    for (int d = from; d < to; ++d)
        checked(PyTuple_SetItem(tuple.get(), d - from, PyLong_FromLongLong(operand.extent(d))));
    return tuple;
}

// The signature as `build` is given it: (device type, device id, stream, ((dimensions, ((from, to), …)) of each group),
// (None or (dtype, lead, has, prefix extents, suffix extents), …)).
Owned Program::describe(const Operand* operands, std::size_t count, const Analysis& analysis) const {
    Owned groups = checked(PyTuple_New(static_cast<Py_ssize_t>(group_count_)));
    for (std::size_t g = 0; g < group_count_; ++g) {
        const Group& group = analysis.groups[g];
        Owned axes = checked(PyList_New(0));
        for (int from = 0, to = 0; from < group.extents.dimensions || (from == 0 && to == 0); from = to) {
            to = std::min(from + 1, group.extents.dimensions);
            while (to < group.extents.dimensions && group.merged[static_cast<std::size_t>(to - 1)]) ++to;
            const Owned axis = checked(Py_BuildValue("(ii)", from, to));
            checked(PyList_Append(axes.get(), axis.get()));
            if (group.extents.dimensions == 0) break;  // no dimensions at all are one row
        }
        Owned described = checked(Py_BuildValue("(iO)", group.extents.dimensions, axes.get()));
        checked(PyTuple_SetItem(groups.get(), static_cast<Py_ssize_t>(g), described.release()));
    }
    Owned list = checked(PyTuple_New(static_cast<Py_ssize_t>(count)));
    for (std::size_t i = 0; i < count; ++i) {
        Owned described = none();
        if (!operands[i].is_absent()) {
            const DlpackTensor& tensor = operands[i].tensor();
            const int lead = lead_of(operands[i], declared_[i]);
            const Owned prefix = extents_of(operands[i], 0, declared_[i].prefix);
            const Owned suffix = extents_of(operands[i], declared_[i].prefix + lead, tensor.dimensions);
            const int dtype = tensor.dtype.lanes == 1 ? tensor.dtype.code | tensor.dtype.bits << 8 : -1;
            described = checked(Py_BuildValue("(iiIOO)", dtype, lead, analysis.has[i], prefix.get(), suffix.get()));
        }
        checked(PyTuple_SetItem(list.get(), static_cast<Py_ssize_t>(i), described.release()));
    }
    void* stream = nullptr;
    if (analysis.device.type != kDlpackCpu && analysis.exchange != nullptr)
        checked(analysis.exchange->current_stream(analysis.device.type, analysis.device.id, &stream));
    return checked(Py_BuildValue("(iiKOO)", analysis.device.type, analysis.device.id,
                                 reinterpret_cast<unsigned long long>(stream), groups.get(), list.get()));
}

Kernel& Program::find(Operand* operands, std::size_t count) {
    Analysis analysis;
    analyse(operands, count, &analysis);
    const Signature signature = sign(operands, count, analysis);
    if (last_ < entries_.size() && entries_[last_].signature == signature)
        return kernel_of(entries_[last_].kernel.get());
    for (std::size_t i = 0; i < entries_.size(); ++i) {
        if (!(entries_[i].signature == signature)) continue;
        last_ = i;
        return kernel_of(entries_[i].kernel.get());
    }
    const Owned described = describe(operands, count, analysis);
    Owned made = checked(PyObject_CallFunctionObjArgs(build_.get(), described.get(), nullptr));
    Kernel& kernel = kernel_of(made.get());
    entries_.push_back({signature, std::move(made)});
    last_ = entries_.size() - 1;
    return kernel;
}

Owned Program::run(PyObject* scalars, PyObject* const* arguments, std::size_t count, bool with_owner) {
    std::array<Operand, kMaxOperands> operands;
    borrow_all(arguments, count, names_, operands.data());
    Kernel& kernel = find(operands.data(), count);
    Owned outputs = kernel.run(scalars, operands.data(), count);
    if (!with_owner) return outputs;
    return checked(PyTuple_Pack(2, kernel.owner(), outputs.get()));
}

struct ProgramHandle {
    explicit ProgramHandle(PyObject* arguments) : program(arguments) {}
    Program program;
};

PyObject* make_program(PyTypeObject* type, PyObject* arguments, PyObject*) {
    return guarded([&] { return hold(type, std::make_unique<ProgramHandle>(arguments)); });
}

template <bool kWithOwner>
PyObject* run(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
    return guarded([&] {
        if (count < 1) raise(PyExc_TypeError, "run(scalars, *operands)");
        return held<ProgramHandle>(self).program.run(arguments[0], arguments + 1, static_cast<std::size_t>(count - 1),
                                                     kWithOwner);
    });
}

PyMethodDef program_methods[] = {
    {"run", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(run<false>)), METH_FASTCALL,
     "run(scalars, *operands): launches the kernel of these operands, and gives the outputs"},
    {"run_for_owner", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(run<true>)), METH_FASTCALL,
     "run_for_owner(scalars, *operands): (the kernel's owner, the outputs)"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

void add_program(PyObject* module) {
    static PyType_Slot slots[] = {
        {Py_tp_doc, const_cast<char*>("Program(names, declared, groups, build): kernels made as operands need them.")},
        {Py_tp_new, reinterpret_cast<void*>(make_program)},
        {Py_tp_methods, program_methods},
        {Py_tp_dealloc, reinterpret_cast<void*>(free_held<ProgramHandle>)},
        {0, nullptr}};
    static PyType_Spec spec = {"rowjit._core.Program", sizeof(Held<ProgramHandle>), 0, Py_TPFLAGS_DEFAULT, slots};
    const Owned type = checked(PyType_FromSpec(&spec));
    checked(PyModule_AddObjectRef(module, "Program", type.get()));
}

}  // namespace rowjit::python
