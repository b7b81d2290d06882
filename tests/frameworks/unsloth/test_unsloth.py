"""Unsloth's own model loader and its patched SFT trainer, on the CPU, with `VitalsCallback` as a user adds it."""

from __future__ import annotations

import unsloth  # before trl and transformers, which it patches

# isort: split
import trl
from datasets import Dataset

import rlvitals
from rlvitals.adapters.transformers import VitalsCallback

TEXTS = [{"text": text} for text in ("the cat sat on the mat .", "the dog sat on the mat .", "a bird no no no !")] * 12


def trainer_of(tiny_model, folder, callback, steps):
    model, tokenizer = unsloth.FastLanguageModel.from_pretrained(
        str(tiny_model), max_seq_length=64, load_in_4bit=False, full_finetuning=True
    )
    settings = trl.SFTConfig(
        folder, max_steps=steps, per_device_train_batch_size=4, logging_steps=1, save_strategy="no", report_to=[],
        dataset_text_field="text", learning_rate=1e-3, disable_tqdm=True, max_length=64,
    )  # fmt: skip
    return trl.SFTTrainer(
        model, args=settings, train_dataset=Dataset.from_list(TEXTS), processing_class=tokenizer, callbacks=[callback]
    )


def test_a_training_is_recorded(tiny_model, tmp_path, shown):
    trainer = trainer_of(tiny_model, tmp_path, VitalsCallback(), 6)
    assert "_make_cpu_sft_trainer" in type(trainer).__qualname__  # Unsloth's trainer under TRL's name
    trainer.train()
    run = rlvitals.open_run(tmp_path)
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert list(run.series("loss")[1]) == logged
    assert len(logged) == 6
    assert run.status == "finished"
    shown("Unsloth sft", unsloth.__version__, "training, 6 steps", tmp_path, acts="stop, save, rate, revert")


def test_a_critical_finding_stops_it(tiny_model, tmp_path, ask_for):
    callback = VitalsCallback(actions="act", rules=[ask_for("stop", "loss > 0")])
    trainer = trainer_of(tiny_model, tmp_path, callback, 30)
    trainer.train()
    assert trainer.state.global_step < 30
    assert rlvitals.open_run(tmp_path).last_step == trainer.state.global_step
