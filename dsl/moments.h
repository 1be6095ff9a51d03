// The components of Monoid::kMoments by name.
#pragma once

namespace rowjit {

enum Moment : int { kMomentSum, kMomentSquares, kMomentCount };

}  // namespace rowjit
