// Sections and symbols of a 64-bit little-endian ELF file, as views into its bytes. Cubins and AMD code objects are
// such files; they may come from a damaged cache entry, so every offset is checked before it is followed. What the
// sections mean is for cubin_info and code_object_info.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/declined.h"

namespace rowjit {

struct ElfSection {
    std::string_view name;
    std::uint32_t type = 0;
    std::uint64_t size_bytes = 0;  // also of a section that occupies no bytes of the file
    std::string_view data;         // empty for such a section
};

struct ElfSymbol {
    std::string_view name;
    std::uint8_t type = 0;   // STT_FUNC, ...
    std::uint8_t other = 0;  // visibility, and the vendor's flags
};

struct ElfView {
    std::vector<ElfSection> sections;
    std::vector<ElfSymbol> symbols;  // of the static symbol table, in its order; empty when there is none

    // The views point into `file`. Declines with what is wrong with it.
    static Offer<ElfView> parse(std::string_view file);

    const ElfSection* find(std::string_view section_name) const;
};

// An unaligned little-endian read; false past the end.
template <class T>
bool read_at(std::string_view bytes, std::uint64_t offset, T& value) {
    if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return false;
    __builtin_memcpy(&value, bytes.data() + offset, sizeof(T));
    return true;
}

}  // namespace rowjit
