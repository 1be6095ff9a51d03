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


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo")
def test_processes_that_share_a_vocabulary_have_the_loss_and_gradients_of_the_whole(tmp_path):
    command = [sys.executable, "-B", "-c", textwrap.dedent(PROGRAM)]
    processes = [
        subprocess.Popen([*command, str(rank), str(RANKS), str(tmp_path / "meeting")], stderr=subprocess.PIPE, text=True)
        for rank in range(RANKS)
    ]
    errors = [process.communicate(timeout=300)[1] for process in processes]
    for process, error in zip(processes, errors, strict=True):
        assert process.returncode == 0, error
