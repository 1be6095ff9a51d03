#!/usr/bin/env bash
# An installed rowjit can be used: install into an empty directory, move it, and build a small project against it with
# find_package and with pkg-config, and the examples as a user would who copied them.
# Usage: install_test.sh BUILD_DIRECTORY CXX_COMPILER LLVM [COMPILER_FLAG…], LLVM being ON where the CPU backend is built
set -euo pipefail
build=$1 compiler=$2 llvm=$3
shift 3
examples=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../examples" && pwd)
consumer=$(cd "$(dirname "${BASH_SOURCE[0]}")/consumer" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

cmake --install "$build" --prefix "$scratch/first" >/dev/null
# A package that only works where it was installed first holds an absolute path.
mv "$scratch/first" "$scratch/prefix"

echo "find_package:"
cmake -S "$consumer" -B "$scratch/consumer" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_CXX_FLAGS="$*" \
    -DCMAKE_PREFIX_PATH="$scratch/prefix" -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF >"$scratch/log" || { cat "$scratch/log"; exit 1; }
cmake --build "$scratch/consumer" >"$scratch/log" || { cat "$scratch/log"; exit 1; }
"$scratch/consumer/consumer"

echo "find_package, the C interface alone:"
cmake -S "$consumer/c" -B "$scratch/c_consumer" -G Ninja -DCMAKE_C_FLAGS="$*" -DCMAKE_PREFIX_PATH="$scratch/prefix" \
    -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF >"$scratch/log" || { cat "$scratch/log"; exit 1; }
cmake --build "$scratch/c_consumer" >"$scratch/log" || { cat "$scratch/log"; exit 1; }
"$scratch/c_consumer/consumer"

echo "examples:"
cmake -S "$examples" -B "$scratch/examples" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER="$compiler" \
    -DCMAKE_CXX_FLAGS="$*" -DCMAKE_PREFIX_PATH="$scratch/prefix" -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF \
    -DROWJIT_LLVM="$llvm" >"$scratch/log" || { cat "$scratch/log"; exit 1; }
cmake --build "$scratch/examples" >"$scratch/log" || { cat "$scratch/log"; exit 1; }
ctest --test-dir "$scratch/examples" >"$scratch/log" || { cat "$scratch/log"; exit 1; }

if command -v pkg-config >/dev/null; then
    echo "pkg-config:"
    export PKG_CONFIG_PATH=$scratch/prefix/lib/pkgconfig
    # Unquoted on purpose: pkg-config prints a list of words. The archive is taken whole for the reason that
    # consumer/CMakeLists.txt gives.
    flags=$(pkg-config --static --cflags --libs rowjit)
    "$compiler" -std=c++20 "$@" "$consumer/consumer.cpp" -o "$scratch/by_pkg_config" \
        ${flags/-lrowjit/-Wl,--whole-archive -lrowjit -Wl,--no-whole-archive}
    "$scratch/by_pkg_config"
    # The C interface is one shared library: no other is named.
    cc -std=c11 "$@" "$examples/training_step.c" -o "$scratch/c_by_pkg_config" $(pkg-config --static --cflags --libs rowjit_c)
    if [[ $llvm == ON ]]; then LD_LIBRARY_PATH=$scratch/prefix/lib ROWJIT_CACHE_DIR=off "$scratch/c_by_pkg_config"; fi
fi

# Nothing but what a user needs is installed, and no header reaches into the source tree.
if grep -rlE '#include "(base|dsl|compiler|cache|runtime|tools)/' "$scratch/prefix/include"; then
    echo "these installed headers include headers that are not installed"
    exit 1
fi
