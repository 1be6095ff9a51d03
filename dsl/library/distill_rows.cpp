// The registry's rows of distillation losses.
#include "dsl/library/rows.h"

namespace rowjit {
namespace {

bool of_log_probabilities(const OptionValues& options) { return options.choice("of") == "log_probabilities"; }

DistillationOptions distillation_options(const OptionValues& options) {
    return {.log_probabilities = of_log_probabilities(options),
            .temperature = options.optional_number("temperature"),
            .ignore_index = options.integer("ignore_index"),
            .reduction = reduction_of(options)};
}

Results declare_pair(Graph& graph, const OpRequest& request, const OptionValues& options) {
    Results operands = {rows_by_columns(graph, "student", request), rows_by_columns(graph, "teacher", request)};
    if (options.flag("target")) operands.push_back(graph.input("target", i64, {graph.rows("tokens")}));
    return operands;
}

Results apply_kl_div(Operands in, const OptionValues& options) {
    return {kl_div(in[0], in[1], operand(in, 2), distillation_options(options))};
}

Results apply_reverse_kl(Operands in, const OptionValues& options) {
    return {reverse_kl(in[0], in[1], operand(in, 2), distillation_options(options))};
}

Results apply_jsd(Operands in, const OptionValues& options) {
    return {jsd(in[0], in[1], operand(in, 2), options.number("beta"), distillation_options(options))};
}

Results apply_tvd(Operands in, const OptionValues& options) {
    return {tvd(in[0], in[1], operand(in, 2), distillation_options(options))};
}

Results apply_cosine_distance(Operands in, const OptionValues& options) {
    return {cosine_distance(in[0], in[1], operand(in, 2),
                            {.ignore_index = options.integer("ignore_index"), .reduction = reduction_of(options)})};
}

constexpr OptionInfo kTarget = {"target", OptionType::kFlag, "false", "", true, "whether there is a target"};
constexpr OptionInfo kOf = {"of",  OptionType::kChoice,           "logits", "logits log_probabilities",
                            false, "what student and teacher are"};
constexpr OptionInfo kBeta = {"beta", OptionType::kNumber, "0.5", "", false, "the teacher's part of the mixture"};

CompositeInfo distance_row(std::string_view name, std::string_view summary, std::string_view formula,
                           std::vector<OptionInfo> options,
                           std::vector<Value> (*apply)(Operands, const OptionValues&)) {
    options.insert(options.end(), {kReduction, kIgnoreIndex, kTarget});
    return {name,
            summary,
            formula,
            "vocabulary",
            {{"student", kRow, "dtype", true},
             {"teacher", kRow, "dtype", true, true},
             {"target", "{tokens}", "i64 or i32", false, true}},
            {"loss"},
            std::move(options),
            declare_pair,
            apply};
}

}  // namespace

std::vector<CompositeInfo> distillation_rows() {
    return {
        distance_row("kl_div", "divergence of the student from the teacher, p the teacher's and q the student's",
                     "loss = Σ p·(log p − log q)", {kTemperature, kOf}, apply_kl_div),
        distance_row("reverse_kl", "divergence of the teacher from the student", "loss = Σ q·(log q − log p)",
                     {kTemperature, kOf}, apply_reverse_kl),
        distance_row("jsd", "generalised Jensen-Shannon divergence; its ends are kl_div (0) and reverse_kl (1)",
                     "loss = β·KL(p, m) + (1 − β)·KL(q, m), m = β·p + (1 − β)·q", {kBeta, kTemperature, kOf},
                     apply_jsd),
        distance_row("tvd", "total variation distance", "loss = Σ |p − q| / 2", {kTemperature, kOf}, apply_tvd),
        distance_row("cosine_distance", "one minus the cosine of the angle between two rows",
                     "loss = 1 − s·t / (‖s‖·‖t‖)", {}, apply_cosine_distance),
    };
}

}  // namespace rowjit
