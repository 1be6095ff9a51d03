#!/usr/bin/env python3
"""Liger-Kernel's own tests of its functions and modules, with rowjit behind them.

    PYTHONPATH=build/release/python python3 tests/python/liger_kernel_tests.py CHECKOUT [PYTEST ARGUMENTS]

CHECKOUT is a checkout of Liger-Kernel, whose tests compare with torch in eager mode. It needs pytest, transformers (of
version 4, for the tests of rotary embeddings) and triton to import; on the CPU no kernel of Triton runs. Not among them:
what rowjit has no function for, and tests that start processes, in which liger_kernel would be imported by itself.
"""

import pathlib
import sys
import types

FILES = (
    "attn_res", "cross_entropy", "dyt", "fused_add_rms_norm", "fused_linear_cross_entropy", "fused_linear_jsd", "geglu",
    "group_norm", "jsd", "kl_div", "layer_norm", "llama4_rope", "modulated_rms_norm", "poly_norm", "qwen2vl_mrope", "relu_squared", "rms_norm",
    "rope", "softmax", "sparsemax", "swiglu", "tvd",
)  # fmt: skip
CHUNKED_LOSSES = ("cosine", "cpo", "dpo", "grpo", "jsd", "kto", "orpo", "simpo")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    checkout = pathlib.Path(sys.argv[1]).resolve()
    sys.path[:0] = [str(checkout / "src"), str(checkout)]
    sys.path[:] = [folder for folder in sys.path if pathlib.Path(folder or ".").resolve() != pathlib.Path(__file__).parent]
    import pytest
    import test.utils
    import torch

    import rowjit.liger

    if not rowjit.liger.install():
        sys.exit(f"there is no liger_kernel in {checkout / 'src'}")
    if not torch.cuda.is_available():
        # Some ask what a GPU has.
        test.utils.supports_bfloat16 = lambda: True
        torch.cpu.get_device_properties = lambda *_: types.SimpleNamespace(total_memory=0)
    files = [str(checkout / f"test/transformers/test_{name}.py") for name in FILES]
    files += [str(checkout / f"test/chunked_loss/test_{name}_loss.py") for name in CHUNKED_LOSSES]
    given = sys.argv[2:]
    if not any(argument.endswith(".py") or "::" in argument for argument in given):
        given = [*files, *given]
    code = pytest.main(["-q", "-p", "no:cacheprovider", "-k", "not dtensor and not triton_grpo", f"--rootdir={checkout}", *given])
    print("rowjit:", rowjit.statistics("cuda:0" if torch.cuda.is_available() else "cpu"))
    sys.exit(code)


if __name__ == "__main__":
    main()
