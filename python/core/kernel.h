// A compiled graph with the shapes of its tensors as a framework has them, ready to be called.
//
// A graph's row axes stand for leading dimensions of tensors: neighbouring dimensions that all tensors hold one after
// the other are one row axis, so that a kernel of rows serves [tokens, d] and [batch, sequence, d] alike. A Group is
// the leading dimensions that several operands share, aligned at their end as in broadcasting; an operand lacks those
// where it has extent 1 and others have more.
#pragma once

#include <array>
#include <vector>

#include "python/core/operand.h"

namespace rowjit::python {

constexpr std::size_t kMaxGroups = 4;
constexpr std::size_t kMaxOperands = 32;

// Dimensions from … to − 1 of a group, which are one row axis.
struct MergedAxis {
    int from;
    int to;
};

// How an operand's dimensions follow from those of the graph's tensor: static ones, the group's, static ones.
struct Layout {
    int group = -1;  // −1: no leading dimensions
    int prefix = 0;
    int lead = 0;           // leading dimensions of the operand, the group's last ones
    std::uint32_t has = 0;  // bit d: it has dimension d of the group; where not, its own extent there is 1
    int suffix = 0;
    std::vector<MergedAxis> axes;
};

struct GroupExtents {
    int dimensions = 0;
    std::array<std::int64_t, ROWJIT_MAX_AXES> extents{};
};

// Whether dimensions d and d + 1 of the operand's group are one row of positions in memory.
bool merges(const Operand& operand, int prefix, int first, int d);

// Fresh contiguous memory in a framework's tensor, a new reference or null with an exception set: extents, their
// number, DLPack's code and bits of the dtype (code | bits << 8), DLPack's device type and number. A framework that has
// such a function gives it in a capsule "rowjit.allocate", else one of Python's: see rowjit/programs.py.
using Allocate = PyObject* (*)(const std::int64_t*, std::size_t, std::uint32_t, std::int32_t, std::int32_t);

class Kernel {
  public:
    // Of a tuple that rowjit/programs.py makes; see there. Raises.
    explicit Kernel(PyObject* specification);
    ~Kernel();
    Kernel(const Kernel&) = delete;
    Kernel& operator=(const Kernel&) = delete;

    // Launches on operands borrowed before, in the order of the specification's. `scalars` is a tuple of numbers, or
    // None for defaults. Gives the outputs: a tuple, or one alone where the specification says so.
    Owned run(PyObject* scalars, Operand* operands, std::size_t count);

    PyObject* owner() const { return owner_.get(); }
    const std::vector<std::string>& names() const { return names_; }

  private:
    struct Input {
        int operand;
        Layout layout;
    };
    static std::vector<Input> read_inputs(PyObject* tuple);

    struct ShapePart {
        int dimension;  // of the group, or −1
        std::int64_t extent;
    };
    struct Output {
        int alias;  // the operand that is overwritten, or −1
        int group;
        DlpackDtype dtype;
        std::vector<ShapePart> shape;      // as the framework has it
        std::vector<std::int64_t> prefix;  // the graph's tensor: static extents, row axes, static extents
        std::vector<MergedAxis> axes;
        std::vector<std::int64_t> suffix;
        Owned allocate_options;
    };
    // The arguments of one launch. A launch on the CPU lets other threads of Python run, so each takes its own.
    struct Slot {
        rowjit_arguments* arguments = nullptr;
        std::vector<double> scalars;
    };

    void read_groups(const Operand* operands, GroupExtents* groups) const;
    void read_extents(const Input& input, const Operand& operand, GroupExtents* groups, std::uint32_t* known) const;
    void set_inputs(Slot& slot, Operand* operands, const GroupExtents* groups) const;
    void set_scalars(Slot& slot, PyObject* scalars) const;
    Owned allocate(const std::int64_t* extents, std::size_t count, DlpackDtype dtype, PyObject* options) const;
    Owned set_outputs(Slot& slot, const Operand* operands, const GroupExtents* groups);
    Owned set_workspace(Slot& slot);
    void launch(Slot& slot, Operand* operands, const GroupExtents* groups);
    bool copy_misaligned(Operand* operands) const;
    Slot take_slot();

    Owned executable_;
    Owned owner_;
    Owned allocate_;                    // a function of Python's, or the capsule of the next
    Allocate allocate_in_c_ = nullptr;  // or null
    Owned workspace_options_;
    std::vector<std::string> names_;  // of the operands
    std::vector<int> group_dimensions_;
    std::vector<Input> inputs_;
    std::vector<Input> witnesses_;  // operands that the graph does not read, but whose extents its outputs have
    std::vector<Output> outputs_;
    std::vector<std::string> scalar_names_;
    std::vector<Slot> slots_;
    DlpackDevice device_{};
    bool single_ = false;
};

// The kernel of a rowjit._core.Kernel; raises TypeError for other objects.
Kernel& kernel_of(PyObject* object);

// Borrows positional arguments; None is an absent operand. Raises.
void borrow_all(PyObject* const* arguments, std::size_t count, const std::vector<std::string>& names,
                Operand* operands);

}  // namespace rowjit::python
