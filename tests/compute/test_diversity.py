"""The diversity of answers, compared with counts by hand and a plain re-implementation."""

from __future__ import annotations

import itertools

import pytest

from rlvitals import catalog
from rlvitals.compute import diversity, groups, merge
from rlvitals.records import Group, Rollout, ToolCall, Turn

CAT = "the cat sat on the mat today"
DOG = "the dog sat on the mat today"
SUM = "one plus one is two in the end"


def rollout(text, **facts):
    return Rollout(turns=(Turn(text),), reward=0.0, **facts)


def group(*texts):
    return Group(rollouts=tuple(map(rollout, texts)))


def alike(one, other):
    """Jaccard similarity by hand, without functions of the module under test."""

    def cut(text):
        words = text.split()
        return sorted({" ".join(words[at : at + 3]) for at in range(len(words) - 2)})

    left, right = cut(one), cut(other)
    both = [piece for piece in left if piece in right]
    return len(both) / len({*left, *right})


def test_likeness_is_the_share_of_common_pieces():
    # Five pieces each, of which "sat on the", "on the mat" and "the mat today" are common: 3 of 7.
    assert alike(CAT, DOG) == pytest.approx(3 / 7)
    assert diversity.self_similarity([CAT, DOG]) == pytest.approx(alike(CAT, DOG))
    assert diversity.self_similarity([CAT, CAT]) == 1.0
    assert diversity.self_similarity([CAT, SUM]) == 0.0
    assert diversity.self_similarity([CAT]) is None
    three = [CAT, DOG, SUM]
    pairs = [alike(one, other) for one, other in itertools.combinations(three, 2)]
    assert diversity.self_similarity(three) == pytest.approx(sum(pairs) / 3)


def test_distinct_answers_are_counted_without_case_and_spacing():
    assert diversity.distinct_answers(group("It is 4", "it  is 4", "It is 5", "It is 6")) == 0.75
    assert diversity.distinct_answers(group("4")) is None
    assert diversity.distinct_answers(group("", "")) is None


def test_an_answer_is_what_was_recorded_or_the_last_call_or_the_last_text():
    call = ToolCall("answer", {"text": "Paris", "sources": ["a"]})
    assert diversity.answer_of(rollout("so", meta={"answer": "PARIS"})) == "paris"
    ended = Rollout(turns=(Turn("think"), Turn("now", calls=(call,))))
    assert diversity.answer_of(ended) == '{"sources": ["a"], "text": "paris"}'
    assert diversity.answer_of(Rollout(turns=(Turn("a"), Turn(" B  c ")))) == "b c"
    assert diversity.answer_of(Rollout()) == ""


def test_a_steps_numbers():
    row = groups.stats([group(CAT, CAT, DOG, CAT), group(SUM, SUM, SUM, SUM)], names="canonical")
    assert row["group.distinct_answers.mean"].number == pytest.approx((0.5 + 0.25) / 2)
    within = [(3 * 1.0 + 3 * alike(CAT, DOG)) / 6, 1.0]
    assert row["group.self_similarity.mean"].number == pytest.approx(sum(within) / 2)
    # The two groups have no piece in common.
    assert row["group.prompt_contrast.mean"].number == pytest.approx(sum(within) / 2)


def test_a_template_for_every_prompt_has_no_contrast():
    row = groups.stats([group(CAT, DOG, CAT), group(CAT, DOG, CAT), group(CAT, DOG, CAT)], names="canonical")
    within = (1.0 + 2 * alike(CAT, DOG)) / 3
    assert row["group.prompt_contrast.mean"].number == pytest.approx(within - 1.0)


def test_numbers_merge_over_ranks():
    one, other = ([group(CAT, DOG), group(SUM, SUM)], [group(SUM, CAT), group(DOG, DOG), group(CAT, CAT)])
    parts = merge(groups.stats(part, names="canonical") for part in (one, other))
    whole = groups.stats([*one, *other], names="canonical")
    for name in ("group.distinct_answers.mean", "group.self_similarity.mean"):
        assert parts[name].number == pytest.approx(whole[name].number)


def test_texts_without_end_are_cut_and_large_groups_sampled():
    long = " ".join(str(number) for number in range(5 * diversity.MOST_WORDS))
    assert len(diversity.pieces(long)) == diversity.MOST_WORDS - diversity.GRAM + 1
    many = [str(number) for number in range(3 * diversity.MOST_ROLLOUTS)]
    assert diversity.self_similarity(many) == 0.0


@pytest.mark.parametrize(
    "name", ["group.distinct_answers.mean", "group.self_similarity.mean", "group.prompt_contrast.mean"]
)
def test_the_catalogue_knows_them(name):
    assert catalog.find(name)[0].metric.id == name
