#include "base/digest.h"

#include <sys/types.h>

// libmd's header relies on sys/types.h.
#include <sha2.h>

#include <algorithm>

#include "base/sha256_x86.h"

namespace rowjit {

namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";

const std::uint8_t* octets(std::string_view bytes) { return reinterpret_cast<const std::uint8_t*>(bytes.data()); }

// libmd has the portable compression function only: 62 us for 16 KiB on a Zen 4 core against 9 us with the processor's
// own instructions, and a verified cache hit has 15 us in all (benchmarks/cache_bench).
bool accelerated() {
    static const bool available = sha256_x86_available();
    return available;
}

void compress(std::uint32_t state[8], const std::uint8_t* blocks, std::size_t count) {
    if (accelerated()) return sha256_x86_compress(state, blocks, count);
    for (; count > 0; --count, blocks += SHA256_BLOCK_LENGTH) SHA256Transform(state, blocks);
}

void compress_two(std::uint32_t* const states[2], const std::uint8_t* const blocks[2], std::size_t count) {
    if (accelerated()) return sha256_x86_compress_two(states, blocks, count);
    for (int message = 0; message < 2; ++message) compress(states[message], blocks[message], count);
}

std::string_view text_of(const Digest& digest) {
    return {reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size()};
}

}  // namespace

std::string Digest::hex() const {
    std::string text;
    text.reserve(2 * bytes.size());
    for (const std::uint8_t byte : bytes) {
        text += kHexDigits[byte >> 4];
        text += kHexDigits[byte & 15];
    }
    return text;
}

std::optional<Digest> parse_digest(std::string_view hex) {
    Digest digest;
    if (hex.size() != 2 * digest.bytes.size()) return std::nullopt;
    for (std::size_t i = 0; i < hex.size(); ++i) {
        const std::size_t digit = kHexDigits.find(hex[i]);
        if (digit == std::string_view::npos) return std::nullopt;
        digest.bytes[i / 2] = static_cast<std::uint8_t>(digest.bytes[i / 2] << 4 | digit);
    }
    return digest;
}

void Sha256::update(std::string_view bytes) {
    const std::size_t waiting = total_bytes_ % kBlockBytes;
    total_bytes_ += bytes.size();
    if (waiting != 0) {
        const std::size_t taken = std::min(bytes.size(), kBlockBytes - waiting);
        std::copy_n(octets(bytes), taken, pending_.begin() + waiting);
        bytes.remove_prefix(taken);
        if (waiting + taken < kBlockBytes) return;
        compress(state_.data(), pending_.data(), 1);
    }
    const std::size_t blocks = bytes.size() / kBlockBytes;
    compress(state_.data(), octets(bytes), blocks);
    bytes.remove_prefix(blocks * kBlockBytes);
    std::copy_n(octets(bytes), bytes.size(), pending_.begin());
}

Digest Sha256::finish() {
    // A one bit, zeros up to the last eight bytes of a block, and there the length in bits.
    const std::uint64_t total_bits = total_bytes_ * 8;
    const std::size_t zeros = (2 * kBlockBytes - 9 - total_bytes_ % kBlockBytes) % kBlockBytes;
    std::string padding(1, '\x80');
    padding.append(zeros, '\0');
    for (int shift = 56; shift >= 0; shift -= 8) padding += static_cast<char>(total_bits >> shift);
    update(padding);

    Digest digest;
    for (std::size_t i = 0; i < digest.bytes.size(); ++i)
        digest.bytes[i] = static_cast<std::uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
    return digest;
}

Digest sha256(std::string_view bytes) {
    Sha256 hash;
    hash.update(bytes);
    return hash.finish();
}

Digest sha256_of_halves(std::string_view bytes) {
    const std::size_t blocks = bytes.size() / Sha256::kBlockBytes / 2;
    const std::size_t common_bytes = blocks * Sha256::kBlockBytes;
    Sha256 first, second;
    std::uint32_t* const states[] = {first.state_.data(), second.state_.data()};
    const std::uint8_t* const messages[] = {octets(bytes), octets(bytes) + common_bytes};
    compress_two(states, messages, blocks);
    first.total_bytes_ = second.total_bytes_ = common_bytes;
    second.update(bytes.substr(2 * common_bytes));
    Sha256 both;
    both.update(text_of(first.finish()));
    both.update(text_of(second.finish()));
    return both.finish();
}

std::string field_text(std::string_view name, std::string_view value) {
    std::string text(name);
    text += ' ';
    text += std::to_string(value.size());
    text += ':';
    text += value;
    text += '\n';
    return text;
}

FieldHasher& FieldHasher::add(std::string_view name, std::string_view value) {
    hash_.update(field_text(name, value));
    return *this;
}

FieldHasher& FieldHasher::add(std::string_view name, std::int64_t value) { return add(name, std::to_string(value)); }

}  // namespace rowjit
