"""A checkpoint holds everything that the next step depends on, and is either complete or absent."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import until
from rlvitals.errors import ConfigError
from rlvitals.train import checkpoint, tiny

HERE = Path(__file__).parent
TEXTS = ["a b c d e f g h"]


class Training:
    """A small training in which every step draws from all three random generators."""

    def __init__(self):
        self.model, self.tokenizer = tiny.build(TEXTS, width=16, layers=1, heads=2)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1 / (1 + step))

    def steps(self, count):
        losses = []
        for _ in range(count):
            ids = torch.randint(0, len(self.tokenizer), (2, 6))
            noise = random.random() + np.random.rand()
            loss = self.model(ids, labels=ids).loss * (1 + noise)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            losses.append(loss.item())
        return losses

    def save(self, folder, step, keep_last=None, **extra):
        return checkpoint.save(
            folder, step, model=self.model, tokenizer=self.tokenizer, optimizer=self.optimizer,
            scheduler=self.scheduler, extra=extra, keep_last=keep_last,
        )  # fmt: skip

    def load(self, path):
        return checkpoint.load(path, model=self.model, optimizer=self.optimizer, scheduler=self.scheduler)


def test_a_training_goes_on_from_a_checkpoint_as_if_it_had_never_stopped(tmp_path):
    unbroken = Training()
    unbroken.steps(3)
    place = unbroken.save(tmp_path, 3, kl_coef=0.25, head=torch.arange(3.0))
    wanted = unbroken.steps(4)
    random.seed(99), np.random.seed(99), torch.manual_seed(99)
    resumed = Training()
    kept = resumed.load(place)
    assert (kept["step"], kept["kl_coef"], kept["head"].tolist()) == (3, 0.25, [0.0, 1.0, 2.0])
    assert resumed.steps(4) == pytest.approx(wanted, rel=1e-6)
    assert resumed.scheduler.get_last_lr() == unbroken.scheduler.get_last_lr()


def test_a_final_model_that_cannot_be_completed_does_not_get_its_name(tmp_path, monkeypatch):
    def full(folder):
        raise OSError("No space left on device")

    training = Training()
    checkpoint.save_model(tmp_path / "final_model", training.model, training.tokenizer)
    before = {path.name: path.read_bytes() for path in (tmp_path / "final_model").iterdir()}
    training.steps(1)
    monkeypatch.setattr(training.tokenizer, "save_pretrained", full)
    with pytest.raises(OSError, match="No space"):
        checkpoint.save_model(tmp_path / "final_model", training.model, training.tokenizer)
    assert {path.name: path.read_bytes() for path in (tmp_path / "final_model").iterdir()} == before
    checkpoint.tidy(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["final_model"]


def test_transformers_loads_the_model_of_a_checkpoint(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    training = Training()
    place = training.save(tmp_path, 1)
    model = AutoModelForCausalLM.from_pretrained(place)
    assert all(torch.equal(one, model.state_dict()[name]) for name, one in training.model.state_dict().items())
    assert AutoTokenizer.from_pretrained(place).get_vocab() == training.tokenizer.get_vocab()


def test_the_newest_are_kept_and_the_older_ones_go(tmp_path):
    training = Training()
    for step in (2, 10, 4, 12):
        training.save(tmp_path, step, keep_last=2)
    assert list(checkpoint.checkpoints(tmp_path)) == [10, 12]
    assert checkpoint.newest(tmp_path).name == "checkpoint-12"


def test_a_second_save_of_a_step_replaces_the_first(tmp_path):
    training = Training()
    training.save(tmp_path, 5, word="old")
    place = training.save(tmp_path, 5, word="new")
    assert training.load(place)["word"] == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-5"]


def test_a_save_that_fails_leaves_the_checkpoint_that_was_there(tmp_path):
    training = Training()
    place = training.save(tmp_path, 5, word="old")
    with pytest.raises(Exception, match=r"pickle|lambda"):
        training.save(tmp_path, 5, word=lambda: None)
    assert training.load(place)["word"] == "old"
    place.rename(tmp_path / ".checkpoint-5.before")  # killed while it was being replaced
    checkpoint.tidy(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-5"]
    assert training.load(place)["word"] == "old"


@pytest.mark.slow
def test_a_trainer_killed_while_it_saves_leaves_no_half_checkpoint(tmp_path, child_environment):
    code = textwrap.dedent(f"""
        import sys
        sys.path[:0] = {[str(HERE), str(HERE.parent)]!r}
        from pathlib import Path
        from test_checkpoint import Training
        training = Training()
        for step in range(1, 10000):
            training.save(Path({str(tmp_path)!r}), step, keep_last=3)
    """)
    child = subprocess.Popen([sys.executable, "-c", code], env=child_environment, stderr=subprocess.DEVNULL)
    assert until(lambda: list(tmp_path.glob(".unfinished-*")) and len(checkpoint.checkpoints(tmp_path)) == 3, 120)
    child.send_signal(signal.SIGKILL)
    child.wait()
    found = checkpoint.checkpoints(tmp_path)
    assert len(found) >= 2
    for path in found.values():
        Training().load(path)
    checkpoint.tidy(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in found.values())


def test_going_back_takes_weights_and_moments_but_not_the_rate_nor_the_draws(tmp_path):
    training = Training()
    training.steps(2)
    place = training.save(tmp_path, 2, word="then")
    then = {name: weight.clone() for name, weight in training.model.state_dict().items()}
    training.steps(3)
    rate, drawn = training.optimizer.param_groups[0]["lr"], torch.get_rng_state()
    assert checkpoint.revert(place, model=training.model, optimizer=training.optimizer) == {"word": "then"}
    assert all(torch.equal(weight, then[name]) for name, weight in training.model.state_dict().items())
    assert training.optimizer.param_groups[0]["lr"] == rate
    assert torch.equal(torch.get_rng_state(), drawn)
    assert next(iter(training.optimizer.state.values()))["step"].item() == 2


def test_checkpoints_of_an_abandoned_line_are_removed_on_resume(tmp_path):
    training = Training()
    for step in (1, 2, 3):
        training.save(tmp_path, step)
    checkpoint.tidy(tmp_path, after=2)
    assert list(checkpoint.checkpoints(tmp_path)) == [1, 2]


def test_a_folder_that_is_no_checkpoint_is_named(tmp_path):
    with pytest.raises(ConfigError, match="not a checkpoint of this trainer"):
        Training().load(tmp_path)


def test_nothing_is_unpickled_that_could_run_code(tmp_path):
    training = Training()
    place = training.save(tmp_path, 1)

    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "owned"),))

    torch.save({"step": 1, "extra": Evil()}, place / checkpoint.STATE_FILE)
    with pytest.raises(Exception, match=r"[Ww]eights.only|Unsupported"):
        training.load(place)
    assert not (tmp_path / "owned").exists()


def test_where_a_training_writes_and_resumes_from_does_not_move_with_the_working_directory(tmp_path, monkeypatch):
    from rlvitals.train import recipe
    from rlvitals.train.kto.trainer import KTOSettings as Settings
    from rlvitals.train.kto.trainer import folder_of

    place = tmp_path / "out" / "checkpoint-3"
    place.mkdir(parents=True)
    (place / checkpoint.STATE_FILE).touch()
    (place / "trainer_state.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    own = recipe.load("kto", Settings, given={"output_dir": "out", "resume_from": "out/checkpoint-3"})
    folder, kto_checkpoint = folder_of(own)
    found = [checkpoint.origin("out", "checkpoint-3"), checkpoint.origin("out", "last"), kto_checkpoint]
    monkeypatch.chdir("/")
    assert found == [place] * 3
    assert folder == tmp_path / "out"
