"""The mapping for the package `kernels`: modules that ask for a layer get rowjit's of what they themselves compute."""

import pytest
import torch
from conftest import kernels_made

kernels = pytest.importorskip("kernels")

import rowjit.transformers  # noqa: E402


@kernels.use_kernel_forward_from_hub("RMSNorm")
class Norm(torch.nn.Module):
    def __init__(self, offset):
        super().__init__()
        self.weight, self.eps, self.offset = torch.nn.Parameter(torch.randn(24)), 1e-5, offset

    def forward(self, x):
        return torch.nn.functional.rms_norm(x.float(), (24,), None, self.eps).to(x.dtype) * (self.weight + self.offset)


@kernels.use_kernel_forward_from_hub("RMSNorm")
class MeanNorm(Norm):
    def forward(self, x):
        return x / (x.abs().mean(-1, keepdim=True) + self.eps) * self.weight


@kernels.use_kernel_forward_from_hub("rotary_pos_emb")
def rotate(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    turned = lambda x: x * cos + torch.cat((-x[..., 4:], x[..., :4]), -1) * sin  # noqa: E731
    return turned(q), turned(k)


def kernelized(module):
    with kernels.use_kernel_mapping(rowjit.transformers.kernel_mapping()):
        return kernels.kernelize(module, mode=kernels.Mode.TRAINING, device="cpu")


@pytest.mark.parametrize("offset", [0, 1])
def test_a_norm_is_the_modules_own_by_a_kernel(offset, monkeypatch):
    module, x = Norm(offset), torch.randn(3, 24, requires_grad=True)
    expected = module(x)
    operation, calls = rowjit.torch.functional.rms_norm, []
    monkeypatch.setattr(rowjit.torch.functional, "rms_norm", lambda *x, **y: (calls.append(y["offset"]), operation(*x, **y))[1])
    found = kernelized(module)(x)
    assert calls == [offset]
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(y.sin().sum(), (x, module.weight)) for y in (found, expected)))


def test_a_norm_of_another_kind_stays_the_modules_own():
    module, x = MeanNorm(0), torch.randn(3, 24)
    expected = module(x)
    assert torch.equal(kernelized(module)(x), expected)


def test_a_rotary_embedding_is_the_functions_own_by_a_kernel():
    @kernels.use_kernelized_func(rotate)
    class Attention(torch.nn.Module):
        def forward(self, *operands):
            return rotate(*operands)

    operands = [torch.randn(shape) for shape in ((2, 3, 5, 8), (2, 1, 5, 8), (2, 5, 8), (2, 5, 8))]
    module = Attention()
    expected = module(*operands)
    made = kernels_made()
    found = kernelized(module)(*operands)
    assert kernels_made() > made
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(rotate(*operands, 1), expected)
