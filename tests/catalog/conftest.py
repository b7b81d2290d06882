"""What a test registers is gone after it: other tests count the shipped entries."""

from __future__ import annotations

import pytest

from rlvitals import catalog


@pytest.fixture(autouse=True)
def shipped_catalogue():
    before = (len(catalog.metrics()), len(catalog.algorithms()))
    yield
    if (len(catalog.metrics()), len(catalog.algorithms())) != before:
        catalog._catalog.cache_clear()
