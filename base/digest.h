// SHA-256, and the one encoding under which named fields are hashed. Cache keys, file checksums and the names of cache
// entries all come from here, so a digest must never depend on the process, the machine or the library that computed
// it.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace rowjit {

struct Digest {
    std::array<std::uint8_t, 32> bytes{};

    std::string hex() const;  // 64 lower-case digits
    auto operator<=>(const Digest&) const = default;
};

// The digest those 64 lower-case hexadecimal digits stand for; nullopt for any other text.
std::optional<Digest> parse_digest(std::string_view hex);

Digest sha256(std::string_view bytes);

// The SHA-256 of the digests of both halves of `bytes`, the first being half of its whole 64-byte blocks. As strong as
// SHA-256 itself, and computed in half the time, since the halves do not wait for each other.
Digest sha256_of_halves(std::string_view bytes);

// SHA-256 over a sequence of pieces.
class Sha256 {
  public:
    void update(std::string_view bytes);
    Digest finish();  // once; the object is spent afterwards

    friend Digest sha256_of_halves(std::string_view bytes);

  private:
    static constexpr std::size_t kBlockBytes = 64;

    // The initial hash value of FIPS 180-4, section 5.3.3.
    std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                           0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::uint64_t total_bytes_ = 0;
    std::array<std::uint8_t, kBlockBytes> pending_;  // the first total_bytes_ % kBlockBytes are waiting
};

// One named field, "name length:value\n". The length in front makes a list of fields injective (a value may hold
// anything, line ends included) while the text stays readable in `rowjit cache show`.
std::string field_text(std::string_view name, std::string_view value);

// Hashes named fields in the order they are added: the digest of their field_text, one after the other.
class FieldHasher {
  public:
    FieldHasher& add(std::string_view name, std::string_view value);
    FieldHasher& add(std::string_view name, std::int64_t value);
    Digest finish() { return hash_.finish(); }

  private:
    Sha256 hash_;
};

}  // namespace rowjit

template <>
struct std::hash<rowjit::Digest> {
    // A digest is uniform already: its first word is as good a hash as any.
    std::size_t operator()(const rowjit::Digest& digest) const noexcept {
        std::size_t word = 0;
        std::memcpy(&word, digest.bytes.data(), sizeof word);
        return word;
    }
};
