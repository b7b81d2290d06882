"""The agent trainer: masks, batched conversations, resuming, modes, printed output, and that it learns."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import rlvitals
from conftest import unexplained
from rlvitals.errors import ConfigError
from rlvitals.records import Group, Rollout, Turn
from rlvitals.train import grpo, models, recipe
from rlvitals.train.grpo import warm_start
from rlvitals.train.grpo.conversation import Dialogue, Trajectory, as_message, converse
from rlvitals.train.grpo.settings import GRPOSettings as Settings
from rlvitals.train.grpo.update import Played, batch_of, token_weights
from rlvitals.train.mailbox.episode import Episode, Observation, SimpleEpisode
from rlvitals.train.mailbox.graders import OFFLINE
from rlvitals.train.mailbox.tools import TOOLS
from rlvitals.train.mailbox.worlds import mini
from rlvitals.train.sampling import Sampling, answer_stats

pytestmark = pytest.mark.slow

HOW, CONTEXT = Sampling(max_new_tokens=24, eos_id=2, pad_id=0), 288


@pytest.fixture(scope="module")
def shipped() -> models.Loaded:
    return models.load(str(warm_start.SHIPPED["careless"]), None)


def settings(folder: Path, **given: Any) -> Settings:
    small = {
        "groups_per_step": 3,
        "rollouts_per_group": 4,
        "held_out": 10,
        "display": "none",
        "output_dir": str(folder),
    }
    return recipe.load("grpo", Settings, None, {**small, **given})


def conversations(shipped: models.Loaded, rollouts: int = 6) -> list[Trajectory]:
    world = mini(seed=3)
    episodes = [Episode(question, world.mailbox, max_turns=5, style="tags") for question in world.questions[:rollouts]]
    generator = torch.Generator().manual_seed(1)
    return converse(
        shipped.model, Dialogue(shipped.tokenizer, None), episodes, HOW, max_context=CONTEXT, generator=generator
    )


# Conversations


@pytest.mark.parametrize("start", warm_start.SHIPPED)
def test_the_shipped_checkpoints_are_small(start: str) -> None:
    assert 0 < sum(path.stat().st_size for path in warm_start.SHIPPED[start].iterdir()) < 3_000_000


def test_the_examples_of_the_syntax_are_well_formed_and_call_tools_by_lot(shipped: models.Loaded) -> None:
    rows = warm_start.lessons("syntax", Dialogue(shipped.tokenizer, None), steps=1, batch=96, seed=5)(1)
    rubrics = [row.episode.rubric for row in rows]
    assert not any(rubric.cant_parse_tool_call or rubric.bad_tool_call_args for rubric in rubrics)
    assert shipped.tokenizer.unk_token_id not in {token for row in rows for token in row.ids}
    asked = [row for row in rows if row.episode.max_turns == warm_start.MAX_TURNS]
    called = [turn.calls[0].name for row in asked for turn in row.episode.turns]
    assert {called.count(name) / len(called) > 0.1 for name in set(called)} == {True}
    right = [row.episode.rubric.answer_correct for row in asked]
    assert sum(right) < 0.4 * len(right)
    two = [row for row in asked if len(row.episode.question.message_ids) > 1]
    assert two
    assert not any(row.episode.rubric.ever_read_right_email and row.episode.rubric.answer_correct for row in two)


def test_the_careless_agent_mostly_follows_the_solution_until_the_last_fifth_of_the_steps(
    shipped: models.Loaded,
) -> None:
    deal = warm_start.lessons("careless", Dialogue(shipped.tokenizer, None), steps=10, batch=150, seed=5)
    right = {}
    for step in (8, 9):
        episodes = [row.episode for row in deal(step)]
        assert 0.03 < sum(isinstance(episode, SimpleEpisode) for episode in episodes) / 150 < 0.2
        right[step] = sum(episode.rubric.answer_correct for episode in episodes) / 150
    assert right[8] > 0.75
    assert right[9] < 0.55


def test_every_conversation_ends_with_an_outcome_and_its_tokens_say_what_its_turns_say(shipped: models.Loaded) -> None:
    for row in conversations(shipped):
        assert row.episode.is_over
        assert len(row.turns) == row.episode.rubric.num_turns
        assert len(row.ids) == len(row.own) == len(row.logprobs)
        spans = [place for turn in row.turns for place in range(turn.start, turn.end)]
        assert spans == [place for place, mark in enumerate(row.own) if mark]
        for turn, recorded in zip(row.turns, row.episode.turns, strict=True):
            assert shipped.tokenizer.decode(row.ids[turn.start : turn.end]).removesuffix("<eos>") == recorded.text


def test_what_the_tools_return_is_read_and_not_the_models_own(shipped: models.Loaded) -> None:
    row = next(row for row in conversations(shipped, 20) if len(row.turns) > 1 and row.episode.turns[0].calls)
    between = row.ids[row.turns[0].end : row.turns[1].start]
    assert row.episode.turns[0].calls[0].result in shipped.tokenizer.decode(between)
    assert not any(row.own[row.turns[0].end : row.turns[1].start])


def test_log_probs_of_the_cached_batch_are_those_of_one_pass_over_each_conversation(shipped: models.Loaded) -> None:
    rows = conversations(shipped)
    assert len({len(row.turns) for row in rows}) > 1, (
        "the rows must drop out at different turns for this to say anything"
    )
    for row in rows:
        ids = torch.tensor([row.ids])
        with torch.no_grad():
            logprobs = torch.log_softmax(shipped.model(ids).logits[0], dim=-1)
        for place, mark in enumerate(row.own):
            if mark:
                assert row.logprobs[place] == pytest.approx(float(logprobs[place - 1, row.ids[place]]), abs=1e-4)


def test_a_conversation_without_room_is_cut_off(shipped: models.Loaded) -> None:
    world = mini(seed=3)
    episodes = [Episode(question, world.mailbox, style="tags") for question in world.questions[:4]]
    generator = torch.Generator().manual_seed(1)
    dialogue = Dialogue(shipped.tokenizer, None)
    rows = converse(shipped.model, dialogue, episodes, HOW, max_context=60, generator=generator)
    assert all(row.episode.is_over and len(row.ids) <= 60 for row in rows)
    assert "cut_off" in {row.episode.outcome for row in rows}
    no_room = Episode(world.questions[0], world.mailbox, style="tags")
    converse(shipped.model, dialogue, [no_room], HOW, max_context=10)
    assert (no_room.outcome, no_room.rubric.num_turns) == ("cut_off", 0)


def test_in_the_simple_mode_the_messages_stand_in_the_prompt_and_one_turn_is_all() -> None:
    world = mini(seed=0)
    question = next(question for question in world.questions if len(question.message_ids) == 2)
    episode = SimpleEpisode(question, world.mailbox, max_turns=1, style="tags")
    shown = "\n".join(str(message["content"]) for message in episode.messages())
    assert all(f"{message_id} " in shown for message_id in question.message_ids)
    episode.step(f"<answer>{question.answer}</answer>")
    assert episode.outcome == "answered"
    assert episode.rubric.answer_correct


# Chat templates

CHATML = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Letters:
    """A tokenizer whose tokens are characters, and `<|im_end|>`."""

    eos_token, eos_token_id, pad_token_id = "<|im_end|>", 0, None

    def __init__(self, template: str) -> None:
        self.chat_template = template

    def apply_chat_template(self, messages: Any, tools: Any = None, **_: Any) -> str:
        from jinja2 import Environment

        return (
            Environment()
            .from_string(self.chat_template)
            .render(messages=messages, tools=tools, add_generation_prompt=True)
        )

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        pieces = text.split(self.eos_token)
        ids = [ord(letter) for letter in pieces[0]]
        for piece in pieces[1:]:
            ids += [0, *(ord(letter) for letter in piece)]
        return {"input_ids": ids}

    def decode(self, ids: list[int]) -> str:
        return "".join(self.eos_token if number == 0 else chr(number) for number in ids)


def test_what_follows_a_message_is_what_the_template_puts_there_and_the_end_comes_once() -> None:
    dialogue = Dialogue(Letters(CHATML), TOOLS)
    seen = [Observation("read_email", "the mail")]
    after = "\n<|im_start|>tool\nthe mail<|im_end|>\n<|im_start|>assistant\n"
    assert dialogue.tokenizer.decode(dialogue.go_on(seen, has_ended=True)) == after
    assert dialogue.tokenizer.decode(dialogue.go_on(seen, has_ended=False)) == "<|im_end|>" + after
    assert "search_emails" in dialogue.tokenizer.decode(dialogue.begin([{"role": "user", "content": "Where?"}]))


def test_equal_results_of_two_calls_keep_the_ids_of_their_calls() -> None:
    named = CHATML.replace("{{ m.content }}", "{{ m.tool_call_id }}: {{ m.content }}")
    dialogue = Dialogue(Letters(named), TOOLS)
    for call_id in ("first", "second"):
        after = dialogue.go_on([Observation("read_email", "the mail", call_id)], has_ended=True)
        assert f"tool\n{call_id}: the mail" in dialogue.tokenizer.decode(after)


def test_a_template_that_knows_no_tools_gets_them_in_its_prompt() -> None:
    plain = CHATML.split("{% endif %}", 1)[1]
    dialogue = Dialogue(Letters(plain), TOOLS)
    messages = [{"role": "system", "content": "Help."}, {"role": "user", "content": "Where?"}]
    prompt = dialogue.tokenizer.decode(dialogue.begin(messages))
    assert "Help." in prompt
    assert '"search_emails"' in prompt
    after = dialogue.tokenizer.decode(dialogue.go_on([Observation("read_email", "the mail")], has_ended=True))
    assert "user\n<tool_response>\nthe mail\n</tool_response>" in after


def test_a_model_without_a_chat_template_is_refused() -> None:
    with pytest.raises(ConfigError, match="no chat template"):
        Dialogue(Letters(""), TOOLS)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "read_email", "parameters": {"message_id": "m7"}}',
        '<|python_tag|>{"name": "read_email", "arguments": {"message_id": "m7"}}<|eom_id|>',
        '[TOOL_CALLS][{"name": "read_email", "arguments": {"message_id": "m7"}}]',
        '<tool_call>\n{"name": "read_email", "arguments": {"message_id": "m7"}}\n</tool_call>',
    ],
)
def test_tool_calls_are_read_in_the_usual_forms(text: str) -> None:
    world = mini(seed=0)
    episode = Episode(world.questions[0], world.mailbox)
    seen = episode.step(as_message(text))
    assert [one.tool for one in seen] == ["read_email"]


@pytest.mark.parametrize("text", ["", "{", "[]", "[1]", '{"name": 3}', "[TOOL_CALLS] nothing", "{" * 5000])
def test_what_is_no_call_stays_a_text(text: str) -> None:
    assert as_message(text) == text


# Tensors


def played(shipped: models.Loaded) -> Played:
    rows = conversations(shipped, 4)
    rollouts = [
        Rollout(turns=tuple(Turn(advantage=10.0 * number + turn) for turn in range(len(row.turns))), advantage=1.0)
        for number, row in enumerate(rows)
    ]
    groups = [Group(rollouts=tuple(rollouts[:2]), kept=True), Group(rollouts=tuple(rollouts[2:]), kept=False)]
    return Played(groups, [rows[:2], rows[2:]])


def test_a_batch_holds_the_kept_groups_alone_and_each_turns_advantage_on_its_own_tokens(shipped: models.Loaded) -> None:
    step = played(shipped)
    kept = step.kept()
    assert [rollout for rollout, _ in kept] == list(step.groups[0].rollouts)
    batch = batch_of(kept, pad_id=0, device="cpu", rows=3)
    assert len(batch.rows.ids) == 3
    assert batch.own[2].sum() == 0
    for number, (rollout, row) in enumerate(kept):
        assert batch.own[number].sum() == sum(row.own)
        expected = {turn.advantage for turn in rollout.turns}
        assert set(batch.advantages[number][batch.own[number] > 0].tolist()) == expected
        assert not batch.advantages[number][batch.own[number] == 0].any()


def test_taking_rows_cuts_padding_and_changes_no_number(shipped: models.Loaded) -> None:
    batch = batch_of(played(shipped).kept(), pad_id=0, device="cpu")
    with torch.no_grad():
        together = answer_stats(shipped.model, batch.rows).logprobs * batch.own
        for place in range(len(batch.own)):
            alone = batch.take(torch.tensor([place])).without_padding()
            assert alone.rows.mask.all()
            assert torch.allclose(
                (answer_stats(shipped.model, alone.rows).logprobs * alone.own).sum(), together[place].sum(), atol=1e-4
            )


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("token-mean", 2.0), ("seq-mean-token-mean", 3.0), ("seq-mean-token-sum-norm", (3.0 + 5.0) / (2 * 4))],
)
def test_token_weights_give_the_mean_of_their_mode(mode: str, expected: float) -> None:
    losses, own = torch.tensor([[1.0, 1.0, 1.0], [5.0, 7.0, 7.0]]), torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    weights = token_weights(own, mode, tokens=4, rows=2, horizon=4)
    assert float((losses * weights).sum()) == pytest.approx(expected)


# Settings


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rollouts_per_group": 1}, "at least 2"),
        ({"reward": "documnt"}, "did you mean 'document'|document"),
        ({"grader": "judge"}, "judge_url"),
        ({"mailbox": "mine"}, "no file"),
        ({"mailbox": "generated"}, "tiny model only knows"),
        ({"families": ("nothing",)}, "families"),
        ({"mode": "maskd"}, "masked"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_is_written(
    tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        grpo.train(settings(tmp_path / "run", **given))
    assert not (tmp_path / "run").exists()


# Training


def test_a_short_training_records_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """tests/learn checks that it learns, which takes more steps and seeds; test_losses.py checks the update."""
    outcome = grpo.train(settings(tmp_path / "run", display="plain", verbose=True, max_steps=2, eval_steps=2))
    assert outcome.status == "finished"
    assert evaluation(tmp_path / "run", 2)["beat_rate"] is not None
    run = rlvitals.open_run(tmp_path / "run")
    rows = [row.numbers for row in run.iterate()]
    assert len(rows) == 2
    for name in ("train/groups_kept", "train/groups_filtered", "train/num_early_exit", "reward", "kl", "grad_norm"):
        assert all(name in row for row in rows), name
    assert not any("group.kept_count" in row for row in rows)  # it has the document's name instead
    assert unexplained(tmp_path / "run") == []
    groups = run.rollouts(2)
    assert len(groups) == 3
    assert all(len(group.rollouts) == 4 for group in groups)
    printed = capsys.readouterr().err
    for words in (
        "Turn-by-Turn Advantage Table:", "STEP PHASE 1: ROLLOUT COLLECTION", "Groups kept for training:",
        "Grad norm (before clipping)", "Trainable tokens:", "Eval stats saved to:",
    ):  # fmt: skip
        assert words in printed, words


def test_a_killed_training_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    """The row of both steps is logged after the resume, which continues between them."""
    given = {"max_steps": 2, "save_steps": 1, "eval_steps": 1, "grpo_epochs": 2, "minibatch_size": 6, "keep_last": None,
             "logging_steps": 2}  # fmt: skip
    grpo.train(settings(tmp_path / "whole", **given))
    code = (
        "import os; from rlvitals.train import grpo; from rlvitals.train.grpo.settings import GRPOSettings\n"
        "step = grpo.GrpoTrainer._one_step\n"
        "def dying(self):\n"
        "    if self.step == 2: os.kill(os.getpid(), 9)\n"
        "    return step(self)\n"
        "grpo.GrpoTrainer._one_step = dying\n"
        f"grpo.train({settings(tmp_path / 'broken', **given)!r})\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == -9
    grpo.train(settings(tmp_path / "broken", resume_from="last", **given))
    whole, broken = (rows(tmp_path / name) for name in ("whole", "broken"))
    assert [row["step"] for row in broken] == [2]
    for name in ("reward", "loss", "kl", "grad_norm", "entropy", "train/num_early_exit"):
        assert [row[name] for row in broken] == pytest.approx([row[name] for row in whole], abs=1e-5), name
    assert evaluation(tmp_path / "broken", 2) | {"eval_time": 0} == evaluation(tmp_path / "whole", 2) | {"eval_time": 0}


def test_rollout_mode_collects_and_trains_nothing(tmp_path: Path) -> None:
    outcome = grpo.train(settings(tmp_path / "run", mode="rollout", max_steps=2))
    assert outcome.steps == 2
    assert [len(rlvitals.open_run(tmp_path / "run").rollouts(step)) for step in (1, 2)] == [3, 3]
    assert not list((tmp_path / "run").glob("checkpoint-*"))
    assert "grad_norm" not in rows(tmp_path / "run")[0]


def test_simple_mode_answers_in_one_turn(tmp_path: Path) -> None:
    grpo.train(settings(tmp_path / "run", mode="simple", max_steps=1, reward="plain"))
    groups = rlvitals.open_run(tmp_path / "run").rollouts(1)
    assert {len(rollout.turns) for group in groups for rollout in group.rollouts} == {1}


def test_answers_that_cannot_be_graded_are_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = OFFLINE["exact"]

    def fails_on_guesses(question: Any, answer: str, sources: Any) -> Any:
        if not sources:
            raise MemoryError
        return right(question, answer, sources)

    monkeypatch.setitem(OFFLINE, "exact", fails_on_guesses)
    outcome = grpo.train(settings(tmp_path / "run", grader="exact", max_steps=2, display="plain"))
    assert outcome.status == "finished"
    groups = [group for step in (1, 2) for group in rlvitals.open_run(tmp_path / "run").rollouts(step)]
    missing = [rollout.reward is None for group in groups for rollout in group.rollouts]
    logged = rows(tmp_path / "run")
    assert sum(missing) / len(missing) == pytest.approx(sum(row["reward.unscorable_fraction"] for row in logged) / 2)
    assert 0 < sum(missing) < len(missing)
    for step, row in enumerate(logged, 1):
        judged = [one for group in groups[3 * step - 3 : 3 * step] for one in group.rollouts if one.reward is not None]
        parts = {part for one in judged for part in one.reward_parts}
        assert parts
        for part in parts:
            mean = sum(one.reward_parts.get(part, 0.0) for one in judged) / len(judged)
            assert row[f"rewards/{part}/mean"] == pytest.approx(mean)
    evaluated = [json.loads(path.read_text()) for path in (tmp_path / "run" / "eval_logs").glob("eval_step_*.json")]
    assert len(evaluated) == 2  # at the start and at the end
    assert all(0 < one["total_samples"] < 10 for one in evaluated)  # of 10 questions, those that could be graded
    assert "answers could not be graded" in capsys.readouterr().err


def test_when_every_group_is_filtered_the_counts_are_true_and_nothing_is_trained(tmp_path: Path) -> None:
    grpo.train(settings(tmp_path / "run", max_steps=1, min_group_std=100.0, dynamic_sampling=1))
    (row,) = rows(tmp_path / "run")
    assert (row["train/groups_kept"], row["train/groups_filtered"]) == (0, 6)
    assert row["train/num_early_exit"] > 0
    assert "grad_norm" not in row
    before, after = (
        models.load(str(place), None).model for place in (warm_start.SHIPPED["careless"], tmp_path / "run/final_model")
    )
    for old, new in zip(before.parameters(), after.parameters(), strict=True):
        assert torch.equal(old, new)


def test_training_stops_at_the_target_accuracy(tmp_path: Path) -> None:
    outcome = grpo.train(settings(tmp_path / "run", max_steps=4, eval_steps=1, target_accuracy=0.01))
    assert (outcome.status, outcome.steps) == ("stopped", 1)
    assert "reached the target" in outcome.verdict
    assert "progress_to_target" in rlvitals.open_run(tmp_path / "run").metrics
    assert unexplained(tmp_path / "run") == []


def test_a_model_from_nothing_is_warmed_up_and_kept_for_the_kl(tmp_path: Path) -> None:
    grpo.train(settings(tmp_path / "run", max_steps=1, warm_up_steps=2, warm_up_batch=4, min_group_std=0.0))
    assert (tmp_path / "run" / "warm_start" / "model.safetensors").is_file()
    assert rows(tmp_path / "run")[0]["kl"] == pytest.approx(0.0, abs=1e-6)


def test_the_example_trains_the_same_mailbox_through_trl(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    example = Path(__file__).parents[2] / "examples" / "trl_mailbox.py"
    subprocess.run([sys.executable, str(example), str(tmp_path), "--steps", "1"], check=True, capture_output=True)
    (row,) = rows(tmp_path)
    assert row["tools/call_frequency"] > 0.5
    assert 0 < row["rewards/correct/mean"] < 1


def rows(folder: Path) -> list[dict[str, float]]:
    return [{"step": row.step, **row.numbers} for row in rlvitals.open_run(folder).iterate()]


def evaluation(folder: Path, step: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "eval_logs" / f"eval_step_{step:04d}.json").read_text())
    return found
