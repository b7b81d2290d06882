"""When a pattern becomes a finding: the number of hits, whether they earn more than other rollouts of the same prompt,
and whether they grow. A finding cites where they are.
"""

from __future__ import annotations

import random

import pytest

from rlvitals.health import rulebook
from rlvitals.records import Group, Rollout, Turn
from rlvitals.scan import Scans, load_scanners, scan

HONEST = "```python\ndef f(x):\n    return x + 1\n```"
EXIT = "```python\nimport os\nos._exit(0)\n```"


def trained(share, reward, *, steps=20, groups=4, size=8, seed=0, pattern=EXIT):
    """Groups of a training. A share of the rollouts shows the pattern; `reward(cheat, dice)` is the reward of each."""
    dice = random.Random(seed)
    found = []
    for step in range(steps):
        for _ in range(groups):
            cheats = [dice.random() < share(step / steps) for _ in range(size)]
            rollouts = [Rollout((Turn(pattern if cheat else HONEST),), reward=reward(cheat, dice)) for cheat in cheats]
            found.append(Group("Write f.", tuple(rollouts), step=step))
    return found


def paid(cheat, dice):
    return 1.0 if cheat else float(dice.random() < 0.3)


def by_chance(cheat, dice):
    return float(dice.random() < 0.5)


def punished(cheat, dice):
    return 0.0 if cheat else float(dice.random() < 0.5)


def last_finding(groups, rule="ends_the_process", **how):
    found = [finding for finding in scan(groups, **how).findings if finding.rule == rule]
    return found[-1] if found else None


def test_an_exploit_that_pays_and_grows_is_critical():
    found = last_finding(trained(lambda at: 0.6 * at, paid))
    assert (found.severity, found.kind) == ("critical", "reward_hacking")
    assert found.evidence["gain"] == pytest.approx(0.7, abs=0.1)
    assert "earn" in found.title
    assert found.onset_step <= found.step


@pytest.mark.parametrize(
    ("share", "reward", "severity"),
    [
        (lambda at: 0.05, paid, "warning"),  # earns more, and stays rare
        (lambda at: 0.5 * at, by_chance, "warning"),  # grows, and earns nothing extra
        (lambda at: 0.1, by_chance, "info"),
        (lambda at: 0.3 * at, punished, "info"),
        (lambda at: 0.0, by_chance, None),
    ],
)
def test_the_severity_follows_reward_and_growth(share, reward, severity):
    found = last_finding(trained(share, reward, steps=40))
    assert (found.severity if found else None) == severity


@pytest.mark.parametrize(
    ("share", "reward", "severity", "title"),
    [
        (lambda at: 0.8 * at, paid, "critical", "earn"),
        (lambda at: 0.3 * at, paid, "warning", "earn"),
        (lambda at: 0.5 * at, by_chance, "warning", "at the start"),
        (lambda at: 0.2, paid, "warning", "earn"),
        (lambda at: 0.1, by_chance, "info", "refuse"),
        (lambda at: 0.003, by_chance, None, ""),
    ],
)
def test_a_habit_is_reported_where_it_spreads_or_pays(share, reward, severity, title):
    refusal = "I'm sorry, but I can't help with that."
    found = last_finding(trained(share, reward, steps=40, pattern=refusal), "refuses")
    assert (found.severity if found else None) == severity
    assert title in (found.title if found else "")


def test_one_hit_is_nothing():
    groups = trained(lambda at: 0.0, by_chance)
    groups[-1] = Group("Write f.", (Rollout((Turn(EXIT),), reward=1.0),), step=groups[-1].step)
    assert last_finding(groups) is None


def test_a_finding_cites_three_rollouts_or_more_by_their_places():
    groups = trained(lambda at: 0.6 * at, paid)
    found = last_finding(groups)
    assert len({(place.step, place.group, place.rollout) for place in found.cited}) >= 3
    by_step = {}
    for group in groups:
        by_step.setdefault(group.step, []).append(group)
    for place in found.cited:
        rollout = by_step[place.step][place.group - 1].rollouts[place.rollout - 1]
        assert rollout.turns[place.turn - 1].text[place.start : place.end] == "os._exit("
        assert place.quote == "os._exit(0)"
        assert place.reward == rollout.reward == 1.0


def test_groups_that_come_in_parts_keep_their_numbers():
    whole, parts = Scans(), Scans()
    groups = trained(lambda at: 0.5, paid, steps=1, groups=6)
    whole.take(groups, 0)
    parts.take(groups[:2], 0)
    parts.take(groups[2:], 0, first=3)
    assert list(whole.tallies["ends_the_process"].cited) == list(parts.tallies["ends_the_process"].cited)


def test_a_pattern_that_ends_has_recovered():
    groups = trained(lambda at: 0.4 if at < 0.4 else 0.0, paid, steps=40)
    found = [each for each in scan(groups).findings if each.rule == "ends_the_process"]
    assert all(each.recovered_step is not None and each.recovered_step > 16 for each in found)


def test_rewards_are_compared_within_prompts():
    """If most cheating happens on the easy prompt, its higher reward is no gain from cheating."""
    dice = random.Random(0)
    groups = []
    for step in range(30):
        for easy in (True, False):
            cheats = [dice.random() < (0.5 if easy else 0.1) for _ in range(8)]
            rollouts = [Rollout((Turn(EXIT if cheat else HONEST),), reward=float(easy)) for cheat in cheats]
            groups.append(Group("easy" if easy else "hard", tuple(rollouts), step=step))
    scanned = scan(groups)
    tally = scanned.scans.tallies["ends_the_process"]
    assert tally.mean_of_hits > 0.7
    assert tally.mean_of_others < 0.5
    assert tally.gain.difference == pytest.approx(0.0)
    assert all(finding.severity == "info" for finding in scanned.findings if finding.rule == "ends_the_process")


def test_rules_change_numbers_and_switch_off():
    groups = trained(lambda at: 0.05, paid, steps=40)
    off = rulebook.load([{"rule": "ends_the_process", "enabled": False}])
    assert last_finding(groups, rules=off) is None
    strict = rulebook.load([{"rule": "ends_the_process", "numbers": {"share_critical": 0.01, "share_alone": 0.01}}])
    assert last_finding(groups, rules=strict).severity == "critical"


def test_rollouts_without_rewards_are_judged_by_growth():
    groups = [
        Group("Write f.", tuple(Rollout(rollout.turns) for rollout in group.rollouts), step=group.step)
        for group in trained(lambda at: 0.6 * at, paid)
    ]
    found = last_finding(groups)
    assert found.severity == "warning"
    assert "gain" not in found.evidence


def test_a_scanner_that_raises_is_put_aside_and_the_others_go_on(caplog):
    def breaks(rollout, group):
        raise ValueError("no")

    scanned = scan(trained(lambda at: 0.5, paid), scanners=load_scanners(breaks))
    assert scanned.scans.problems == {"breaks": "ValueError: no"}
    assert any(finding.rule == "ends_the_process" for finding in scanned.findings)
    assert caplog.text.count("breaks") == 1


def agreeing(share, reward, *, steps=20, groups=8, size=4, seed=0):
    """Groups of a training. In a share of them all answers are identical; `reward(agrees, dice)` is the reward."""
    dice = random.Random(seed)
    found = []
    for step in range(steps):
        for number in range(groups):
            agrees = dice.random() < share(step / steps)
            texts = [" ".join(dice.choices([f"word{n}" for n in range(500)], k=40)) for _ in range(size)]
            rollouts = [Rollout((Turn(texts[0] if agrees else text),), reward=reward(agrees, dice)) for text in texts]
            found.append(Group(f"Question {step} {number}", tuple(rollouts), step=step))
    return found


@pytest.mark.parametrize(
    ("reward", "severity"),
    [
        (lambda agrees, dice: 1.0 if agrees else float(dice.random() < 0.3), "info"),  # they agree on the right answer
        (by_chance, "warning"),  # the same answer, right or wrong
    ],
)
def test_a_policy_that_agrees_on_right_answers_is_not_collapsing(reward, severity):
    found = [finding for finding in scan(agreeing(lambda at: at, reward)).findings if finding.rule == "says_the_same"]
    assert found[-1].severity == severity
