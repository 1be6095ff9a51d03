#include "compiler/toolchain/elf_view.h"

#include <elf.h>

#include <cstring>

namespace rowjit {
namespace {

// The bytes [offset, offset + size) of `file`; false when they are not all there.
bool slice(std::string_view file, std::uint64_t offset, std::uint64_t size, std::string_view& part) {
    if (offset > file.size() || size > file.size() - offset) return false;
    part = file.substr(offset, size);
    return true;
}

// The NUL-terminated string at `offset` of a string table; empty when it runs out of the table.
std::string_view string_at(std::string_view table, std::uint64_t offset) {
    if (offset >= table.size()) return {};
    const std::string_view rest = table.substr(offset);
    const std::size_t end = rest.find('\0');
    return end == std::string_view::npos ? std::string_view() : rest.substr(0, end);
}

Declined broken(const char* what) { return Declined{std::string("not a readable ELF file: ") + what}; }

}  // namespace

Offer<ElfView> ElfView::parse(std::string_view file) {
    Elf64_Ehdr header;
    if (!read_at(file, 0, header)) return broken("shorter than its header");
    if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return broken("no ELF magic");
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB)
        return broken("not 64-bit little-endian");
    if (header.e_shentsize != sizeof(Elf64_Shdr)) return broken("unknown size of a section header");

    ElfView view;
    std::vector<Elf64_Shdr> headers(header.e_shnum);
    for (std::size_t i = 0; i < headers.size(); ++i) {
        if (header.e_shoff > file.size() || !read_at(file, header.e_shoff + i * sizeof(Elf64_Shdr), headers[i]))
            return broken("section headers past the end");
        ElfSection section;
        section.type = headers[i].sh_type;
        section.size_bytes = headers[i].sh_size;
        const bool stored = section.type != SHT_NOBITS && section.type != SHT_NULL;
        if (stored && !slice(file, headers[i].sh_offset, headers[i].sh_size, section.data))
            return broken("a section past the end");
        view.sections.push_back(section);
    }
    if (header.e_shstrndx >= view.sections.size()) return broken("no section names");
    const std::string_view names = view.sections[header.e_shstrndx].data;
    for (std::size_t i = 0; i < headers.size(); ++i) view.sections[i].name = string_at(names, headers[i].sh_name);

    for (std::size_t i = 0; i < headers.size(); ++i) {
        if (headers[i].sh_type != SHT_SYMTAB) continue;
        if (headers[i].sh_link >= view.sections.size()) return broken("a symbol table without names");
        const std::string_view symbol_names = view.sections[headers[i].sh_link].data;
        Elf64_Sym symbol;
        for (std::uint64_t at = 0; read_at(view.sections[i].data, at, symbol); at += sizeof(symbol)) {
            const auto type = static_cast<std::uint8_t>(ELF64_ST_TYPE(symbol.st_info));
            view.symbols.push_back({string_at(symbol_names, symbol.st_name), type, symbol.st_other});
        }
        break;
    }
    return view;
}

const ElfSection* ElfView::find(std::string_view section_name) const {
    for (const ElfSection& section : sections) {
        if (section.name == section_name) return &section;
    }
    return nullptr;
}

}  // namespace rowjit
