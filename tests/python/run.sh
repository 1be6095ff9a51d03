#!/usr/bin/env bash
# Tests of the Python package, in the environment that ./dev makes for them; skipped (77) where there is none.
#     run.sh SOURCE BUILD FOLDER [PYTEST ARGUMENTS], FOLDER being relative to SOURCE
set -euo pipefail
source=$1 build=$2 tests=$3
shift 3
python=$source/build/deps/python/bin/python
if [[ ! -f $source/build/deps/python/complete ]]; then
    echo "skipped: build/deps/python is not there or not complete; ./dev test makes it where pip reaches its packages"
    exit 77
fi
# Kernels are kept beside the build: a second run compiles none.
export PYTHONPATH=$build/python ROWJIT_CACHE_DIR=$build/python/cache
exec "$python" -B -m pytest -q -p no:cacheprovider "$source/$tests" "$@"
