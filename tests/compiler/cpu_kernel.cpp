#include "tests/compiler/cpu_kernel.h"

#include <bit>
#include <cstring>
#include <stdexcept>

namespace rowjit {

KernelWriter::KernelWriter(std::string name, std::int64_t columns, int vector) {
    kernel_.name = std::move(name);
    kernel_.axes = {{"rows", kRuntimeExtent, true}, {"columns", columns, false}};
    kernel_.row_axes = {0};
    kernel_.schedule.vector = vector;
    kernel_.arguments.push_back({KernelArgument::Kind::kExtent, 0, 0, "rows_extent"});
    loop_.axes = {1};
    loop_.columns = columns;
    loop_.vector = vector;
    loop_.iterations = (columns + vector - 1) / vector;
    loop_.tail = columns % vector == 0 ? ColumnLoop::Tail::kNone : ColumnLoop::Tail::kScalar;
}

AxisId KernelWriter::add_axis(const std::string& name, std::int64_t extent, bool is_row) {
    kernel_.axes.push_back({name, extent, is_row});
    const auto axis = static_cast<AxisId>(kernel_.axes.size() - 1);
    if (is_row && extent == kRuntimeExtent) {
        kernel_.arguments.push_back({KernelArgument::Kind::kExtent, 0, axis, name + "_extent"});
    }
    return axis;
}

int KernelWriter::tensor(const std::string& name, Dtype dtype, std::vector<AxisId> axes, bool written,
                         std::vector<std::int64_t> column_strides) {
    const int index = static_cast<int>(kernel_.tensors.size());
    kernel_.arguments.push_back({KernelArgument::Kind::kPointer, index, -1, name});
    std::int64_t columns = 0;
    for (const AxisId axis : axes) {
        if (kernel_.axis(axis).is_row) {
            kernel_.arguments.push_back(
                {KernelArgument::Kind::kStride, index, axis, name + "_" + kernel_.axis(axis).name + "_stride"});
        } else {
            ++columns;
        }
    }
    if (column_strides.empty() && columns == 1) column_strides = {1};
    kernel_.tensors.push_back({name, dtype, std::move(axes), std::move(column_strides), !written, written, false});
    return index;
}

int KernelWriter::scalar(const std::string& name, Dtype dtype) {
    const int index = static_cast<int>(kernel_.scalars.size());
    kernel_.scalars.push_back({name, dtype});
    kernel_.arguments.push_back({KernelArgument::Kind::kScalar, index, -1, name});
    return index;
}

int KernelWriter::accumulator(Monoid monoid, Dtype dtype) {
    kernel_.accumulators.push_back({monoid, dtype, "accumulated"});
    return static_cast<int>(kernel_.accumulators.size()) - 1;
}

int KernelWriter::slot(Dtype dtype, Residency residency) {
    kernel_.slots.push_back({dtype, residency, 0, "kept"});
    return static_cast<int>(kernel_.slots.size()) - 1;
}

void KernelWriter::open_loop() {
    loop_.body.clear();
    in_loop_ = true;
}

void KernelWriter::close_loop() {
    kernel_.body.emplace_back().node = loop_;
    in_loop_ = false;
}

void KernelWriter::all_reduce(std::vector<int> accumulators, std::vector<ValueId>* results) {
    AllReduce reduce{std::move(accumulators), {}, 0};
    for (const int index : reduce.accumulators) {
        const Monoid monoid = kernel_.accumulators[static_cast<std::size_t>(index)].monoid;
        for (int i = 0; i < components(monoid); ++i) reduce.results.push_back(kernel_.value_count++);
    }
    *results = reduce.results;
    kernel_.body.emplace_back().node = std::move(reduce);
}

ValueId KernelWriter::emit(Inst inst) {
    const bool gives =
        inst.kind != InstKind::kStore && inst.kind != InstKind::kAccumulate && inst.kind != InstKind::kKeep;
    if (gives) inst.id = kernel_.value_count++;
    const ValueId id = inst.id;
    if (in_loop_) {
        loop_.body.push_back(std::move(inst));
    } else {
        kernel_.body.emplace_back().node = std::move(inst);
    }
    return id;
}

std::vector<Coord> KernelWriter::own_coords(int tensor) const {
    std::vector<Coord> coords;
    for (const AxisId axis : kernel_.tensors[static_cast<std::size_t>(tensor)].axes) coords.emplace_back(Axis{axis});
    return coords;
}

ValueId KernelWriter::constant(Dtype dtype, double value) {
    return emit({.kind = InstKind::kConst, .dtype = dtype, .value = value});
}
ValueId KernelWriter::scalar_value(int scalar) {
    const Dtype dtype = kernel_.scalars[static_cast<std::size_t>(scalar)].dtype;
    return emit({.kind = InstKind::kScalar, .dtype = dtype, .index = scalar});
}
ValueId KernelWriter::coord(AxisId axis, Dtype dtype) {
    return emit({.kind = InstKind::kCoord, .dtype = dtype, .axis = axis});
}
ValueId KernelWriter::map(Op op, std::vector<ValueId> operands, Dtype dtype) {
    return emit({.kind = InstKind::kMap, .dtype = dtype, .operands = std::move(operands), .op = op});
}
ValueId KernelWriter::cast(ValueId operand, Dtype dtype) {
    return emit({.kind = InstKind::kCast, .dtype = dtype, .operands = {operand}});
}
ValueId KernelWriter::load(int tensor, Access access) { return load_at(tensor, own_coords(tensor), std::move(access)); }
ValueId KernelWriter::load_at(int tensor, std::vector<Coord> coords, Access access) {
    const Dtype dtype = kernel_.tensors[static_cast<std::size_t>(tensor)].dtype;
    return emit({.kind = InstKind::kLoad,
                 .dtype = dtype,
                 .index = tensor,
                 .coords = std::move(coords),
                 .access = std::move(access)});
}
void KernelWriter::store(int tensor, ValueId value, Access access, bool accumulate) {
    emit({.kind = InstKind::kStore,
          .dtype = kernel_.tensors[static_cast<std::size_t>(tensor)].dtype,
          .operands = {value},
          .index = tensor,
          .coords = own_coords(tensor),
          .accumulate = accumulate,
          .access = std::move(access)});
}
void KernelWriter::store_at(int tensor, ValueId value, std::vector<Coord> coords, Access access) {
    emit({.kind = InstKind::kStore,
          .dtype = kernel_.tensors[static_cast<std::size_t>(tensor)].dtype,
          .operands = {value},
          .index = tensor,
          .coords = std::move(coords),
          .access = std::move(access)});
}
void KernelWriter::accumulate(int accumulator, ValueId value) {
    emit({.kind = InstKind::kAccumulate, .operands = {value}, .index = accumulator});
}
void KernelWriter::keep(int slot, ValueId value) {
    emit({.kind = InstKind::kKeep, .operands = {value}, .index = slot});
}
ValueId KernelWriter::kept(int slot, Dtype dtype) {
    return emit({.kind = InstKind::kKept, .dtype = dtype, .index = slot});
}

CpuRun::CpuRun(const Kernel& kernel, const Target& target)
    : declared_(kernel.arguments), artifact_(compile_cpu(kernel, target)), code_(load_cpu_object(artifact_)) {
    function_ = reinterpret_cast<CpuFunction>(code_->symbol(kernel.name));
    values_.resize(declared_.size());
    for (std::uint64_t& value : values_) arguments_.push_back(&value);
}

std::size_t CpuRun::index_of(const std::string& argument) const {
    for (std::size_t i = 0; i < declared_.size(); ++i) {
        if (declared_[i].name == argument) return i;
    }
    throw std::out_of_range(argument);
}

void CpuRun::bind(const std::string& argument, void* pointer) {
    values_[index_of(argument)] = std::bit_cast<std::uint64_t>(pointer);
}
void CpuRun::bind(const std::string& argument, std::int64_t value) {
    values_[index_of(argument)] = std::bit_cast<std::uint64_t>(value);
}
void CpuRun::bind_f32(const std::string& argument, float value) {
    std::memcpy(&values_[index_of(argument)], &value, sizeof value);
}
void CpuRun::bind_rows(std::int64_t rows, std::int64_t row_elements) {
    for (std::size_t i = 0; i < declared_.size(); ++i) {
        if (declared_[i].kind == KernelArgument::Kind::kExtent) values_[i] = static_cast<std::uint64_t>(rows);
        if (declared_[i].kind == KernelArgument::Kind::kStride) values_[i] = static_cast<std::uint64_t>(row_elements);
    }
}

}  // namespace rowjit
