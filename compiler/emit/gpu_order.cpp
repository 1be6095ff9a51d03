// A kernel that puts ids in order by one digit, or counts them (Kernel::order): a call of templates/prelude_order.h.
#include <fmt/format.h>

#include <string>

#include "compiler/emit/gpu_emitter.h"

namespace rowjit::gpu_emit {

void KernelEmitter::order_ids() {
    const OrderPass& pass = *kernel_.order;
    const auto tensor = [&](int index) { return kernel_.tensors[static_cast<std::size_t>(index)]; };
    const auto pointer = [&](int index) { return scope_.pointer(index); };
    const auto stride = [&](int index) { return scope_.row_stride(index, tensor(index).axes[0]); };
    if (kernel_.neighbours.leads) out_.line("rj_let_next_begin();");
    if (kernel_.neighbours.waits) wait_for_last("what the kernel before wrote is there");
    const std::string first = pass.offset == 0 ? "" : fmt::format(" + {}", pass.offset);
    const std::string before =
        pass.before < 0 ? "{}" : fmt::format("{{{}, {}}}", pointer(pass.before), stride(pass.before));
    const std::string ids =
        fmt::format("rj_ids_of_rows<{}, {}>{{{}{}, {}, {}, {}, {}}}", gpu_storage_type(tensor(pass.ids).dtype),
                    pass.before < 0 ? "rj_as_they_are" : "rj_ordered", pointer(pass.ids), first, stride(pass.ids),
                    scope_.extent(kernel_.row_axes[0]), scope_.extent(pass.rows), before);
    const std::string digit =
        fmt::format("rj_digit<{}, {}, {}>", kernel_.launched_threads(), pass.digit.shift, pass.digit.bits);
    out_.line(fmt::format("static_assert({}::kSharedBytes <= {});", digit, kernel_.shared_bytes));
    out_.line(pass.result < 0 ? fmt::format("{}::count({}, {});", digit, ids, pointer(pass.counts))
                              : fmt::format("{}::order({}, {}, {}, {});", digit, ids, pointer(pass.counts),
                                            pointer(pass.result), stride(pass.result)));
}

}  // namespace rowjit::gpu_emit
