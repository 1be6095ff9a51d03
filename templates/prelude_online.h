// Reductions of several numbers that one pass over a row carries together: a maximum with a rescaled sum, both with the
// sum of its terms' logarithms, two rows' with their divergence, and a count, a mean and squared deviations. Their sums
// are plain or compensated.

// NaN for a row whose maximum is not finite: there exp(x - max) meets inf - inf.
RJ_DEVICE float rj_of_finite(float greatest, float value) {
    return greatest - greatest == 0.0f ? value : rj_float(0x7fc00000u);
}

// The greatest x and the sum of exp(x - greatest), in one pass (Milakov and Gimelshein, arXiv:1805.02867). A vector
// costs one exponential an element and one to rescale the sum. In a row of narrow floats the fast exponential loses
// nothing that matters.
template <class Sum>
struct rj_rescaled {
    using Origin = typename Sum::Origin;
    float greatest = rj_float(0xff800000u);
    Sum terms;

    template <int N>
    RJ_DEVICE void add(const float (&values)[N]) {
        const float raised = rj_max(greatest, rj_fold<rj_larger>(values));
        const Origin origin(raised);
        terms.scale(origin.step(greatest));
        greatest = raised;
        float powers[N];
#pragma unroll
        for (int k = 0; k < N; ++k) powers[k] = origin.term(values[k]);
        terms.add(rj_fold<rj_adding>(powers));
    }
    RJ_DEVICE void combine(const rj_rescaled& other) {
        const float raised = rj_max(greatest, other.greatest);
        rj_rescaled moved = other;
        if (raised != greatest || raised != other.greatest) {
            move_to(raised);
            moved.move_to(raised);
        }
        terms.combine(moved.terms);
    }
    RJ_DEVICE void add_one(float added) {
        const float values[1] = {added};
        add(values);
    }
    RJ_DEVICE void move_to(float raised) {
        terms.scale(Origin(raised).step_of_all(greatest));
        greatest = raised;
    }
    template <int kMask>
    RJ_DEVICE rj_rescaled from_lane_xor() const {
        return {rj_shuffle_xor<kMask>(greatest), terms.template from_lane_xor<kMask>()};
    }
    RJ_DEVICE float max() const { return greatest; }
    RJ_DEVICE float sum() const { return rj_of_finite(greatest, Origin(greatest).sum(terms.result(), greatest)); }
};
template <class T>
using rj_max_sum_exp = rj_rescaled<rj_plain>;
template <class T>
using rj_compensated_max_sum_exp = rj_rescaled<rj_compensated>;

// Of one value after the other, as of the rows that a block takes: one exponential each, of how far the lesser of the
// value and the greatest before is below the other, which the sum is moved by or which is added to it.
template <class Sum>
struct rj_rescaled_of_rows {
    float greatest = rj_float(0xff800000u);
    float terms = 0.0f;

    RJ_DEVICE void add_one(float added) {
        const float raised = rj_max(greatest, added);
        const float power = Sum::exp(rj_min(greatest, added) - rj_origin_itself(raised).from);
        terms = added > greatest ? rj_fma(terms, power, 1.0f) : terms + power;
        greatest = raised;
    }
    RJ_DEVICE void combine(const rj_rescaled_of_rows& other) {
        const float raised = rj_max(greatest, other.greatest);
        const float from = rj_origin_itself(raised).from;
        terms = rj_fma(terms, Sum::exp(greatest - from), other.terms * Sum::exp(other.greatest - from));
        greatest = raised;
    }
    RJ_DEVICE float max() const { return greatest; }
    RJ_DEVICE float sum() const { return rj_of_finite(greatest, terms); }
};

// With those Σ exp(x - greatest) (x - greatest), to which what has no weight adds nothing. When the greatest rises all
// terms' logarithms move by as much.
template <class Sum>
struct rj_entropies {
    using Origin = typename Sum::Origin;
    struct Sums {
        Sum terms;
        Sum products;

        RJ_DEVICE void move(float factor, float shift) {
            products.add(terms.result() * shift);
            if (factor == 0.0f) products = Sum();  // the shift may be infinite
            products.scale(factor);
            terms.scale(factor);
        }
        RJ_DEVICE void combine(const Sums& other) {
            terms.combine(other.terms);
            products.combine(other.products);
        }
        template <int kMask>
        RJ_DEVICE Sums from_lane_xor() const {
            return {terms.template from_lane_xor<kMask>(), products.template from_lane_xor<kMask>()};
        }
    };
    float greatest = rj_float(0xff800000u);
    Sums sums;

    template <int N>
    RJ_DEVICE void add(const float (&values)[N]) {
        const float raised = rj_max(greatest, rj_fold<rj_larger>(values));
        const Origin origin(raised);
        sums.move(origin.step(greatest), origin.shift(greatest));
        greatest = raised;
        float powers[N];
        float logarithms[N];
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const float logarithm = origin.logarithm(values[k]);
            powers[k] = origin.power(logarithm);
            logarithms[k] = rj_max(logarithm, -1e4f);  // whose power is 0, and no infinity
        }
        sums.terms.add(rj_fold<rj_adding>(powers));
        rj_sum<float> products;
        products.add_products(powers, logarithms);
        sums.products.add(products.result());
    }
    RJ_DEVICE void add_one(float added) {
        const float values[1] = {added};
        add(values);
    }
    RJ_DEVICE void combine(const rj_entropies& other) {
        const float raised = rj_max(greatest, other.greatest);
        rj_entropies moved = other;
        move_to(raised);
        moved.move_to(raised);
        sums.combine(moved.sums);
    }
    RJ_DEVICE void move_to(float raised) {
        if (raised == greatest) return;
        const Origin origin(raised);
        sums.move(origin.step_of_all(greatest), origin.shift(greatest));
        greatest = raised;
    }
    template <int kMask>
    RJ_DEVICE rj_entropies from_lane_xor() const {
        return {rj_shuffle_xor<kMask>(greatest), sums.template from_lane_xor<kMask>()};
    }
    RJ_DEVICE float max() const { return greatest; }
    RJ_DEVICE float sum() const { return rj_of_finite(greatest, Origin(greatest).sum(sums.terms.result(), greatest)); }
    RJ_DEVICE float logarithms() const {
        return rj_of_finite(greatest,
                            Origin(greatest).sum_of_products(sums.products.result(), sums.terms.result(), greatest));
    }
};
template <class T>
using rj_entropy = rj_entropies<rj_plain>;
template <class T>
using rj_compensated_entropy = rj_entropies<rj_compensated>;

// Of x beside y the greatest of each, the sum of p = exp(x - greatest x) and of exp(y - greatest y), and that of
// p ((x - greatest x) - (y - greatest y)), or p (y - greatest y), to which what has no weight adds nothing. When a
// maximum rises the terms of the last sum all move by as much, and then weigh less.
template <class Sum, bool kCross>
struct rj_divergences {
    struct Sums {
        Sum terms;
        Sum other_terms;
        Sum differences;

        RJ_DEVICE void combine(const Sums& other) {
            terms.combine(other.terms);
            other_terms.combine(other.other_terms);
            differences.combine(other.differences);
        }
        template <int kMask>
        RJ_DEVICE Sums from_lane_xor() const {
            return {terms.template from_lane_xor<kMask>(), other_terms.template from_lane_xor<kMask>(),
                    differences.template from_lane_xor<kMask>()};
        }
    };
    float greatest = rj_float(0xff800000u);
    float other_greatest = rj_float(0xff800000u);
    Sums sums;

    template <int N>
    RJ_DEVICE void add_products(const float (&x)[N], const float (&y)[N]) {
        move_to(rj_max(greatest, rj_fold<rj_larger>(x)), rj_max(other_greatest, rj_fold<rj_larger>(y)));
        const float from = origin(greatest);
        const float other_from = origin(other_greatest);
        float weights[N];
        float other_weights[N];
        float ratios[N];
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const float logarithm = x[k] - from;
            const float other_logarithm = y[k] - other_from;
            weights[k] = Sum::exp(logarithm);
            other_weights[k] = Sum::exp(other_logarithm);
            ratios[k] = weights[k] == 0.0f ? 0.0f : kCross ? other_logarithm : logarithm - other_logarithm;
        }
        sums.terms.add(rj_fold<rj_adding>(weights));
        sums.other_terms.add(rj_fold<rj_adding>(other_weights));
        rj_sum<float> products;
        products.add_products(weights, ratios);
        sums.differences.add(products.result());
    }
    RJ_DEVICE void combine(const rj_divergences& other) {
        const float raised = rj_max(greatest, other.greatest);
        const float other_raised = rj_max(other_greatest, other.other_greatest);
        rj_divergences moved = other;
        move_to(raised, other_raised);
        moved.move_to(raised, other_raised);
        sums.combine(moved.sums);
    }
    RJ_DEVICE void move_to(float raised, float other_raised) {
        if (raised == greatest && other_raised == other_greatest) return;
        const float factor = Sum::exp(greatest - origin(raised));
        const float step = origin(raised) - origin(greatest);
        const float other_step = origin(other_raised) - origin(other_greatest);
        sums.differences.add(sums.terms.result() * (kCross ? -other_step : other_step - step));
        // Of what weighs nothing any more an infinite difference is nothing too.
        if (factor == 0.0f) sums.differences = Sum();
        sums.differences.scale(factor);
        sums.terms.scale(factor);
        sums.other_terms.scale(Sum::exp(other_greatest - origin(other_raised)));
        greatest = raised;
        other_greatest = other_raised;
    }
    template <int kMask>
    RJ_DEVICE rj_divergences from_lane_xor() const {
        return {rj_shuffle_xor<kMask>(greatest), rj_shuffle_xor<kMask>(other_greatest),
                sums.template from_lane_xor<kMask>()};
    }
    RJ_DEVICE float max() const { return greatest; }
    RJ_DEVICE float sum() const { return rj_of_finite(greatest, sums.terms.result()); }
    RJ_DEVICE float other_max() const { return other_greatest; }
    RJ_DEVICE float other_sum() const { return rj_of_finite(other_greatest, sums.other_terms.result()); }
    RJ_DEVICE float between() const {
        return rj_of_finite(greatest, rj_of_finite(other_greatest, sums.differences.result()));
    }

    static RJ_DEVICE float origin(float raised) { return rj_origin_itself(raised).from; }
};
template <class T>
using rj_divergence = rj_divergences<rj_plain, false>;
template <class T>
using rj_compensated_divergence = rj_divergences<rj_compensated, false>;
template <class T>
using rj_cross_entropy = rj_divergences<rj_plain, true>;
template <class T>
using rj_compensated_cross_entropy = rj_divergences<rj_compensated, true>;

// Of x beside weights the greatest x, the sum of exp(x - greatest), of the weights, and of each times x - greatest.
template <class Sum>
struct rj_weighings {
    struct Sums {
        Sum terms;
        Sum weights;
        Sum products;

        RJ_DEVICE void combine(const Sums& other) {
            terms.combine(other.terms);
            weights.combine(other.weights);
            products.combine(other.products);
        }
        template <int kMask>
        RJ_DEVICE Sums from_lane_xor() const {
            return {terms.template from_lane_xor<kMask>(), weights.template from_lane_xor<kMask>(),
                    products.template from_lane_xor<kMask>()};
        }
    };
    float greatest = rj_float(0xff800000u);
    Sums sums;

    template <int N>
    RJ_DEVICE void add_products(const float (&x)[N], const float (&weights)[N]) {
        move_to(rj_max(greatest, rj_fold<rj_larger>(x)));
        const float from = origin(greatest);
        float powers[N];
        float logarithms[N];
#pragma unroll
        for (int k = 0; k < N; ++k) {
            logarithms[k] = x[k] - from;
            powers[k] = Sum::exp(logarithms[k]);
        }
        sums.terms.add(rj_fold<rj_adding>(powers));
        sums.weights.add(rj_fold<rj_adding>(weights));
        rj_sum<float> products;
        products.add_products(weights, logarithms);
        sums.products.add(products.result());
    }
    RJ_DEVICE void combine(const rj_weighings& other) {
        const float raised = rj_max(greatest, other.greatest);
        rj_weighings moved = other;
        move_to(raised);
        moved.move_to(raised);
        sums.combine(moved.sums);
    }
    RJ_DEVICE void move_to(float raised) {
        if (raised == greatest) return;
        sums.products.add(sums.weights.result() * (origin(greatest) - origin(raised)));
        sums.terms.scale(Sum::exp(greatest - origin(raised)));
        greatest = raised;
    }
    template <int kMask>
    RJ_DEVICE rj_weighings from_lane_xor() const {
        return {rj_shuffle_xor<kMask>(greatest), sums.template from_lane_xor<kMask>()};
    }
    RJ_DEVICE float max() const { return greatest; }
    RJ_DEVICE float sum() const { return rj_of_finite(greatest, sums.terms.result()); }
    RJ_DEVICE float weights() const { return sums.weights.result(); }
    RJ_DEVICE float logarithms() const { return rj_of_finite(greatest, sums.products.result()); }

    static RJ_DEVICE float origin(float raised) { return rj_origin_itself(raised).from; }
};
template <class T>
using rj_weighted = rj_weighings<rj_plain>;
template <class T>
using rj_compensated_weighted = rj_weighings<rj_compensated>;

// Count, sum and sum of squared deviations (Chan, Golub and LeVeque 1979). Deviations are from an average that each
// step rounds, which squares forgive; the mean is made of the sum, and as exact as a sum's.
template <class Sum>
struct rj_moments {
    float count = 0.0f;
    float average = 0.0f;
    Sum total;
    Sum squares;

    template <int N>
    RJ_DEVICE void add(const float (&values)[N]) {
        rj_moments vec;
        vec.count = N;
        const float total_of_vec = rj_fold<rj_adding>(values);
        vec.total.add(total_of_vec);
        vec.average = total_of_vec * (1.0f / N);
        float deviations[N];
#pragma unroll
        for (int k = 0; k < N; ++k) deviations[k] = values[k] - vec.average;
        vec.squares.add_squares(deviations);
        combine(vec);
    }
    // The smaller mean is moved toward the larger one, so that the order of the two does not matter.
    RJ_DEVICE void combine(const rj_moments& other) {
        if (count == 0.0f) {
            *this = other;
            return;
        }
        const bool below = average < other.average;
        const float low = below ? average : other.average;
        const float high = below ? other.average : average;
        const float high_count = below ? other.count : count;
        const float sum = count + other.count;
        const float weight = rj_div(high_count, sum);
        const float apart = high - low;
        total.combine(other.total);
        squares.combine(other.squares);
        squares.add(apart * apart * weight * (sum - high_count));
        average = low + apart * weight;
        count = sum;
    }
    RJ_DEVICE void add_one(float added) {
        const float values[1] = {added};
        add(values);
    }
    template <int kMask>
    RJ_DEVICE rj_moments from_lane_xor() const {
        return {rj_shuffle_xor<kMask>(count), rj_shuffle_xor<kMask>(average), total.template from_lane_xor<kMask>(),
                squares.template from_lane_xor<kMask>()};
    }
    RJ_DEVICE float mean() const { return rj_div(total.result(), count); }
    RJ_DEVICE float squared_deviations() const { return squares.result(); }
};
template <class T>
using rj_welford = rj_moments<rj_plain>;
template <class T>
using rj_compensated_welford = rj_moments<rj_compensated>;

// Count, sum and squared deviations of rows. The mean is the sum's, so that an infinity stays what the sum makes of it;
// where it is rounded, squares forgive it.
struct rj_moments_of_rows {
    float count = 0.0f;
    float total = 0.0f;
    float squares = 0.0f;

    // The first `taken` of some values, behind which zeros stand.
    template <int N>
    RJ_DEVICE void add(const float (&values)[N], int taken = N) {
        rj_moments_of_rows these;
        these.count = static_cast<float>(taken);
        these.total = rj_fold<rj_adding>(values);
        const float average = these.total * rj_reciprocal_fast(these.count);
        float deviations[N];
#pragma unroll
        for (int k = 0; k < N; ++k) deviations[k] = k < taken ? values[k] - average : 0.0f;
#pragma unroll
        for (int k = 0; k < N; ++k) these.squares = rj_fma(deviations[k], deviations[k], these.squares);
        combine(these);
    }
    RJ_DEVICE void add_one(float added) {
        const float values[1] = {added};
        add(values);
    }
    RJ_DEVICE void combine(const rj_moments_of_rows& other) {
        const float apart = other.mean() - mean();
        const float both = count + other.count;
        const float share = both > 0.0f ? rj_div(count * other.count, both) : 0.0f;
        squares += rj_fma(apart * share, apart, other.squares);
        total += other.total;
        count = both;
    }
    template <int kMask>
    RJ_DEVICE rj_moments_of_rows from_lane_xor() const {
        return {rj_shuffle_xor<kMask>(count), rj_shuffle_xor<kMask>(total), rj_shuffle_xor<kMask>(squares)};
    }
    RJ_DEVICE float mean() const { return count > 0.0f ? rj_div(total, count) : 0.0f; }
    RJ_DEVICE float sum() const { return total; }
    RJ_DEVICE float squared_deviations() const { return squares; }
    RJ_DEVICE float counted() const { return count; }
};

// How many rows a thread has come to, once for all of its columns.
struct rj_counted_rows {
    float count = 0.0f;
    float of_each = 0.0f;
    float of_each_before = 0.0f;  // of those before the last one
    float share = 0.0f;           // they are of all

    RJ_DEVICE void next() {
        count += 1.0f;
        const float fast = rj_reciprocal_fast(count);
        of_each_before = of_each;
        of_each = rj_fma(fast, rj_fma(-count, fast, 1.0f), fast);  // correctly rounded but for a few, 1 of 1
        share = 1.0f - of_each;
    }
};

// The moments of one column's rows as they come (Welford 1962): of how far one is from the mean of those before it,
// their share of the square is new.
struct rj_deviations_of_rows {
    float total = 0.0f;
    float squares = 0.0f;

    RJ_DEVICE void add_one(float added, const rj_counted_rows& rows) {
        const float apart = rj_fma(-total, rows.of_each_before, added);
        squares = rj_fma(apart * rows.share, apart, squares);
        total += added;
    }
};
