"""The completions of TRL's trainers as rollouts, compared with the inputs and scores of the reward functions and with
TRL's own log.
"""

from __future__ import annotations

import json
import logging
import math
import statistics
import threading
from collections import defaultdict

import pytest
import tiny_trainers

import rlvitals
from rlvitals.adapters.background import Background
from rlvitals.errors import ConfigError
from rlvitals.importers.rollouts import read_rollouts

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # warnings of TRL and torch are not under test

CLOSE = {"rel": 1e-4, "abs": 1e-5}
"""32-bit numbers are recorded with seven digits."""


@pytest.fixture(scope="module", autouse=True)
def _quiet_stacks():
    import datasets

    datasets.disable_progress_bars()


def callback(*given, **settings):
    from rlvitals.adapters.transformers import VitalsCallback

    return VitalsCallback(*given, **{"hardware": False, "monitor": False, **settings})


class Judge:
    """A reward function that keeps its inputs and its scores."""

    def __init__(self, name, score):
        self.__name__, self.score, self.seen = name, score, []

    def __call__(self, prompts, completions, trainer_state, **columns):
        scores = [self.score(completion) for completion in completions]
        self.seen.append((trainer_state.global_step, list(zip(prompts, completions, scores, strict=True))))
        return scores


def words(text):
    return float(len(text.split()))


def shortness(text):
    """A score for texts with an odd number of characters, None for others."""
    return 1.0 / (1 + len(text)) if len(text) % 2 else None


def train(name, folder, *callbacks, **settings):
    trainer = tiny_trainers.make(name, folder, list(callbacks) or [callback()], **settings)
    trainer.train()
    return trainer


def recorded(folder):
    log = rlvitals.open_run(folder).rollout_log
    return {step: log.at(step) for step in log.steps}


def logged(trainer):
    return {event["step"]: event for event in trainer.state.log_history if "loss" in event}


def all_rollouts(groups):
    return [rollout for group in groups for rollout in group.rollouts]


@pytest.fixture(scope="module")
def grpo(tmp_path_factory):
    """Two weighted rewards, a reference model, several prompts per step, all tokens kept, and TRL's own table."""
    folder = tmp_path_factory.mktemp("grpo") / "run"
    judges = [Judge("words", words), Judge("shortness", shortness)]
    how = {"per_device_train_batch_size": 8, "max_steps": 4, "beta": 0.1, "reward_weights": [1.0, 0.5]}
    evaluating = {"eval_strategy": "steps", "eval_steps": 2}
    trainer = train(
        "grpo", folder, callback(rollout_tokens=100), rewards=judges, log_completions=True, **how, **evaluating
    )
    return folder, trainer, judges


def test_every_completion_has_its_rewards(grpo):
    folder, _, judges = grpo
    found = recorded(folder)
    assert list(found) == [1, 2, 3, 4]
    seen = {
        judge.__name__: dict(judge.seen[:1] + [call for call in judge.seen[1:] if len(call[1]) == 8])
        for judge in judges
    }
    for step, groups in found.items():
        shown = {name: calls[step - 1] for name, calls in seen.items()}
        assert [len(group.rollouts) for group in groups] == [4, 4]
        assert [group.answer for group in groups] == [tiny_trainers.GOOD] * 2
        assert groups[0].meta["reward_weights"] == {"words": 1.0, "shortness": 0.5}
        pairs = [(group.prompt, rollout) for group in groups for rollout in group.rollouts]
        for (prompt, rollout), first, second in zip(pairs, shown["words"], shown["shortness"], strict=True):
            assert (prompt, rollout.turns[0].text) == first[:2]
            expected = {"words": first[2]} | ({} if second[2] is None else {"shortness": second[2]})
            assert rollout.reward_parts == pytest.approx(expected, **CLOSE)
            assert rollout.reward == pytest.approx(first[2] + 0.5 * (second[2] or 0.0), **CLOSE)
            assert rollout.policy_version == step - 1
    silent = [r for groups in found.values() for r in all_rollouts(groups) if "shortness" not in r.reward_parts]
    assert silent, "no function was silent: the test shows nothing"


def test_rollouts_add_up_to_what_trl_logs(grpo):
    folder, trainer, _ = grpo
    for step, groups in recorded(folder).items():
        event, rollouts = logged(trainer)[step], all_rollouts(groups)
        assert statistics.mean(r.reward for r in rollouts) == pytest.approx(event["reward"], **CLOSE)
        for name in ("words", "shortness"):
            parts = [r.reward_parts[name] for r in rollouts if name in r.reward_parts]
            assert statistics.mean(parts) == pytest.approx(event[f"rewards/{name}/mean"], **CLOSE)
        lengths = [r.trainable_tokens for r in rollouts]
        assert statistics.mean(lengths) == pytest.approx(event["completions/mean_length"])
        assert (min(lengths), max(lengths)) == (event["completions/min_length"], event["completions/max_length"])
        cut = statistics.mean(r.stop == "length" for r in rollouts)
        assert cut == pytest.approx(event["completions/clipped_ratio"])
        assert {r.stop for r in rollouts} <= {"stop", "length"}
        for group in groups:
            rewards = [r.reward for r in group.rollouts]
            spread = statistics.stdev(rewards)
            for rollout in group.rollouts:
                expected = (rollout.reward - statistics.mean(rewards)) / (spread + 1e-4)
                assert rollout.advantage == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_tokens_give_the_entropy_and_the_divergence_that_trl_logs(grpo):
    folder, trainer, _ = grpo
    for step, groups in recorded(folder).items():
        traces = [rollout.trace for rollout in all_rollouts(groups)]
        for rollout, trace in zip(all_rollouts(groups), traces, strict=True):
            assert len(trace.ids) == rollout.trainable_tokens == sum(trace.trained)
            assert rollout.tokens > len(trace.ids)
            text = "".join(trace.texts)
            for special in ("<pad>", "<bos>", "<eos>", "<unk>"):
                text = text.replace(special, "")
            assert text.replace(" ", "") == rollout.turns[0].text.replace(" ", "")
            assert trace.advantages == pytest.approx([rollout.advantage] * len(trace.ids), abs=1e-5)
            assert trace.logprobs == trace.new_logprobs  # with one step per batch TRL uses the same tensor for both
        entropies = [value for trace in traces for value in trace.entropies]
        assert statistics.mean(entropies) == pytest.approx(logged(trainer)[step]["entropy"], **CLOSE)
        apart = [
            math.exp(reference - own) - (reference - own) - 1
            for trace in traces
            for reference, own in zip(trace.reference_logprobs, trace.new_logprobs, strict=True)
        ]
        assert statistics.mean(apart) == pytest.approx(logged(trainer)[step]["kl"], rel=1e-2, abs=1e-6)


def test_trls_own_table_says_the_same(grpo):
    folder, _, _ = grpo
    dump = read_rollouts(folder / "completions")
    table = defaultdict(list)
    for group in dump.groups:
        table[group.step] += [(group.prompt, r.turns[0].text, round(r.advantage, 4)) for r in group.rollouts]
    for step in (1, 3):  # an evaluation overwrites the table of its step
        groups = recorded(folder)[step]
        own = [(group.prompt, r.turns[0].text, round(r.advantage, 4)) for group in groups for r in group.rollouts]
        assert sorted(own) == sorted(table[step])


def test_evaluations_are_kept_apart(grpo):
    folder, trainer, _ = grpo
    dump = read_rollouts(folder / "eval_logs" / "rollouts")
    evaluated = {event["step"]: event for event in trainer.state.log_history if "eval_reward" in event}
    assert sorted({group.step for group in dump.groups}) == sorted(evaluated) == [2, 4]
    for step, event in evaluated.items():
        rewards = [r.reward for group in dump.groups if group.step == step for r in group.rollouts]
        assert statistics.mean(rewards) == pytest.approx(event["eval_reward"], **CLOSE)
    assert all(r.trace is None for group in dump.groups for r in group.rollouts)
    assert [len(groups) for groups in recorded(folder).values()] == [2] * 4


def test_recording_changes_nothing_of_the_training(grpo, tmp_path):
    how = {"per_device_train_batch_size": 8, "max_steps": 3, "beta": 0.1, "reward_weights": [1.0, 0.5]}
    judged = [[Judge("words", words), Judge("shortness", shortness)] for _ in range(2)]
    plain = train("grpo", tmp_path / "off", callback(rollouts=False), rewards=judged[0], **how)
    recording = train("grpo", tmp_path / "on", callback(), rewards=judged[1], **how)
    assert not (tmp_path / "off" / "logs" / "rollouts").exists()
    for step, event in logged(plain).items():
        other = logged(recording)[step]
        assert {k: v for k, v in event.items() if k != "step_time"} == {
            k: v for k, v in other.items() if k != "step_time"
        }
    left = {"_generate_and_score_completions", "_calculate_rewards", "_compute_loss"} & vars(recording).keys()
    assert not left, "the trainer is left as it was"


def test_a_batch_of_several_steps_is_recorded_once_with_its_old_log_probabilities(tmp_path):
    # 8 completions, 4 per step, two passes: new completions are sampled every fourth step.
    how = {"steps_per_generation": 2, "num_iterations": 2, "max_steps": 7, "learning_rate": 0.05}
    train("grpo", tmp_path, callback(rollout_tokens=8), **how)
    found = recorded(tmp_path)
    assert {step: sum(len(group.rollouts) for group in groups) for step, groups in found.items()} == {1: 8, 5: 8}
    traces = [rollout.trace for rollout in all_rollouts(found[1])]
    assert all(trace.new_logprobs for trace in traces), "those of the second step too"
    moved = [trace.new_logprobs != trace.logprobs for trace in traces]
    assert sum(moved) == 4, "those that the second step took met other weights"


def test_accumulated_batches_are_one_step(tmp_path):
    trainer = train("grpo", tmp_path, gradient_accumulation_steps=2, max_steps=2)
    found = recorded(tmp_path)
    assert {step: len(all_rollouts(groups)) for step, groups in found.items()} == {1: 8, 2: 8}
    for step, groups in found.items():
        mean = statistics.mean(rollout.reward for rollout in all_rollouts(groups))
        assert mean == pytest.approx(logged(trainer)[step]["reward"], **CLOSE)


def test_rloo_has_log_probabilities_of_both_models(tmp_path):
    judge = Judge("words", words)
    trainer = train("rloo", tmp_path, rewards=[judge], beta=0.2, max_steps=3, learning_rate=0.05)
    found = recorded(tmp_path)
    assert list(found) == [1, 2, 3]
    for step, groups in found.items():
        rollouts = all_rollouts(groups)
        shown = judge.seen[step - 1][1]
        assert [(r.turns[0].text, r.reward) for r in rollouts] == [(text, score) for _, text, score in shown]
        assert statistics.mean(r.reward for r in rollouts) == pytest.approx(logged(trainer)[step]["reward"], **CLOSE)
        traces = [rollout.trace for rollout in rollouts]
        differences = [
            old - reference
            for trace in traces
            for old, reference in zip(trace.logprobs, trace.reference_logprobs, strict=True)
        ]
        assert statistics.mean(differences) == pytest.approx(logged(trainer)[step]["kl"], abs=1e-5)
        entropies = [value for trace in traces for value in trace.entropies]
        assert statistics.mean(entropies) == pytest.approx(logged(trainer)[step]["entropy"], **CLOSE)


def test_online_dpo_has_pairs(tmp_path):
    judges = [Judge("words", words), Judge("shortness", shortness)]
    how = {"reward_weights": [1.0, 2.0], "missing_eos_penalty": 3.0, "max_steps": 2}
    trainer = train("online_dpo", tmp_path, callback(rollout_tokens=100), rewards=judges, **how)
    for step, groups in recorded(tmp_path).items():
        first, second = (judge.seen[step - 1][1] for judge in judges)
        assert len(groups) == 4
        for number, group in enumerate(groups):
            assert len(group.rollouts) == 2
            for rollout, place in zip(group.rollouts, (number, number + 4), strict=True):
                assert (group.prompt, rollout.turns[0].text) == first[place][:2]
                parts = {"words": first[place][2], "shortness": second[place][2]}
                assert rollout.reward_parts == pytest.approx({k: v for k, v in parts.items() if v is not None}, **CLOSE)
                total = parts["words"] + 2.0 * (parts["shortness"] or 0.0) - 3.0 * (rollout.stop == "length")
                assert rollout.reward == pytest.approx(total, **CLOSE)
            better = max(group.rollouts, key=lambda rollout: rollout.reward)
            assert {rollout.outcome for rollout in group.rollouts} == {"chosen", "rejected"}
            assert better.outcome == "chosen" or group.rollouts[0].reward == group.rollouts[1].reward
        event, rollouts = logged(trainer)[step], all_rollouts(groups)
        assert statistics.mean(r.reward for r in rollouts) == pytest.approx(event["objective/scores"], **CLOSE)
        chosen = [sum(r.trace.logprobs) for r in rollouts if r.outcome == "chosen"]
        assert statistics.mean(chosen) == pytest.approx(event["logps/chosen"], **CLOSE)


def test_tool_calls_and_turns(tmp_path):
    _, tokenizer = tiny_trainers.build()
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}"
        "{% for call in message.get('tool_calls', []) %}<{{ call.function.name }}>{{ call.function.arguments }}"
        "{% endfor %}{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    tokenizer.response_template = {}

    def parse_response(ids, **_):
        """Every second vocabulary entry calls a tool."""
        text = tokenizer.decode(ids, skip_special_tokens=True)
        if ids[0] % 2:
            return {"role": "assistant", "content": text}
        function = {"name": "look_up", "arguments": {"word": text}}
        return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}

    def look_up(word: str) -> str:
        """Look a word up.

        Args:
            word: The word.

        Returns:
            What it means.
        """
        return f"the {word} sat"

    tokenizer.parse_response = parse_response
    judge = Judge("turns", lambda completion: float(len(completion)))
    rows = [{"prompt": [{"role": "user", "content": prompt}]} for prompt in tiny_trainers.PROMPTS] * 2
    from datasets import Dataset

    given = {"tools": [look_up], "processing_class": tokenizer, "train_dataset": Dataset.from_list(rows)}
    how = {"max_completion_length": 40, "max_tool_calling_iterations": 2, "max_steps": 2}
    trainer = train("grpo", tmp_path, rewards=[judge], given=given, generation_kwargs={"max_new_tokens": 5}, **how)
    several = 0
    for step, groups in recorded(tmp_path).items():
        rollouts = all_rollouts(groups)
        assert groups[0].prompt in tiny_trainers.PROMPTS
        assert groups[0].max_turns == 3
        for rollout, (_, messages, _) in zip(rollouts, judge.seen[step - 1][1], strict=True):
            replies = [message for message in messages if message["role"] == "assistant"]
            answers = [message["content"] for message in messages if message["role"] == "tool"]
            assert [turn.text for turn in rollout.turns] == [message["content"] for message in replies]
            calls = [call for turn in rollout.turns for call in turn.calls]
            asked = [call["function"]["arguments"] for message in replies for call in message.get("tool_calls", [])]
            assert [call.arguments for call in calls] == asked
            assert [call.result for call in calls if call.result is not None] == answers
            assert sum(rollout.trace.trained) == rollout.trainable_tokens
            several += len(replies) > 1
            if answers:
                assert rollout.trainable_tokens < len(rollout.trace.ids), "what a tool said is not trained on"
                assert max(rollout.trace.turns) == len(answers)
        mean = statistics.mean(rollout.trainable_tokens for rollout in rollouts)
        assert mean == pytest.approx(logged(trainer)[step]["completions/mean_length"])
    assert several, "no completion has several turns: the test shows nothing"


def test_what_an_engine_sampled_has_its_log_probabilities_and_its_mask(tmp_path):
    _, tokenizer = tiny_trainers.build()

    def engine(prompts, trainer):
        """Two tokens from the model, two from the environment, and an end token."""
        return {
            "prompt_ids": [tokenizer(prompt)["input_ids"] for prompt in prompts],
            "completion_ids": [[9 + number, 10, 11, 12, tokenizer.eos_token_id] for number in range(len(prompts))],
            "logprobs": [[-1.0 - number, -2.0, 0.0, 0.0, None] for number in range(len(prompts))],
            "env_mask": [[1, 1, 0, 0, 1] for _ in prompts],
        }

    train("grpo", tmp_path, max_steps=1, given={"rollout_func": engine, "processing_class": tokenizer})
    rollouts = all_rollouts(recorded(tmp_path)[1])
    assert [r.trace.ids for r in rollouts] == [(9 + n, 10, 11, 12, tokenizer.eos_token_id) for n in range(4)]
    assert [r.trace.engine_logprobs[:4] for r in rollouts] == [(-1.0 - n, -2.0, 0.0, 0.0) for n in range(4)]
    assert all(math.isnan(r.trace.engine_logprobs[4]) for r in rollouts), "the engine did not say"
    assert {r.trace.trained for r in rollouts} == {(True, True, False, False, True)}
    assert {r.trace.turns for r in rollouts} == {(0, 0, 0, 0, 1)}
    assert {(r.trainable_tokens, r.stop) for r in rollouts} == {(3, "stop")}
    assert all(r.trace.logprobs != r.trace.engine_logprobs for r in rollouts)


def test_columns_that_a_reward_function_logs_are_kept(tmp_path):
    def judged(completions, log_extra, **_):
        log_extra("extracted", [text.upper() for text in completions])
        return [None if number == 0 else float(number) for number in range(len(completions))]

    train("grpo", tmp_path, rewards=[judged], max_steps=1)
    rollouts = all_rollouts(recorded(tmp_path)[1])
    assert [rollout.meta["extracted"] for rollout in rollouts] == [r.turns[0].text.upper() for r in rollouts]
    assert [rollout.reward for rollout in rollouts] == [None, 1.0, 2.0, 3.0]
    assert rollouts[0].reward_parts == {}
    assert rollouts[0].advantage == 0.0


def test_every_third_step_and_the_tokens_of_the_best_and_the_worst(tmp_path):
    how = {"per_device_train_batch_size": 8, "max_steps": 7, "rewards": [Judge("words", words)]}
    train("grpo", tmp_path, callback(rollouts=3, rollout_tokens=2), **how)
    found = recorded(tmp_path)
    assert list(found) == [1, 4, 7]
    for groups in found.values():
        rollouts = all_rollouts(groups)
        traced = [rollout.advantage for rollout in rollouts if rollout.trace]
        assert sorted(traced) == [min(r.advantage for r in rollouts), max(r.advantage for r in rollouts)]


@pytest.mark.parametrize(
    "settings",
    [{"rollouts": 0}, {"rollouts": "all"}, {"rollout_tokens": -1}, {"rollout_tokens": True}, {"rollout_megabytes": 0}],
)
def test_wrong_settings_are_reported_when_the_callback_is_made(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        callback(**settings)


def test_where_trl_is_built_otherwise_it_is_reported_once_and_training_goes_on(tmp_path, caplog):
    from trl import GRPOTrainer

    class Renamed(GRPOTrainer):
        """Scores completions in a method of another name."""

        def _generate_and_score_completions(self, inputs):
            ours = self.__dict__.pop("_calculate_rewards")
            try:
                return super()._generate_and_score_completions(inputs)
            finally:
                self.__dict__["_calculate_rewards"] = ours

    with caplog.at_level(logging.WARNING, logger="rlvitals"):
        trainer = train("grpo", tmp_path, max_steps=3, given={"kind": Renamed})
    assert trainer.state.global_step == 3
    warnings = [record.getMessage() for record in caplog.records if "rollouts" in record.getMessage()]
    assert warnings == [
        "VitalsCallback: no rollouts of Renamed are recorded: this version is not built as expected "
        "(it scored completions in another way)"
    ]
    assert not (tmp_path / "logs" / "rollouts").exists()
    assert len(rlvitals.open_run(tmp_path).series("loss")[0]) == 3


def test_a_trainer_that_is_not_on_the_stack_is_reported(tmp_path, caplog):
    from transformers import TrainerControl, TrainerState
    from trl import GRPOConfig

    args = GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to=[])
    ours = callback()
    with caplog.at_level(logging.WARNING, logger="rlvitals"):
        ours.on_train_begin(args, TrainerState(), TrainerControl())
        ours.finish()
    assert "no rollouts are recorded: its trainer was not found" in caplog.text


def test_a_thread_that_cannot_keep_up_drops_batches_and_says_so(tmp_path, caplog, monkeypatch):
    from rlvitals.adapters import trl_rollouts

    made, is_free = trl_rollouts.groups_of, threading.Event()

    def slow(batch, decode):
        assert is_free.wait(30)
        return made(batch, decode)

    class Freeing(Judge):
        def __call__(self, *given, trainer_state, **more):
            if trainer_state.global_step == 5:  # the last step: the training's end waits for the queued batches
                is_free.set()
            return super().__call__(*given, trainer_state=trainer_state, **more)

    monkeypatch.setattr(trl_rollouts, "groups_of", slow)
    monkeypatch.setattr(trl_rollouts, "ROOM", 2)
    with caplog.at_level(logging.WARNING, logger="rlvitals"):
        trainer = train("grpo", tmp_path, rewards=[Freeing("words", words)])
    assert trainer.state.global_step == 6
    assert list(recorded(tmp_path))[:3] == [1, 2, 3]
    warnings = [record.getMessage() for record in caplog.records if "dropped" in record.getMessage()]
    assert "rollouts of step 4 are dropped: 2 batches wait" in warnings[0]
    assert len(warnings) == 2
    assert "batches of rollouts were dropped in all" in warnings[1]
    assert len(rlvitals.open_run(tmp_path).series("loss")[0]) == 6


def test_a_background_does_everything_in_order_and_survives_what_its_work_raises():
    done, met = [], []

    def work(job):
        if job == 2:
            raise ValueError("two")
        done.append(job)

    background = Background("test", work, room=100, handle=met.append)
    assert all(background.hand_over(number) for number in range(5))
    assert background.finish(10)
    assert (done, [str(error) for error in met], background.dropped) == ([0, 1, 3, 4], ["two"], 0)


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
import tiny_trainers
from rlvitals.adapters.transformers import VitalsCallback
def judged(completions, trainer_state, **_):
    if trainer_state.global_step == 4:
        {end}
    return [float(len(text)) for text in completions]
trainer = tiny_trainers.make("grpo", {folder!r}, [VitalsCallback(hardware=False)], rewards=[judged])
trainer.train()
"""


def end_with(statement, folder):
    import subprocess
    import sys
    from pathlib import Path

    program = folder.parent / "program.py"
    program.write_text(KILLED.format(tests=str(Path(__file__).parent), end=statement, folder=str(folder)))
    return subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120, check=False)


def test_a_killed_training_loses_at_most_what_was_queued(tmp_path):
    ended = end_with("os.kill(os.getpid(), signal.SIGKILL)", tmp_path / "run")
    assert ended.returncode == -9, ended.stderr
    steps = list(recorded(tmp_path / "run"))
    assert steps[:3] == [1, 2, 3]  # the batch of step 4 may have been queued
    lines = [json.loads(line) for line in (tmp_path / "run/logs/rollouts/step-000003.jsonl").read_text().splitlines()]
    assert len(lines[0]["rollouts"]) == 4


def test_a_training_that_raises_records_what_it_had_sampled(tmp_path):
    ended = end_with("raise RuntimeError('out of luck')", tmp_path / "run")
    assert "out of luck" in ended.stderr
    assert list(recorded(tmp_path / "run")) == [1, 2, 3, 4]
    assert rlvitals.open_run(tmp_path / "run").status == "failed"
