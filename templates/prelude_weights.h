// Weights beside 1 in a row's f32 sums, e^a of a at most 0, and the logarithm of a sum of such weights, which is
// multiplied by one of them: what is below 2^-126 of 1 is nothing (compiler/passes/precision). Needs rj_fma,
// rj_exp2_fast and rj_exp2_bias of the vendor's half, and prelude_exp.h.
//
// A divergence adds up logarithms of weights' shares, each times its weight. What all weights are off by in the mean it
// is off by, and of 128256 columns nothing else is left: f32's log2 e makes weights 1.3 10^-8 |a| too large, and
// NVIDIA's instruction, which truncates, 5 10^-8 too small, 2.6 and 3.3 units of the loss
// (docs/experiments/gpu-losses.md). So a weight's logarithm is what its exponent says, t ln 2 of t = a log2 e as it was
// rounded: exact, of a row that differs by 10^-8 of its logits. The logarithm of a sum takes the instruction's bias
// back. ln 2 is one number, whose error a weight's logarithm and a sum's have alike.

// The rounding of the product moves e^a by at most |a| e^a 2^-24, which is most where a is -1.
RJ_DEVICE float rj_exp_weight(float a) { return rj_exp2_fast(a * 1.44269504f); }

// Of a sum of weights as they should be, of what came of them: within 2^-24 or a unit in the last place. f + f^2 p(f)
// of 1 + f in [2/3, 4/3], p fitted to the least error (Lawson's iteration), whose sign alternates. NVIDIA's own
// logarithm to base 2 errs to one side as well: the loss was 6 units in the last place off by it.
RJ_DEVICE float rj_log_weight(float a) {
    const unsigned exponent = rj_log_exponent(a);
    const float f = rj_log_fraction(a, exponent);
    float p = -0.15918617f;
    p = rj_fma(p, f, 0.171943009f);
    p = rj_fma(p, f, -0.163074508f);
    p = rj_fma(p, f, 0.197843462f);
    p = rj_fma(p, f, -0.250143409f);
    p = rj_fma(p, f, 0.33338043f);
    p = rj_fma(p, f, -0.499998331f);
    // p is -0.523 in the mean; added to f itself the bias would be rounded to the places that f has.
    const float square = rj_fma(f, f, rj_exp2_bias * 1.91f);
    return rj_log_sum(a, exponent, rj_fma(p, square, f));
}

// The logarithm of e^a, a weight, less that of a sum.
RJ_DEVICE float rj_log_share(float a, float logarithm) { return rj_fma(a * 1.44269504f, 0.693147182f, -logarithm); }
