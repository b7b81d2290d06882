"""The callback in the real trainers of transformers and TRL: it records every value that they log."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import subprocess
import sys
import textwrap
from itertools import pairwise
from pathlib import Path

import pytest
import tiny_trainers

import rlvitals
from rlvitals.capture.run import Run
from rlvitals.errors import ConfigError, RunError, RunLocked

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # warnings of TRL and torch are not under test

ALGORITHMS = {"trainer": None, "reward": "reward_model"}
"""The recorded algorithm, where it differs from the trainer's name."""


@pytest.fixture(scope="module", autouse=True)
def _quiet_stacks():
    import datasets

    datasets.disable_progress_bars()


def callback(*given, **settings):
    from rlvitals.adapters.transformers import VitalsCallback

    return VitalsCallback(*given, **{"hardware": False, **settings})


def rows(folder, log):
    return [json.loads(line) for line in (Path(folder) / "logs" / f"{log}.jsonl").read_text().splitlines()]


def assert_same(row, event):
    """Every value that the trainer logged is in the row, under its name."""
    assert row["step"] == event["step"]
    marked = dict(pair.split("=") for pair in row.get("_nonfinite", "").split())
    for name, value in event.items():
        if value is None:
            assert name not in row
        elif isinstance(value, float) and not math.isfinite(value):
            assert float(marked[name]) == value or (math.isnan(float(marked[name])) and math.isnan(value))
        else:
            assert row[name] == value, name


def events(trainer, kind):
    """The events of one kind in a trainer's own history."""
    history = trainer.state.log_history
    if kind == "summary":
        return [event for event in history if "train_loss" in event]
    return [event for event in history if ("loss" if kind == "train" else "eval_runtime") in event]


def assert_recorded(folder, trainer):
    steps, evaluations = rows(folder, "training_metrics"), rows(folder, "eval_metrics")
    assert len(steps) == len(events(trainer, "train")) > 0
    for row, event in zip(steps, events(trainer, "train"), strict=True):
        assert_same(row, event)
    expected = [*events(trainer, "eval"), *events(trainer, "summary")]
    for row, event in zip(evaluations, expected, strict=True):
        assert_same(row, event)


@pytest.mark.parametrize("name", tiny_trainers.NAMES)
def test_every_trainer_is_recorded_value_by_value(name, tmp_path):
    evaluating = {} if name == "online_dpo" else {"eval_strategy": "steps", "eval_steps": 3}
    trainer = tiny_trainers.make(name, tmp_path, [callback()], **evaluating)
    trainer.train()
    assert_recorded(tmp_path, trainer)
    assert len(events(trainer, "eval")) == (2 if evaluating else 0)
    run = rlvitals.open_run(tmp_path)
    assert run.status == "finished"
    assert run.info.algorithm == ALGORITHMS.get(name, name)
    assert (run.info.framework, run.info.total_steps) == ("trl" if name == "trainer" else f"trl_{name}", 6)
    kept = json.loads((tmp_path / "config.json").read_text())
    assert kept["learning_rate"] == 1e-3
    assert kept["model"]["hidden_size"] == 16
    assert kept["train_examples"] == len(trainer.train_dataset)
    assert rows(tmp_path, "training_metrics")[-1]["system/samples"] == 6 * 4


def test_settings_the_monitor_reads_are_numbers(tmp_path):
    trainer = tiny_trainers.make("grpo", tmp_path / "grpo", [callback()], max_steps=1, beta=0.05)
    trainer.train()
    online = tiny_trainers.make("online_dpo", tmp_path / "online", [callback()], max_steps=1)
    online.train()
    grpo = json.loads((tmp_path / "grpo" / "config.json").read_text())
    assert (grpo["world_size"], grpo["n_gpu"]) == (trainer.args.world_size, trainer.args.n_gpu)
    assert (grpo["num_generations"], grpo["max_completion_length"], grpo["beta"]) == (4, 6, 0.05)
    assert json.loads((tmp_path / "online" / "config.json").read_text())["beta"] == 0.1


def test_steps_evaluations_and_checkpoints_are_phases(tmp_path):
    # Logging every second step, evaluating and saving every third: phases follow different events.
    how = {"eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 3, "logging_steps": 2}
    trainer = tiny_trainers.make("kto", tmp_path, [callback()], **how)
    trainer.train()
    assert_recorded(tmp_path, trainer)
    phases = [span.phase for span in rlvitals.open_run(tmp_path).phases()]
    assert phases == [
        *["train_step"] * 3,
        "evaluate",
        "do_checkpoint",
        *["train_step"] * 3,
        "evaluate",
        "do_checkpoint",
    ]
    steps = rows(tmp_path, "training_metrics")
    assert [row.get("checkpoint") for row in steps] == [None, "checkpoint-3", None]
    assert rows(tmp_path, "eval_metrics")[-1]["checkpoint"] == "checkpoint-6"
    assert steps[1]["time/do_checkpoint/total"] > 0
    assert steps[1]["time/evaluate/total"] > 0
    assert all(row["system/tps"] > 0 for row in steps)


def test_gradient_accumulation_counts_every_batch(tmp_path):
    trainer = tiny_trainers.make("trainer", tmp_path, [callback()], gradient_accumulation_steps=3, max_steps=2)
    trainer.train()
    assert [row["system/samples"] for row in rows(tmp_path, "training_metrics")] == [12, 24]
    assert [span.phase for span in rlvitals.open_run(tmp_path).phases()] == ["train_step"] * 2


def test_tokens_of_a_plain_trainer_are_counted_where_it_counts_them(tmp_path):
    trainer = tiny_trainers.make("trainer", tmp_path, [callback()], include_num_input_tokens_seen="all")
    trainer.train()
    assert_recorded(tmp_path, trainer)
    assert all("system/tps" in row and row["num_input_tokens_seen"] for row in rows(tmp_path, "training_metrics"))


def test_steps_that_were_not_logged_before_the_end_are_a_row_of_their_own(tmp_path):
    """TRL adds their means to the last event, which summarises the whole training."""
    trainer = tiny_trainers.make("kto", tmp_path, [callback()], logging_steps=4)
    trainer.train()
    (last,) = events(trainer, "summary")
    step_4, step_6 = rows(tmp_path, "training_metrics")
    (summary,) = rows(tmp_path, "eval_metrics")
    assert (step_4["step"], step_6["step"]) == (4, 6)
    assert step_6["rewards/margins"] == last["rewards/margins"] != step_4["rewards/margins"]
    assert summary["train_loss"] == last["train_loss"]
    assert "rewards/margins" not in summary
    assert not list((tmp_path / "eval_logs").glob("*"))


def test_several_evaluation_sets_are_one_file(tmp_path):
    trainer = tiny_trainers.make("trainer", tmp_path, [callback()], eval_strategy="steps", eval_steps=3, max_steps=3)
    trainer.eval_dataset = {"near": trainer.eval_dataset, "far": trainer.eval_dataset.select(range(4))}
    trainer.train()
    first, second, _ = rows(tmp_path, "eval_metrics")
    assert "eval_near_loss" in first
    assert "eval_far_loss" in second
    whole = json.loads((tmp_path / "eval_logs" / "eval_step_0003.json").read_text())
    assert (whole["eval_near_loss"], whole["eval_far_loss"]) == (first["eval_near_loss"], second["eval_far_loss"])
    assert [span.phase for span in rlvitals.open_run(tmp_path).phases()].count("evaluate") == 2


def test_evaluations_before_and_after_training_are_kept(tmp_path):
    trainer = tiny_trainers.make("trainer", tmp_path, [callback()])
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate(metric_key_prefix="test")
    run = rlvitals.open_run(tmp_path)
    assert run.status == "finished"
    first, _, last = rows(tmp_path, "eval_metrics")
    assert (first["step"], first["eval_loss"]) == (0, before["eval_loss"])
    assert (last["step"], last["test_loss"], last["attempt"]) == (6, after["test_loss"], 2)
    assert run.attempts[1].from_step == 6
    assert len(run.series("loss")[0]) == 6


class Breakdown(Exception):
    """The error that ends a training."""


def breaking_at(step, error=Breakdown):
    from transformers import TrainerCallback

    class Breaks(TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            if state.global_step == step:
                raise error("on purpose")

    return Breaks()


def test_a_resumed_training_goes_on_as_an_attempt_and_ends_like_an_unbroken_one(tmp_path):
    how = {"max_steps": 12, "save_strategy": "steps", "save_steps": 4}
    unbroken = tiny_trainers.make("kto", tmp_path / "unbroken", [callback()], **how)
    unbroken.train()
    recorder = callback()
    with pytest.raises(Breakdown):
        tiny_trainers.make("kto", tmp_path / "broken", [recorder, breaking_at(6)], **how).train()
    recorder.finish("failed", "on purpose")
    assert rlvitals.open_run(tmp_path / "broken").status == "failed"
    resumed = tiny_trainers.make("kto", tmp_path / "broken", [callback()], **how)
    resumed.train(resume_from_checkpoint=True)
    one, other = rlvitals.open_run(tmp_path / "unbroken"), rlvitals.open_run(tmp_path / "broken")
    assert other.status == "finished"
    assert [(attempt.number, attempt.from_step) for attempt in other.attempts] == [(1, None), (2, 4)]
    assert other.attempts[1].from_checkpoint.endswith("checkpoint-4")
    assert other.attempts[1].changed == {}
    for name in ("loss", "rewards/margins", "learning_rate", "grad_norm"):
        steps, values = one.series(name)
        other_steps, other_values = other.series(name)
        assert list(other_steps) == list(steps) == list(range(1, 13))
        assert list(other_values) == pytest.approx(list(values), abs=1e-5)
    samples = other.series("system/samples")[1]
    assert list(samples) == [4 * step for step in range(1, 13)]
    # TRL's token count restarts at 0; the rate computed from it stays positive.
    tokens = dict(zip(*other.series("num_tokens"), strict=True))
    assert tokens[5] < tokens[4]
    assert all(rate > 0 for rate in other.series("system/tps")[1])


def test_a_rate_for_the_resumed_training_counts_where_transformers_would_ignore_it(tmp_path, monkeypatch):
    how = {"max_steps": 8, "save_strategy": "steps", "save_steps": 4, "lr_scheduler_type": "linear"}
    how["include_num_input_tokens_seen"] = "all"
    tokens_of_a_step, count = [], Run.count
    monkeypatch.setattr(Run, "count", lambda run, **counts: (tokens_of_a_step.append(counts), count(run, **counts)))
    tiny_trainers.make("trainer", tmp_path / "first", [callback()], **how).train()
    checkpoint = str(tmp_path / "first" / "checkpoint-4")

    def rates(folder, **given):
        trainer = tiny_trainers.make("trainer", tmp_path / folder, [callback(**given)], learning_rate=5e-4, **how)
        tokens_of_a_step.clear()
        trainer.train(resume_from_checkpoint=checkpoint)
        totals = [event["num_input_tokens_seen"] for event in events(trainer, "train")]
        counted = [counts["tokens"] for counts in tokens_of_a_step if "tokens" in counts]
        assert counted == [total - before for before, total in pairwise(totals[3:])]
        return [event["learning_rate"] for event in events(trainer, "train") if event["step"] > 4]

    whole = [1e-3 * (8 - step) / 8 for step in (4, 5, 6, 7)]
    assert rates("ignored") == pytest.approx(whole)
    assert rates("taken", resume_learning_rate=5e-4) == pytest.approx([rate / 2 for rate in whole])


def test_a_folder_with_a_run_is_not_trained_into_by_accident(tmp_path):
    tiny_trainers.make("trainer", tmp_path, [callback()], max_steps=1).train()
    tiny_trainers.make("trainer", tmp_path, [callback(overwrite=True)], max_steps=2).train()
    assert len(rows(tmp_path, "training_metrics")) == 2


def test_training_again_into_the_same_folder_goes_on_beside_the_run_that_is_there(tmp_path, caplog):
    out, beside = tmp_path / "out", tmp_path / "out-2"
    saved = {"save_strategy": "steps", "save_steps": 2}
    tiny_trainers.make("trainer", out, [callback()], max_steps=2, **saved).train()
    stale = (out / "checkpoint-2").stat().st_mtime
    again = callback()
    trainer = tiny_trainers.make("trainer", out, [again], max_steps=4, save_strategy="no")
    seen = []
    finish = again.finish
    again.finish = lambda *given: (seen.append(again.run and again.run._monitor._checkpoints()), finish(*given))
    trainer.train()
    assert seen[-1] == {}  # checkpoint-2 is another training's: it cannot be restored
    assert (out / "checkpoint-2").stat().st_mtime == stale
    assert f"{out} holds a run already; this training is recorded in {beside}" in caplog.text
    assert [len(rows(folder, "training_metrics")) for folder in (out, beside)] == [2, 4]
    # Resuming continues the newest run that was recorded for this folder.
    tiny_trainers.make("trainer", out, [callback()], max_steps=6).train(
        resume_from_checkpoint=str(out / "checkpoint-2")
    )
    assert [len(rlvitals.open_run(folder).attempts) for folder in (out, beside)] == [1, 2]
    # A folder of another training with the next name is neither overwritten nor continued.
    other = tmp_path / "out-3"
    tiny_trainers.make("trainer", other, [callback()], max_steps=1).train()
    tiny_trainers.make("trainer", out, [callback()], max_steps=1).train()
    assert rlvitals.open_run(tmp_path / "out-4").rows == 1
    assert rlvitals.open_run(other).rows == 1


def test_what_must_fail_fails_when_the_trainer_is_built(tmp_path):
    program = "import rlvitals, sys; run = rlvitals.start(sys.argv[1], display='none'); print('on'); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program, tmp_path / "out"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as recording:
        assert recording.stdout.readline() == b"on\n"
        with pytest.raises(RunLocked, match=f"pid {recording.pid}"):
            tiny_trainers.make("trainer", tmp_path / "out", [callback()], max_steps=1)
        recording.stdin.close()
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write"):
        tiny_trainers.make("trainer", tmp_path / "other", [callback(tmp_path / "file" / "run")], max_steps=1)


def test_a_wrong_setting_is_reported_when_the_callback_is_made():
    with pytest.raises(ConfigError, match="actions"):
        callback(actionz="act")
    with pytest.raises(ConfigError, match="advise"):
        callback(actions="acts")


def test_a_batch_size_that_is_searched_for_is_one_run_of_several_attempts(tmp_path):
    from transformers import TrainerCallback

    class Full(TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            if state.train_batch_size > 4 and state.global_step == 2:
                raise RuntimeError("CUDA out of memory.")

    how = {"auto_find_batch_size": True, "per_device_train_batch_size": 8, "max_steps": 4}
    tiny_trainers.make("trainer", tmp_path, [callback(), Full()], **how).train()
    run = rlvitals.open_run(tmp_path)
    assert (run.status, len(run.attempts)) == ("finished", 5)  # with batch sizes 8, 7, 6, 5 and 4
    steps, samples = run.series("system/samples")
    assert list(steps) == [1, 2, 3, 4]
    assert list(samples) == [4, 8, 12, 16]


def test_the_run_can_be_elsewhere_and_have_a_name_and_settings_of_its_own(tmp_path):
    recorder = callback(tmp_path / "run", name="mine", config={"data": "v2"}, algorithm="dpo")
    tiny_trainers.make("trainer", tmp_path / "trainer", [recorder], max_steps=1).train()
    run = rlvitals.open_run(tmp_path / "run")
    assert (run.info.name, run.info.algorithm) == ("mine", "dpo")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["data"] == "v2"
    assert not (tmp_path / "trainer" / "run.json").exists()


def test_the_run_stays_where_it_was_when_the_callback_was_made(tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    Path("rules.yaml").write_text("- {rule: gpu_idle, enabled: false}\n")
    recorder = callback("run", rules="rules.yaml", track_with="json", tracker_kwargs={"path": "rows.json"})
    trainer = tiny_trainers.make("trainer", tmp_path / "trainer", [recorder], max_steps=1)
    monkeypatch.chdir("there")
    trainer.train()
    assert not list((tmp_path / "there").iterdir())
    assert rlvitals.open_run(tmp_path / "run").status == "finished"
    assert (tmp_path / "rows.json").exists()


def test_a_text_that_looks_like_a_reference_is_kept_as_it_is(tmp_path):
    trainer = tiny_trainers.make("trainer", tmp_path, [callback()], max_steps=1, run_name="${unknown} run")
    trainer.train()
    assert json.loads((tmp_path / "config.json").read_text())["run_name"] == "${unknown} run"


class Broken:
    """A run whose every method fails."""

    def __getattr__(self, name):
        raise OSError("the disk is gone")


def test_trouble_in_the_callback_is_reported_once_and_training_goes_on(tmp_path, caplog):
    from transformers import TrainerCallback

    recorder = callback(actions="act")

    class Breaks(TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            if state.global_step == 2:
                self.real, recorder.run = recorder.run, Broken()

    breaks = Breaks()
    trainer = tiny_trainers.make("trainer", tmp_path, [recorder, breaks])
    with caplog.at_level(logging.WARNING, "rlvitals"):
        trainer.train()
    breaks.real.finish()
    assert trainer.state.global_step == 6
    warnings = [record.getMessage() for record in caplog.records if "the disk is gone" in record.getMessage()]
    assert warnings
    assert len(warnings) == len(set(warnings))
    assert len(rows(tmp_path, "training_metrics")) == 2


def test_report_to_adds_it_once_it_is_registered(tmp_path):
    from transformers.integrations import INTEGRATION_TO_CALLBACK

    from rlvitals.adapters.transformers import register

    with pytest.raises(ValueError, match="rlvitals is not supported"):
        tiny_trainers.make("trainer", tmp_path, [], report_to="rlvitals")
    try:
        with pytest.raises(ConfigError):
            register(nonsense=1)
        register(hardware=False, name="reported")
        tiny_trainers.make("trainer", tmp_path / "a", [], report_to="rlvitals", max_steps=1).train()
        tiny_trainers.make("kto", tmp_path / "b", [], report_to=["rlvitals"], max_steps=1).train()
    finally:
        INTEGRATION_TO_CALLBACK.pop("rlvitals", None)
    assert rlvitals.open_run(tmp_path / "a").info.name == "reported"
    assert rlvitals.open_run(tmp_path / "b").info.algorithm == "kto"


ENDING = """
    import os, signal, sys
    sys.path.insert(0, sys.argv[1])
    import tiny_trainers
    from transformers import TrainerCallback
    from rlvitals.adapters.transformers import VitalsCallback

    class Ends(TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            if state.global_step == 5:
                {ending}

    how = {{"save_strategy": "steps", "save_steps": 2}}
    trainer = tiny_trainers.make("trainer", sys.argv[2], [VitalsCallback(), Ends()], **how)
    trainer.train()
"""


def end_with(ending, folder):
    code = textwrap.dedent(ENDING.format(ending=ending))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, str(Path(__file__).parent), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.cold
def test_a_training_that_raises_is_a_failed_run(tmp_path):
    ended = end_with("raise RuntimeError('no more')", tmp_path)
    assert "no more" in ended.stderr
    run = rlvitals.open_run(tmp_path)
    assert (run.status, run.info.error) == ("failed", "RuntimeError: no more")
    assert len(rows(tmp_path, "training_metrics")) == 5


def test_ctrl_c_is_an_interrupted_run(tmp_path):
    end_with("raise KeyboardInterrupt", tmp_path)
    assert rlvitals.open_run(tmp_path).status == "interrupted"


def test_a_killed_training_loses_no_row_and_resumes(tmp_path):
    ended = end_with("os.kill(os.getpid(), signal.SIGKILL)", tmp_path)
    assert ended.returncode == -signal.SIGKILL
    assert rlvitals.open_run(tmp_path).status == "interrupted"
    assert [row["step"] for row in rows(tmp_path, "training_metrics")] == [1, 2, 3, 4, 5]
    trainer = tiny_trainers.make("trainer", tmp_path, [callback()], save_strategy="steps", save_steps=2)
    trainer.train(resume_from_checkpoint=True)
    run = rlvitals.open_run(tmp_path)
    assert (run.status, run.attempts[-1].from_step) == ("finished", 4)
    steps, losses = run.series("loss")
    assert list(steps) == [1, 2, 3, 4, 5, 6]
    assert list(losses) == [event["loss"] for event in events(trainer, "train")]
