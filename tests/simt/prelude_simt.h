// The CPU's half of the prelude: emitted kernels as C++ on the SIMT machine (tests/simt/machine.h). RJ_WARP_SIZE is
// defined before; with RJ_SIMT_MATH the prelude's own mathematics (prelude_math.h, as for AMD) follows, else the C
// library's is used.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

extern "C" {
int rj_simt_thread();
int rj_simt_block();
int rj_simt_grid();
void rj_simt_barrier();
unsigned long long rj_simt_ballot(bool condition);
void rj_simt_meet_warp();
unsigned rj_simt_shuffle_xor(unsigned word, int mask);
unsigned rj_simt_shuffle_from(unsigned word, int lane);
unsigned char* rj_simt_shared(int offset_bytes, int bytes, bool write);
void rj_simt_cluster_open(int mailboxes, int count);
void rj_simt_cluster_wait();
void rj_simt_mailbox_expect(int mailbox, int bytes);
void rj_simt_mailbox_wait(int mailbox, int parity);
unsigned char* rj_simt_cluster_send(int block, int offset_bytes, int bytes, int mailbox);
void rj_simt_copy_ahead(int offset_bytes, const void* from, int bytes);
void rj_simt_copies_issued();
void rj_simt_wait_for_copies(int turns);
void rj_simt_fault(const char* what);
}

#define RJ_DEVICE inline
#define RJ_KERNEL(...) static void
#define RJ_RESTRICT
#define RJ_ROLLED
// As written, and as a toolchain short of registers has it (compiler/toolchain/nvrtc.cpp).
#ifdef RJ_SIMT_MATH
#define RJ_GROUP(vectors) 1
#else
#define RJ_GROUP(vectors) vectors
#endif
#define RJ_NOT_NEGATIVE(value) rj_simt_not_negative(value)

// What real compilers are told is checked.
RJ_DEVICE void rj_simt_not_negative(int value) {
    if (value < 0) __builtin_trap();
}

RJ_DEVICE int rj_thread() { return rj_simt_thread(); }
RJ_DEVICE int rj_block() { return rj_simt_block(); }
RJ_DEVICE int rj_grid(int) { return rj_simt_grid(); }
RJ_DEVICE void rj_barrier() { rj_simt_barrier(); }
template <int kMask>
RJ_DEVICE unsigned rj_shuffle_xor_word(unsigned word) {
    return rj_simt_shuffle_xor(word, kMask);
}
template <int kLanes>
RJ_DEVICE unsigned rj_shuffle_from_word(unsigned word, int lane) {
    return rj_simt_shuffle_from(word, rj_thread() % RJ_WARP_SIZE / kLanes * kLanes + lane);
}

typedef unsigned long long rj_lanes;
RJ_DEVICE rj_lanes rj_ballot(bool condition) { return rj_simt_ballot(condition); }
RJ_DEVICE int rj_first_of(rj_lanes lanes) { return __builtin_ctzll(lanes); }
RJ_DEVICE bool rj_is_less(unsigned long long a, unsigned long long b) { return a < b; }
RJ_DEVICE int rj_count_of(rj_lanes lanes) { return __builtin_popcountll(lanes); }
RJ_DEVICE void rj_meet_warp() { rj_simt_meet_warp(); }
// Each lane may be alone where it is: the machine runs one thread at a time.
RJ_DEVICE rj_lanes rj_here() { return rj_lanes{1} << (rj_thread() % RJ_WARP_SIZE); }
RJ_DEVICE rj_lanes rj_ballot_of(rj_lanes lanes, bool condition) { return condition ? lanes : 0; }
RJ_DEVICE void rj_meet_lanes(rj_lanes) {}
RJ_DEVICE int rj_equals_before(rj_lanes, int) { return 0; }

RJ_DEVICE unsigned rj_bits(float value) {
    unsigned bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}
RJ_DEVICE float rj_float(unsigned bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
RJ_DEVICE unsigned long long rj_wide_product(unsigned a, unsigned b) { return static_cast<unsigned long long>(a) * b; }

RJ_DEVICE unsigned rj_opaque(unsigned word) { return word; }
RJ_DEVICE unsigned rj_known_here(unsigned word) { return word; }
template <class T>
RJ_DEVICE T* rj_address(T* address) {
    return address;
}
template <class T>
RJ_DEVICE T* rj_address_here(T* address) {
    return address;
}
RJ_DEVICE unsigned rj_zero() { return 0; }
RJ_DEVICE unsigned rj_join_halves(unsigned lower, unsigned upper) { return (lower & 0xffffu) | (upper & 0xffff0000u); }

template <class T>
RJ_DEVICE void rj_check_shared(int offset_bytes) {
    if (offset_bytes % int(alignof(T)) != 0) rj_simt_fault("an access to shared memory is not aligned to its size");
}
template <class T>
RJ_DEVICE T rj_shared_load(int offset_bytes) {
    rj_check_shared<T>(offset_bytes);
    T value;
    std::memcpy(&value, rj_simt_shared(offset_bytes, int(sizeof(T)), false), sizeof(T));
    return value;
}
template <class T>
RJ_DEVICE void rj_shared_store(int offset_bytes, const T& value) {
    rj_check_shared<T>(offset_bytes);
    std::memcpy(rj_simt_shared(offset_bytes, int(sizeof(T)), true), &value, sizeof(T));
}

template <int kBytes>
RJ_DEVICE void rj_copy_ahead(int offset_bytes, const void* from) {
    if (reinterpret_cast<std::uintptr_t>(from) % kBytes != 0) rj_simt_fault("a copy is not aligned to its size");
    rj_simt_copy_ahead(offset_bytes, from, kBytes);
}
template <class Vec>
RJ_DEVICE void rj_copy_behind(int offset_bytes, const void* from, const Vec& /*read*/) {
    rj_copy_ahead<Vec::kBytes>(offset_bytes, from);
}
RJ_DEVICE void rj_copies_issued() { rj_simt_copies_issued(); }
template <int kTurns>
RJ_DEVICE void rj_wait_for_copies() {
    rj_simt_wait_for_copies(kTurns);
}

template <int kCount>
RJ_DEVICE void rj_cluster_open(int mailboxes) {
    rj_simt_cluster_open(mailboxes, kCount);
}
RJ_DEVICE void rj_let_next_begin() {}  // launches here follow each other
RJ_DEVICE void rj_wait_for_last() {}
RJ_DEVICE void rj_cluster_wait() { rj_simt_cluster_wait(); }
RJ_DEVICE void rj_mailbox_expect(int mailbox, int bytes) { rj_simt_mailbox_expect(mailbox, bytes); }
RJ_DEVICE void rj_mailbox_wait(int mailbox, int parity) { rj_simt_mailbox_wait(mailbox, parity); }
template <class T>
RJ_DEVICE void rj_cluster_send(int block, int offset_bytes, const T& value, int mailbox) {
    std::memcpy(rj_simt_cluster_send(block, offset_bytes, int(sizeof(T)), mailbox), &value, sizeof(T));
}

template <int kBytes>
struct rj_memory {
    static void check(const void* address) {
        if (reinterpret_cast<std::uintptr_t>(address) % kBytes != 0)
            rj_simt_fault("a global access is not aligned to its size");
    }
    static void load(const void* from, unsigned* words) {
        check(from);
        words[0] = 0;
        std::memcpy(words, from, kBytes);
    }
    static void load_readonly(const void* from, unsigned* words) { load(from, words); }
    static void store(void* to, const unsigned* words) {
        check(to);
        std::memcpy(to, words, kBytes);
    }
};

RJ_DEVICE unsigned short rj_simt_f16(float value) {
    const _Float16 half = static_cast<_Float16>(value);
    unsigned short bits;
    std::memcpy(&bits, &half, 2);
    return bits;
}
RJ_DEVICE unsigned rj_pack_f16(float low, float high) {
    return rj_simt_f16(low) | static_cast<unsigned>(rj_simt_f16(high)) << 16;
}
RJ_DEVICE float rj_f16_value(unsigned short bits) {
    _Float16 half;
    std::memcpy(&half, &bits, 2);
    return static_cast<float>(half);
}

RJ_DEVICE int rj_to_i32(float value) {
    if (value != value) return 0;
    if (value >= 2147483648.0f) return 2147483647;
    return value <= -2147483648.0f ? -2147483647 - 1 : static_cast<int>(value);
}
RJ_DEVICE long long rj_to_i64(float value) {
    if (value != value) return 0;
    if (value >= 9223372036854775808.0f) return 9223372036854775807ll;
    return value <= -9223372036854775808.0f ? -9223372036854775807ll - 1 : static_cast<long long>(value);
}

RJ_DEVICE float rj_max(float a, float b) { return a != a || b != b ? NAN : std::fmax(a, b); }
RJ_DEVICE float rj_min(float a, float b) { return a != a || b != b ? NAN : std::fmin(a, b); }

// On two packed elements, as the instructions round: once, from the exact result. A double has all bits of a product,
// and enough of a sum to round it again.
template <class Compute>
RJ_DEVICE unsigned rj_simt_f16x2(unsigned a, unsigned b, Compute compute) {
    const auto value = [](unsigned bits) {
        return static_cast<double>(rj_f16_value(static_cast<unsigned short>(bits)));
    };
    const auto bits = [](double result) {
        const _Float16 half = static_cast<_Float16>(result);
        unsigned short word;
        std::memcpy(&word, &half, 2);
        return static_cast<unsigned>(word);
    };
    return bits(compute(value(a), value(b))) | bits(compute(value(a >> 16), value(b >> 16))) << 16;
}
RJ_DEVICE double rj_simt_product(double a, double b) { return a * b; }
RJ_DEVICE double rj_simt_sum(double a, double b) { return a + b; }
RJ_DEVICE double rj_simt_difference(double a, double b) { return a - b; }
RJ_DEVICE unsigned rj_mul_f16x2(unsigned a, unsigned b) { return rj_simt_f16x2(a, b, rj_simt_product); }
RJ_DEVICE unsigned rj_add_f16x2(unsigned a, unsigned b) { return rj_simt_f16x2(a, b, rj_simt_sum); }
RJ_DEVICE unsigned rj_sub_f16x2(unsigned a, unsigned b) { return rj_simt_f16x2(a, b, rj_simt_difference); }

#ifndef RJ_SIMT_MATH  // NVIDIA's instructions
// A double to bf16 in one rounding: f32 takes it by rounding to odd, whose last bit says that there was more.
RJ_DEVICE unsigned rj_simt_bf16_of(double value) {
    float near = static_cast<float>(value);
    if (value != value) return 0x7fc0u;
    if (static_cast<double>(near) != value) {
        unsigned bits = rj_bits(near);
        if (std::fabs(static_cast<double>(near)) > std::fabs(value)) --bits;
        near = rj_float(bits | 1u);
    }
    const unsigned bits = rj_bits(near);
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}
template <class Compute>
RJ_DEVICE unsigned rj_simt_bf16x2(unsigned a, unsigned b, Compute compute) {
    const auto low = [](unsigned word) { return static_cast<double>(rj_float(word << 16)); };
    const auto high = [](unsigned word) { return static_cast<double>(rj_float(word & 0xffff0000u)); };
    return rj_simt_bf16_of(compute(low(a), low(b))) | rj_simt_bf16_of(compute(high(a), high(b))) << 16;
}
RJ_DEVICE unsigned rj_mul_bf16x2(unsigned a, unsigned b) { return rj_simt_bf16x2(a, b, rj_simt_product); }
RJ_DEVICE unsigned rj_add_bf16x2(unsigned a, unsigned b) { return rj_simt_bf16x2(a, b, rj_simt_sum); }
RJ_DEVICE unsigned rj_sub_bf16x2(unsigned a, unsigned b) { return rj_simt_bf16x2(a, b, rj_simt_difference); }

#define RJ_FOLDS_PAIRS
RJ_DEVICE double rj_simt_max(double a, double b) { return a != a || b != b ? NAN : std::fmax(a, b); }
RJ_DEVICE double rj_simt_min(double a, double b) { return a != a || b != b ? NAN : std::fmin(a, b); }
RJ_DEVICE unsigned rj_max_bf16x2(unsigned a, unsigned b) { return rj_simt_bf16x2(a, b, rj_simt_max); }
RJ_DEVICE unsigned rj_min_bf16x2(unsigned a, unsigned b) { return rj_simt_bf16x2(a, b, rj_simt_min); }
RJ_DEVICE unsigned rj_max_f16x2(unsigned a, unsigned b) { return rj_simt_f16x2(a, b, rj_simt_max); }
RJ_DEVICE unsigned rj_min_f16x2(unsigned a, unsigned b) { return rj_simt_f16x2(a, b, rj_simt_min); }
#endif

RJ_DEVICE float rj_abs(float a) { return std::fabs(a); }
RJ_DEVICE float rj_floor(float a) { return std::floor(a); }
RJ_DEVICE float rj_round(float a) { return std::nearbyint(a); }
RJ_DEVICE int rj_nearest(float value) { return rj_to_i32(rj_round(value)); }
template <class T>
RJ_DEVICE const T* rj_chosen(bool condition, const T* a, const T* b) {
    return condition ? a : b;
}
RJ_DEVICE float rj_either(bool condition, float a, float b) { return condition ? a : b; }
RJ_DEVICE float rj_fma(float a, float b, float c) { return std::fma(a, b, c); }
RJ_DEVICE float rj_div(float a, float b) { return a / b; }
#ifdef RJ_SIMT_MATH
RJ_DEVICE float rj_exp2_fast(float a) { return std::exp2(a); }
constexpr float rj_exp2_bias = 0.0f;
#else  // truncated and flushed, as NVIDIA's
RJ_DEVICE float rj_exp2_fast(float a) {
    const double power = std::exp2(static_cast<double>(a));
    if (power < 0x1p-126) return 0.0f;
    const float near = static_cast<float>(power);
    return static_cast<double>(near) > power ? std::nextafter(near, 0.0f) : near;
}
constexpr float rj_exp2_bias = -4.3e-8f;
#endif
#ifdef RJ_SIMT_MATH
RJ_DEVICE float rj_reciprocal_fast(float a) { return 1.0f / a; }
RJ_DEVICE float rj_rsqrt_fast(float a) { return 1.0f / std::sqrt(a); }
RJ_DEVICE float rj_sqrt_fast(float a) { return std::sqrt(a); }
RJ_DEVICE float rj_log2_fast(float a) { return std::log2(a); }
#else  // denormals, given and made, are zero, and a logarithm near 0 has a fixed last place
RJ_DEVICE float rj_simt_flushed(float a) { return std::fabs(a) < 0x1p-126f ? std::copysign(0.0f, a) : a; }
RJ_DEVICE float rj_reciprocal_fast(float a) { return rj_simt_flushed(1.0f / rj_simt_flushed(a)); }
RJ_DEVICE float rj_rsqrt_fast(float a) { return 1.0f / std::sqrt(rj_simt_flushed(a)); }
RJ_DEVICE float rj_sqrt_fast(float a) { return std::sqrt(rj_simt_flushed(a)); }
RJ_DEVICE float rj_log2_fast(float a) {
    const float logarithm = std::log2(rj_simt_flushed(a));
    return a > 0.5f && a < 2.0f ? std::trunc(logarithm * 0x1p22f) * 0x1p-22f : logarithm;
}
RJ_DEVICE unsigned rj_simt_bf16(float value) {
    const unsigned bits = rj_bits(value);
    if (value != value) return bits >> 16 | 0x40u;
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}
RJ_DEVICE unsigned rj_pack_bf16(float low, float high) { return rj_simt_bf16(low) | rj_simt_bf16(high) << 16; }
RJ_DEVICE float rj_sqrt(float a) { return std::sqrt(a); }
RJ_DEVICE float rj_rsqrt(float a) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(a))); }
RJ_DEVICE float rj_exp(float a) { return std::exp(a); }
RJ_DEVICE float rj_exp_narrow(float a) {
    const float root = std::exp2(a * 0.72134752f);
    return root * root;
}
RJ_DEVICE float rj_log(float a) { return std::log(a); }
RJ_DEVICE float rj_log1p(float a) { return std::log1p(a); }
// CUDA's tanhf errs by a unit at most; this machine's may err by two, which GELU's 1 + tanh then magnifies.
RJ_DEVICE float rj_erf(float a) { return std::erf(a); }
#endif

// A kernel's parameters from an array of addresses, as a driver takes them.
template <class... Parameters, std::size_t... kIndices>
void rj_simt_call(void (*kernel)(Parameters...), void** arguments, std::index_sequence<kIndices...>) {
    kernel(*static_cast<Parameters*>(arguments[kIndices])...);
}
template <class... Parameters>
void rj_simt_call(void (*kernel)(Parameters...), void** arguments) {
    rj_simt_call(kernel, arguments, std::index_sequence_for<Parameters...>());
}
