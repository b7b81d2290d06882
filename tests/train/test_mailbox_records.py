"""Episodes as rollouts and groups: recorded, read back, and credited turn by turn."""

from __future__ import annotations

import pytest

import rlvitals
from rlvitals.compute import groups
from rlvitals.errors import ConfigError
from rlvitals.train.mailbox.episode import Episode, group
from rlvitals.train.mailbox.worlds import mini, solution

WORLD = mini(0, families=("lead",))
QUESTION = WORLD.questions[0]
SEARCH, READ, ANSWER = solution(QUESTION)


def play(*texts, question=QUESTION, max_turns=4):
    episode = Episode(question, WORLD.mailbox, style="tags", max_turns=max_turns)
    for text in texts:
        episode.step(text, completion_tokens=len(text))
    return episode


def test_a_rollout_holds_texts_calls_and_rewards():
    made = play(SEARCH, READ, ANSWER).rollout()
    assert (made.outcome, made.stop, made.error, made.reward) == ("correct", "answered", "", 2.0)
    assert made.reward_parts == {"perfect": 2.0}
    assert [turn.text for turn in made.turns] == [SEARCH, READ, ANSWER]
    assert [turn.outcome for turn in made.turns] == ["search_hit", "read_hit", "answer_correct"]
    (call,) = made.turns[1].calls
    assert (call.name, call.arguments) == ("read_email", {"message_id": QUESTION.message_ids[0]})
    assert call.result == f"{QUESTION.question.removesuffix(' ?')} is {QUESTION.answer}"
    assert made.trainable_tokens is None
    assert made.total_trainable == len(SEARCH) + len(READ) + len(ANSWER)
    assert made.rubric["ever_read_right_email"] is True


def test_every_end_has_its_word():
    ends = {
        "wrong": play("<answer>nobody</answer>"),
        "idk": play("<answer>I don't know</answer>"),
        "parse_error": play("hello"),
        "bad_tool_name": play("<fly>x</fly>"),
        "bad_tool_args": play("<search> </search>"),
        "out_of_turns": play(SEARCH, max_turns=1),
    }
    assert {name: episode.rollout().outcome for name, episode in ends.items()} == {name: name for name in ends}
    assert [bool(episode.rollout().error) for episode in ends.values()] == [False, False, True, True, True, False]
    assert ends["bad_tool_args"].rollout().turns[0].calls[0].error == "bad_arguments"
    running = play(SEARCH).rollout()
    assert (running.outcome, running.stop) == ("", "")


def test_a_group_is_credited_recorded_and_read_back(tmp_path):
    episodes = [play(SEARCH, READ, ANSWER), play(SEARCH, "<answer>nobody</answer>"), play("hello"), play(*[SEARCH] * 4)]
    (done,) = groups.advantages([group(episodes)])
    rewards = [2.0, -1 + 0.1 + 0.1, -2 + 0.1, 0.1 + 0.1 - 3 * 0.15]
    assert [each.reward for each in done.rollouts] == pytest.approx(rewards)
    assert done.kept
    first = done.rollouts[0]
    assert first.turns[0].advantage == pytest.approx(max(first.advantage + 0.8, 0.3))
    assert first.turns[2].advantage == pytest.approx(max(first.advantage + 1.5, 1.0))
    assert len(done.early_rollouts) == 3  # the last one used up its turns
    with rlvitals.start(tmp_path / "run", strict=True) as run:
        run.log_groups([done], step=1)
    (stored,) = rlvitals.open_run(tmp_path / "run").rollouts(1)
    assert (stored.id, stored.answer, stored.sources) == (QUESTION.id, QUESTION.answer, QUESTION.message_ids)
    assert stored.rollouts == done.rollouts


def test_a_group_holds_one_question():
    other = play(question=WORLD.questions[1])
    with pytest.raises(ConfigError, match="one question"):
        group([play(), other])
