"""Cross-entropy over a vocabulary that processes share, against the whole of it in one."""

import subprocess
import sys
import textwrap

import pytest
import torch

RANKS = 3

PROGRAM = """
    import sys

    import torch
    import torch.distributed

    from rowjit.torch.distributed import vocab_parallel_cross_entropy

    rank, ranks, meeting = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    torch.manual_seed(3)
    logits, target = torch.randn(5, 12 * ranks) * 3, torch.tensor([3, 12 * ranks - 1, -100, 11, 12])

    whole = logits.double().requires_grad_()
    own = logits[:, 12 * rank : 12 * (rank + 1)].clone().requires_grad_()
    lse = whole.logsumexp(-1)
    counted = target != -100
    z_loss = (0.01 * lse.square())[counted].mean()
    expected = torch.nn.functional.cross_entropy(whole, target, label_smoothing=0.1) + z_loss
    loss, own_z_loss, entropy = vocab_parallel_cross_entropy(own, target, label_smoothing=0.1, z_loss=0.01, entropy=True)
    torch.testing.assert_close(loss, expected.float())
    torch.testing.assert_close(own_z_loss, z_loss.float())
    torch.testing.assert_close(entropy, torch.distributions.Categorical(logits=whole).entropy().float())
    (loss + entropy.sum()).backward()
    (expected + torch.distributions.Categorical(logits=whole).entropy().sum()).backward()
    torch.testing.assert_close(own.grad, whole.grad[:, 12 * rank : 12 * (rank + 1)].float())

    # Ranks of different widths.
    first = 0 if rank == 0 else 20 + 8 * (rank - 1)
    last = 20 + 8 * rank
    own = logits[:, first:last].clone().requires_grad_()
    loss = vocab_parallel_cross_entropy(own, target, part=(first, 12 * ranks), reduction="none")
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(logits, target, reduction="none"))
"""


HEAD_PROGRAM = """
    import sys

    import torch
    import torch.distributed

    from rowjit.torch.distributed import vocab_parallel_linear_cross_entropy

    rank, ranks, meeting = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    torch.manual_seed(3)
    classes = 29
    first, last = (0 if rank == 0 else 4 + 7 * rank), (classes if rank == ranks - 1 else 11 + 7 * rank)
    hidden, weight, bias = torch.randn(5, 8), torch.randn(classes, 8), torch.randn(classes)
    target = torch.tensor([3, classes - 1, -100, 11, 12])

    def of_all(reduction, with_bias, smoothing, z_scale, temperature):
        leaves = [each.double().requires_grad_() for each in (hidden, weight, bias)]
        logits = torch.nn.functional.linear(leaves[0], leaves[1], leaves[2] if with_bias else None) / (temperature or 1)
        loss = torch.nn.functional.cross_entropy(logits, target, reduction=reduction, label_smoothing=smoothing or 0)
        z_loss = (z_scale or 0) * logits.logsumexp(-1).square()[target != -100]
        z_loss = z_loss.mean() if reduction == "mean" else z_loss.sum()
        ((loss + z_loss) * 3).backward()
        return loss + z_loss, z_loss, [leaf.grad for leaf in leaves]

    for reduction, with_bias, smoothing, z_scale, temperature, chunk_rows in (
        ("mean", False, None, None, None, None),
        ("sum", True, 0.1, 0.01, 1.5, 2),
        ("mean", True, None, 0.01, None, 1),
    ):
        expected, expected_z, gradients = of_all(reduction, with_bias, smoothing, z_scale, temperature)
        leaves = [each.clone().requires_grad_() for each in (hidden, weight[first:last], bias[first:last])]
        result = vocab_parallel_linear_cross_entropy(
            leaves[0], leaves[1], target, None, leaves[2] if with_bias else None, part=(first, classes),
            chunk_rows=chunk_rows, reduction=reduction, label_smoothing=smoothing, z_loss=z_scale, temperature=temperature)
        loss, *z_loss = result if z_scale else (result,)
        torch.testing.assert_close(loss, expected.float())
        for each in z_loss:
            torch.testing.assert_close(each, expected_z.float())
        (loss * 3).backward()
        torch.testing.assert_close(leaves[0].grad, gradients[0].float())
        torch.testing.assert_close(leaves[1].grad, gradients[1][first:last].float())
        if with_bias:
            torch.testing.assert_close(leaves[2].grad, gradients[2][first:last].float())
        with torch.no_grad():
            again = vocab_parallel_linear_cross_entropy(
                hidden, weight[first:last], target, part=(first, classes), reduction=reduction)
        torch.testing.assert_close(again, of_all(reduction, False, None, None, None)[0].float())

    # What a chunk keeps is in the weight's dtype, and the weight's gradient is rounded once.
    leaves = [each.bfloat16().requires_grad_() for each in (hidden, weight[first:last])]
    vocab_parallel_linear_cross_entropy(leaves[0], leaves[1], target, part=(first, classes), chunk_rows=2).backward()
    gradients = of_all("mean", False, None, None, None)[2]
    assert leaves[1].grad.dtype == torch.bfloat16
    torch.testing.assert_close(leaves[1].grad.double() * 3, gradients[1][first:last], rtol=0.05, atol=0.05)
"""


def run_in_processes(program, ranks, tmp_path):
    command = [sys.executable, "-B", "-c", textwrap.dedent(program)]
    processes = [
        subprocess.Popen([*command, str(rank), str(ranks), str(tmp_path / "meeting")], stderr=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    errors = [process.communicate(timeout=300)[1] for process in processes]
    for process, error in zip(processes, errors, strict=True):
        assert process.returncode == 0, error


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo")
def test_processes_that_share_a_vocabulary_have_the_loss_and_gradients_of_the_whole(tmp_path):
    run_in_processes(PROGRAM, RANKS, tmp_path)


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo")
@pytest.mark.parametrize("ranks", [2, 3])
def test_processes_that_share_a_head_have_the_loss_and_gradients_of_the_whole(ranks, tmp_path):
    run_in_processes(HEAD_PROGRAM, ranks, tmp_path)
