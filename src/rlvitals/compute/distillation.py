"""On-policy distillation: the probability mass of the teacher's top k tokens, and how many of them the student shares.

>>> import math
>>> seen = stats(teacher_logprobs=[[math.log(0.6), math.log(0.3)]], teacher_ids=[[4, 7]], student_ids=[[7, 1]])
>>> round(seen["distill.teacher_mass.mean"].number, 6), seen["distill.overlap"].number
(0.9, 0.5)
"""

from __future__ import annotations

from rlvitals.compute.arrays import Array, gather, library, real
from rlvitals.compute.names import naming
from rlvitals.compute.packing import Packed, StatisticSheet, reading
from rlvitals.errors import ConfigError


def pack(
    *,
    teacher_logprobs: Array = None,
    student_logprobs: Array = None,
    teacher_ids: Array = None,
    student_ids: Array = None,
    mask: Array = None,
    names: str = "canonical",
) -> Packed:
    """Compute the statistics of one batch; `stats` returns them as mergeable values.

    All arrays are [..., k] over the teacher's k most likely tokens: its log-probs, the student's log-probs of the same
    tokens, and their ids. `student_ids` are the student's own k most likely tokens. `mask` has the leading dimensions.
    """
    teacher, student, ids, own, kept = gather(teacher_logprobs, student_logprobs, teacher_ids, student_ids, mask)
    if (ids is None) != (own is None):
        raise ConfigError("the overlap needs both teacher_ids and student_ids")
    sheet = StatisticSheet(naming(names, "policy"))
    for logprobs, who in ((teacher, "teacher"), (student, "student")):
        if logprobs is not None:
            mass = library(logprobs).exp(logprobs).sum(-1)
            sheet.moments(mass, kept, mean=f"distill.{who}_mass.mean", min=f"distill.{who}_mass.min")
    if ids is not None:
        is_shared = library(ids).zeros_like(ids) > 0
        for place in range(own.shape[-1]):
            is_shared = is_shared | (ids == own[..., place : place + 1])
        sheet.moments(real(is_shared).mean(-1), kept, mean="distill.overlap")
    return sheet.pack()


stats = reading(pack)
"""The statistics as mergeable values; the arguments are those of `pack`."""
