// How the cache's files hold numbers and digests: little-endian, without padding.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/digest.h"

namespace rowjit {

inline constexpr std::size_t kDigestBytes = sizeof(Digest::bytes);

inline std::string_view text_of(const Digest& digest) {
    return {reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size()};
}

template <class Integer>
void append_little_endian(std::string& bytes, Integer value) {
    for (std::size_t i = 0; i < sizeof value; ++i) bytes += static_cast<char>(value >> (8 * i));
}

// Takes pieces off the front of bytes whose length has been checked.
struct Reader {
    std::string_view rest;

    std::string_view take(std::size_t size) {
        const std::string_view piece = rest.substr(0, size);
        rest.remove_prefix(piece.size());
        return piece;
    }
    template <class Integer>
    Integer integer() {
        Integer value = 0;
        const std::string_view piece = take(sizeof value);
        for (std::size_t i = 0; i < piece.size(); ++i)
            value |= static_cast<Integer>(static_cast<std::uint8_t>(piece[i])) << (8 * i);
        return value;
    }
};

}  // namespace rowjit
