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

#include <array>
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

struct AddLayerNorm {
    Value sum;  // round(x + residual), in x's dtype
    Value y;    // layer_norm(sum)
};

// s = round(x + residual), then layer_norm(s): a GPT or BERT block. x and residual have equal dtype and axes. Saved for
// the backward: s, mean and rstd.
AddLayerNorm add_layer_norm(Value x, Value residual, const std::optional<Value>& weight = std::nullopt,
                            const std::optional<Value>& bias = std::nullopt, LayerNormOptions options = {});

// torch.nn.functional.group_norm: layer_norm of each group of channels over its channels and all of space. x {batch…,
// groups, channels, spatial…}: groups a row axis of static extent, channels those of one group and column axes like
// space; on contiguous memory that is {batch, groups·channels, spatial…}. weight and bias {groups, channels}. Saved:
// mean and rstd of each group.
Value group_norm(Value x, const std::optional<Value>& weight = std::nullopt,
                 const std::optional<Value>& bias = std::nullopt, LayerNormOptions options = {});

// norm(x)·(1 + scale) + shift, each step in x's dtype, the norm without a weight: the adaptive norms of diffusion
// transformers (DiT's modulate, diffusers' AdaLayerNorm and SD35AdaLayerNormZeroX). scale and shift have x's dtype and
// any of its axes: {columns}, {batch, columns} or {rows…, columns}. Saved: the statistics.
Value modulated_rms_norm(Value x, Value scale, Value shift, RmsNormOptions options = {});
Value modulated_layer_norm(Value x, Value scale, Value shift, LayerNormOptions options = {.eps = 1e-6});

enum class GateOrder : std::uint8_t {
    kNormFirst,  // round(ŵ·round(x̂·r) · silu(ĝ)): transformers' Qwen3NextRMSNormGated
    kGateFirst,  // rms_norm(x̂·silu(ĝ)): transformers' MambaRMSNormGated, Zamba2RMSNormGated
};

struct GatedRmsNormOptions {
    double eps = 1e-6;  // ≥ 0
    GateOrder order = GateOrder::kNormFirst;
};

// rms_norm(x)·silu(gate), of linear-attention models. gate has x's dtype and axes, weight {columns}. The SiLU is
// computed wide and not rounded; the normed row is rounded to x's dtype before the weight. Saved: r.
Value gated_rms_norm(Value x, Value gate, const std::optional<Value>& weight = std::nullopt,
                     GatedRmsNormOptions options = {});

enum class L2Form : std::uint8_t {
    kClamp,  // x / max(‖x‖, eps): torch.nn.functional.normalize
    kRsqrt,  // x·rsqrt(Σ x² + eps): the l2norm of flash-linear-attention, transformers' Qwen3Next
};

struct L2NormOptions {
    double eps = 1e-6;  // ≥ 0
    L2Form form = L2Form::kRsqrt;
};

// Each row divided by its Euclidean norm over the columns, computed wide and rounded once. A row of zeros gives zeros
// for eps > 0. Saved: the reciprocal norm, or the sum of squares.
Value l2_norm(Value x, L2NormOptions options = {});

struct PolyNormOptions {
    double eps = 1e-6;  // ≥ 0
};

// y = w₀·n(x³) + w₁·n(x²) + w₂·n(x) + b, n(u) = u·rsqrt(mean u² + eps) over the columns, computed wide and rounded
// once: PolyCom (Zhuo et al. 2024) in the order of its reference code. weight {3}, bias {} a tensor of one element.
// Saved: the three reciprocal roots.
Value poly_norm(Value x, Value weight, Value bias, PolyNormOptions options = {});

// y = tanh(α·x)·weight + bias, computed wide and rounded once: DyT (Zhu et al. 2025, Transformers without
// Normalization), whose α is a tensor {} of one element. weight and bias {columns}. Saved: nothing.
Value dynamic_tanh(Value x, Value alpha, Value weight, Value bias);

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

// cos and sin {tokens…, R/2} of positions and inverse frequencies: cos(p·f)·scaling, computed in f32 and rounded to
// `dtype`, as transformers' LlamaRotaryEmbedding. positions {tokens…} of i32, i64 or f32; inverse_frequencies {R/2}
// f32. scaling is attention_scaling, a run-time scalar. Used by rope in the same graph they are computed where they are
// read.
struct RopeTables {
    Value cos;
    Value sin;
};
RopeTables rope_tables(Value positions, Value inverse_frequencies, Dtype dtype, double scaling = 1);

// How the columns of a head share three streams of positions: temporal, height, width.
enum class MropeLayout : std::uint8_t {
    kSections,     // consecutive pairs, sections[0] of the first stream and so on: Qwen2-VL, Qwen2.5-VL
    kInterleaved,  // pair p of stream p mod 3 while p < 3·sections[p mod 3], else of the first: Qwen3-VL
};

struct MropeOptions {
    std::array<std::int64_t, 3> sections = {16, 24, 24};  // pairs of each stream; their sum is the table's pairs
    MropeLayout layout = MropeLayout::kSections;
};

// The table {tokens…, R or R/2} that rope takes, from one with a table for every stream: table {streams, tokens…, R or
// R/2}, streams a row axis of extent 3; R with both halves: transformers' apply_multimodal_rotary_pos_emb.
Value mrope_table(Value table, Axis streams, bool both_halves, MropeOptions options = {});

// Llama 4's complex form: neighbours 2i and 2i + 1 as a complex number times rotations' i-th, in f32, rounded once:
// transformers' Llama4TextAttention. rotations {tokens…, d}, the real view of the complex table, f32 (f64 of f64 x).
Value rope_complex(Value x, Value rotations);

struct QueriesAndKeys {
    Value q;
    Value k;
};

// The attention prologue of Qwen3, OLMo 2 and Gemma 3: rms_norm of each head's last axis, then rope. q and k {tokens…,
// heads, d} with their own numbers of heads and a shared d; weights {d}. Heads declared as column axes make one kernel.
// Saved: r of every head.
QueriesAndKeys qk_norm_rope(Value q, Value k, Value q_weight, Value k_weight, Value cos, Value sin,
                            RmsNormOptions norm = {}, RopeOptions rotation = {});

// ---- Activations -------------------------------------------------------------------------------------------------

enum class Gelu : std::uint8_t {
    kTanh,  // x/2·(1 + tanh(√(2/π)·(x + 0.044715x³))): torch gelu(approximate="tanh"), gelu_pytorch_tanh
    kErf,   // x/2·(1 + erf(x/√2)): torch gelu
};

// Each computes wide and rounds once, as torch's elementwise kernels do.
Value silu(Value x);  // round(x̂ / (1 + exp(−x̂)))
Value gelu(Value x, Gelu form = Gelu::kErf);
Value relu(Value x);        // NaN stays NaN; the gradient at 0 is 0, as in torch
Value quick_gelu(Value x);  // x·σ(1.702·x), every step rounded: transformers' QuickGELUActivation
Value relu2(Value x);       // relu(x)² in x's dtype: transformers' ReLUSquaredActivation. NaN stays NaN

// act(gate)·up, the activation rounded to its dtype before the product: transformers' LlamaMLP and GemmaMLP. gate and
// up have equal dtype and axes.
Value swiglu(Value gate, Value up);
Value geglu(Value gate, Value up, Gelu form = Gelu::kTanh);

Value reglu(Value gate, Value up);   // relu(gate)·up
Value glu(Value value, Value gate);  // round(v̂·σ(ĝ)): torch.nn.functional.glu, whose first half is the value

struct ClippedSwigluOptions {
    double alpha = 1.702;  // ≥ 0
    double limit = 7;      // > 0
};

// (u + 1)·g·σ(α·g), g = min(gate, limit), u = clamp(up, ±limit), every step rounded: transformers' GptOssExperts. gate
// and up have equal dtype and axes. A gradient passes where the clamp passes its operand, as in torch. Saved: nothing.
Value clipped_swiglu(Value gate, Value up, ClippedSwigluOptions options = {});

// The two halves of a packed tensor's last column axis, {…, 2n} to twice {…, n}: for Phi3MLP's gate_up_proj, whose gate
// comes first.
std::pair<Value, Value> packed_halves(Value packed);

// Its even and its odd columns, as GptOssExperts packs gate and up.
std::pair<Value, Value> packed_pairs(Value packed);

// ---- Residuals, embeddings ---------------------------------------------------------------------------------------

// residual + round(x·scale), in x's dtype: LayerScale with scale {columns}, or Granite's residual multiplier, a
// run-time scalar. x and residual have equal dtype and axes, scale x's dtype and any of its axes.
Value scale_add(Value x, Value residual, Value scale);
Value scale_add(Value x, Value residual, double scale);

// table[id]: torch.nn.functional.embedding. table {vocabulary, columns}, vocabulary a row axis; ids {tokens…} i32 or
// i64. An id outside the table gives zeros (torch raises). Without a backward yet.
Value embedding(Value table, Value ids);

// ---- Quantisation ------------------------------------------------------------------------------------------------

struct QuantizeOptions {
    // What the codes −127 … 127 are stored in: i32, or a float dtype, each of which holds them exactly. There is no
    // dtype of eight bits yet.
    Dtype codes = Dtype::kI32;
    bool blocks = false;  // a scale for each position along all column axes but the last
};

struct Quantized {
    Value codes;  // x's axes
    Value scale;  // f32 (f64 of f64): {rows…}, or {rows…, blocks}
};

// Symmetric, by the largest magnitude: scale = max |x̂| / 127, codes = round(x̂ / scale), halves to even, over all
// columns or over the last column axis. A row of zeros has scale 0 and codes 0; of infinities or NaN the scale is one.
// Behind a norm it joins the norm's kernel. It has no gradient: pass a straight-through one around it.
Quantized quantize(Value x, QuantizeOptions options = {});

// round(codes·scale) in `dtype`.
Value dequantize(Value codes, Value scale, Dtype dtype);

// ---- Optimizers --------------------------------------------------------------------------------------------------

// All compute in f32 (f64 of f64) and round the parameter once; states are f32. gradient has the parameter's dtype and
// axes, states its axes. Outputs may overwrite their inputs: give OutputOptions::alias. Numbers are run-time scalars, ≥
// 0.

struct SgdOptions {
    double learning_rate = 1e-3;
    double momentum_factor = 0.9;
    double weight_decay = 0;
    bool nesterov = false;
};

struct SgdStep {
    Value parameter;
    Value momentum;
};

// torch.optim.SGD without dampening: g = gradient + λ·p; m = μ·momentum + g; p − η·m, or p − η·(g + μ·m) with nesterov.
// A momentum of zeros is the first step's.
SgdStep sgd_step(Value parameter, Value gradient, Value momentum, SgdOptions options = {});

struct AdamWOptions {
    double learning_rate = 1e-3;
    double beta1 = 0.9;
    double beta2 = 0.999;
    double eps = 1e-8;
    double weight_decay = 1e-2;
    double correction1 = 0.1;    // 1 − beta1^step, > 0, taken in double by the caller: here it would cancel in f32
    double correction2 = 0.001;  // 1 − beta2^step, > 0
};

struct AdamWStep {
    Value parameter;
    Value first_moment;
    Value second_moment;
};

// torch.optim.AdamW: p·(1 − η·λ) − (η/c₁)·m / (√v/√c₂ + eps).
AdamWStep adamw_step(Value parameter, Value gradient, Value first_moment, Value second_moment,
                     AdamWOptions options = {});

struct LionOptions {
    double learning_rate = 1e-4;
    double beta1 = 0.9;
    double beta2 = 0.99;
    double weight_decay = 0;
};

struct LionStep {
    Value parameter;
    Value momentum;
};

// Lion (Chen et al. 2023, algorithm 2), in the order of its reference code: p·(1 − η·λ) − η·sign(β₁·m + (1 − β₁)·g);
// m' = β₂·m + (1 − β₂)·g. The sign of 0 and of NaN is 0.
LionStep lion_step(Value parameter, Value gradient, Value momentum, LionOptions options = {});

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
