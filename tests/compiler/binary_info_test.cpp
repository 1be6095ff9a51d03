// The readers of cubins and code objects on damaged bytes: a cache entry may hold anything.
#include <doctest/doctest.h>
#include <elf.h>

#include <cstring>

#include "compiler/toolchain/code_object_info.h"
#include "compiler/toolchain/cubin_info.h"
#include "compiler/toolchain/toolchain.h"

namespace rowjit {
namespace {

using Reader = Offer<std::vector<FunctionInfo>> (*)(std::string_view);

// A real binary, or "" where no toolchain makes one; toolchain_test says so aloud.
std::string binary_for(const char* name, const char* text) {
    const Target target = find_target(name);
    return find_toolchain(target) ? compile_source({text, {"k"}}, target).binary : "";
}

const std::string& cubin() {
    static const std::string binary = binary_for(
        "sm_90a", "extern \"C\" __global__ void __launch_bounds__(64) k(float* a) { a[threadIdx.x] = 1.f; }");
    return binary;
}

const std::string& code_object() {
    static const std::string binary =
        binary_for("gfx942", "extern \"C\" __attribute__((global)) void k(float* a) { *a = 1.f; }");
    return binary;
}

// Each candidate is a string of its own, so that a sanitizer sees a read past its end.
void read_damaged(Reader read, const std::string& whole) {
    for (std::size_t size = 0; size < whole.size(); ++size) {
        const Offer<std::vector<FunctionInfo>> functions = read(whole.substr(0, size));
        if (functions) CHECK(functions->size() == 1);
    }
    for (std::size_t at = 0; at < whole.size(); ++at) {
        for (const char damage : {'\xff', '\x7f', '\0'}) {
            std::string damaged = whole;
            damaged[at] = damage;
            const Offer<std::vector<FunctionInfo>> functions = read(damaged);
            if (!functions) CHECK_FALSE(functions.reason().empty());
        }
    }
}

template <class T>
void append(std::string& bytes, const T& value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// An ELF file whose only content is one metadata note.
std::string file_with_metadata(const std::string& metadata) {
    std::string note;
    append(note, Elf64_Nhdr{7, static_cast<Elf64_Word>(metadata.size()), 32});
    note.append("AMDGPU\0\0", 8).append(metadata);

    Elf64_Ehdr header = {};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_ident[EI_DATA] = ELFDATA2LSB;
    header.e_shoff = sizeof(header);
    header.e_shentsize = sizeof(Elf64_Shdr);
    header.e_shnum = 2;
    Elf64_Shdr section = {};
    std::string file;
    append(file, header);
    append(file, section);
    section.sh_type = SHT_NOTE;
    section.sh_offset = sizeof(header) + 2 * sizeof(section);
    section.sh_size = note.size();
    append(file, section);
    return file + note;
}

}  // namespace

TEST_CASE("waits for loads are counted in a cubin's code") {
    for (const char* name : {"sm_80", "sm_90a", "sm_100a"}) {
        CAPTURE(name);
        const Target target = find_target(name);
        if (!find_toolchain(target)) continue;
        const auto info = [&](const std::string& body) {
            const std::string text = "extern \"C\" __global__ void k(const int4* a, int* out) {" + body + "}";
            return cubin_info(compile_source({text, {"k"}}, target).binary)->at(0);
        };
        const FunctionInfo none = info("out[threadIdx.x] = 1;");
        CHECK(none.load_waits == 0);
        CHECK(none.bytes_in_flight == 0);
        const FunctionInfo beside = info(
            "const int4 x = a[threadIdx.x], y = a[threadIdx.x + 64];"
            "*out = (x.x ^ x.y) * (x.z ^ x.w) + (y.x ^ y.y) * (y.z ^ y.w);");
        CHECK(beside.load_waits == 1);
        CHECK(beside.bytes_in_flight == 32);
        // Each load's address is the last one's element.
        const FunctionInfo chained = info("int at = threadIdx.x; for (int i = 0; i < 3; ++i) at = a[at].w; *out = at;");
        CHECK(chained.load_waits == 3);
        CHECK(chained.bytes_in_flight == 4);
        const FunctionInfo narrow = info(
            "const auto* bytes = reinterpret_cast<const unsigned char*>(a); *out = bytes[3] * bytes[threadIdx.x];");
        CHECK(narrow.load_waits == 1);
        CHECK(narrow.bytes_in_flight == 2);
    }
}

TEST_CASE("a cubin cut short or damaged is declined or read, never followed out of bounds") {
    if (cubin().empty()) return;
    REQUIRE(cubin_info(cubin()));
    CHECK(cubin_info(cubin())->at(0).max_threads == 64);
    read_damaged(cubin_info, cubin());
}

TEST_CASE("a code object cut short or damaged is declined or read, never followed out of bounds") {
    if (code_object().empty()) return;
    REQUIRE(code_object_info(code_object()));
    read_damaged(code_object_info, code_object());
}

TEST_CASE("bytes of another kind are declined with a reason") {
    for (const Reader read : {Reader{cubin_info}, Reader{code_object_info}}) {
        CHECK_FALSE(read(""));
        CHECK(read(std::string(100, 'x')).reason().find("no ELF magic") != std::string::npos);
    }
    if (cubin().empty() || code_object().empty()) return;
    CHECK(cubin_info(code_object()).reason().find("no kernel") != std::string::npos);
    CHECK(code_object_info(cubin()).reason().find("no AMDGPU metadata") != std::string::npos);
}

TEST_CASE("metadata that is not the expected map is declined") {
    for (const std::string& metadata : {std::string("\x80", 1), std::string("\xc1", 1), std::string("\x93\x01\x02", 3),
                                        std::string("\x81\xae"
                                                    "amdhsa.kernels\x90",
                                                    17),
                                        std::string("\x81\xae"
                                                    "amdhsa.kernels\x91\x80",
                                                    18)}) {
        const Offer<std::vector<FunctionInfo>> functions = code_object_info(file_with_metadata(metadata));
        REQUIRE_FALSE(functions);
        CHECK(functions.reason() != "");
    }
}

TEST_CASE("metadata nested a million deep is declined without the stack for it") {
    const std::string nested(1 << 20, '\x91');
    CHECK(code_object_info(file_with_metadata(nested)).reason().find("no MessagePack") != std::string::npos);
}

}  // namespace rowjit
