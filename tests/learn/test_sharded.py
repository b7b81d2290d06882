"""RLAIF with weights spread over two processes: the same updates as with a copy on each, of a student that has read
enough for some of its answers to be better than others.
"""

from __future__ import annotations

import pytest

from rlvitals.train import models
from rlvitals.train.rlaif.tasks import warmed_up
from train.test_sharded import RLAIF, goes_on_sharded


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_student_that_learns_goes_on_sharded_from_a_checkpoint_of_copies(tmp_path):
    loaded = warmed_up(0, steps=250, batch_size=16, learning_rate=6e-3)
    models.write(tmp_path / "student", loaded)
    steps = {"max_steps": 4, "eval_steps": 2, "save_steps": 2}
    given = {**RLAIF, **steps, "model": tmp_path / "student", "chat": False}
    rows = goes_on_sharded("rlaif", given, tmp_path)
    assert any(row["optim.grad_norm"] > 0.1 for row in rows if row["step"] > 2)
