// What the composites give and refuse: dtypes, axes, scalars, messages. Their numbers are in library_test.cpp.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

#include "dsl/graph.h"
#include "rowjit/coord.h"
#include "rowjit/library.h"
#include "tests/support/refusal.h"

using namespace rowjit;

namespace {

template <class Call>
std::string message_of(Call call) {
    return refusal(ErrorCode::kInvalidGraph, call);
}

const double kNan = std::numeric_limits<double>::quiet_NaN();
const double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("every RMS norm casting gives x's dtype and axes") {
    for (const Casting casting : {Casting::kLlama, Casting::kGemma, Casting::kNone}) {
        for (const Dtype weight_dtype : {bf16, f32}) {
            Graph g;
            const Axis tokens = g.rows("tokens");
            const Value x = g.input("x", bf16, {tokens, 64});
            const Value w = g.input("weight", weight_dtype, {64});
            CHECK(rms_norm(x, w, {.offset = 1, .casting = casting}).description() == "bf16[tokens, 64]");
            CHECK(rms_norm(x, std::nullopt, {.casting = casting}).description() == "bf16[tokens, 64]");
        }
    }
}

TEST_CASE("an eps that no launch could use is refused by name and value") {
    for (const double eps : {kNan, kInfinity, -1e-6}) {
        Graph g;
        const Value x = g.input("x", bf16, {g.rows("tokens"), 64});
        for (const Casting casting : {Casting::kLlama, Casting::kGemma, Casting::kNone}) {
            CHECK(mentions(message_of([&] { rms_norm(x, std::nullopt, {.eps = eps, .casting = casting}); }),
                           "rms_norm: eps is"));
        }
        CHECK(mentions(message_of([&] { layer_norm(x, std::nullopt, std::nullopt, {.eps = eps}); }),
                       "layer_norm: eps is"));
    }
}

TEST_CASE("a temperature or softcap that is not a positive number is refused") {
    for (const double value : {kNan, kInfinity, 0.0, -2.0}) {
        Graph g;
        const Value x = g.input("x", bf16, {g.rows("tokens"), 64});
        CHECK(mentions(message_of([&] { softmax(x, {.temperature = value}); }), "softmax: temperature is"));
        CHECK(mentions(message_of([&] { logsumexp(x, {.softcap = value}); }), "logsumexp: softcap is"));
    }
}

TEST_CASE("eps is a run-time scalar with the option as its default") {
    Graph g;
    rms_norm(g.input("x", bf16, {g.rows("tokens"), 64}), std::nullopt, {.eps = 1e-5});
    const auto eps = g.data()->find_input("eps");
    REQUIRE(eps);
    CHECK(g.data()->node(*eps).kind == NodeKind::kScalar);
    CHECK(g.data()->node(*eps).dtype == f32);
    CHECK(g.data()->node(*eps).value == 1e-5);
}

TEST_CASE("a weight over an axis that x lacks is refused, and the message names both") {
    Graph g;
    const Value x = g.input("x", bf16, {g.rows("tokens"), 64});
    const std::string message = message_of([&] { rms_norm(x, g.input("weight", bf16, {63})); });
    CHECK(
        message ==
        "rms_norm(x: bf16[tokens, 64]): weight weight: bf16[63] has axis 63, which x lacks; declare it over x's axes");
}

TEST_CASE("the residual of add_rms_norm must be like x") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Value x = g.input("x", bf16, {tokens, 64});
    CHECK(
        mentions(message_of([&] { add_rms_norm(x, g.input("a", f32, {tokens, 64})); }), "residual a: f32[tokens, 64]"));
    CHECK(mentions(message_of([&] { add_rms_norm(x, g.input("b", bf16, {64})); }), "residual b: bf16[64]"));
}

TEST_CASE("norms need a float with a column axis") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    CHECK(mentions(message_of([&] { rms_norm(g.input("i", i32, {tokens, 8})); }), "float"));
    CHECK(mentions(message_of([&] { softmax(g.input("r", f32, {tokens})); }), "column axis"));
    CHECK(mentions(message_of([&] { layer_norm(Value()); }), "empty Value"));
}

TEST_CASE("rope broadcasts the tables over heads and keeps x's axes") {
    for (const RopePairing pairing : {RopePairing::kHalf, RopePairing::kInterleaved}) {
        for (const int table : {128, 64}) {
            Graph g;
            const Axis tokens = g.rows("tokens");
            const Value x = g.input("x", bf16, {tokens, g.rows("heads", 32), 128});
            const Value cos = g.input("cos", bf16, {tokens, table});
            const Value sin = g.input("sin", bf16, {tokens, table});
            CHECK(rope(x, cos, sin, {.pairing = pairing}).description() == "bf16[tokens, heads, 128]");
        }
    }
}

TEST_CASE("rope refuses an odd or too large rotary width and tables of another extent or dtype") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Value x = g.input("x", bf16, {tokens, g.rows("heads", 4), 64});
    const Value table = g.input("table", bf16, {tokens, 64});
    const Value narrow = g.input("narrow", bf16, {tokens, 48});
    const Value wide_table = g.input("wide", f32, {tokens, 64});
    CHECK(mentions(message_of([&] { rope(x, table, table, {.rotary = 33}); }), "rotary width is 33"));
    CHECK(mentions(message_of([&] { rope(x, table, table, {.rotary = 128}); }), "rotary width is 128"));
    CHECK(mentions(message_of([&] { rope(x, table, narrow); }), "sin narrow: bf16[tokens, 48]"));
    CHECK(mentions(message_of([&] { rope(x, wide_table, table); }), "cos wide: f32[tokens, 64]"));
}

TEST_CASE("packed halves are two tensors of half the columns, and an odd extent is refused") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const auto [gate, up] = packed_halves(g.input("gate_up", bf16, {tokens, 128}));
    CHECK(swiglu(gate, up).description() == "bf16[tokens, 64]");
    CHECK(mentions(message_of([&] { packed_halves(g.input("odd", bf16, {tokens, 7})); }), "7 columns"));
}

TEST_CASE("gate and up must be alike") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Value gate = g.input("gate", bf16, {tokens, 64});
    CHECK(mentions(message_of([&] { swiglu(gate, g.input("up", f16, {tokens, 64})); }), "swiglu(gate"));
    CHECK(mentions(message_of([&] { geglu(gate, g.input("row", bf16, {64})); }), "geglu(gate"));
}

TEST_CASE("softmax gives x's dtype, or the one asked for") {
    Graph g;
    const Value x = g.input("x", bf16, {g.rows("tokens"), 64});
    CHECK(softmax(x).description() == "bf16[tokens, 64]");
    CHECK(softmax(x, {.result = f32}).description() == "f32[tokens, 64]");
    CHECK(log_softmax(x).description() == "bf16[tokens, 64]");
    CHECK(logsumexp(x).description() == "bf16[tokens]");
}

TEST_CASE("cross_entropy gives an f32 loss per row or for all rows, and the row's lse") {
    for (const Reduction reduction : {Reduction::kMean, Reduction::kSum, Reduction::kNone}) {
        Graph g;
        const Axis batch = g.rows("batch");
        const Axis tokens = g.rows("tokens");
        const Value logits = g.input("logits", bf16, {batch, tokens, 1000});
        const CrossEntropy ce =
            cross_entropy(logits, g.input("target", i64, {batch, tokens}), {.reduction = reduction});
        CHECK(ce.loss.description() == (reduction == Reduction::kNone ? "f32[batch, tokens]" : "f32[]"));
        CHECK(ce.lse.description() == "f32[batch, tokens]");
    }
}

TEST_CASE("cross_entropy refuses targets that do not fit the logits") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Value logits = g.input("logits", bf16, {tokens, 1000});
    CHECK(mentions(message_of([&] { cross_entropy(logits, g.input("a", f32, {tokens})); }), "target a: f32[tokens]"));
    CHECK(mentions(message_of([&] { cross_entropy(logits, g.input("b", i64, {tokens, 1000})); }), "target b"));
    const Value narrow = g.input("c", i32, {tokens});
    CHECK(mentions(message_of([&] { cross_entropy(logits, narrow, {.ignore_index = std::int64_t{1} << 40}); }),
                   "does not fit the i32 target"));
}
