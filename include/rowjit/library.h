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

// ---- Residuals, dropout, embeddings ------------------------------------------------------------------------------

// residual + round(x·scale), in x's dtype: LayerScale with scale {columns}, or Granite's residual multiplier, a
// run-time scalar. x and residual have equal dtype and axes, scale x's dtype and any of its axes.
Value scale_add(Value x, Value residual, Value scale);
Value scale_add(Value x, Value residual, double scale);

struct DropoutOptions {
    double p = 0.1;           // in [0, 1]: the share of elements that become 0
    std::int64_t seed = 0;    // in ±2^53, as offset: launches carry scalars as doubles
    std::int64_t offset = 0;  // another one is another mask of the same seed: a step's or layer's number
};

// x̂ / (1 − p) where uniform(seed, offset, position) ≥ p, else 0, computed wide and rounded once, as torch's dropout
// kernels do. position is the element's index among x's elements in the order of its axes, so that the mask depends on
// no stride, schedule or device, and not on how the axes divide them into rows and columns. The backward computes the
// mask again: nothing is saved. p 0 keeps and p 1 drops every element, forward and backward.
//
// The mask is not torch's: its generator gives each thread of its launch a part of the counter, so that its masks
// depend on the GPU. What corresponds: seed and offset of a torch.Generator's philox state, which a training step
// advances.
//
// p, seed and offset are run-time scalars, named dropout_p, dropout_seed and dropout_offset; or values of the graph,
// p of x's wide dtype, seed and offset i64.
Value dropout(Value x, DropoutOptions options = {});
Value dropout(Value x, Value p, Value seed, Value offset);

// residual + dropout(x), dropout's result rounded: transformers' dropout_add of BLOOM and Falcon.
Value dropout_add(Value x, Value residual, DropoutOptions options = {});

// table[id]: torch.nn.functional.embedding. table {vocabulary, columns}, vocabulary a row axis; ids {tokens…} i32 or
// i64. An id outside the table gives zeros (torch raises) and takes no part in the
// table's gradient (docs/gradient.md).
Value embedding(Value table, Value ids);

// ---- Residual streams --------------------------------------------------------------------------------------------
//
// Hyper-connections keep a token's state in n streams, x {rows…, streams, columns}. Before a branch (attention, an MLP)
// the streams are weighed into its input; after it they are mixed with each other and the branch's output is added to
// each. The coefficients depend on the token: mHC, manifold-constrained hyper-connections (arXiv 2512.24880), with
// Liger-Kernel's rounding and ε. `to` is an axis of n as well, of the streams that are written.

struct HyperScales {
    Value pre;  // learned numbers, {}
    Value post;
    Value residual;
};

struct HyperOptions {
    std::int64_t iterations = 20;  // of Sinkhorn's; 1 … 64
    double sinkhorn_eps = 1e-6;    // ≥ 0
    double pre_eps = 0;            // ≥ 0
    double post_scale = 2;         // ≥ 0
};

struct HyperCoefficients {
    Value pre;     // {rows…, streams}: σ(s·m + b) + pre_eps
    Value post;    // {rows…, to}: post_scale·σ(s·m + b)
    Value mixing;  // {rows…, to, streams}: of sums one along both, as far as the iterations bring it
};

// mix {rows…, n·(n + 2)} is the norm of x's n·columns times the learned projection, its columns those of pre, post and
// mixing, row by row; bias likewise, without the rows. mixing begins as the softmax of s·m + b over the streams, ε
// added; then columns and rows are divided by their sums, ε added, in turn, the columns last. All in f32 (f64 of f64).
// Saved: nothing but the operands.
HyperCoefficients hyper_coefficients(Value mix, const HyperScales& scales, Value bias, Axis streams, Axis to,
                                     HyperOptions options = {});

// round(Σ pre·x̂ over the streams), {rows…, columns}.
Value hyper_pre(Value x, Value pre);

// round(Σ mixing·x̂ over the streams + post·branch), {rows…, to, columns}; branch {rows…, columns}.
Value hyper_post(Value x, Value branch, Value post, Value mixing);

struct AttentionResidual {
    Value y;        // {rows…, columns}: round(Σ weights·states over the depth)
    Value weights;  // {depth, rows…}: softmax over the depth of query·rms_norm(states, weight), wide
};

// A residual connection to all layers before: Kimi's attention residuals (arXiv 2603.15031), as Liger-Kernel's
// attn_res. states {depth, rows…, columns}, the depth a row axis of static extent; query and weight {columns}. Saved:
// the scores and the norms' r, {depth, rows…}.
AttentionResidual attention_residual(Value states, Value query, const std::optional<Value>& weight = std::nullopt,
                                     RmsNormOptions options = {});

// ---- The norm of all gradients -----------------------------------------------------------------------------------

// √Σ x² over all elements, {} in f32 (f64 of f64). Of several tensors it is the norm of their norms:
// sqrt(a·a + b·b + …).
Value gradient_norm(Value gradient);

// gradient·min(max_norm / (norm + 1e-6), 1), norm {} as above: torch.nn.utils.clip_grad_norm_. max_norm ≥ 0.
Value clip_gradient(Value gradient, Value norm, double max_norm = 1);

// ---- Quantisation ------------------------------------------------------------------------------------------------

struct QuantizeOptions {
    Dtype codes = Dtype::kI8;  // i8, whose codes are −127 … 127, e4m3, up to 448, or e5m2, up to 57344
    bool blocks = false;       // a scale for each position along all column axes but the last
};

struct Quantized {
    Value codes;  // x's axes
    Value scale;  // f32 (f64 of f64): {rows…}, or {rows…, blocks}
};

// Symmetric, by the largest magnitude: scale = max |x̂| / the greatest code, codes = x̂ / scale rounded to codes, halves
// to even, over all columns or over the last column axis. A row of zeros has scale 0 and codes 0; of infinities or NaN
// the scale is one, and what is no number has code 0 in i8 and NaN else. As vLLM's per-token quantisation of
// activations, whose scales are held above a least one. Behind a norm or an activation it joins their kernel. It has no
// gradient: pass a straight-through one around it.
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
    // The columns up to and with row + causal_offset are kept, the row being the coordinate along the last row axis:
    // torch.nn.functional.scaled_dot_product_attention's is_causal. A run-time scalar; keys − queries where a cache
    // holds earlier keys.
    std::optional<std::int64_t> causal_offset = std::nullopt;
};

// Operands beside x, each over any of x's axes.
struct SoftmaxOperands {
    std::optional<Value> bias = std::nullopt;  // of a float dtype: added to z, wide
    std::optional<Value> mask = std::nullopt;  // bool: where it is false, z is −∞
    // Of a float dtype and x's row axes (heads, most often): one more logit of every row, which takes part in the
    // maximum and the sum and has no place in the result. transformers' gpt-oss; neither temperature nor bias reach it.
    std::optional<Value> sink = std::nullopt;
};

// Over the columns, computed wide and rounded once; with z = x̂ after softcap, temperature, bias and masks, in this
// order, and m = max z:
//   softmax      exp(z − m) / Σ exp(z − m). A division, as torch has it: multiplying by 1/Σ errs by another rounding.
//   log_softmax  (z − m) − log Σ exp(z − m)
//   logsumexp    m + log Σ exp(z − m), and m itself where m is infinite, as torch.logsumexp; {rows…}
// A row of −∞ gives NaN from the first two, as in torch. Softcap, temperature and bias stand after the widening, so
// they round less than a model that applies them to its logits in bf16. The row's maximum and sum are saved.
Value softmax(Value x, SoftmaxOptions options = {}, SoftmaxOperands operands = {});
Value log_softmax(Value x, SoftmaxOptions options = {}, SoftmaxOperands operands = {});
Value logsumexp(Value x, SoftmaxOptions options = {}, SoftmaxOperands operands = {});

// max(x̂ − τ, 0) with the τ of each row at which the elements sum to 1: Martins and Astudillo (ICML 2016),
// computed wide and rounded once, without sorting: τ is found by a fixpoint over the row. A row that holds NaN or +∞,
// or nothing above −∞, is NaN. Gradient: of the elements above 0, each less the mean of all. Saved: four numbers of
// each row.
Value sparsemax(Value x);

struct TopK {
    Value values;   // {rows…, count}: the greatest elements, the greatest first
    Value indices;  // {rows…, count}: their columns, i32
};

// Of x with one column axis; equal elements in the order of their columns, NaN before numbers, as torch.topk. A row
// that is on chip is searched `count` times, 1 … 64 and at most the columns. The gradient goes to the columns that were
// taken. Saved: the indices.
TopK top_k(Value x, std::int64_t count);

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
    std::optional<double> label_smoothing = std::nullopt;  // ε in [0, 1]: the target's share is 1 − ε, each class's ε/C
    std::optional<double> z_loss = std::nullopt;           // λ ≥ 0: λ·lse² is added to a row's loss
    bool token_scaling = false;  // a row's loss and z-loss are multiplied by softmax(z)[target], which has no gradient
    // The target's logit is taken out of the pass over the row and not read again, so that the gradient of a joint
    // graph may overwrite the logits (GradientOptions::in_place). Costs a comparison for every logit; the result is the
    // same.
    bool in_place = false;
};

// Operands beside the logits and the target, of any float dtype, widened.
struct CrossEntropyWeights {
    std::optional<Value> classes = std::nullopt;  // {vocabulary}: torch's weight
    std::optional<Value> tokens = std::nullopt;   // {rows…}: a row counts by this much
};

// All in the wide dtype but argmax. What is not made an output costs nothing.
struct CrossEntropy {
    Value loss;                   // {} for mean and sum, {rows…} for none; with the z-loss
    Value lse;                    // {rows…}: log Σ exp of the row's logits
    std::optional<Value> z_loss;  // the z-loss's part of `loss`, where there is one
    Value entropy;                // {rows…}: −Σ p log p, a class of p = 0 adding 0, as torch.distributions.Categorical
    Value argmax;                 // {rows…}, i32: the first of the greatest logits; of a NaN, as torch.argmax
    // For targets that are classes:
    std::optional<Value> logp;      // {rows…}: log softmax(z)[target], 0 for an ignored row
    std::optional<Value> accuracy;  // {}: the part of the rows not ignored whose argmax is their target
};

// loss = −log softmax(z)[target], computed wide and not rounded back: torch.nn.functional.cross_entropy(logits.float(),
// target), as transformers' ForCausalLMLoss calls it. logits {rows…, vocabulary}, one column axis; target {rows…} of
// i32 or i64. A row whose target is ignore_index contributes 0 and is not counted; a mean over no row is NaN, as in
// torch. The count is kept in the loss's dtype, as torch keeps it. A target outside the vocabulary that is not
// ignore_index makes its row's loss NaN, so that the fault shows (torch raises on the CPU and traps on a GPU).
//
// Smoothing and class weights w are torch's: (1 − ε)·w_y·(lse − z_y) + ε/C·Σ w_c·(lse − z_c), and the mean divides by
// Σ w_y. The z-loss λ·lse² (PaLM, arXiv 2204.02311) is added to the loss and given apart, without class weights, its
// mean over the rows counted: Liger-Kernel's cross_entropy with lse_square_scale. Token weights multiply both; the
// means then divide by Σ of them (times w_y). Token scaling is Liger-Kernel's, of classes only: its means still divide
// by what the rows count.
//
// A target of a float dtype, {rows…, vocabulary}, is torch's class probabilities q: loss = Σ w_c·q_c·(lse − z_c), q
// smoothed to (1 − ε)·q + ε/C. No row is ignored, and the mean is over all rows or token weights.
//
// Saved: the row's maximum and sum.
CrossEntropy cross_entropy(Value logits, Value target, CrossEntropyOptions options = {},
                           CrossEntropyWeights weights = {});

struct SelectiveLogProbability {
    Value logp;     // {rows…}: log softmax(z)[target]; 0 for an ignored row, NaN for a target outside the vocabulary
    Value entropy;  // {rows…}, as in CrossEntropy
};

// The log-probability of one class of each row, wide: TRL's selective_log_softmax and entropy_from_logits (0.21,
// trl/trainer/utils.py). Of the options, reduction, smoothing and z-loss are not used.
SelectiveLogProbability selective_log_probability(Value logits, Value target, CrossEntropyOptions options = {});

// One rank's part of a cross-entropy whose vocabulary is divided over ranks. Two numbers a row leave the rank, not
// three: its log-sum-exp stands for maximum and sum, and both have a gradient of their own, so that the backward of
// every step is derived and no rank needs the others' logits. What is not made an output costs nothing.
struct VocabularyPart {
    Value lse;           // {rows…}: log Σ exp over this rank's columns; −∞ for a part of −∞
    Value target_logit;  // {rows…}: z_target if the target is one of this rank's columns, else 0
    Value logit_sum;     // {rows…}: Σ z, for label smoothing
    Value entropy;       // {rows…}: of the softmax over this rank's columns alone
};

// logits {rows…, columns of this rank}; target {rows…} counts classes over all ranks, of which this rank's first is
// the run-time scalar first_class.
VocabularyPart vocabulary_part(Value logits, Value target, std::int64_t first_class, SoftmaxOptions options = {});

// The parts of all ranks, gathered along one axis: {rows…, ranks}.
struct VocabularyParts {
    Value lse;
    Value target_logit;
    std::optional<Value> logit_sum = std::nullopt;  // where there is label smoothing
    std::optional<Value> entropy = std::nullopt;    // where the whole row's is wanted
};

struct CombineOptions {
    std::int64_t ignore_index = -100;
    Reduction reduction = Reduction::kMean;
    std::optional<double> label_smoothing = std::nullopt;  // as in CrossEntropyOptions
    std::optional<double> z_loss = std::nullopt;
};

struct CombinedVocabulary {
    Value loss;                    // {} for mean and sum, {rows…} for none; with the z-loss
    Value lse;                     // {rows…}: of the whole row
    std::optional<Value> z_loss;   // the z-loss's part of `loss`, where there is one
    std::optional<Value> entropy;  // {rows…}: of the whole row, where the parts' are given
};

// The cross-entropy of rows out of their parts: log Σ_r exp(lse_r) − Σ_r target_logit_r, Megatron-LM's
// vocab_parallel_cross_entropy, with smoothing and z-loss as cross_entropy has them. target as for vocabulary_part;
// ignored rows give 0 and are not counted, and a target that is not among the `vocabulary` classes of all ranks NaN.
// Every rank combines for itself, and of the gradients of the parts takes its own.
CombinedVocabulary combine_vocabulary(const VocabularyParts& parts, Axis ranks, Value target, std::int64_t vocabulary,
                                      CombineOptions options = {});

// A head's logits: round(Σ hidden·weight) in hidden's dtype, over their common column axis, then + bias in that dtype.
// hidden {rows…, h}, weight {vocabulary, h}, bias {vocabulary} of hidden's dtype.
Value linear(Value hidden, Value weight, const std::optional<Value>& bias = std::nullopt);

// cross_entropy of a head's logits, which an executable never holds for all rows: rowjit/chunk_options.h. Its gradient
// comes in the same pass from a joint graph with unit cotangent (GradientOptions).
CrossEntropy fused_linear_cross_entropy(Value hidden, Value weight, Value target,
                                        const std::optional<Value>& bias = std::nullopt,
                                        CrossEntropyOptions options = {}, CrossEntropyWeights weights = {});

struct Head {
    Value hidden;
    Value weight;
    std::optional<Value> bias = std::nullopt;
};

struct FusedLogProbability {
    Value logp;  // as selective_log_probability has them, of the policy's logits
    Value entropy;
    Value counted;                   // bool {rows…}: the target is not ignore_index; the mask of the losses below
    std::optional<Value> reference;  // of the reference's logits; detach its head where that is not to be trained
};

// selective_log_probability of a head's logits, and of a reference's for the same targets, likewise never held whole:
// what the preference and policy losses below begin with. Of the options, ignore_index, softcap and temperature are
// used. Every other loss of logits is fused by being given linear(…): jsd(linear(h, w), linear(teacher_h, teacher_w)).
FusedLogProbability fused_linear_log_probability(const Head& policy, Value target,
                                                 const std::optional<Head>& reference = std::nullopt,
                                                 const CrossEntropyOptions& options = {});

// ---- Distillation ------------------------------------------------------------------------------------------------

struct DistillationOptions {
    bool log_probabilities = false;                    // both operands are log-probabilities already, not logits
    std::optional<double> temperature = std::nullopt;  // > 0: both rows of logits are divided by it
    std::int64_t ignore_index = -100;        // rows of this target contribute nothing, where there is a target
    Reduction reduction = Reduction::kMean;  // torch's batchmean: over the rows not ignored
};

// Distances of a student's distribution q from a teacher's p, over the columns. student and teacher {rows…, columns} of
// any float dtypes, computed wide and not rounded back; target {rows…} of i32 or i64 says only which rows are ignored.
// A loss is not multiplied by the temperature's square (Hinton's scaling is the caller's). A class of which the first
// distribution of a divergence has 0 adds 0, as in torch's kl_div of probabilities. Saved: the rows' maxima and sums.
//
//   kl_div           Σ p (log p − log q): torch.nn.functional.kl_div(log q, log p, log_target=True)
//   reverse_kl       Σ q (log q − log p)
//   jsd              β·Σ p (log p − log m) + (1 − β)·Σ q (log q − log m), m = β·p + (1 − β)·q; kl_div at β = 0 and
//                    reverse_kl at β = 1: Liger-Kernel 0.6's jsd, from GKD (arXiv 2306.13649). β inside (0, 1) is a
//                    run-time scalar
//   tvd              ½·Σ |p − q|: Liger-Kernel's tvd
//   cosine_distance  1 − s·t / (max(‖s‖, 1e-12)·max(‖t‖, 1e-12)) of the rows as they are: what Liger-Kernel's
//                    cosine-similarity distillation weighs; neither temperature nor log_probabilities apply
Value kl_div(Value student, Value teacher, const std::optional<Value>& target = std::nullopt,
             DistillationOptions options = {});
Value reverse_kl(Value student, Value teacher, const std::optional<Value>& target = std::nullopt,
                 DistillationOptions options = {});
Value jsd(Value student, Value teacher, const std::optional<Value>& target = std::nullopt, double beta = 0.5,
          DistillationOptions options = {});
Value tvd(Value student, Value teacher, const std::optional<Value>& target = std::nullopt,
          DistillationOptions options = {});
Value cosine_distance(Value student, Value teacher, const std::optional<Value>& target = std::nullopt,
                      DistillationOptions options = {});

// ---- Preference losses -------------------------------------------------------------------------------------------
//
// From log-probabilities of tokens {sequences…, tokens}, as selective_log_probability gives them, to one number a
// sequence, to a loss over the batch. The last axis is the tokens, of either space. Masks are bool and true where a
// token counts; what stands under a false one may be anything. All is computed wide and not rounded back. Formulas are
// TRL's (0.21); β, ε and the other numbers are run-time scalars of the options' names.

// Σ logp over the tokens that count, or with `average` their mean: {sequences…}. 0 of a sequence
// without any, where TRL's mean is NaN and takes the batch with it.
Value sequence_log_probability(Value logp, Value mask, bool average = false);

// Likewise of sequences of any lengths that stand one after the other: logp and mask {tokens}; {sequences}. Chosen and
// rejected ones of one batch are two calls over the same tokens, each with its own part of the offsets.
Value sequence_log_probability(Value logp, Value mask, const Segments& sequences, bool average = false);

// −Σ logp / number of tokens, over the tokens of all sequences that count, {}: the NLL term of RPO, CPO and ORPO.
Value token_nll(Value logp, Value mask);

// Chosen and rejected sequences, each {pairs…}.
struct PreferencePair {
    Value chosen;
    Value rejected;
};

// The pair in a batch {2, pairs…} whose chosen half stands first: row i and row i + pairs. The first axis is a row axis
// of extent 2.
PreferencePair preference_halves(Value stacked);

enum class DpoLoss : std::uint8_t {
    kSigmoid,   // −(1 − ε)·log σ(βl) − ε·log σ(−βl): DPO (arXiv 2305.18290), conservative DPO
    kHinge,     // max(1 − βl, 0): SLiC (2305.10425)
    kIpo,       // (l − 1/(2β))²: IPO (2310.12036), of averaged log-probabilities
    kExoPair,   // σ(βl)·(log σ(βl) − log(1 − ε)) + σ(−βl)·(log σ(−βl) − log ε): EXO (2402.00856); ε is 1e-3 where 0
    kNcaPair,   // −log σ(βc) − ½·log σ(−βc) − ½·log σ(−βr): NCA (2402.05369)
    kRobust,    // (−(1 − ε)·log σ(βl) + ε·log σ(−βl)) / (1 − 2ε): robust DPO (2403.00409); ε below ½
    kBcoPair,   // −log σ(βc − δ) − log σ(δ − βr): BCO (2404.04656); δ is the caller's running mean of the rewards
    kSppoHard,  // (c − 1/(2β))² + (r + 1/(2β))²: SPPO (2405.00675)
    kApoZero,   // 1 − σ(βc) + σ(βr): APO (2408.06266)
    kApoDown,   // σ(βc) + 1 − σ(β(c − r))
    kDiscopop,  // −log σ(βl)·(1 − σ(βl/τ)) + exp(−βl)·σ(βl/τ): DiscoPOP (2406.08414)
    // Alignment via optimal transport (2406.05882): kSigmoid of quantiles, l the difference of two numbers that stand
    // at one place in the ascending orders of a batch of one row axis, found by counting, quadratic in the pairs.
    kAot,      // of chosen − rejected of the policy, and of the reference
    kAotPair,  // of c, and of r
};

// How l is made of c and r, the logarithms of the policy's to the reference's probability: f-DPO (2309.16240).
enum class DpoDivergence : std::uint8_t {
    kReverseKl,  // c − r
    kJs,         // c − r − (softplus(c) − softplus(r))
    kAlpha,      // (exp(−αr) − exp(−αc)) / α
};

struct DpoOptions {
    DpoLoss loss = DpoLoss::kSigmoid;
    DpoDivergence divergence = DpoDivergence::kReverseKl;
    double beta = 0.1;           // > 0
    double label_smoothing = 0;  // ε in [0, 1)
    double alpha = 1;            // α > 0 of kAlpha
    double delta = 0;            // δ of kBcoPair
    double tau = 0.05;           // τ > 0 of kDiscopop
    Reduction reduction = Reduction::kMean;
};

struct PreferenceLoss {
    Value loss;             // {}, or {pairs…} without reduction
    Value chosen_reward;    // {pairs…}: β·c
    Value rejected_reward;  // {pairs…}: β·r
};

// c and r are the log-probabilities of policy less reference, or without a reference the policy's own.
PreferenceLoss dpo(const PreferencePair& policy, const std::optional<PreferencePair>& reference,
                   DpoOptions options = {});

enum class CpoLoss : std::uint8_t {
    kSigmoid,  // −(1 − ε)·log σ(βl) − ε·log σ(−βl), l = chosen − rejected: CPO (arXiv 2401.08417)
    kHinge,
    kIpo,
    kSimpo,  // kSigmoid of l − γ/β, of averaged log-probabilities: SimPO (2405.14734)
};

struct CpoOptions {
    CpoLoss loss = CpoLoss::kSigmoid;
    double beta = 0.1;
    double label_smoothing = 0;
    double gamma = 0.5;  // γ of kSimpo
    Reduction reduction = Reduction::kMean;
};

// The term α·NLL is the caller's: loss + alpha * token_nll(…).
PreferenceLoss cpo(const PreferencePair& policy, CpoOptions options = {});

// −β·log σ(log odds(chosen) − log odds(rejected)), odds(x) = exp(x) / (1 − exp(x)), of averaged log-probabilities: the
// odds-ratio term of ORPO (arXiv 2403.07691), to which the caller adds token_nll. An average is held at −1e-6 or below,
// where TRL's odds of certainty are infinite. Rewards are β times the averages.
PreferenceLoss orpo(const PreferencePair& policy, double beta = 0.1, Reduction reduction = Reduction::kMean);

struct KtoOptions {
    double beta = 0.1;
    double desirable_weight = 1;
    double undesirable_weight = 1;
    Reduction reduction = Reduction::kMean;
};

// w_d·(1 − σ(β(x − z))) of a desirable sequence and w_u·(1 − σ(β(z − x))) of another, x policy less reference: KTO
// (arXiv 2402.01306). policy and reference {sequences…}, desirable bool {sequences…}. z is max(mean(kl), 0) over all
// sequences, without gradient, kl {sequences…} being policy less reference of mismatched completions; 0 without it.
Value kto(Value policy, Value reference, Value desirable, const std::optional<Value>& kl = std::nullopt,
          KtoOptions options = {});

// ---- Policy losses -----------------------------------------------------------------------------------------------

// With ρ = exp(logp − old), A the advantage of the sequence, and the mean that a paper takes:
enum class PolicyLoss : std::uint8_t {
    kGrpo,    // −min(ρA, clip(ρ)·A), the mean over sequences of the means over their tokens: GRPO (arXiv 2402.03300)
    kBnpo,    // likewise, over all tokens of the batch
    kDrGrpo,  // likewise, Σ / (sequences · max_length): Dr. GRPO (2503.20783)
    kDapo,    // likewise, Σ / items: DAPO (2503.14476)
    kCispo,   // −min(ρ, clip_high)·A·logp, no gradient through the ratio, Σ / items: MiniMax-M1 (2506.13585)
    kLuspo,   // as kGrpo, the mean over sequences of the sums over their tokens, with Importance::kSequence as meant
    kVespo,   // −φ·A·logp, no gradient through φ = exp(λ + k·log w − λ·w), w = exp Σ log ρ of the sequence, Σ / items
    kSapo,    // −4/τ·σ(τ(ρ − 1))·A, τ 1 for A > 0, else 1.05, the mean as kGrpo: SAPO (2511.20347)
};

enum class Importance : std::uint8_t {
    kToken,     // a ratio for each token
    kSequence,  // exp of the mean over the tokens of a sequence: GSPO (arXiv 2507.18071)
};

struct PolicyOptions {
    PolicyLoss loss = PolicyLoss::kGrpo;
    Importance importance = Importance::kToken;
    double clip_low = 0.2;  // ρ is clipped to [1 − clip_low, 1 + clip_high]; kCispo: to at most clip_high
    double clip_high = 0.2;
    std::optional<double> delta = std::nullopt;       // the unclipped ρ is held at or below it: two-sided clipping
    double beta = 0.04;                               // of the divergence, where there is a reference
    std::optional<double> max_length = std::nullopt;  // of kDrGrpo; none: the extent of the token axis
    // Of kDapo, kCispo and kVespo: tokens of the global batch a process; none: the batch's own.
    std::optional<double> items = std::nullopt;
    double k_positive = 2;  // k and λ of kVespo, where A ≥ 0
    double lambda_positive = 3;
    double k_negative = 3;  // and elsewhere
    double lambda_negative = 2;
};

struct PolicyLossResult {
    Value loss;               // {}
    std::optional<Value> kl;  // {}: the mean divergence of a token, where there is a reference
};

// logp, old, reference and mask {sequences…, tokens}, advantage {sequences…}: TRL's GRPOTrainer (0.21; SAPO, LUSPO and
// VESPO as its later versions and Liger-Kernel 0.8 have them: log ρ is held to ±20, its sum to [log 1e-8, 20]). The
// first step's old is detach(logp). A reference adds β·(exp(d) − d − 1), d = reference − logp, to each token:
// Schulman's estimator k3; kLuspo sums it over the tokens that count, where TRL takes its mean over all that there are.
//
// With `sequences` they are of any lengths, one after the other: logp, old, reference and mask {tokens}, advantage
// {sequences}. kDrGrpo then needs max_length.
PolicyLossResult policy_loss(Value logp, Value old, Value advantage, Value mask,
                             const std::optional<Value>& reference = std::nullopt, PolicyOptions options = {},
                             const std::optional<Segments>& sequences = std::nullopt);

}  // namespace rowjit
