"""The real trainers carry out the doctor's requests: stop, save, reduce the learning rate, revert to a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_trainers

import rlvitals

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module", autouse=True)
def _quiet_stacks():
    import datasets

    datasets.disable_progress_bars()


def callback(*given, **settings):
    from rlvitals.adapters.transformers import VitalsCallback

    return VitalsCallback(*given, **{"hardware": False, "actions": "act", **settings})


def findings_log(folder, kind):
    """The lines of one type in the log of findings."""
    path = Path(folder) / "logs" / "findings.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    kinds = ("raised", "escalated") if kind == "finding" else (kind,)
    return [line for line in lines if line["type"] in kinds]


def rule(action, when, **more):
    """A user's rule that requests an action."""
    return {
        "rule": "asked_for", "kind": "instability", "when": when, "severity": "critical", "warm_up": 1,
        "hold": "1 of 1", "action_critical": action, "title": "on purpose", **more,
    }  # fmt: skip


RUINED = ("lr_too_high", "dead_gradient")
# A ruined policy also samples degenerate answers. Which finding comes first depends on the machine's rounding.
RUINED_SAMPLER = (*RUINED, "zero_variance", "truncation")


@pytest.mark.parametrize(("name", "ruined"), [("kto", RUINED), ("dpo", RUINED), ("grpo", RUINED_SAMPLER)])
def test_a_learning_rate_far_too_high_is_named_and_stops_the_run(name, ruined, tmp_path):
    trainer = tiny_trainers.make(name, tmp_path, [callback()], learning_rate=1.0, max_steps=60)
    trainer.train()
    assert trainer.state.global_step < 30
    stop = findings_log(tmp_path, "request")[-1]
    assert stop["action"] == "stop"
    assert stop["kind"] in ruined
    named = next(finding for finding in findings_log(tmp_path, "finding") if finding["kind"] == "lr_too_high")
    assert named["step"] <= stop["step"]
    (answer,) = findings_log(tmp_path, "answer")
    assert (answer["answer"], answer["text"]) == ("done", "training stops")
    run = rlvitals.open_run(tmp_path)
    assert (run.status, run.last_step) == ("finished", trainer.state.global_step)


@pytest.mark.parametrize(("name", "steps"), [("kto", 60), ("dpo", 60), ("grpo", 40)])
def test_its_healthy_twin_is_left_alone(name, steps, tmp_path):
    """The GRPO run has only 40 steps: 6 tokens truncate most answers, it learns nothing, and that is reported later."""
    recorder = callback(rules=[{"rule": "throughput", "enabled": False}])  # the machine may be busy with other tests
    trainer = tiny_trainers.make(name, tmp_path, [recorder], learning_rate=1e-3, max_steps=steps)
    trainer.train()
    assert trainer.state.global_step == steps
    assert not findings_log(tmp_path, "request")
    assert {finding["severity"] for finding in findings_log(tmp_path, "finding")} <= {"info"}


def test_without_leave_to_act_nothing_is_done(tmp_path):
    trainer = tiny_trainers.make("kto", tmp_path, [callback(actions="advise")], learning_rate=1.0, max_steps=20)
    trainer.train()
    assert trainer.state.global_step == 20
    assert "lr_too_high" in {finding["kind"] for finding in findings_log(tmp_path, "finding")}


def test_a_checkpoint_that_is_asked_for_is_saved_at_that_step(tmp_path):
    """The policy separates every pair, so the doctor requests a checkpoint before the weights get worse."""
    trainer = tiny_trainers.make("dpo", tmp_path, [callback()], learning_rate=0.1, max_steps=45)
    trainer.train()
    (request,) = [line for line in findings_log(tmp_path, "request") if line["action"] == "checkpoint"]
    (answer,) = findings_log(tmp_path, "answer")
    assert request["kind"] == "saturated"
    assert answer["text"] == f"saved checkpoint-{request['step']}"
    assert (tmp_path / f"checkpoint-{request['step']}" / "trainer_state.json").is_file()
    assert trainer.state.global_step == 45


def rates(trainer):
    return [event["learning_rate"] for event in trainer.state.log_history if "loss" in event]


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
def test_a_cut_learning_rate_stays_cut_also_in_a_run_resumed_later(schedule, tmp_path):
    how = {"max_steps": 12, "save_strategy": "steps", "save_steps": 6, "lr_scheduler_type": schedule}
    whole = tiny_trainers.make("trainer", tmp_path / "whole", [], **how)
    whole.train()
    cut = tiny_trainers.make("trainer", tmp_path / "cut", [callback(rules=[rule("reduce_lr", "epoch > 0.3")])], **how)
    cut.train()
    (answer,) = findings_log(tmp_path / "cut", "answer")
    at = answer["step"]
    assert 1 < at < 6
    expected = [rate if step <= at else rate / 2 for step, rate in enumerate(rates(whole), start=1)]
    assert rates(cut) == pytest.approx(expected)
    assert answer["text"].startswith("learning rate ")
    resumed = tiny_trainers.make("trainer", tmp_path / "resumed", [callback(monitor=False, actions="advise")], **how)
    resumed.train(resume_from_checkpoint=str(tmp_path / "cut" / "checkpoint-6"))
    assert rates(resumed) == pytest.approx(expected)


def weights(model):
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def test_a_run_goes_back_to_the_last_good_checkpoint_in_place(tmp_path):
    """The learning rate rises until the loss diverges; the weights of the last checkpoint before it are restored."""
    from transformers import TrainerCallback

    seen = {}

    class Looks(TrainerCallback):
        def on_step_begin(self, args, state, control, model=None, optimizer=None, **_):
            moments = [entry["exp_avg"].clone() for entry in optimizer.state.values()]
            seen[state.global_step] = (weights(model), moments, optimizer.param_groups[0]["lr"])

    how = {"max_steps": 40, "warmup_steps": 40, "learning_rate": 4.0, "max_grad_norm": 0.0, "save_strategy": "steps"}
    rules = [rule("revert", "loss > 6"), {"rule": "early_blow_up", "enabled": False}]
    trainer = tiny_trainers.make("trainer", tmp_path, [callback(rules=rules), Looks()], save_steps=2, **how)
    trainer.train()
    request, answer = findings_log(tmp_path, "request")[0], findings_log(tmp_path, "answer")[0]
    assert (request["action"], answer["answer"]) == ("revert", "done")
    onset = findings_log(tmp_path, "finding")[0]["onset_step"]
    good = (onset - 1) // 2 * 2
    assert answer["text"].startswith(f"back to checkpoint-{good}, learning rate ")
    before, after = seen[good], seen[request["step"]]
    assert all((before[0][name] == after[0][name]).all() for name in before[0])
    assert all((one == other).all() for one, other in zip(before[1], after[1], strict=True))
    # The step count and the schedule continue, at half the learning rate.
    assert after[2] == pytest.approx(4.0 * request["step"] / 40 / 2)
    logged = [event["step"] for event in trainer.state.log_history if "loss" in event]
    assert logged == list(range(1, trainer.state.global_step + 1))


def test_where_it_cannot_go_back_in_place_it_stops_and_says_how_to_go_on(tmp_path):
    from transformers import TrainerCallback

    class Spoils(TrainerCallback):
        def on_save(self, args, state, control, **_):
            (Path(args.output_dir) / f"checkpoint-{state.global_step}" / "optimizer.pt").unlink()

    recorder = callback(rules=[rule("revert", "epoch > 0.6")])
    trainer = tiny_trainers.make("trainer", tmp_path, [recorder, Spoils()], save_strategy="steps", save_steps=2)
    trainer.train()
    (request,) = findings_log(tmp_path, "request")
    (answer,) = findings_log(tmp_path, "answer")
    assert (request["action"], answer["answer"]) == ("revert", "declined")
    assert "has no optimizer.pt" in answer["text"]
    assert f"resume_from_checkpoint='{tmp_path}/checkpoint-4'" in answer["text"]
    assert "resume_learning_rate=" in answer["text"]
    assert trainer.state.global_step == request["step"] == 5


def test_only_a_plain_model_of_one_process_is_reloaded_in_place(tmp_path):
    from rlvitals.adapters.transformers import obstacle_to_reloading

    trainer = tiny_trainers.make("trainer", tmp_path, [], max_steps=1, save_strategy="steps", save_steps=1)
    trainer.train()
    folder, args, model = tmp_path / "checkpoint-1", trainer.args, trainer.model
    assert obstacle_to_reloading(args, model, folder) == ""
    assert "processes" in obstacle_to_reloading(SimpleNamespace(world_size=2), model, folder)
    sharded = SimpleNamespace(world_size=1, n_gpu=1, deepspeed="zero3.json")
    assert "sharded" in obstacle_to_reloading(sharded, model, folder)
    import peft

    adapted = peft.get_peft_model(tiny_trainers.build()[0], peft.LoraConfig(target_modules=["q_proj"]))
    assert "adapters" in obstacle_to_reloading(args, adapted, folder)
    import transformers

    deeper = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**{**model.config.to_dict(), "num_hidden_layers": 2})
    )
    assert "not hold all" in obstacle_to_reloading(args, deeper, folder)
    shallower = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**{**model.config.to_dict(), "num_hidden_layers": 0})
    )
    assert "other weights" in obstacle_to_reloading(args, shallower, folder)
    (folder / "model.safetensors").unlink()
    assert "cannot be read" in obstacle_to_reloading(args, model, folder)


def test_requests_that_come_with_an_evaluation_are_carried_out_at_the_next_step(tmp_path):
    recorder = callback(rules=[rule("stop", "eval_loss > 0", certain=True)])
    how = {"logging_steps": 100, "eval_strategy": "steps", "eval_steps": 2}
    trainer = tiny_trainers.make("trainer", tmp_path, [recorder], **how)
    trainer.train()
    assert findings_log(tmp_path, "request")[0]["step"] == 2
    assert trainer.state.global_step == 3


def test_weights_that_are_no_numbers_are_seen_although_the_trainer_hides_their_loss(tmp_path):
    """transformers replaces a NaN loss by the mean of the losses since the last log: 0 if every step is logged."""
    from transformers import TrainerCallback

    class Poisons(TrainerCallback):
        def on_step_begin(self, args, state, control, model=None, **_):
            if state.global_step == 8:
                next(model.parameters()).data[:] = float("nan")

    trainer = tiny_trainers.make("trainer", tmp_path, [callback(), Poisons()], max_steps=30)
    trainer.train()
    assert 9 <= trainer.state.global_step < 15
    assert next(event["loss"] for event in trainer.state.log_history if event["step"] == 9) == 0.0
    request = findings_log(tmp_path, "request")[-1]
    assert (request["action"], request["kind"], request["onset_step"]) == ("stop", "nonfinite", 9)


def test_a_trainer_stops_when_somebody_asks_from_outside(tmp_path):
    from transformers import TrainerCallback

    from rlvitals.store.asks import Ask, put
    from rlvitals.store.layout import RunDir

    class Asks(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step == 3:
                put(RunDir(tmp_path), Ask("stop", "Ada", attempt=1, why="the demo is over"))

    trainer = tiny_trainers.make("trainer", tmp_path, [callback(actions="asked"), Asks()], max_steps=30)
    trainer.train()
    assert trainer.state.global_step in (3, 4)
    (request,), (answer,) = findings_log(tmp_path, "request"), findings_log(tmp_path, "answer")
    assert (request["asked_by"], request["reason"]) == ("Ada", "asked by Ada: the demo is over")
    assert (answer["answer"], answer["text"]) == ("done", "training stops")
