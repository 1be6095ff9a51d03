// A Matmul's sums of products as the oracle takes them: each in the order of the contracted axes, by no library and no
// code that a kernel has a part in. Tiles and threads change which sum is taken when, and none of its bits.
#pragma once

#include <cstdint>
#include <vector>

namespace rowjit {

// A place of the result, or of what is summed: where it begins in each operand, in elements. Offsets add up over the
// groups of axes they belong to.
struct ProductPlace {
    std::int64_t left = 0;
    std::int64_t right = 0;
    std::int64_t result = 0;
};

// Every position along the axes of a group, which together are all axes of the product.
struct ProductPlaces {
    std::vector<ProductPlace> rows;     // of the result, in the left operand
    std::vector<ProductPlace> columns;  // likewise, in the right one
    std::vector<ProductPlace> terms;    // contracted, in the order of the sums
};

// result = Σ left · right, products and sums in T: f32 for eager's, f64 for the exact ones.
template <class T>
void contract(const ProductPlaces& places, const double* left, const double* right, double* result);

extern template void contract<float>(const ProductPlaces&, const double*, const double*, double*);
extern template void contract<double>(const ProductPlaces&, const double*, const double*, double*);

}  // namespace rowjit
