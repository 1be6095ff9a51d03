#include "compiler/passes/rounds.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace rowjit {
namespace {

constexpr std::size_t kLeastSpared = 256;  // statements
constexpr std::size_t kShortest = 4;
constexpr std::size_t kLongest = 2048;
constexpr std::size_t kOldest = 3;  // rounds that a value is read behind its own: each is a register more

class RoundFinder {
  public:
    explicit RoundFinder(const Kernel& kernel)
        : block_(kernel.body), operations_(block_.size(), kOther), operands_(block_.size()), last_use_(block_.size()) {
        const Block& block = block_;
        const bool loads_here = !kernel.schedule.fetches_ahead() && kernel.lanes_axis < 0;
        std::map<ValueId, std::size_t> made;
        std::map<std::tuple<InstKind, Op, Dtype, bool, bool, bool, int, bool>, int> operations;
        for (std::size_t at = 0; at < block.size(); ++at) {
            last_use_[at] = at;
            each_use(block[at], [&](ValueId value) {
                const auto found = made.find(value);
                if (found != made.end()) last_use_[found->second] = at;
                operands_[at].push_back({value, found == made.end() ? kOutside : found->second});
            });
            const auto* inst = std::get_if<Inst>(&block[at].node);
            if (inst == nullptr) continue;
            if (inst->kind == InstKind::kMap || (loads_here && is_access(*inst))) {
                const std::tuple what(inst->kind, inst->op, inst->dtype, inst->narrow, inst->of_two, inst->by_one_up,
                                      inst->index, inst->accumulate);
                operations_[at] = operations.try_emplace(what, static_cast<int>(operations.size())).first->second;
            }
            if (inst->id >= 0) made[inst->id] = at;
        }
    }

    std::optional<Rounds> run() const {
        std::optional<Rounds> best;
        for (std::size_t length = kShortest; length <= std::min(kLongest, operations_.size() / 2); ++length) {
            std::size_t alike = 0;  // statements before `at` that repeat what stands a round before them
            for (std::size_t at = length; at <= operations_.size(); ++at) {
                if (at < operations_.size() && repeats(at, length)) {
                    ++alike;
                    continue;
                }
                consider({at - alike - length, length, 1 + alike / length}, &best);
                alike = 0;
            }
        }
        return best;
    }

  private:
    static std::size_t spared(const Rounds& rounds) { return (rounds.count - 1) * rounds.length; }

    // Made in its place, at a place that no value decides.
    static bool is_access(const Inst& inst) {
        if (inst.held >= 0) return false;
        return (inst.kind == InstKind::kLoad || inst.kind == InstKind::kStore) &&
               std::ranges::all_of(inst.coords, [](const Coord& coord) { return coord.data_nodes().empty(); });
    }

    // From the coordinates of one statement to those of another that is alike; none where they differ in more than one
    // constant.
    std::optional<RoundStep> step(std::size_t at, std::size_t later) const {
        const std::vector<Coord>& from = std::get<Inst>(block_[at].node).coords;
        const std::vector<Coord>& to = std::get<Inst>(block_[later].node).coords;
        RoundStep found;
        for (std::size_t i = 0; i < from.size(); ++i) {
            if (from[i] == to[i]) continue;
            const bool constant = from[i].kind() == Coord::Kind::kConst && to[i].kind() == Coord::Kind::kConst;
            if (!constant || found.by != 0) return std::nullopt;
            found = {i, to[i].constant() - from[i].constant()};
        }
        return found;
    }

    bool repeats(std::size_t at, std::size_t length) const {
        if (operations_[at] == kOther || operations_[at - length] != operations_[at]) return false;
        if (!step(at - length, at)) return false;
        for (std::size_t i = 0; i < operands_[at].size(); ++i) {
            if (!is_same(at - length, at, i) && !is_shifted(at - length, at, i)) return false;
        }
        return true;
    }

    bool is_same(std::size_t at, std::size_t later, std::size_t operand) const {
        return operands_[at][operand].value == operands_[later][operand].value;
    }

    // Whether what the two statements read lies as far apart as they do.
    bool is_shifted(std::size_t at, std::size_t later, std::size_t operand) const {
        const std::size_t made = operands_[at][operand].made;
        return made != kOutside && made + (later - at) == operands_[later][operand].made;
    }

    void consider(Rounds rounds, std::optional<Rounds>* best) const {
        const auto enough = [&] { return spared(rounds) >= std::max(kLeastSpared, *best ? spared(**best) + 1 : 0); };
        while (enough() && !is_uniform(rounds)) --rounds.count;
        if (!enough()) return;
        rounds = longest_stretch(rounds);
        // The last round reads none from before the first.
        if (!enough() || rounds.count <= kOldest + 1) return;
        find_ages(&rounds);
        for (std::size_t at = rounds.first; at < rounds.first + rounds.length; ++at)
            rounds.steps.push_back(*step(at, at + rounds.length));
        *best = std::move(rounds);
    }

    // Whether each operand is one of the kinds that Rounds says in all rounds, which two neighbours alike do not show.
    bool is_uniform(const Rounds& rounds) const {
        for (std::size_t at = rounds.first + rounds.length; at < rounds.end(); ++at) {
            const std::size_t last = rounds.end() - rounds.length + (at - rounds.first) % rounds.length;
            if (step(at - rounds.length, at) != step(last - rounds.length, last)) return false;
            for (std::size_t i = 0; i < operands_[at].size(); ++i) {
                const std::size_t made = operands_[last][i].made;
                const bool before = made == kOutside || made < rounds.first;
                if (before ? !is_same(at, last, i) : !is_shifted(at, last, i)) return false;
            }
        }
        return true;
    }

    std::size_t round_of(std::size_t at, const Rounds& rounds) const { return (at - rounds.first) / rounds.length; }

    // Of the rounds those whose values are not read too late, and as many behind them as a value is read behind its
    // own: what follows takes theirs from where the loop leaves them.
    Rounds longest_stretch(const Rounds& rounds) const {
        std::vector<bool> late(rounds.count, false);
        for (std::size_t at = rounds.first; at < rounds.end(); ++at) {
            const std::size_t round = round_of(at, rounds);
            if (round_of(last_use_[at], rounds) - round > kOldest) late[round] = true;
        }
        Rounds best = {rounds.first, rounds.length, 0};
        for (std::size_t begin = 0; begin < rounds.count;) {
            const std::size_t end =
                std::find(late.begin() + static_cast<std::ptrdiff_t>(begin), late.end(), true) - late.begin();
            const std::size_t count = std::min(end + kOldest, rounds.count) - begin;
            if (count > best.count) best = {rounds.first + begin * rounds.length, rounds.length, count};
            begin = end + 1;
        }
        return best;
    }

    void find_ages(Rounds* rounds) const {
        rounds->ages.assign(rounds->length, 0);
        for (std::size_t at = rounds->first; at < rounds->end(); ++at) {
            const std::size_t used = std::min(last_use_[at], rounds->end());
            std::size_t& oldest = rounds->ages[(at - rounds->first) % rounds->length];
            oldest = std::max(oldest, round_of(used, *rounds) - round_of(at, *rounds));
        }
    }

    // Of a value that a statement reads: the statement of the block that made it.
    struct Operand {
        ValueId value;
        std::size_t made;
    };
    static constexpr std::size_t kOutside = -1;

    static constexpr int kOther = -1;
    const Block& block_;
    std::vector<int> operations_;  // by statement: equal for those of one operation, as all lengths compare them
    std::vector<std::vector<Operand>> operands_;
    std::vector<std::size_t> last_use_;  // by statement: the last that reads its value
};

}  // namespace

std::optional<Rounds> find_rounds(const Kernel& kernel) {
    // Nearly every kernel's body is shorter.
    return kernel.body.size() > kLeastSpared ? RoundFinder(kernel).run() : std::nullopt;
}

}  // namespace rowjit
