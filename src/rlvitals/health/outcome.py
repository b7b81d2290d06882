"""The outcome of a training and its state: the evidence with which every alarm is weighed.

The outcome is the reward of a policy run, the margin of a preference run, and the held-out score of a run that logs
neither. A falling entropy, longer answers or a growing KL have one meaning while the outcome rises and another while it
does not.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from rlvitals.health.case import Case
from rlvitals.health.statistics import Signal

OutcomeState = Literal["up", "flat", "down", "early"]

ENOUGH_POINTS = 40
"""Points after which an outcome without a gain is `flat`."""

FEW_POINTS = 4
"""Points that must all rise for `up`, where there are too few for a course."""

NO_MARGIN = 1e-3
"""A margin below this leaves a sigmoid loss at ln 2 to three digits: even if it is beyond its noise, it is no gain."""

_SOURCES = {"policy": ("reward", "eval_score"), "preference": ("margin", "pair_accuracy", "eval_score")}
_ANY = ("reward", "margin", "eval_score", "true_score")


def outcome_of(case: Case) -> Signal | None:
    """The series that shows whether this run reaches its goal."""
    for name in _SOURCES.get(case.family, _ANY):
        signal = case.signals.get(name)
        if signal is not None and signal.n:
            return signal
    return None


def state_of(case: Case) -> OutcomeState:
    """The state of the outcome: `up` when it is above its start and most of its gain is kept, `down` when it has lost
    most of a gain or is below its start, `flat` when enough points show neither, `early` before that and where no
    outcome is logged.
    """
    signal = outcome_of(case)
    if signal is None:
        return "early"
    course = signal.course
    if not course.levels:
        only_rises = signal.n >= FEW_POINTS and all(before < after for before, after in pairwise(signal.head))
        return "up" if only_rises else "early"
    if course.won and not (signal.name == "margin" and course.now < NO_MARGIN):
        return "up"
    if course.lost:
        return "down"
    return "flat" if course.n >= ENOUGH_POINTS else "early"
