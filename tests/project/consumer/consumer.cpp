// What a user's first program needs of an installation: the headers are found, the library links, an error is caught.
#include <cstdio>
#include <string>

#include "rowjit/dtype.h"
#include "rowjit/error.h"

int main() {
    if (rowjit::name(rowjit::bf16) != "bf16") return 1;
    try {
        rowjit::parse_dtype("bfloat");
    } catch (const rowjit::Error& error) {
        std::printf("%s: %s\n", rowjit::name(error.code()), error.what());
        return std::string(rowjit::name(error.code())) == "parse" ? 0 : 1;
    }
    return 1;
}
