// The composite operations: ordinary functions of Values, built from the primitives of rowjit/graph.h and nothing else.
//
// What holds for all of them:
//   - x̂ below is x widened: to f32, or to f64 when x is f64. round(·) is a cast to x's dtype, and every place where a
//     framework rounds is such a cast, so the eager reading of a graph gives the framework's bits.
//   - "Columns" are all column axes of x; what does not lie along them (tokens, most often) are row axes.
//   - eps, temperature, softcap and ignore_index become run-time scalars of the graph under those names; the option is
//     the default of a launch. A number that no launch could use throws Error(kInvalidGraph).
//   - Operands that do not fit throw Error(kInvalidGraph) naming the op and both operands.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "rowjit/graph.h"

namespace rowjit {

// ---- Norms -------------------------------------------------------------------------------------------------------

// Where an RMS norm rounds. r is rsqrt(mean(x̂²) + eps) over the columns.
enum class Casting : std::uint8_t {
    kLlama,  // round(x̂·r) · (offset + w) in x's dtype: transformers' LlamaRMSNorm, MistralRMSNorm, Qwen2RMSNorm
    kGemma,  // round(x̂·r·(offset + ŵ)): transformers' GemmaRMSNorm and Gemma2RMSNorm, whose offset is 1
    kNone,   // x's dtype throughout, every step rounded, the mean accumulated wide
};

struct RmsNormOptions {
    double eps = 1e-6;  // ≥ 0
    double offset = 0;  // added to the weight; structure, so part of the kernel's identity
    Casting casting = Casting::kLlama;
};

// y = x·r·(offset + w), r = rsqrt(mean x² + eps). x {rows…, columns…} of any float dtype; weight {columns…}, or none
// for 1 (the offset is then unused). A weight of another dtype than x is widened for its product, which is rounded to
// x's. Gives x's dtype and axes.
Value rms_norm(Value x, const std::optional<Value>& weight = std::nullopt, RmsNormOptions options = {});

struct AddRmsNorm {
    Value sum;  // round(x + residual), in x's dtype
    Value y;    // rms_norm(sum)
};

// The residual stream's step: s = round(x + residual), then rms_norm(s). x and residual have equal dtype and axes.
AddRmsNorm add_rms_norm(Value x, Value residual, const std::optional<Value>& weight = std::nullopt,
                        RmsNormOptions options = {});

struct LayerNormOptions {
    double eps = 1e-5;  // ≥ 0
};

// y = round((x̂ − mean)·rsqrt(var + eps)·ŵ + b̂), var the biased variance: torch.nn.functional.layer_norm, which keeps
// the statistics wide and rounds once. weight and bias {columns…}, of any float dtype, each optional.
Value layer_norm(Value x, const std::optional<Value>& weight = std::nullopt,
                 const std::optional<Value>& bias = std::nullopt, LayerNormOptions options = {});

// ---- Rotary ------------------------------------------------------------------------------------------------------

// Which two elements of a head form the plane that is rotated; R is the rotary width.
enum class RopePairing : std::uint8_t {
    kHalf,         // d and d + R/2: Hugging Face, GPT-NeoX
    kInterleaved,  // 2i and 2i + 1: the original RoFormer, GPT-J
};

struct RopeOptions {
    RopePairing pairing = RopePairing::kHalf;
    std::int64_t rotary = 0;  // R: the first R of the head's elements rotate, the rest pass; even; 0 for all
};

// Rotary position embedding: y = round(round(x·cos) + round(partner(x)·sin)), partner the other element of the pair,
// negated where x is the first of it: transformers' apply_rotary_pos_emb, which computes in x's dtype. x {tokens…,
// heads, d}, its last axis the column axis of a head; cos and sin {tokens…, R} with both halves as Hugging Face
// builds them (interleaved: each value twice), or {tokens…, R/2} with one value per pair; x's dtype. Queries and keys
// are two calls that share cos and sin; with their heads declared as column axes they become one kernel, which reads
// cos and sin once. As row axes, different numbers of heads are different rows and different kernels.
Value rope(Value x, Value cos, Value sin, RopeOptions options = {});

// ---- Activations -------------------------------------------------------------------------------------------------

enum class Gelu : std::uint8_t {
    kTanh,  // x/2·(1 + tanh(√(2/π)·(x + 0.044715x³))): torch gelu(approximate="tanh"), gelu_pytorch_tanh
    kErf,   // x/2·(1 + erf(x/√2)): torch gelu
};

// Each computes wide and rounds once, as torch's elementwise kernels do.
Value silu(Value x);  // round(x̂ / (1 + exp(−x̂)))
Value gelu(Value x, Gelu form = Gelu::kErf);
Value relu2(Value x);  // relu(x)² in x's dtype: transformers' ReLUSquaredActivation. NaN stays NaN

// act(gate)·up, the activation rounded to its dtype before the product: transformers' LlamaMLP and GemmaMLP. gate and
// up have equal dtype and axes.
Value swiglu(Value gate, Value up);
Value geglu(Value gate, Value up, Gelu form = Gelu::kTanh);

// The two halves of a packed tensor's last column axis, {…, 2n} to twice {…, n}: for Phi3MLP's gate_up_proj, whose gate
// comes first.
std::pair<Value, Value> packed_halves(Value packed);

// ---- Softmax -----------------------------------------------------------------------------------------------------

struct SoftmaxOptions {
    std::optional<double> temperature = std::nullopt;  // > 0: the logits are divided by it
    std::optional<double> softcap = std::nullopt;      // c > 0: the logits become c·tanh(x/c), before the temperature
    std::optional<Dtype> result = std::nullopt;        // instead of x's dtype, as torch's dtype argument
};

// Over the columns, computed wide and rounded once; with z = x̂ after softcap and temperature and m = max z:
//   softmax      exp(z − m) / Σ exp(z − m). A division, as torch has it: multiplying by 1/Σ errs by another rounding.
//   log_softmax  (z − m) − log Σ exp(z − m)
//   logsumexp    m + log Σ exp(z − m), and m itself where m is infinite, as torch.logsumexp; {rows…}
// A row of −∞ gives NaN from the first two, as in torch. Softcap and temperature stand after the widening, so
// they round less than a model that applies them to its logits in bf16.
Value softmax(Value x, SoftmaxOptions options = {});
Value log_softmax(Value x, SoftmaxOptions options = {});
Value logsumexp(Value x, SoftmaxOptions options = {});

// ---- Losses ------------------------------------------------------------------------------------------------------

enum class Reduction : std::uint8_t {
    kMean,  // Σ / number of rows not ignored; NaN when there is none
    kSum,
    kNone,  // a loss per row
};

struct CrossEntropyOptions {
    std::int64_t ignore_index = -100;
    Reduction reduction = Reduction::kMean;
    std::optional<double> temperature = std::nullopt;  // as in SoftmaxOptions
    std::optional<double> softcap = std::nullopt;
};

struct CrossEntropy {
    Value loss;  // f32 (f64 of f64 logits): {} for mean and sum, {rows…} for none
    Value lse;   // {rows…}: log Σ exp of the row's logits
};

// loss = −log softmax(z)[target], computed wide and not rounded back: torch.nn.functional.cross_entropy(logits.float(),
// target), as transformers' ForCausalLMLoss calls it. logits {rows…, vocabulary}, one column axis; target {rows…} of
// i32 or i64. A row whose target is ignore_index contributes 0 and is not counted; a mean over no row is NaN, as in
// torch. The count is kept in the loss's dtype, as torch keeps it. A target outside the vocabulary that is not
// ignore_index makes its row's loss NaN, so that the fault shows (torch raises on the CPU and traps on a GPU).
CrossEntropy cross_entropy(Value logits, Value target, CrossEntropyOptions options = {});

}  // namespace rowjit
