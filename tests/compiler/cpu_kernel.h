// Kernels written by hand for tests and benchmarks of the CPU emitter, and running them. The compiler's own kernels
// come from lowering a graph; these show single features of the loop IR.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "compiler/kernel.h"
#include "compiler/toolchain/orc.h"
#include "rowjit/coord.h"

namespace rowjit {

// One row axis `rows` of run-time extent and one column axis, on which every tensor is contiguous unless said
// otherwise.
class KernelWriter {
  public:
    KernelWriter(std::string name, std::int64_t columns, int vector);

    AxisId rows() const { return 0; }
    AxisId columns() const { return 1; }
    AxisId add_axis(const std::string& name, std::int64_t extent, bool is_row);

    int tensor(const std::string& name, Dtype dtype, std::vector<AxisId> axes, bool written = false,
               std::vector<std::int64_t> column_strides = {});
    int scalar(const std::string& name, Dtype dtype);
    int accumulator(Monoid monoid, Dtype dtype = Dtype::kF32);
    int slot(Dtype dtype, Residency residency = Residency::kRegisters);

    // Instructions go to the open loop, or to the row when none is open.
    void open_loop();
    ColumnLoop& loop() { return loop_; }
    void close_loop();
    void all_reduce(std::vector<int> accumulators, std::vector<ValueId>* results);

    ValueId constant(Dtype dtype, double value);
    ValueId scalar_value(int scalar);
    ValueId coord(AxisId axis, Dtype dtype);
    ValueId map(Op op, std::vector<ValueId> operands, Dtype dtype = Dtype::kF32);
    ValueId cast(ValueId operand, Dtype dtype);
    ValueId load(int tensor, Access access = {Access::Kind::kVector});
    ValueId load_at(int tensor, std::vector<Coord> coords, Access access);
    void store(int tensor, ValueId value, Access access = {Access::Kind::kVector}, bool accumulate = false);
    void store_at(int tensor, ValueId value, std::vector<Coord> coords, Access access);
    void accumulate(int accumulator, ValueId value);
    void keep(int slot, ValueId value);
    ValueId kept(int slot, Dtype dtype);

    Kernel& kernel() { return kernel_; }

  private:
    ValueId emit(Inst inst);
    std::vector<Coord> own_coords(int tensor) const;

    Kernel kernel_;
    ColumnLoop loop_;
    bool in_loop_ = false;
};

using CpuFunction = void (*)(void* const*, std::int64_t, std::int64_t);

// A compiled kernel and the values of its arguments.
class CpuRun {
  public:
    CpuRun(const Kernel& kernel, const Target& target);
    CpuRun(const CpuRun&) = delete;
    CpuRun& operator=(const CpuRun&) = delete;

    void bind(const std::string& argument, void* pointer);
    void bind(const std::string& argument, std::int64_t value);
    void bind_f32(const std::string& argument, float value);
    // Strides of contiguous tensors of one row axis are bound to `row_elements`.
    void bind_rows(std::int64_t rows, std::int64_t row_elements);
    void operator()(std::int64_t block_begin, std::int64_t block_end) {
        function_(arguments_.data(), block_begin, block_end);
    }
    const Artifact& artifact() const { return artifact_; }

  private:
    std::size_t index_of(const std::string& argument) const;

    std::vector<KernelArgument> declared_;
    Artifact artifact_;
    std::unique_ptr<CpuCode> code_;
    CpuFunction function_ = nullptr;
    std::vector<std::uint64_t> values_;
    std::vector<void*> arguments_;
};

}  // namespace rowjit
