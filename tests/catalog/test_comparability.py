"""The check that prevents overlaying different quantities in one chart."""

from __future__ import annotations

import pytest

from rlvitals import catalog


def meaning(name: str, framework: str) -> catalog.Match:
    return catalog.find(name, framework)[0]


@pytest.mark.parametrize(
    ("left", "right", "verdict"),
    [
        (("actor/ppo_kl", "verl"), ("actor/ppo_kl", "verl"), "same"),
        (("actor/ppo_kl", "verl"), ("train/ppo_kl", "openrlhf"), "same"),
        (("actor/ppo_kl", "verl"), ("actor/policykl", "roll"), "convert"),
        (("perf/mfu/actor", "verl"), ("perf/mfu", "prime_rl"), "convert"),
        (("completions/clipped_ratio", "trl_grpo"), ("response_length/clip_ratio", "verl"), "caution"),
        (("kl", "trl_grpo"), ("objective/kl", "trl_ppo"), "different"),
        (("kl", "trl_grpo"), ("kl", "trl_kto"), "different"),
        (("reward", "trl_grpo"), ("entropy", "trl_grpo"), "different"),
    ],
)
def test_two_series_are_judged_by_what_they_are(left, right, verdict):
    assert catalog.compare(meaning(*left), meaning(*right)).verdict == verdict
    assert catalog.compare(meaning(*right), meaning(*left)).verdict == verdict


def test_a_refusal_says_why():
    reason = catalog.compare(meaning("kl", "trl_grpo"), meaning("objective/kl", "trl_ppo")).reason
    assert "k3" in reason
    assert "k1" in reason


def test_unknown_metrics_compare_by_name_alone():
    assert catalog.compare(None, None, same_name=True).verdict == "same"
    assert catalog.compare(None, meaning("reward", "trl_grpo")).verdict == "different"


@pytest.mark.parametrize(
    ("name", "framework", "logged", "concept"),
    [
        ("actor/policykl", "roll", -0.02, 0.02),
        ("perf/mfu", "prime_rl", 45.0, 0.45),
        ("val/stop_rate", "open_instruct", 0.9, 0.1),
        ("scoring_time_ms", "trl_async_grpo", 1500.0, 1.5),
        ("reward", "trl_grpo", 0.7, 0.7),
    ],
)
def test_values_convert_where_a_caveat_allows_it(name, framework, logged, concept):
    assert catalog.to_concept(meaning(name, framework), logged) == pytest.approx(concept)
