"""Trainers of TRL on models with rowjit: a few steps on the CPU, whose losses are those of the models as they were."""

import pytest

datasets = pytest.importorskip("datasets")
trl = pytest.importorskip("trl")

import tokenizers  # noqa: E402
import transformers  # noqa: E402
from test_transformers import SIZES, make  # noqa: E402

import rowjit.transformers  # noqa: E402

WORDS = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(SIZES["vocab_size"] - 4))]
SETTINGS = {
    "max_steps": 3, "per_device_train_batch_size": 2, "learning_rate": 1e-2, "logging_steps": 1, "report_to": [], "use_cpu": True,
    "bf16": False, "save_strategy": "no", "disable_tqdm": True,
}  # fmt: skip


def tokenizer():
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))  # noqa: S106
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special)


def text(first, count):
    return " ".join(WORDS[4 + (first + 3 * i) % (len(WORDS) - 4)] for i in range(count))


def losses(trainer):
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("checkpointed", [False, True])
def test_supervised_fine_tuning_has_the_losses_that_it_had(checkpointed, tmp_path):
    rows = datasets.Dataset.from_dict({"text": [text(i, 5 + i) for i in range(8)]})
    found = []
    for applied in (False, True):
        model = make("llama")
        if applied:
            rowjit.transformers.apply(model)
        arguments = trl.SFTConfig(str(tmp_path), max_length=16, gradient_checkpointing=checkpointed, **SETTINGS)
        found.append(losses(trl.SFTTrainer(model, arguments, train_dataset=rows, processing_class=tokenizer())))
    assert len(found[1]) == SETTINGS["max_steps"]
    assert found[1] == pytest.approx(found[0], rel=1e-4)


def test_preference_optimization_has_the_losses_that_it_had(tmp_path):
    pairs = {"prompt": [text(i, 3) for i in range(8)], "chosen": [text(i, 4) for i in range(8)], "rejected": [text(7 * i, 6) for i in range(8)]}
    found = []
    for applied in (False, True):
        model, reference = make("llama"), make("llama")
        if applied:
            rowjit.transformers.apply(model)
            rowjit.transformers.apply(reference)
        arguments = trl.DPOConfig(str(tmp_path), max_length=24, gradient_checkpointing=False, **SETTINGS)
        trainer = trl.DPOTrainer(
            model, reference, arguments, train_dataset=datasets.Dataset.from_dict(pairs), processing_class=tokenizer()
        )
        found.append(losses(trainer))
    assert len(found[1]) == SETTINGS["max_steps"]
    assert found[1] == pytest.approx(found[0], rel=1e-4)
