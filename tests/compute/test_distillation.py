"""Mass and overlap of teacher and student against whole vocabularies."""

from __future__ import annotations

import numpy as np
import pytest
from loops import mean

from rlvitals.compute import distillation
from rlvitals.errors import ConfigError

K = 3


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_mass_and_overlap_are_those_of_the_top_tokens_of_whole_distributions():
    torch = pytest.importorskip("torch")
    draw = np.random.default_rng(0)
    teacher, student = softmax(draw.normal(0, 2, (2, 5, 11))), softmax(draw.normal(0, 2, (2, 5, 11)))
    mask = np.array([[1, 1, 1, 0, 1], [1, 1, 0, 0, 0]])
    top, own = np.argsort(-teacher)[..., :K], np.argsort(-student)[..., :K]
    given = {
        "teacher_logprobs": np.log(np.take_along_axis(teacher, top, -1)),
        "student_logprobs": np.log(np.take_along_axis(student, top, -1)),
        "teacher_ids": top, "student_ids": own, "mask": mask,
    }  # fmt: skip
    places = list(zip(*np.nonzero(mask), strict=True))
    held = [sum(sorted(teacher[at])[-K:]) for at in places]
    given_by_student = [sum(student[at][token] for token in top[at]) for at in places]
    expected = {
        "distill.teacher_mass.mean": mean(held), "distill.teacher_mass.min": min(held),
        "distill.student_mass.mean": mean(given_by_student), "distill.student_mass.min": min(given_by_student),
        "distill.overlap": mean([len(set(top[at]) & set(own[at])) / K for at in places]),
    }  # fmt: skip
    for make in (np.asarray, lambda array: torch.from_numpy(np.array(array))):
        found = distillation.stats(**{name: make(array) for name, array in given.items()})
        assert {name: value.number for name, value in found.items()} == pytest.approx(expected)


def test_half_of_the_ids_is_refused():
    with pytest.raises(ConfigError, match="both teacher_ids and student_ids"):
        distillation.stats(teacher_ids=[[1]])
