#include "compiler/toolchain/load_waits.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "compiler/toolchain/elf_view.h"

namespace rowjit {
namespace {

// NVIDIA does not document the encoding; these are the fields that `nvdisasm -hex` shows, the same from sm_70 on (the
// tests count for sm_80, sm_90a and sm_100a). An instruction is two words. A load sets one of six barriers when it is
// issued, and whatever needs it waits for that.
constexpr std::size_t kInstructionBytes = 16;
constexpr std::size_t kBarriers = 6;
constexpr std::uint64_t kLoad = 0x980;        // LD, of an address that may be in any memory
constexpr std::uint64_t kLoadGlobal = 0x981;  // LDG

std::uint64_t bits(std::uint64_t word, int first, int count) { return word >> first & ((1ULL << count) - 1); }

std::uint64_t opcode(std::uint64_t low) { return bits(low, 0, 12); }
std::uint64_t sets_barrier(std::uint64_t high) { return bits(high, 46, 3); }  // kBarriers and above: none
std::uint64_t waits_for(std::uint64_t high) { return bits(high, 52, 6); }     // one bit each

// Unsigned and signed bytes, unsigned and signed pairs of bytes, 4, 8 and 16 bytes; the last place is not in use.
int loaded_bytes(std::uint64_t high) {
    constexpr std::array<int, 8> kBytes = {1, 1, 2, 2, 4, 8, 16, 0};
    return kBytes[bits(high, 9, 3)];
}

// Loads that set a barrier and are not awaited.
struct Outstanding {
    int after = 0;  // waits before the last of them was issued
    int bytes = 0;
};

}  // namespace

LoadWaits count_load_waits(std::string_view code) {
    LoadWaits result;
    std::array<Outstanding, kBarriers> barriers = {};
    int waited = 0;
    int in_flight = 0;
    for (std::size_t at = 0; at + kInstructionBytes <= code.size(); at += kInstructionBytes) {
        std::uint64_t low = 0;
        std::uint64_t high = 0;
        read_at(code, at, low);
        read_at(code, at + sizeof low, high);
        for (std::size_t i = 0; i < kBarriers; ++i) {
            if (bits(waits_for(high), static_cast<int>(i), 1) == 0 || barriers[i].bytes == 0) continue;
            waited = std::max(waited, barriers[i].after + 1);
            in_flight -= barriers[i].bytes;
            barriers[i] = {};
        }
        const bool loads = opcode(low) == kLoad || opcode(low) == kLoadGlobal;
        if (!loads || sets_barrier(high) >= kBarriers) continue;
        barriers[sets_barrier(high)].after = waited;
        barriers[sets_barrier(high)].bytes += loaded_bytes(high);
        in_flight += loaded_bytes(high);
        result.waits = std::max(result.waits, waited + 1);
        result.bytes_in_flight = std::max(result.bytes_in_flight, in_flight);
    }
    return result;
}

}  // namespace rowjit
