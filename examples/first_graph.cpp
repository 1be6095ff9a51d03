// A first graph: the residual stream's step of a decoder layer, and an operation of one's own behind it. Building needs
// no device; it prints what a compiler would be given.
#include <cstdio>

#include "rowjit/library.h"

namespace {

using namespace rowjit;

// An operation of one's own is a function of Values: y = x·σ(αx), with α a number given at each launch.
Value swish(Value x, double alpha) {
    const Value h = cast(x, f32);
    const Value slope = Graph(x.graph()).scalar("alpha", f32, alpha);
    return cast(h / (1.0 + exp(-(slope * h))), x.dtype()).named("swish");
}

Graph first_graph() {
    Graph g;
    const Axis tokens = g.rows("tokens");  // known at launch; columns are known now
    const Value x = g.input("x", bf16, {tokens, 4096});
    const Value residual = g.input("residual", bf16, {tokens, 4096});
    const Value weight = g.input("weight", bf16, {4096});

    const AddRmsNorm norm = add_rms_norm(x, residual, weight, {.eps = 1e-5});
    g.output("sum", norm.sum);
    g.output("y", swish(norm.y, 1.702));
    return g;
}

}  // namespace

int main() {
    try {
        std::fputs(first_graph().print().c_str(), stdout);

        // What does not fit is refused by the line that made it.
        Graph g;
        rms_norm(g.input("x", bf16, {g.rows("tokens"), 4096}), g.input("weight", bf16, {4095}));
    } catch (const Error& error) {
        std::printf("\n%s\n", error.what());
        return error.code() == ErrorCode::kInvalidGraph ? 0 : 1;
    }
    return 1;
}
