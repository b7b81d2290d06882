"""A tiny student that has learnt enough for some of its answers to be better than others, for all tests that need one.

A plug-in rather than a conftest, because `conftest` is the name by which tests import the one above.
PYTEST_DONT_REWRITE: there is nothing to rewrite.
"""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items):
    """One process runs them all: the student takes ten seconds to learn."""
    for item in items:
        if "warm_student" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("student"))


@pytest.fixture(scope="session")
def warm_student(tmp_path_factory):
    """Its folder. It writes functions in good and bad style, with constants of its own invention."""
    from rlvitals.train import models
    from rlvitals.train.rlaif.tasks import warmed_up

    folder = tmp_path_factory.mktemp("student")
    loaded = warmed_up(0, steps=250, batch_size=16, learning_rate=6e-3, device="cpu")
    with models.quietly():
        loaded.model.save_pretrained(folder)
        loaded.tokenizer.save_pretrained(folder)
    return str(folder)
