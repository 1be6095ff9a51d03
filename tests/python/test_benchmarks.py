"""The benchmarks of models, on a model small enough for the CPU: every contender learns what eager does."""

import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest
import torch

pytest.importorskip("transformers")
FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks/model"
TINY = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 61, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "rope_scaling": None,
}


PUBLISHED = FOLDER.parents[1] / "examples/models"


def run(name, monkeypatch, *arguments):
    monkeypatch.syspath_prepend(str(FOLDER))
    specification = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    module.main()


@pytest.mark.parametrize(("checkpointing", "contenders"), [("none", "eager,apply,apply-offload,backend-layers"), ("full", "eager,apply,apply-every"), ("1", "eager,apply")])
def test_training_steps_are_measured(checkpointing, contenders, tmp_path, monkeypatch):
    config, output = tmp_path / "config.json", tmp_path / "steps.json"
    config.write_text(json.dumps(TINY))
    run("steps", monkeypatch, "--config", config, "--output", output, "--device", "cpu", "--dtype", "float32", "--same-process",
        "--contenders", contenders, "--batch", 2, "--sequence", 8, "--layers", 2, "--warmup", 1, "--steps", 3,
        "--checkpointing", checkpointing)
    document = json.loads(output.read_text())
    eager, *others = document["results"]
    assert eager["losses"][3] < eager["losses"][1]
    for row in others:
        assert row["losses"] == pytest.approx(eager["losses"], abs=1e-4)
        assert row["tokens_per_s"] > 0
    assert document["settings"]["layers"] == 2


@pytest.mark.parametrize("name", ["llama-3-8b", "qwen3-8b", "gemma-2-9b"])
def test_configurations_of_published_models_are_measured(name, tmp_path, monkeypatch):
    fields = json.loads((PUBLISHED / f"{name}.json").read_text())
    fields |= {key: TINY[key] for key in ("hidden_size", "intermediate_size", "vocab_size", "num_attention_heads", "num_key_value_heads")}
    config, output = tmp_path / "config.json", tmp_path / "steps.json"
    config.write_text(json.dumps(fields | {"head_dim": 8}))
    run("steps", monkeypatch, "--config", config, "--output", output, "--device", "cpu", "--same-process", "--memory",
        "--contenders", "eager,apply", "--batch", 2, "--sequence", 32, "--layers", 2, "--warmup", 1, "--steps", 2)
    eager, ours = json.loads(output.read_text())["results"]
    assert ours["losses"] == pytest.approx(eager["losses"], rel=2e-2)
    assert ours["rowjit"]["compiled_after_first_step"] == 0
    assert any(name.startswith("rowjit") for name in ours["memory"]["kept_gib"])
    assert sum(ours["memory"]["kept_gib"].values()) < sum(eager["memory"]["kept_gib"].values())


def test_a_model_divided_over_processes_is_measured(tmp_path, monkeypatch):
    config, output = tmp_path / "config.json", tmp_path / "steps.json"
    config.write_text(json.dumps(TINY))
    run("steps", monkeypatch, "--config", config, "--output", output, "--device", "cpu", "--dtype", "float32", "--gpus", 2,
        "--contenders", "eager,apply", "--batch", 2, "--sequence", 8, "--layers", 2, "--warmup", 1, "--steps", 2)
    eager, ours = json.loads(output.read_text())["results"]
    assert ours["losses"] == pytest.approx(eager["losses"], abs=1e-4)


def test_host_costs_are_measured(tmp_path, monkeypatch):
    output = tmp_path / "host.json"
    run("host", monkeypatch, "--device", "cpu", "--calls", 2, "--runs", 2, "--output", output)
    rows = {row["contender"]: row for row in json.loads(output.read_text())["results"]}
    assert rows["rowjit"]["forward_backward_us"] > rows["rowjit"]["forward_us"] > 0


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo")
def test_a_head_that_ranks_share_is_measured(tmp_path):
    output = tmp_path / "vocab_parallel.json"
    arguments = ("--device", "cpu", "--gpus", "2", "--shapes", "6x16x24", "--runs", "2", "--checked", "4", "--output", output)
    subprocess.run([sys.executable, FOLDER / "vocab_parallel.py", *map(str, arguments)], check=True, timeout=300)
    rows = json.loads(output.read_text())["results"]
    assert [row["contender"] for row in rows] == ["rowjit", "eager"]
    for row in rows:
        assert row["ms"] > 0
        assert row["loss_error"] < 1e-3
        assert max(row["d_hidden_error"], row["d_weight_error"]) < 0.02
