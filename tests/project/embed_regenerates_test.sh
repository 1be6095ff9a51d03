#!/usr/bin/env bash
# A changed template reaches the program with the next build. Usage: embed_regenerates_test.sh SOURCE_DIRECTORY CXX_COMPILER
set -euo pipefail
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

cat >CMakeLists.txt <<TEXT
cmake_minimum_required(VERSION 3.25)
project(embedding LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 20)
include($1/cmake/embed.cmake)
add_executable(show show.cpp)
target_include_directories(show PRIVATE \${CMAKE_BINARY_DIR}/generated)
rowjit_embed(show words.h)
TEXT
cat >show.cpp <<'TEXT'
#include <iostream>
#include "embedded/words.h"
int main() { std::cout << rowjit::embedded::words; }
TEXT

expect() {
    printf '%s' "$1" >words.h
    cmake --build build >log || { cat log; exit 1; }
    [[ $(build/show) == "$1" ]] || { echo "expected '$1', the program has '$(build/show)'"; exit 1; }
}

touch words.h
cmake -S . -B build -G Ninja -DCMAKE_CXX_COMPILER="$2" >log || { cat log; exit 1; }
expect "the first text"
expect "another text"
expect ""
