"""Dumps of frameworks, in the layout of the commit that each reader names."""

from __future__ import annotations

import json
import math
import zipfile

import pytest

from rlvitals.errors import ConfigError
from rlvitals.importers.dumps.registry import FORMS, dump_files, is_dump, splits_in
from rlvitals.importers.rollouts import group_of_row, read_rollouts


def lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def only(place, split=None):
    """The one rollout of a dump, and its group."""
    dump = read_rollouts(place, split)
    (group,) = dump.groups
    (rollout,) = group.rollouts
    return dump, group, rollout


def test_verls_training_and_validation_are_kept_apart(tmp_path):
    row = {"input": "user\np\nassistant\n", "output": "a", "gts": "4", "score": 0.5, "step": 7, "acc": True}
    lines(tmp_path / "rollout_data" / "7.jsonl", [row, row])
    lines(tmp_path / "validation_data" / "7.jsonl", [{**row, "output": "v", "reward": 0.5}])
    assert is_dump(tmp_path)
    assert splits_in(tmp_path) == {"train", "validation"}
    (group,) = read_rollouts(tmp_path, "train").groups
    assert [rollout.turns[0].text for rollout in group.rollouts] == ["a", "a"]
    dump, group, rollout = only(tmp_path, "validation")
    assert (dump.format, group.step, group.answer) == ("verl", 7, "4")
    assert (rollout.turns[0].text, rollout.reward, rollout.outcome) == ("v", 0.5, "correct")


def episode(kind="train", step=3, **more):
    """An episode as `Episode.to_record` writes it: no fields that are None, one branch with a tool."""
    nodes = [
        {"sampled": False, "token_ids": [1, 2], "mask": [False] * 2, "message": {"role": "user", "content": "2+2?"}},
        {
            "parent": 0, "sampled": True, "token_ids": [9, 3, 4], "mask": [False, True, True],
            "logprobs": [-0.5, -0.25], "advantages": [1.5, 1.5], "trainer_logprobs": [-0.75, -0.125],
            "message": {"role": "assistant", "reasoning_content": "hm", "tool_calls": [
                {"id": "c", "name": "add", "arguments": '{"a": 2}'},
            ]},
        },
        {"parent": 1, "sampled": False, "token_ids": [5], "mask": [False],
         "message": {"role": "tool", "tool_call_id": "c", "content": "4"}},
        {"parent": 2, "sampled": True, "token_ids": [6], "mask": [True], "logprobs": [-1.0], "advantages": [1.5],
         "trainer_logprobs": [-1.5], "message": {"role": "assistant", "content": "4."}},
    ]  # fmt: skip
    trace = {
        "version": 1, "id": "t", "nodes": nodes, "stop_condition": "done", "ok": True, "errors": [],
        "rewards": {"exact": {"score": 1.0, "weight": 0.5}, "style": {"score": 0.25, "weight": 1.0}, "late": None},
        "metrics": {"turns": 2.0}, "timing": {"agent": {"start": 10.0, "end": 12.5}},
        "agent": {"name": "solver", "trainable": True},
    }  # fmt: skip
    run = {"type": "train", "id": "r", "work": {"type": kind, "step": step, "policy": {"start": step - 1, "end": step}}}
    return {
        "id": "e", "env": {"id": "math"}, "task": {"type": "T", "data": {"answer": "4"}, "key": "task-1"}, "run": run,
        "ok": True, "errors": [], "traces": [trace], **more,
    }  # fmt: skip


def test_prime_rls_stream_has_turns_rewards_and_tokens(tmp_path):
    stream = tmp_path / "monitors" / "file" / "traces" / "stream.jsonl"
    lines(stream, [episode(), episode("eval", 4), episode(step=5)])
    assert is_dump(tmp_path)
    dump = read_rollouts(tmp_path, "train")
    assert [(group.step, group.id, group.answer) for group in dump.groups] == [(3, "task-1", "4"), (5, "task-1", "4")]
    (rollout,) = dump.groups[0].rollouts
    first, second = rollout.turns
    assert (first.text, first.calls[0].name, first.calls[0].arguments) == ("<think>hm</think>", "add", {"a": 2})
    assert (first.calls[0].result, second.text) == ("4", "4.")
    assert (rollout.reward, rollout.reward_parts) == (0.75, {"exact": 0.5, "style": 0.25})
    assert (rollout.stop, rollout.seconds, rollout.policy_version) == ("done", 2.5, 2)
    trace = rollout.trace
    assert trace.ids == (9, 3, 4, 5, 6)
    assert trace.trained == (False, True, True, False, True)
    assert trace.turns == (0, 0, 0, 0, 1)
    assert trace.engine_logprobs[1:3] == (-0.5, -0.25)
    assert math.isnan(trace.engine_logprobs[0])
    assert trace.logprobs[4] == -1.5
    assert trace.advantages[1] == 1.5
    assert [group.step for group in read_rollouts(tmp_path, "validation").groups] == [4]


def test_prime_rls_files_of_a_step_are_read_once(tmp_path):
    for subset in ("all", "effective"):
        lines(tmp_path / "rollouts" / "step_12" / "train" / subset / "traces.jsonl", [episode()])
    lines(tmp_path / "rollouts" / "step_12" / "eval" / "effective" / "traces.jsonl", [episode("eval")])
    _, group, _ = only(tmp_path, "train")
    assert group.step == 12  # the batch of the training, not the step of the request
    assert only(tmp_path, "validation")[1].step == 12
    assert [file.name for file in dump_files(tmp_path)] == [
        "rollouts/step_12/eval/effective/traces.jsonl", "rollouts/step_12/train/all/traces.jsonl",
    ]  # fmt: skip


def test_an_episode_that_failed_before_the_first_word_is_a_rollout_with_an_error(tmp_path):
    failed = episode(traces=[], ok=False, errors=[{"type": "SandboxError", "message": "no box"}])
    _, _, rollout = only(lines(tmp_path / "traces.jsonl", [failed]))
    assert (rollout.outcome, rollout.error, rollout.reward) == ("error", "SandboxError: no box", None)


def test_verifiers_results_are_an_evaluation(tmp_path):
    row = {
        "example_id": 3, "prompt": [{"role": "user", "content": "p"}], "answer": "x", "reward": 0.5, "error": None,
        "completion": [{"role": "assistant", "content": "a"}], "metrics": {"exact": 0.5}, "exact": 0.5,
        "timing": {"total_ms": 1500.0}, "is_truncated": False, "stop_condition": "max_turns_reached",
    }  # fmt: skip
    dump, group, rollout = only(lines(tmp_path / "results.jsonl", [row]))
    assert (dump.format, group.prompt, group.answer) == ("verifiers results", "p", "x")
    assert (rollout.turns[0].text, rollout.reward, rollout.seconds) == ("a", 0.5, 1.5)
    assert (rollout.stop, rollout.reward_parts) == ("max_turns_reached", {"exact": 0.5})
    assert splits_in(tmp_path) == {"validation"}


def test_nemo_rls_samples_have_their_tokens_without_prompt_and_padding(tmp_path):
    row = {
        "content": [["What?", "This.", "Sure?", "Yes."]], "rewards": [0.5], "input_lengths": [6],
        "token_ids": [[1, 2, 3, 4, 5, 6, 0, 0]], "token_loss_mask": [[0, 0, 1, 1, 0, 1, 0, 0]],
        "sample_loss_mask": [1.0], "advantages": [[2.0] * 8], "idx": 0,
        "generation_logprobs": [[0.0, 0.0, -1.0, -2.0, 0.0, -3.0, 0.0, 0.0]],
        "prev_logprobs": [[0.0, 0.0, -1.5, -2.5, 0.0, -3.5, 0.0, 0.0]],
    }  # fmt: skip
    lines(tmp_path / "train_data_step4.jsonl", [row])
    message_log = [{"role": "user", "content": "v"}, {"role": "assistant", "content": "w"}]
    lines(tmp_path / "val_data_step4.jsonl", [{"content": [message_log], "rewards": [1.0], "idx": 0}])
    dump, group, rollout = only(tmp_path, "train")
    assert (dump.format, group.step, group.prompt) == ("nemo_rl", 4, "What?")
    assert [(turn.text, turn.observation) for turn in rollout.turns] == [("This.", "Sure?"), ("Yes.", "")]
    assert (rollout.reward, rollout.advantage, rollout.tokens, rollout.trainable_tokens) == (0.5, 2.0, 6, 3)
    assert rollout.trace.ids == (3, 4, 5, 6)
    assert rollout.trace.trained == (True, True, False, True)
    assert rollout.trace.engine_logprobs == (-1.0, -2.0, 0.0, -3.0)
    assert rollout.trace.logprobs == (-1.5, -2.5, 0.0, -3.5)
    _, group, rollout = only(tmp_path, "validation")
    assert (group.prompt, rollout.turns[0].text, rollout.reward) == ("v", "w", 1.0)


def test_skyrls_evaluations_are_read_by_source(tmp_path):
    folder = tmp_path / "dumped_evals" / "global_step_20_evals"
    row = {
        "input_prompt": "p", "output_response": "a<|im_end|>", "score": [0.0, 0.25, 0.5], "stop_reason": "stop",
        "env_class": "gsm8k", "env_extras": {"k": 1}, "data_source": "openai/gsm8k",
    }  # fmt: skip
    lines(folder / "openai_gsm8k.jsonl", [row])
    lines(folder / "aggregated_results.jsonl", [{"eval/all/avg_score": 0.75}])
    dump, group, rollout = only(tmp_path)
    assert (group.step, rollout.reward, rollout.stop, rollout.turns[0].text) == (20, 0.75, "stop", "a")
    assert rollout.meta["data_source"] == "openai/gsm8k"
    assert dump.notes == []


def test_areals_tasks_are_groups_and_their_version_is_the_step(tmp_path):
    def row(sample, reward, **more):
        return {
            "task_id": 41, "sample_idx": sample, "seqlen": 12, "prompt_len": 5, "head_version": 6, "tail_version": 7,
            "reward": reward, "prompt": "2+2?", "completion": "4<|im_end|>", **more,
        }  # fmt: skip

    lines(tmp_path / "logs" / "rollout" / "7" / "41.jsonl", [row(0, 1.0), row(1, 0.0)])
    lines(tmp_path / "logs" / "eval-rollout" / "7" / "3.jsonl", [row(0, 0.5, prompt="3+3?")])
    for place in (tmp_path / "logs", tmp_path / "logs" / "rollout"):
        assert is_dump(place)
        (group,) = read_rollouts(place, "train").groups
        assert (group.step, group.prompt, [each.reward for each in group.rollouts]) == (7, "2+2?", [1.0, 0.0])
        first = group.rollouts[0]
        assert (first.turns[0].text, first.policy_version) == ("4", 6)
        assert (first.tokens, first.trainable_tokens) == (12, 7)
    for place in (tmp_path / "logs", tmp_path / "logs" / "eval-rollout"):
        (group,) = read_rollouts(place, "validation").groups
        assert (group.prompt, group.rollouts[0].reward) == ("3+3?", 0.5)


def test_tinkers_summaries_have_rewards_turn_by_turn(tmp_path):
    def row(group, reward):
        return {
            "schema_version": 1, "split": "train", "iteration": 6, "group_idx": group, "traj_idx": 0, "tags": ["math"],
            "sampling_client_step": 5, "total_reward": reward, "final_reward": 0.0, "trajectory_metrics": {"n": 1},
            "steps": [{"step_idx": 0, "ob_len": 10, "ac_len": 4, "reward": reward, "episode_done": True, "metrics": {},
                       "logs": {"input": "2+2", "extracted": "4"}}],
            "final_ob_len": 14,
        }  # fmt: skip

    lines(tmp_path / "iteration_000006" / "train_rollout_summaries.jsonl", [row(0, 1.0), row(1, 0.0)])
    dump = read_rollouts(tmp_path, "train")
    assert [(group.step, group.prompt) for group in dump.groups] == [(6, "group 0 (math)"), (6, "group 1 (math)")]
    (rollout,) = dump.groups[0].rollouts
    assert (rollout.turns[0].text, rollout.turns[0].reward) == ("input: 2+2\nextracted: 4", 1.0)
    assert (rollout.policy_version, rollout.trainable_tokens) == (5, 4)


def test_tinkers_benchmarks_are_conversations(tmp_path):
    row = {
        "idx": 0, "benchmark": "gsm8k", "example_id": "x1", "reward": 1.0, "metrics": {"correct": 1.0}, "logs": {},
        "error": None, "time_seconds": 2.0,
        "turns": [{"role": "user", "content": "p", "token_count": 1, "metadata": {}},
                  {"role": "assistant", "content": "a", "token_count": 1, "metadata": {}},
                  {"role": "grader", "content": "well", "token_count": 0, "metadata": {}}],
    }  # fmt: skip
    _, group, rollout = only(lines(tmp_path / "gsm8k" / "trajectories.jsonl", [row]).parent.parent)
    assert (group.id, group.prompt, rollout.outcome, rollout.seconds) == ("x1", "p", "correct", 2.0)
    assert (rollout.turns[0].text, rollout.turns[0].observation) == ("a", "well")


def test_rolls_table_of_a_step_is_a_rollout_a_row(tmp_path):
    table = {
        "global_step": [9, 9], "prompt": ["p", "p"], "responses": ["a", "b"], "scores": [1.0, 0.0], "id": ["7", "7"],
        "ground_truth": ["g", "g"], "domain": ["math", "math"],
    }  # fmt: skip
    (tmp_path / "rollout_dump_data.step_9.jsonl").write_text(json.dumps(table) + "\n")
    dump = read_rollouts(tmp_path)
    (group,) = dump.groups
    assert (dump.format, group.step, group.answer) == ("roll", 9, "g")
    assert [(rollout.turns[0].text, rollout.reward) for rollout in group.rollouts] == [("a", 1.0), ("b", 0.0)]
    assert group.rollouts[0].meta == {"domain": "math"}


def test_rolls_agents_have_messages_as_text(tmp_path):
    talk = [{"role": "user", "content": "p"}, {"role": "assistant", "content": "a"}]
    facts = {
        "reward_info": {"episode_reward": 0.5},
        "failure_info": {"failure_mode": "timeout", "has_failure": True, "stop_reason": "MAX_STEPS"},
        "metrics": {"n": 1},
    }
    table = {
        "global_step": [2],
        "messages": [json.dumps(talk)],
        "trajectory_data": [json.dumps(facts)],
        "tools": ["[]"],
    }
    (tmp_path / "rollout_dump_data.step_2.jsonl").write_text(json.dumps(table))
    _, group, rollout = only(tmp_path)
    assert (group.prompt, rollout.reward, rollout.stop, rollout.error) == ("p", 0.5, "max_steps", "timeout")


def test_openrlhfs_samples_are_wandbs_table(tmp_path):
    table = {"columns": ["global_step", "text", "reward"], "data": [[1, "p a", 0.5], [2, "p b", 1.0]]}
    (tmp_path / "generated_samples_1_a.table.json").write_text(json.dumps(table))
    dump = read_rollouts(tmp_path)
    samples = [(group.step, group.rollouts[0].turns[0].text, group.rollouts[0].reward) for group in dump.groups]
    assert (dump.format, samples) == ("openrlhf", [(1, "p a", 0.5), (2, "p b", 1.0)])


def sample(number, epoch, value):
    """A sample as `EvalSample` writes it, with a text that is stored once as an attachment."""
    return {
        "id": number, "epoch": epoch, "input": "attachment://h", "target": "4", "attachments": {"h": "long question"},
        "messages": [{"role": "user", "content": "attachment://h", "source": "input"},
                     {"role": "assistant", "content": [{"type": "text", "text": "answer"}], "source": "generate"}],
        "output": {"stop_reason": "stop", "choices": []}, "total_time": 1.5, "error": None,
        "scores": {"match": {"value": value, "answer": "4", "explanation": "because"}}, "metadata": {"level": 2},
        "model_usage": {"m": {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}},
    }  # fmt: skip


@pytest.mark.parametrize("packing", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_inspects_archive_is_a_group_a_sample(tmp_path, packing):
    with zipfile.ZipFile(tmp_path / "log.eval", "w", packing) as archive:
        archive.writestr("header.json", "{}")
        for epoch, value in ((1, "C"), (2, "I")):
            archive.writestr(f"samples/1_epoch_{epoch}.json", json.dumps(sample(1, epoch, value)))
    (group,) = read_rollouts(tmp_path).groups
    assert (group.id, group.prompt, group.answer) == ("1", "long question", "4")
    assert [(one.reward, one.outcome) for one in group.rollouts] == [(1.0, "correct"), (0.0, "wrong")]
    first = group.rollouts[0]
    assert (first.turns[0].text, first.tokens, first.seconds, first.stop) == ("answer", 7, 1.5, "stop")
    assert (first.rubric, first.meta) == ({"match": "because"}, {"epoch": 1, "level": 2})


def test_inspects_archive_packed_with_zstd_is_read(tmp_path):
    """As newer versions compress it. The zipfile module of this Python does not support the method."""
    arrow = pytest.importorskip("pyarrow")
    name, data = "samples/1_epoch_1.json", json.dumps(sample(1, 1, "C")).encode()
    with zipfile.ZipFile(tmp_path / "log.eval", "w") as archive:
        archive.writestr(name, bytes(arrow.compress(data, "zstd", asbytes=True)))
    raw = (tmp_path / "log.eval").read_bytes()
    for mark, method in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        place = raw.index(mark) + method
        raw = raw[:place] + (93).to_bytes(2, "little") + raw[place + 2 :]
    (tmp_path / "log.eval").write_bytes(raw)
    assert only(tmp_path)[2].reward == 1.0


def test_inspects_json_is_read_too(tmp_path):
    log = {"version": 2, "status": "success", "eval": {"task": "t"}, "samples": [sample("a", 1, 0.25)]}
    (tmp_path / "log.json").write_text(json.dumps(log))
    dump, group, rollout = only(tmp_path / "log.json")
    assert (dump.format, group.id, rollout.reward, rollout.outcome) == ("inspect", "a", 0.25, "")
    assert not is_dump(tmp_path)  # any program may write a log.json
    (tmp_path / "log.json").rename(tmp_path / "2026-11-18T04-30-00-00-00_sums_Xy.json")
    assert is_dump(tmp_path)


def test_a_row_that_a_framework_hands_over_is_a_group():
    group = group_of_row("verl", {"input": "p", "output": "a", "score": 1.0}, step=4)
    assert (group.step, group.prompt, group.rollouts[0].reward) == (4, "p", 1.0)
    group = group_of_row(
        "openrlhf", {"text": "<|im_start|>user\np<|im_end|>\n<|im_start|>assistant\na", "reward": 0.5}, 2
    )
    assert (group.step, group.prompt, group.rollouts[0].turns[0].text) == (2, "p", "a")
    group = group_of_row("roll", {"prompt": "p", "responses": "a", "scores": 0.5}, 3)
    assert (group.step, group.rollouts[0].reward) == (3, 0.5)
    group = group_of_row("trl", {"prompt": "p", "completion": "a", "accuracy": 1.0, "advantage": 0.5}, 6)
    assert (group.step, group.rollouts[0].advantage) == (6, 0.5)
    assert group_of_row("verl", {"loss": 1.0}) is None
    with pytest.raises(ConfigError, match="'wandb' is not a form of rows"):
        group_of_row("wandb", {})


def test_every_form_says_what_it_reads():
    for form in FORMS:
        assert form.name
        assert form.writes
    named = {form.name for form in FORMS}
    assert {"verl", "trl", "slime", "nemo_rl", "skyrl", "tinker", "verifiers", "openrlhf", "inspect", "roll"} <= named
    assert "areal" in named


def test_metrics_and_settings_are_no_dump(tmp_path):
    lines(tmp_path / "metrics.jsonl", [{"step": 1, "loss": 0.5}])
    lines(tmp_path / "1.jsonl", [{"step": 1, "loss": 0.5}])
    lines(tmp_path / "results.jsonl", [{"accuracy": 1.0}])
    assert not is_dump(tmp_path)
    assert not is_dump(tmp_path / "nowhere")


def test_a_link_out_of_the_folder_is_skipped(tmp_path):
    outside, dump = tmp_path / "outside", tmp_path / "dump"
    row = {"input": "secret", "output": "o", "score": 0.0}
    lines(outside / "1.jsonl", [row])
    lines(dump / "2.jsonl", [{**row, "input": "mine"}])
    (dump / "1.jsonl").symlink_to(outside / "1.jsonl")
    (dump / "rollouts").symlink_to(outside)
    assert [file.name for file in dump_files(dump)] == ["2.jsonl"]


def test_of_a_trace_with_branches_the_last_is_read(tmp_path):
    row = episode()
    nodes = row["traces"][0]["nodes"]
    nodes.append({"parent": 0, "sampled": True, "message": {"role": "assistant", "content": "another way"}})
    _, group, rollout = only(lines(tmp_path / "traces.jsonl", [row]))
    assert (group.prompt, [turn.text for turn in rollout.turns]) == ("2+2?", ["another way"])
    nodes[0]["parent"] = 4  # the parents form a cycle
    assert len(read_rollouts(lines(tmp_path / "traces.jsonl", [row])).groups) == 1
