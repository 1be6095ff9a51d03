#include "compiler/needless.h"

#include <algorithm>
#include <cstdint>

namespace rowjit {
namespace {

bool is_temporary(const Program& program, int tensor) {
    return program.tensors[static_cast<std::size_t>(tensor)].place == ProgramTensor::Place::kTemporary;
}

// The steps that store a tensor: one, of a temporary.
Step* maker_of(Program* program, int tensor) {
    const auto makes = [&](const Step& step) {
        for (std::size_t i = 0; i < step.tensors.size(); ++i) {
            if (step.tensors[i] == tensor && step.kernel.tensors[i].written) return true;
        }
        return false;
    };
    return &*std::ranges::find_if(program->steps, makes);
}

}  // namespace

// What nobody but the program reads may be another tensor, and rows are numbered from 1 on, after what is before them,
// to one more, what is past them.
void find_needless(Program* program) {
    for (Step& step : program->steps) {
        if (!step.kernel.order || step.kernel.order->result < 0 || step.kernel.order->before < 0) continue;
        const OrderPass& pass = *step.kernel.order;
        const auto tensor = [&](int index) { return step.tensors[static_cast<std::size_t>(index)]; };
        const bool at_launch = step.kernel.axis(pass.rows).extent == kRuntimeExtent;
        if (!at_launch || !is_temporary(*program, tensor(pass.result))) continue;
        const ExtentAbove with_digit{pass.rows, (std::int64_t{1} << pass.digit.shift) - 2};
        step.needed = with_digit;
        step.stays = {{tensor(pass.result), tensor(pass.before)}};
        if (pass.counts >= 0) maker_of(program, tensor(pass.counts))->needed = with_digit;
    }
}

}  // namespace rowjit
