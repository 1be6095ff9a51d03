// The SHA-256 compression function in the x86 SHA extensions (Goldmont 2016, Zen 2017, Ice Lake 2019). Used by
// base/digest.cpp alone, which has libmd's portable one for every other processor.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rowjit {

bool sha256_x86_available();

// Folds `count` blocks of 64 bytes into `state` (FIPS 180-4, section 6.2.2). Only where available.
void sha256_x86_compress(std::uint32_t state[8], const std::uint8_t* blocks, std::size_t count);

}  // namespace rowjit
