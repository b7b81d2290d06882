"""Tokens that the agent trainer records: their content, their number, and that its metrics follow from them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import rlvitals
from rlvitals.compute.recomputation import recheck
from rlvitals.config import by_last_name
from rlvitals.records import TRAINED_ROLLOUTS, Group, Rollout, Turn
from rlvitals.train import grpo, models, recipe
from rlvitals.train.grpo import traces, warm_start
from rlvitals.train.grpo.conversation import Dialogue, converse
from rlvitals.train.grpo.settings import GRPOSettings as Settings
from rlvitals.train.grpo.update import Played
from rlvitals.train.mailbox.episode import Episode
from rlvitals.train.mailbox.worlds import mini
from rlvitals.train.sampling import Sampling

pytestmark = pytest.mark.slow


def settings(folder: Path, **given: Any) -> Settings:
    small = {"groups_per_step": 2, "rollouts_per_group": 4, "held_out": 2, "display": "none", "max_steps": 1,
             "eval_steps": 50, "trace_rollouts": 100, "names": "canonical", "output_dir": str(folder)}  # fmt: skip
    return recipe.load("grpo", Settings, None, {**small, **given})


def checks(folder: Path) -> list[Any]:
    view = rlvitals.open_run(folder)
    config = by_last_name({key: value for key, value in view.config.items() if key != "rlvitals"})
    rows = {row.step: row.numbers for row in view.iterate()}
    return [recheck(view.rollouts(step), row, config=config, algorithm="grpo") for step, row in rows.items() if step]


@pytest.mark.parametrize(
    "given",
    [
        {"microbatch_size": 3},
        {"aggregation": "seq-mean-token-mean", "minibatch_size": 4, "microbatch_size": 3, "advantages": "turn"},
        {"aggregation": "seq-mean-token-sum-norm", "minibatch_size": 4, "microbatch_size": 3, "max_context": 288},
    ],
    ids=lambda given: given.get("aggregation", "token-mean"),
)
def test_every_number_of_the_update_comes_out_of_the_recorded_tokens(tmp_path: Path, given: dict[str, Any]) -> None:
    grpo.train(settings(tmp_path / "run", seed=1, **given))
    found = checks(tmp_path / "run")
    assert found
    for each in found:
        assert each.is_whole
        assert {"policy.loss", "train.loss", "policy.ratio.max", "entropy.mean", "kl_ref.k3"} <= set(each.compared)
        assert each.differences == ()
    view = rlvitals.open_run(tmp_path / "run")
    assert not [finding for finding in view.findings if finding.rule.startswith("recomputed")]
    traced = [each for group in view.rollouts(1) for each in group.rollouts if each.trace is not None]
    assert all(group.meta[TRAINED_ROLLOUTS] == len(traced) for group in view.rollouts(1))
    for rollout in traced:
        trace, text = rollout.trace, "".join(rollout.trace.texts)
        assert all(turn.text in text for turn in rollout.turns)
        assert sum(trace.trained) == rollout.trainable_tokens
        assert set(trace.turns) == set(range(len(rollout.turns)))
        assert len(trace.new_logprobs) == len(trace.entropies) == len(trace.ids)
        assert all(number == round(number, 5) for number in trace.logprobs)


def test_several_passes_record_no_single_ratio_and_a_loss_that_is_scaled_is_found(tmp_path: Path, monkeypatch) -> None:
    grpo.train(settings(tmp_path / "twice", grpo_epochs=2))
    kept = [
        each for group in rlvitals.open_run(tmp_path / "twice").rollouts(1) for each in group.rollouts if each.trace
    ]
    assert kept
    assert all(each.trace.logprobs and not each.trace.new_logprobs for each in kept)

    improve = grpo.GrpoTrainer.improve

    def scaled(self, batch):
        row = improve(self, batch)
        loss = row["train.loss"]
        return row | {"train.loss": 4.0 * float(loss)}

    monkeypatch.setattr(grpo.GrpoTrainer, "improve", scaled)
    grpo.train(settings(tmp_path / "scaled", minibatch_size=4, seed=1))
    (finding,) = [one for one in rlvitals.open_run(tmp_path / "scaled").findings if one.rule.startswith("recomputed")]
    assert finding.rule == "recomputed_loss_scale"
    assert finding.evidence["factor"] == 4
    assert finding.evidence["count_of"] == "rollouts of a group"


def test_rollouts_of_an_update_that_fails_are_recorded(tmp_path: Path, monkeypatch) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(grpo.GrpoTrainer, "improve", fails)
    with pytest.raises(RuntimeError, match="out of memory"):
        grpo.train(settings(tmp_path / "run"))
    assert len(rlvitals.open_run(tmp_path / "run").rollouts(1)) == 2


@pytest.fixture(scope="module")
def played() -> Played:
    shipped, world = models.load(str(warm_start.SHIPPED["careless"]), None), mini(seed=3)
    episodes = [Episode(question, world.mailbox, max_turns=5, style="tags") for question in world.questions[:6]]
    dialogue, generator = Dialogue(shipped.tokenizer, None), torch.Generator().manual_seed(1)
    how = Sampling(24, dialogue.eos_id, dialogue.pad_id)
    rows = converse(shipped.model, dialogue, episodes, how, max_context=288, generator=generator)
    rollouts = [Rollout(turns=tuple(Turn() for _ in row.turns), reward=1.0, advantage=0.5) for row in rows]
    groups = [Group(rollouts=tuple(rollouts[:3]), kept=True), Group(rollouts=tuple(rollouts[3:]), kept=False)]
    return Played(groups, [rows[:3], rows[3:]])


def test_so_many_are_chosen_of_those_that_are_trained_on(played: Played, monkeypatch) -> None:
    rows = [row for _, row in played.kept()]
    assert rows == played.trajectories[0]
    assert set(traces.chosen(rows, 100, 1)) == set(rows)
    assert len(traces.chosen(rows, 2, 1)) == 2
    assert len({tuple(traces.chosen(rows, 2, step)) for step in range(9)}) > 3  # others every step
    lengths = [len(row.ids) - row.prompt for row in rows]
    monkeypatch.setattr(traces, "MOST_TOKENS", min(lengths))
    assert len(traces.chosen(rows, 100, 1)) <= 1


def test_without_an_update_a_trace_holds_what_the_sampler_saw(played: Played) -> None:
    tokenizer = models.load(str(warm_start.SHIPPED["careless"]), None).tokenizer
    groups = traces.with_traces(played, [played.trajectories[1][2]], tokenizer, seen={})
    assert [rollout.trace is not None for group in groups for rollout in group.rollouts] == [False] * 5 + [True]
    trace, row = groups[1].rollouts[2].trace, played.trajectories[1][2]
    assert list(trace.ids) == row.ids[row.prompt :]
    assert "".join(trace.texts) == tokenizer.decode(trace.ids)
    assert all(math.isclose(x, y) for x, y in zip(trace.engine_logprobs, row.logprobs[row.prompt :], strict=True))
    assert not trace.logprobs


def test_a_trace_has_the_numbers_of_its_own_rollout(played: Played) -> None:
    tokenizer = models.load(str(warm_start.SHIPPED["careless"]), None).tokenizer
    longest = max(len(row.ids) - row.prompt for row in played.trajectories[0])
    entropies = torch.arange(3.0)[:, None].expand(3, longest)  # of each rollout that was trained on
    chosen = [played.trajectories[0][2]]
    groups = traces.with_traces(played, chosen, tokenizer, seen={"entropies": entropies}, trained=3)
    assert set(groups[0].rollouts[2].trace.entropies) == {2.0}
    assert [group.meta[TRAINED_ROLLOUTS] for group in groups] == [3, 3]


class Bytes:
    """A tokenizer whose tokens are bytes: a character may need several."""

    def decode(self, ids, **_: Any) -> str:
        return bytes(ids).decode("utf-8", "replace")


def test_a_character_of_several_tokens_stands_with_the_last_of_them() -> None:
    text = "aé€b"
    texts = traces.token_texts(Bytes(), list(text.encode()))
    assert texts == ["a", "", "é", "", "", "€", "b"]
    assert "".join(traces.token_texts(Bytes(), [97, 0xE2])) == "a\ufffd"
