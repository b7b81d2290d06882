"""Rollouts as TRL, verl and others write them."""

from __future__ import annotations

import json

import pytest

from conftest import REPO
from rlvitals.errors import NotALog
from rlvitals.importers.rollouts import read_rollouts
from rlvitals.records import ToolCall

pandas = pytest.importorskip("pandas")


def trl_table(folder, step, rows):
    """A table as GRPOTrainer writes it with log_completions=True."""
    (folder / "completions").mkdir(exist_ok=True)
    pandas.DataFrame(rows).to_parquet(folder / "completions" / f"completions_{step:05d}.parquet")


def test_trls_completions_are_groups_by_step_and_prompt(tmp_path):
    pytest.importorskip("pyarrow")
    for step in (20, 10):
        trl_table(
            tmp_path,
            step,
            {
                "step": [step] * 4,
                "prompt": ["p", "p", "q", "q"],
                "completion": ["a", "b", "c", "d"],
                "accuracy_reward": [1.0, 0.0, 1.0, 1.0],
                "format_reward": [0.5, 0.5, float("nan"), 0.0],
                "source": ["web"] * 4,
                "advantage": [1.0, -1.0, 0.5, -0.5],
            },
        )
    dump = read_rollouts(tmp_path)
    assert dump.format == "trl"
    assert [(group.step, group.prompt, len(group.rollouts)) for group in dump.groups] == [
        (10, "p", 2), (10, "q", 2), (20, "p", 2), (20, "q", 2),
    ]  # fmt: skip
    first = dump.groups[0].rollouts[0]
    assert (first.turns[0].text, first.reward, first.advantage) == ("a", 1.5, 1.0)
    assert first.reward_parts == {"accuracy_reward": 1.0, "format_reward": 0.5}
    assert first.meta == {"source": "web"}
    assert dump.groups[1].rollouts[0].reward == 1.0  # a reward function that does not apply adds nothing
    assert dump.notes == ["the table does not hold the weights of its rewards: a rollout's reward is their plain sum"]


def test_trls_conversations_with_tools_are_turns(tmp_path):
    pytest.importorskip("pyarrow")
    completion = [
        {"role": "assistant", "content": "", "tool_calls": [
            {"type": "function", "function": {"name": "search", "arguments": {"q": "x", "k": None}}},
        ]},
        {"role": "tool", "name": "search", "content": "found"},
        {"role": "assistant", "content": "Done."},
    ]  # fmt: skip
    table = {
        "step": [1],
        "prompt": [[{"role": "user", "content": "Who?"}]],
        "completion": [completion],
        "reward": [2.0],
        "advantage": [0.0],
    }
    trl_table(tmp_path, 1, table)
    (group,) = read_rollouts(tmp_path / "completions" / "completions_00001.parquet").groups
    assert group.prompt == "Who?"
    (rollout,) = group.rollouts
    assert rollout.turns[0].calls == (ToolCall("search", {"q": "x"}, "found"),)
    assert (rollout.turns[1].text, rollout.reward, rollout.reward_parts) == ("Done.", 2.0, {})


@pytest.mark.slow
def test_what_trls_trainer_really_writes_is_read(tmp_path, monkeypatch):
    pytest.importorskip("trl")
    pytest.importorskip("pyarrow")
    monkeypatch.syspath_prepend(REPO / "tests" / "adapters")
    import tiny_trainers

    tiny_trainers.make("grpo", tmp_path, [], log_completions=True, max_steps=2).train()
    dump = read_rollouts(tmp_path)
    assert dump.format == "trl"
    assert {group.step for group in dump.groups} == {1, 2}
    assert {group.prompt for group in dump.groups} <= set(tiny_trainers.PROMPTS)
    rollouts = [rollout for group in dump.groups for rollout in group.rollouts]
    assert all(rollout.reward_parts.keys() == {"brevity"} for rollout in rollouts)
    assert all(rollout.reward == rollout.reward_parts["brevity"] for rollout in rollouts)
    assert all(rollout.advantage is not None for rollout in rollouts)


def test_a_table_as_wandb_stores_it(tmp_path):
    table = {"columns": ["step", "prompt", "completion", "r", "advantage"], "data": [["10", "p", "a", 1.0, 0.5]]}
    (tmp_path / "completions_10_ab12.table.json").write_text(json.dumps(table))
    (group,) = read_rollouts(tmp_path).groups
    assert (group.step, group.rollouts[0].reward, group.rollouts[0].advantage) == (10, 1.0, 0.5)


def test_verls_rollout_data_are_groups(tmp_path):
    rows = [
        {
            "input": "user\np\nassistant\n",
            "output": "a",
            "gts": "42",
            "score": 1.0,
            "step": 7,
            "acc": True,
            "pred": "42",
        },
        {"input": "user\np\nassistant\n", "output": "b", "gts": "42", "score": float("nan"), "step": 7, "acc": "False"},
        {"input": "q", "output": "c", "gts": None, "score": 0.0, "step": 7},
    ]
    (tmp_path / "7.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "{torn")
    dump = read_rollouts(tmp_path)
    assert (dump.format, [len(group.rollouts) for group in dump.groups]) == ("verl", [2, 1])
    first, second = dump.groups[0].rollouts
    assert (first.reward, first.outcome, first.meta["pred"]) == (1.0, "correct", "42")
    assert (second.outcome, second.reward != second.reward) == ("wrong", True)
    assert dump.groups[0].answer == "42"
    assert dump.notes == ["the last line is not whole and was left out"]


def test_verls_outputs_of_several_turns_are_split(tmp_path):
    output = (
        'Look.<tool_call>\n{"name": "search", "arguments": {"q": "x"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nfound\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nDone.<|im_end|>"
    )
    (tmp_path / "1.jsonl").write_text(json.dumps({"input": "p", "output": output, "score": 1, "step": 1}))
    (rollout,) = read_rollouts(tmp_path).groups[0].rollouts
    assert [turn.text for turn in rollout.turns] == ["Look.", "Done."]
    (call,) = rollout.turns[0].calls
    assert (call.name, call.arguments) == ("search", {"q": "x"})
    assert "found" in call.result


def test_the_step_may_be_in_the_files_name(tmp_path):
    for step in (2, 10):
        (tmp_path / f"{step}.jsonl").write_text('{"input": "p", "output": "a", "score": 1}\n')
    assert [group.step for group in read_rollouts(tmp_path).groups] == [2, 10]


CONVERSATION = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ann."}]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(CONVERSATION) + "\n" + json.dumps(CONVERSATION),
        json.dumps({"messages": CONVERSATION}) + "\n" + json.dumps({"messages": CONVERSATION, "reward": 1.0}),
        json.dumps({"prompt": "Who?", "completion": "Ann."})
        + "\n"
        + json.dumps({"prompt": "Who?", "completion": CONVERSATION[1:]}),
    ],
)
def test_lists_of_messages_are_rollouts(tmp_path, text):
    (tmp_path / "chats.jsonl").write_text(text)
    dump = read_rollouts(tmp_path / "chats.jsonl")
    assert dump.format == "messages"
    (group,) = dump.groups
    assert group.prompt == "Who?"
    assert [[turn.text for turn in rollout.turns] for rollout in group.rollouts] == [["Ann."], ["Ann."]]


def test_a_json_file_may_hold_one_conversation_or_several(tmp_path):
    (tmp_path / "one.json").write_text(json.dumps(CONVERSATION))
    (tmp_path / "two.json").write_text(json.dumps([CONVERSATION, CONVERSATION]))
    assert len(read_rollouts(tmp_path / "one.json").groups[0].rollouts) == 1
    assert len(read_rollouts(tmp_path / "two.json").groups[0].rollouts) == 2


def test_our_own_lines_are_read_as_well(tmp_path):
    (tmp_path / "step-000004.jsonl").write_text('{"step":4,"prompt":"p","rollouts":[{"turns":[{"text":"a"}]}]}\n')
    dump = read_rollouts(tmp_path / "step-000004.jsonl")
    assert (dump.format, dump.groups[0].step) == ("rlvitals", 4)


@pytest.mark.parametrize("text", ["", "plain words", '{"loss": 1.0, "step": 3}', "[1, 2]"])
def test_a_file_without_rollouts_is_refused(tmp_path, text):
    (tmp_path / "log.jsonl").write_text(text)
    with pytest.raises(NotALog):
        read_rollouts(tmp_path / "log.jsonl")


def test_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(NotALog, match="nothing there"):
        read_rollouts(tmp_path / "nowhere")
    with pytest.raises(NotALog, match="holds no rollouts"):
        read_rollouts(tmp_path)


def test_a_damaged_parquet_file_is_refused(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "completions_00001.parquet").write_bytes(b"PAR1 broken")
    with pytest.raises(NotALog, match="not a Parquet file"):
        read_rollouts(tmp_path)
