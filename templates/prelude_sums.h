// Running sums of a row: plain, compensated and exact; and what exponentials are relative to that are summed.

// What exponentials of a row are relative to that has `greatest`. Of f32 rows that itself: they are e^(x - greatest).
struct rj_origin_itself {
    float from;

    // 0 while only -inf was seen, of which terms are 0, not exp(-inf + inf).
    explicit RJ_DEVICE rj_origin_itself(float greatest) : from(greatest == rj_float(0xff800000u) ? 0.0f : greatest) {}
    // A term and its logarithm.
    RJ_DEVICE float term(float x) const { return power(logarithm(x)); }
    RJ_DEVICE float logarithm(float x) const { return x - from; }
    static RJ_DEVICE float power(float logarithm) { return rj_exp(logarithm); }
    // What logarithms of terms move by that were relative to an earlier greatest, and terms, in a thread and where
    // threads meet.
    RJ_DEVICE float shift(float earlier) const { return earlier - from; }
    RJ_DEVICE float step(float earlier) const { return rj_exp(shift(earlier)); }
    RJ_DEVICE float step_of_all(float earlier) const { return step(earlier); }
    // A sum of terms, of e^(x - greatest), and with it one of terms times their logarithms, of e^(x - greatest) (x -
    // greatest).
    RJ_DEVICE float sum(float terms, float) const { return terms; }
    RJ_DEVICE float sum_of_products(float products, float, float) const { return products; }
};

// Of narrow rows the greatest times log2 e, rounded: a term is a multiply-add and 2^t where it was a difference, a
// product and 2^t. The rounding is in no term, as all are relative to what came of it; their sum takes it back once.
// A term is off by at most |t| 2^t 2^-24. A greatest past 2^27, whose product would be off by 2^3 and more or past all
// numbers, is taken as it is: what is not equal to it is then 16 and more below.
struct rj_origin_in_powers {
    float scale;
    float from;

    explicit RJ_DEVICE rj_origin_in_powers(float greatest) {
        const float least = rj_max(greatest, rj_float(0xff7fffffu));  // while only -inf was seen
        scale = rj_abs(least) < 134217728.0f ? 1.44269504f : 1.0f;
        from = least * scale;
    }
    RJ_DEVICE float term(float x) const { return power(logarithm(x)); }
    RJ_DEVICE float logarithm(float x) const { return rj_fma(x, scale, -from); }  // to base 2
    static RJ_DEVICE float power(float logarithm) { return rj_exp2_fast(logarithm); }
    RJ_DEVICE float shift(float earlier) const { return earlier * scale - from; }
    RJ_DEVICE float step(float earlier) const { return rj_exp2_fast(shift(earlier)); }
    // All of a thread's terms are multiplied by it: of a bias they have their own, and no other's.
    RJ_DEVICE float step_of_all(float earlier) const {
        const float factor = step(earlier);
        return rj_fma(factor, -rj_exp2_bias, factor);
    }
    RJ_DEVICE float sum(float terms, float greatest) const {
        const float lost = rj_fma(greatest, scale, -from);
        const float a = lost * -0.693147181f;
        const float near = rj_fma(terms, rj_fma(a, a * 0.5f, a), terms);  // e^a - 1 within 2^-24
        return rj_abs(a) < 0.0078125f ? near : terms * rj_exp2_fast(-lost);
    }
    RJ_DEVICE float sum_of_products(float products, float terms, float greatest) const {
        return sum(rj_fma(rj_fma(greatest, scale, -from), -terms, products) * 0.693147181f, greatest);
    }
};

// A running sum. The compensated one carries what its roundings lost (Knuth's two-sum, exact whichever term is larger)
// and is right to the last unit in whatever order threads take a row: at full width nothing later rounds an error of
// the sum away. Rows of f32 pay five additions more a vector for it. Beyond the finite numbers what was lost is NaN and
// the plain sum is the result.
struct rj_plain {
    float total = 0.0f;

    RJ_DEVICE void add(float added) { total += added; }
    RJ_DEVICE void combine(const rj_plain& other) { total += other.total; }
    template <int N>
    RJ_DEVICE void add_squares(const float (&values)[N]) {
        rj_sum<float> sum;
        sum.add_products(values, values);
        total += sum.value;
    }
    RJ_DEVICE void scale(float factor) { total *= factor; }
    RJ_DEVICE float result() const { return total; }
    template <int kMask>
    RJ_DEVICE rj_plain from_lane_xor() const {
        rj_plain other;
        other.total = rj_shuffle_xor<kMask>(total);
        return other;
    }
    using Origin = rj_origin_in_powers;
    static RJ_DEVICE float exp(float x) { return rj_exp_weight(x); }
};
struct rj_compensated {
    float total = 0.0f;
    float lost = 0.0f;

    RJ_DEVICE void add(float added) {
        const float sum = total + added;
        const float part = sum - total;
        lost += (total - (sum - part)) + (added - part);
        total = sum;
    }
    // What both lost is added first, so that the order of the two does not matter.
    RJ_DEVICE void combine(const rj_compensated& other) {
        const float both = lost + other.lost;
        lost = 0.0f;
        add(other.total);
        lost += both;
    }
    template <int N>
    RJ_DEVICE void add_squares(const float (&values)[N]) {
        float squares[N];
#pragma unroll
        for (int k = 0; k < N; ++k) squares[k] = values[k] * values[k];
        add(rj_fold<rj_adding>(squares));
    }
    RJ_DEVICE void scale(float factor) {
        const float product = total * factor;
        lost = rj_fma(lost, factor, rj_fma(total, factor, -product));
        total = product;
    }
    RJ_DEVICE float result() const { return rj_abs(total) < rj_float(0x7f800000u) ? total + lost : total; }
    template <int kMask>
    RJ_DEVICE rj_compensated from_lane_xor() const {
        rj_compensated other;
        other.total = rj_shuffle_xor<kMask>(total);
        other.lost = rj_shuffle_xor<kMask>(lost);
        return other;
    }
    using Origin = rj_origin_itself;
    static RJ_DEVICE float exp(float x) { return rj_exp(x); }
};

template <class T>
struct rj_compensated_sum {
    rj_compensated sum;

    template <int N>
    RJ_DEVICE void add(const float (&values)[N]) {
        sum.add(rj_fold<rj_adding>(values));
    }
    RJ_DEVICE void add_one(float added) { sum.add(added); }
    RJ_DEVICE void combine(const rj_compensated_sum& other) { sum.combine(other.sum); }
    template <int kMask>
    RJ_DEVICE rj_compensated_sum from_lane_xor() const {
        return {sum.from_lane_xor<kMask>()};
    }
    RJ_DEVICE float result() const { return sum.result(); }
};

// With what rounding the result lost beside it, and each term added by itself: for sums whose difference is taken, of
// which what a vector's own sum loses is many units in the last place. Narrow floats, of 8 or 11 bits, lose next to
// nothing in one, and six additions each took them from 104 % of copy to 95 (H200, kto of 4096 bf16 columns).
template <bool kByLane>
struct rj_exact_sums {
    rj_compensated sum;

    template <int N>
    RJ_DEVICE void add(const float (&values)[N]) {
        if (!kByLane) return sum.add(rj_fold<rj_adding>(values));
#pragma unroll
        for (int k = 0; k < N; ++k) sum.add(values[k]);
    }
    RJ_DEVICE void add_one(float added) { sum.add(added); }
    RJ_DEVICE void combine(const rj_exact_sums& other) { sum.combine(other.sum); }
    template <int kMask>
    RJ_DEVICE rj_exact_sums from_lane_xor() const {
        return {sum.from_lane_xor<kMask>()};
    }
    RJ_DEVICE float result() const { return sum.result(); }
    RJ_DEVICE float rest() const { return sum.lost - (sum.result() - sum.total); }
};
template <class T>
using rj_exact_sum = rj_exact_sums<true>;
template <class T>
using rj_exact_narrow_sum = rj_exact_sums<false>;
