"""Routers of experts and on-policy distillation, on generated runs: only planted trouble is reported."""

from __future__ import annotations

import pytest

from corpus.distillation import TROUBLES as DISTILLED
from corpus.distillation import distilled_run
from corpus.experts import TROUBLES as ROUTED
from corpus.experts import routed_run
from rlvitals.health.monitor import Monitor

SAYS = {
    "narrowing": {"experts_unbalanced"}, "starving": {"experts_idle", "experts_unbalanced"},
    "differing": {"routes_differ"}, "unrecorded": {"routes_differ"}, "stuck": {"teacher_not_approached"},
    "leaving": {"teacher_not_approached", "student_leaves_teacher"}, "cut": {"teacher_cut_off"},
}  # fmt: skip


def said(rows, algorithm):
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
def test_what_is_planted_is_said_and_not_before_it_began(make, algorithm, trouble, framework):
    run = make(842, framework, trouble)
    found = [one for one in said(run.rows, algorithm) if one.rule in SAYS[trouble] and one.severity != "info"]
    assert found, run.name
    assert found[0].step > run.onset
    fine = said(make(842, framework).rows, algorithm)
    assert [one.rule for one in fine if one.rule in SAYS[trouble] and one.severity != "info"] == []
