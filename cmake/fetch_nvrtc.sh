#!/bin/sh
# Brings NVIDIA's run-time compiler into build/deps/nvrtc (or the folder given), where CMake finds it and puts it beside
# the programs it builds. For machines without a CUDA toolkit; a toolkit or an installed wheel serves as well.
# Does nothing when the version is already there.
set -eu

# The oldest CUDA 13: its cubins load on every 13.x driver.
version=13.0.88
root=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-$root/build/deps/nvrtc}

if [ "$(cat "$folder/version" 2>/dev/null)" = "$version" ]; then
    exit 0
fi
mkdir -p "$folder"
download=$(mktemp -d "$folder/download.XXXXXX")
trap 'rm -rf "$download"' EXIT
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$download" \
    "nvidia-cuda-nvrtc==$version"
python3 -m zipfile -e "$download"/*.whl "$download/unpacked"
for library in libnvrtc.so.13 libnvrtc-builtins.so.13.0; do
    mv -f "$download/unpacked/nvidia/cu13/lib/$library" "$folder/$library"
done
echo "$version" >"$folder/version"
