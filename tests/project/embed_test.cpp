// rowjit_embed gives the file's bytes, all of them, whatever they are.
#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "embedded/embed_hard.h"
#include "embedded/embed_large.h"

static std::string read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST_CASE("an embedded text equals its file, with quotes, brackets, semicolons and raw-string ends in it") {
    const std::string expected = read_file(EMBED_HARD);
    REQUIRE(!expected.empty());
    CHECK(rowjit::embedded::embed_hard == expected);
}

TEST_CASE("an embedded text may be longer than a compiler's limit for string literals") {
    const std::string expected = read_file(EMBED_LARGE);
    REQUIRE(expected.size() > 1 << 17);
    CHECK(rowjit::embedded::embed_large == expected);
}
