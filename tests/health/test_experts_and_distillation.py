"""Expert routing and on-policy distillation on generated runs: only planted trouble is reported."""

from __future__ import annotations

from math import exp
from random import Random

import pytest

from corpus.distillation import TROUBLES as DISTILLED
from corpus.distillation import distilled_run
from corpus.experts import TROUBLES as ROUTED
from corpus.experts import routed_run
from rlvitals.health.monitor import Monitor

RULES = {
    "narrowing": {"experts_unbalanced"}, "starving": {"experts_idle", "experts_unbalanced"},
    "differing": {"routes_differ"}, "unrecorded": {"routes_differ"}, "stuck": {"teacher_not_approached"},
    "leaving": {"teacher_not_approached", "student_leaves_teacher"}, "cut": {"teacher_cut_off"},
}  # fmt: skip


def findings_of(rows, algorithm):
    monitor = Monitor(algorithm)
    found = [one for row in rows for one in monitor.update(row)]
    assert monitor.problems == {}
    return found


@pytest.mark.parametrize(
    ("make", "algorithm", "trouble", "framework"),
    [
        *((routed_run, "grpo", trouble, names[0]) for trouble, names in ROUTED.items()),
        *((distilled_run, "opd", trouble, names[0]) for trouble, names in DISTILLED.items()),
    ],
)
def test_what_is_planted_is_reported_and_not_before_it_began(make, algorithm, trouble, framework):
    run = make(842, framework, trouble)
    found = [one for one in findings_of(run.rows, algorithm) if one.rule in RULES[trouble] and one.severity != "info"]
    assert found, run.name
    assert found[0].step > run.onset
    fine = findings_of(make(842, framework).rows, algorithm)
    assert [one.rule for one in fine if one.rule in RULES[trouble] and one.severity != "info"] == []


TURN, ROWS = 50, 90


def approaching(name, start, gained, back, noise=0.008):
    """A series that moves by `gained`, mostly in the first twenty steps, and moves back by `back` at each step after
    the turn.
    """
    random = Random(3)
    for step in range(1, ROWS + 1):
        level = start + gained * (1 - exp(-step / 10)) - back * max(step - TURN, 0)
        yield {"step": step, "entropy": 0.5 + random.gauss(0, 0.01), name: level + random.gauss(0, noise)}


@pytest.mark.parametrize(
    ("name", "start", "gained", "back", "rule"),
    [
        ("train/opd_reverse_kl", 0.6, -0.5, -0.006, "teacher_not_approached"),
        ("actor/distillation/overlap_ratio", 0.6, 0.2, 0.005, "student_leaves_teacher"),
        ("actor/distillation/student_mass", 0.6, 0.2, 0.005, "student_leaves_teacher"),
    ],
)
def test_a_student_that_leaves_the_teacher_it_had_approached_is_reported_before_it_is_back_at_the_start(
    name, start, gained, back, rule
):
    found = [one for one in findings_of(approaching(name, start, gained, back), "opd") if one.severity != "info"]
    assert [(one.rule, one.severity) for one in found] == [(rule, "warning")]
    back_at_the_start = TURN + gained / back
    assert TURN < found[0].step < min(TURN + 25, back_at_the_start)
    assert TURN - 12 <= found[0].onset_step <= TURN + 12
    stays = findings_of(approaching(name, start, gained, 0.0), "opd")
    assert [one.rule for one in stays if one.severity != "info"] == []


def test_a_kl_that_has_all_but_vanished_may_double():
    """The KL falls from 0.6 to 0.01 and rises to 0.02. That is one sixtieth of the fall and not worth a finding."""
    rows = list(approaching("train/opd_reverse_kl", 0.6, -0.6, -0.0003, noise=0.001))
    assert rows[-1]["train/opd_reverse_kl"] > 2 * rows[TURN]["train/opd_reverse_kl"]
    assert [one.rule for one in findings_of(rows, "opd") if one.severity != "info"] == []
