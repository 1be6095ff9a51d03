// Narrow rows whose columns follow each other, as most rows' do, with neighbouring rows in the lanes of vectors
// (Kernel::in_tiles). A vector of such a row's columns has a few of its lanes filled, and what the row has one of costs
// as much as sixteen rows' would. The rows of a group, as many as there are lanes, lie in one piece of memory: it is
// loaded in whole vectors, from which each column's is put together (llvm_transpose), and stored likewise. Between the
// two each value of a row is a vector, a tile has the vectors of a tensor's columns, and nothing meets. Rows that do
// not follow each other, and those of a last group, which may be fewer, are copied side by side first; lanes that stand
// for no row are computed and never stored, so that a row comes out the same whichever rows are beside it.
#include <llvm/IR/Intrinsics.h>

#include <algorithm>
#include <numeric>
#include <ranges>
#include <set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "compiler/emit/llvm_emitter.h"
#include "compiler/emit/llvm_lanes.h"
#include "compiler/emit/llvm_transpose.h"
#include "compiler/passes/passes.h"

namespace rowjit::cpu_emit {
namespace {

// Instructions of a loop over all columns that are written out, so that what is in tiles is in registers.
constexpr std::int64_t kMostWrittenOut = 512;

bool touches_memory(const Inst& inst) { return inst.kind == InstKind::kLoad || inst.kind == InstKind::kStore; }

// Of a sum, a maximum or a minimum.
llvm::Constant* what_adds_nothing(Op op, llvm::Type* type) {
    if (op != Op::kMax && op != Op::kMin) return llvm::Constant::getNullValue(type);
    if (type->isFPOrFPVectorTy()) return llvm::ConstantFP::getInfinity(type, op == Op::kMax);
    const unsigned bits = type->getScalarSizeInBits();
    return llvm::ConstantInt::get(
        type, op == Op::kMax ? llvm::APInt::getSignedMinValue(bits) : llvm::APInt::getSignedMaxValue(bits));
}

}  // namespace

// Whether an access is of its row, along as many axes as the tensor has.
bool KernelEmitter::is_at_its_row(const Inst& inst) const {
    if (!touches_memory(inst)) return false;
    const KernelTensor& tensor = kernel_.tensors[static_cast<std::size_t>(inst.index)];
    const std::size_t rows = tensor.axes.size() - tensor.column_strides.size();
    for (std::size_t i = 0; i < rows; ++i) {
        const AxisId axis = tensor.axes[i];
        if (!inst.coords[i].is_axis(Axis{axis}) || !contains(kernel_.row_axes, axis)) return false;
    }
    return rows > 0;
}

// Whether it is of columns there that neither data nor rows choose.
bool KernelEmitter::lies_in_tile(const Inst& inst) const {
    if (!is_at_its_row(inst)) return false;
    const KernelTensor& tensor = kernel_.tensors[static_cast<std::size_t>(inst.index)];
    const auto is_row = [&](Axis axis) { return kernel_.axis(axis.id).is_row; };
    for (std::size_t i = tensor.axes.size() - tensor.column_strides.size(); i < inst.coords.size(); ++i) {
        const Coord& coord = inst.coords[i];
        if (!coord.data_nodes().empty() || std::ranges::any_of(coord.axes(), is_row)) return false;
    }
    return elements_of_row(kernel_, tensor) <= kMostTileColumns;
}

// Of the tensors that are read so, and of those all of whose columns are stored so.
void KernelEmitter::find_tiles() {
    if (!kernel_.in_tiles) return;
    std::set<int> elsewhere;                       // tensors that are stored otherwise
    std::map<int, std::set<std::int64_t>> stored;  // places of a row
    const auto visit = [&](const Inst& inst, const std::vector<AxisId>& axes, std::int64_t columns) {
        if (!touches_memory(inst)) return;
        if (!lies_in_tile(inst)) {
            if (inst.kind == InstKind::kStore) elsewhere.insert(inst.index);
            return;
        }
        Tile& tile = tiles_[inst.index];
        tile.is_read = tile.is_read || inst.kind == InstKind::kLoad || inst.accumulate;
        if (inst.kind == InstKind::kLoad) return;
        tile.is_stored = true;
        for (std::int64_t column = 0; column < columns; ++column)
            stored[inst.index].insert(place_in_row(kernel_, inst, axes, column));
    };
    for (const Stmt& stmt : kernel_.body) {
        if (const auto* inst = std::get_if<Inst>(&stmt.node)) visit(*inst, {}, 1);
        const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        if (loop == nullptr) continue;
        for (const Inst& inst : loop->body) visit(inst, loop->axes, loop->columns);
    }
    std::erase_if(tiles_, [&](const auto& known) {
        const auto& [index, tile] = known;
        const std::int64_t columns = elements_of_row(kernel_, kernel_.tensors[static_cast<std::size_t>(index)]);
        return tile.is_stored && (elsewhere.contains(index) || std::ssize(stored[index]) != columns);
    });
    for (auto& [index, tile] : tiles_) make_tile(index, &tile);
}

void KernelEmitter::make_tile(int index, Tile* tile) {
    const KernelTensor& tensor = kernel_.tensors[static_cast<std::size_t>(index)];
    const int lanes = lanes_across(kernel_);
    tile->columns = elements_of_row(kernel_, tensor);
    tile->words = tensor.dtype == Dtype::kBf16 && tile->columns % 2 == 0;
    tile->is_as_stored = size_bytes(tensor.dtype) == 2 && !tile->words && b_.cpu.word_permutes;
    tile->element = tensor.dtype == Dtype::kBool ? b_.getInt32Ty()
                    : tile->is_as_stored         ? stored_type(b_, tensor.dtype)
                                                 : carried_type(b_, tensor.dtype);
    const auto columns = static_cast<std::uint64_t>(tile->columns);
    llvm::Type* column = llvm::FixedVectorType::get(tile->element, static_cast<unsigned>(lanes));
    tile->place = stack(llvm::ArrayType::get(column, columns), tensor.name + "_tile");
    llvm::Type* rows = llvm::ArrayType::get(stored_type(b_, tensor.dtype), columns * static_cast<std::uint64_t>(lanes));
    tile->rows = stack(rows, tensor.name + "_rows");
    b_.CreateMemSet(tile->rows, b_.getInt8(0), module_->getDataLayout().getTypeAllocSize(rows).getFixedValue(),
                    tile->rows->getAlign());
    // Whether each row begins where the one before it ends.
    tile->follow = b_.getTrue();
    Value* elements = i64(tile->columns);
    for (const AxisId axis : tile_rows_ | std::views::reverse) {
        const auto stride = strides_.find({index, axis});
        Value* follows = b_.CreateICmpEQ(extent(axis), i64(1));
        if (stride != strides_.end()) follows = b_.CreateOr(follows, b_.CreateICmpEQ(stride->second, elements));
        tile->follow = b_.CreateAnd(tile->follow, follows);
        elements = b_.CreateMul(elements, extent(axis));
    }
    if (!tile->is_stored || tile->is_read || tensor.aliased) return;
    Value* large = b_.CreateICmpUGE(bytes_of_rows(), i64(b_.cpu.streamed_bytes));
    tile->streams = b_.CreateAnd(large, tile->follow, "stream");
    stream_ = tile->streams;  // behind which there is a fence
}

// Whether an access is in a tile, where lanes are rows.
const Tile* KernelEmitter::tile_of(const Inst& inst) const {
    const auto found = tiles_.find(inst.index);
    return found != tiles_.end() && lies_in_tile(inst) ? &found->second : nullptr;
}

Value* KernelEmitter::place_in_tile(const Tile& tile, const Inst& inst, const Lanes& lanes) {
    const KernelTensor& tensor = kernel_.tensors[static_cast<std::size_t>(inst.index)];
    const std::size_t first_column = tensor.axes.size() - tensor.column_strides.size();
    Value* place = i64(0);
    for (std::size_t i = first_column; i < inst.coords.size(); ++i) {
        Value* at = b_.CreateMul(coordinate(inst.coords[i], lanes, 0), i64(tensor.column_strides[i - first_column]));
        place = b_.CreateAdd(place, at);
    }
    return b_.CreateInBoundsGEP(tile.place->getAllocatedType()->getArrayElementType(), tile.place, place);
}

Value* KernelEmitter::load_from_tile(const Tile& tile, const Inst& inst, const Lanes& lanes) {
    llvm::Type* column = tile.place->getAllocatedType()->getArrayElementType();
    Value* loaded = b_.CreateLoad(column, place_in_tile(tile, inst, lanes));
    const Dtype dtype = kernel_.tensors[static_cast<std::size_t>(inst.index)].dtype;
    return from_element(tile, dtype, loaded);
}

Value* KernelEmitter::from_element(const Tile& tile, Dtype dtype, Value* element) {
    if (dtype == Dtype::kBool) return b_.CreateIsNotNull(element);
    return tile.is_as_stored ? widen(b_, dtype, element) : element;
}

// Of a row's columns, which are in a tile, the one that data say, as a target's logit: each is compared, where lanes
// would load theirs one by one.
const Tile* KernelEmitter::tile_to_choose_from(const Inst& inst) const {
    const auto found = tiles_.find(inst.index);
    if (found == tiles_.end() || !found->second.is_read || inst.kind != InstKind::kLoad) return nullptr;
    const bool of_one_axis = kernel_.tensors[static_cast<std::size_t>(inst.index)].column_strides.size() == 1;
    const bool by_data = of_one_axis && inst.coords.back().kind() == Coord::Kind::kData;
    return by_data && is_at_its_row(inst) ? &found->second : nullptr;
}

Value* KernelEmitter::choose_from_tile(const Tile& tile, const Inst& inst, const Lanes& lanes) {
    const KernelTensor& tensor = kernel_.tensors[static_cast<std::size_t>(inst.index)];
    const std::int64_t columns = kernel_.axis(tensor.axes.back()).extent;
    llvm::Type* of_column = tile.place->getAllocatedType()->getArrayElementType();
    Value* place = spread(value(inst.coords.back().data()), lanes.width);
    if (place->getType()->getScalarSizeInBits() > 32) {
        Value* inside = b_.CreateICmpULT(place, cpu_lanes::integer(place, columns));
        place = b_.CreateTrunc(place, llvm::FixedVectorType::get(b_.getInt32Ty(), static_cast<unsigned>(lanes.width)));
        place = b_.CreateSelect(inside, place, cpu_lanes::integer(place, -1));
    }
    Value* chosen = llvm::Constant::getNullValue(of_column);
    for (std::int64_t column = 0; column < columns; ++column) {
        Value* at = b_.CreateConstInBoundsGEP1_64(of_column, tile.place,
                                                  static_cast<std::uint64_t>(column * tensor.column_strides[0]));
        Value* is_here = b_.CreateICmpEQ(place, cpu_lanes::integer(place, column));
        chosen = b_.CreateSelect(is_here, b_.CreateLoad(of_column, at), chosen);
    }
    return from_element(tile, tensor.dtype, chosen);
}

void KernelEmitter::store_to_tile(const Tile& tile, const Inst& inst, Value* stored, const Lanes& lanes) {
    const Dtype dtype = kernel_.tensors[static_cast<std::size_t>(inst.index)].dtype;
    if (inst.accumulate) {
        Value* before = load_from_tile(tile, inst, lanes);
        stored = round_carried(b_, dtype, apply(b_, inst.op, before, stored, nullptr));
    }
    if (dtype == Dtype::kBool)
        stored = b_.CreateZExt(stored, llvm::FixedVectorType::get(tile.element, static_cast<unsigned>(lanes.width)));
    if (tile.is_as_stored) stored = narrow(b_, dtype, stored);
    b_.CreateStore(stored, place_in_tile(tile, inst, lanes));
}

// As many rows at a time as there are lanes.
void KernelEmitter::emit_tiles(Value* first, Value* last) {
    const int lanes = lanes_across(kernel_);
    count(first, last, i64(lanes), "rows", [&](Value* row) {
        Value* left = b_.CreateSub(last, row, "rows_left");
        const TileRows rows{row, b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, left, i64(lanes)),
                            b_.CreateICmpSGE(left, i64(lanes), "whole")};
        for (const auto& [index, tile] : tiles_) {
            if (tile.is_read) load_tile(index, tile, rows);
        }
        emit_statements_across({&tile_rows_, lanes, row, i64(0), lanes, 0, {}, b_.CreateSub(last, i64(1))});
        for (const auto& [index, tile] : tiles_) {
            if (tile.is_stored) store_tile(index, tile, rows);
        }
    });
}

// Where a row of the tensor begins.
Value* KernelEmitter::begin_of_row(int index, Value* row) {
    const KernelTensor& tensor = kernel_.tensors[static_cast<std::size_t>(index)];
    set_mixed_radix(row, tile_rows_);
    Value* place = i64(0);
    for (const AxisId axis : kernel_.row_axes) {
        const auto stride = strides_.find({index, axis});
        Value* at = axis_[static_cast<std::size_t>(axis)];
        if (stride != strides_.end()) place = b_.CreateAdd(place, b_.CreateMul(at, stride->second));
    }
    for (const AxisId axis : tile_rows_) axis_[static_cast<std::size_t>(axis)] = nullptr;  // the lanes' own again
    return b_.CreateGEP(stored_type(b_, tensor.dtype), pointers_[static_cast<std::size_t>(index)], place);
}

// Between the tensor and the group's rows side by side, one row after the other.
void KernelEmitter::copy_rows(int index, const Tile& tile, const TileRows& rows, bool to_tensor) {
    const KernelTensor& tensor = kernel_.tensors[static_cast<std::size_t>(index)];
    const llvm::Align align(size_bytes(tensor.dtype));
    const std::uint64_t bytes = static_cast<std::uint64_t>(tile.columns) * size_bytes(tensor.dtype);
    count(i64(0), rows.count, i64(1), "row", [&](Value* row) {
        Value* there = begin_of_row(index, b_.CreateAdd(rows.first, row));
        Value* here = b_.CreateGEP(stored_type(b_, tensor.dtype), tile.rows, b_.CreateMul(row, i64(tile.columns)));
        b_.CreateMemCpy(to_tensor ? there : here, align, to_tensor ? here : there, align, bytes);
    });
}

// Of a register's.
unsigned KernelEmitter::lanes_of_register(const Tile& tile) const {
    constexpr unsigned kBitsOfAvx512 = 512;
    const unsigned bits = b_.cpu.scalef ? kBitsOfAvx512 : kBitsOfAvx512 / 2;
    return std::min(bits / tile.element->getScalarSizeInBits(), static_cast<unsigned>(lanes_across(kernel_)));
}

void KernelEmitter::load_tile(int index, const Tile& tile, const TileRows& rows) {
    const KernelTensor& tensor = kernel_.tensors[static_cast<std::size_t>(index)];
    Value* in_place = b_.CreateAnd(tile.follow, rows.are_whole, "in_place");
    branch(in_place, [] {}, [&] { copy_rows(index, tile, rows, false); });
    Value* from = b_.CreateSelect(in_place, begin_of_row(index, rows.first), tile.rows);
    const unsigned lanes = lanes_of_register(tile);
    llvm::Type* element = tile.words ? b_.getInt32Ty() : stored_type(b_, tensor.dtype);
    llvm::Type* type = llvm::FixedVectorType::get(element, lanes);
    const std::int64_t vectors = tile.words ? tile.columns / 2 : tile.columns;
    std::vector<Value*> columns(static_cast<std::size_t>(tile.columns));
    for (std::int64_t part = 0; part < lanes_across(kernel_) / lanes; ++part) {
        std::vector<Value*> loaded;
        for (std::int64_t i = 0; i < vectors; ++i) {
            Value* place = b_.CreateGEP(type, from, i64(part * vectors + i));
            llvm::LoadInst* load = b_.CreateAlignedLoad(type, place, llvm::Align(size_bytes(tensor.dtype)));
            annotate(load, index);
            fetch_line(b_.CreateGEP(b_.getInt8Ty(), place, i64(kFetchedAheadBytes)));
            if (tile.words || tile.is_as_stored) {
                loaded.push_back(load);
                continue;
            }
            Value* wide = widen(b_, tensor.dtype, load);
            if (tensor.dtype == Dtype::kBool)
                wide = b_.CreateZExt(wide, llvm::FixedVectorType::get(tile.element, lanes));
            loaded.push_back(wide);
        }
        loaded = columns_of_rows(b_, std::move(loaded));
        if (tile.words) {
            std::vector<Value*> apart;
            for (Value* word : loaded) {
                constexpr std::int64_t kUpper = -65536;
                apart.push_back(cpu_lanes::float_of(b_, b_.CreateShl(word, cpu_lanes::integer(word, 16))));
                apart.push_back(cpu_lanes::float_of(b_, b_.CreateAnd(word, cpu_lanes::integer(word, kUpper))));
            }
            loaded = std::move(apart);
        }
        for (std::size_t i = 0; i < columns.size(); ++i)
            columns[i] = part == 0 ? loaded[i] : with_lanes(columns[i], loaded[i]);
    }
    llvm::Type* column = tile.place->getAllocatedType()->getArrayElementType();
    for (std::size_t i = 0; i < columns.size(); ++i)
        b_.CreateStore(columns[i], b_.CreateConstInBoundsGEP1_64(column, tile.place, i));
}

// The lanes of both, one behind the other.
Value* KernelEmitter::with_lanes(Value* first, Value* more) {
    const unsigned lanes = cpu_lanes::width(first);
    const unsigned of_more = cpu_lanes::width(more);
    if (of_more < lanes) {
        std::vector<int> widened(lanes, -1);
        std::iota(widened.begin(), widened.begin() + of_more, 0);
        more = b_.CreateShuffleVector(more, widened);
    }
    std::vector<int> mask(lanes + of_more);
    std::iota(mask.begin(), mask.end(), 0);
    return b_.CreateShuffleVector(first, more, mask);
}

void KernelEmitter::store_tile(int index, const Tile& tile, const TileRows& rows) {
    const KernelTensor& tensor = kernel_.tensors[static_cast<std::size_t>(index)];
    const unsigned lanes = lanes_of_register(tile);
    llvm::Type* column = tile.place->getAllocatedType()->getArrayElementType();
    std::vector<Value*> columns;
    for (std::int64_t i = 0; i < tile.columns; ++i)
        columns.push_back(b_.CreateLoad(column, b_.CreateConstInBoundsGEP1_64(column, tile.place, i)));
    std::vector<Value*> stored;
    for (unsigned from = 0; from < static_cast<unsigned>(lanes_across(kernel_)); from += lanes) {
        std::vector<Value*> parts;
        for (Value* whole : columns) parts.push_back(cpu_lanes::lanes_of(b_, whole, from, lanes));
        if (tile.words) {
            constexpr std::int64_t kUpper = -65536;
            std::vector<Value*> together;
            for (std::size_t i = 0; i < parts.size(); i += 2) {
                Value* low = cpu_lanes::bits_of(b_, parts[i]);
                Value* high = cpu_lanes::bits_of(b_, parts[i + 1]);
                low = b_.CreateLShr(low, cpu_lanes::integer(low, 16));
                together.push_back(b_.CreateOr(low, b_.CreateAnd(high, cpu_lanes::integer(high, kUpper))));
            }
            parts = std::move(together);
        }
        for (Value* vector : rows_of_columns(b_, std::move(parts))) {
            if (tensor.dtype == Dtype::kBool) vector = b_.CreateIsNotNull(vector);
            const bool is_ready = tile.words || tile.is_as_stored;
            stored.push_back(is_ready ? vector : narrow(b_, tensor.dtype, vector));
        }
    }
    Value* in_place = b_.CreateAnd(tile.follow, rows.are_whole, "in_place");
    Value* memory = begin_of_row(index, rows.first);
    Value* to = b_.CreateSelect(in_place, memory, tile.rows);
    const auto store_all = [&](Value* place, bool streams) {
        for (std::size_t i = 0; i < stored.size(); ++i) {
            llvm::Type* type = stored[i]->getType();
            llvm::StoreInst* store = b_.CreateAlignedStore(stored[i], b_.CreateConstGEP1_64(type, place, i),
                                                           llvm::Align(size_bytes(tensor.dtype)));
            annotate(store, index);
            if (!streams) continue;
            store->setAlignment(llvm::Align(module_->getDataLayout().getTypeStoreSize(type).getFixedValue()));
            llvm::Metadata* one = llvm::ConstantAsMetadata::get(b_.getInt32(1));
            store->setMetadata(llvm::LLVMContext::MD_nontemporal, llvm::MDNode::get(b_.getContext(), {one}));
        }
    };
    if (tile.streams == nullptr) {
        store_all(to, false);
    } else {
        // A block that has a part of a sum over rows begins at any of them.
        Value* within_line = b_.CreateAnd(b_.CreatePtrToInt(memory, b_.getInt64Ty()), i64(kLineBytes - 1));
        Value* begins_line = b_.CreateICmpEQ(within_line, i64(0));
        Value* streams = b_.CreateAnd(begins_line, b_.CreateAnd(tile.streams, rows.are_whole));
        branch(streams, [&] { store_all(memory, true); }, [&] { store_all(to, false); });
    }
    branch(in_place, [] {}, [&] { copy_rows(index, tile, rows, true); });
}

// What a group's rows add to a place that all rows of a block add to: lanes meet in halves.
Value* KernelEmitter::sum_of_lanes(const Inst& store, Value* terms, const Lanes& lanes) {
    const auto width = static_cast<std::size_t>(lanes.width);
    std::vector<std::uint64_t> numbers(width);
    std::iota(numbers.begin(), numbers.end(), 0);
    Value* left = spread(b_.CreateSub(lanes.last, lanes.column), lanes.width);
    Value* are_rows = b_.CreateICmpSLE(llvm::ConstantDataVector::get(b_.getContext(), numbers), left);
    Value* total = b_.CreateSelect(are_rows, terms, what_adds_nothing(store.op, terms->getType()));
    for (unsigned half = static_cast<unsigned>(lanes.width) / 2; half > 0; half /= 2) {
        Value* low = half == 1 ? lane_of(total, 0) : cpu_lanes::lanes_of(b_, total, 0, half);
        Value* high = half == 1 ? lane_of(total, 1) : cpu_lanes::lanes_of(b_, total, half, half);
        total = apply(b_, store.op, low, high, nullptr);
    }
    return total;
}

// Whether a lane stands for a row.
Value* KernelEmitter::is_row(const Lanes& lanes, int lane) {
    return b_.CreateICmpSLE(b_.CreateAdd(lanes.column, i64(lane)), lanes.last);
}

bool KernelEmitter::is_written_out(const ColumnLoop& loop) const {
    return kernel_.in_tiles && loop.columns * std::ssize(loop.body) <= kMostWrittenOut;
}

}  // namespace rowjit::cpu_emit
