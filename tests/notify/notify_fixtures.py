"""Servers of a test, closed when it ends; the variables of the services in its environment.

A plug-in rather than a conftest, because `conftest` is the name by which tests import the one above.
PYTEST_DONT_REWRITE: the search for doctests imports it first, and there is nothing to rewrite.
"""

from __future__ import annotations

import os

import pytest
from notify_servers import Desk, Mailbox, environment


@pytest.fixture
def desk(monkeypatch, no_variables):
    """Makes an HTTP server; the environment's addresses are its own."""
    made = []

    def make(*statuses, smtp_port=0, **settings):
        made.append(Desk(*statuses, **settings))
        for name, value in environment(made[-1].url, smtp_port).items():
            monkeypatch.setenv(name, value)
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def smtp(monkeypatch, no_variables):
    """Makes an SMTP server; the environment's mail server is it."""
    made = []

    def make(*answers, **settings):
        made.append(Mailbox(*answers, **settings))
        for name, value in environment("http://127.0.0.1:9", made[-1].port).items():
            monkeypatch.setenv(name, value)
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def no_variables(monkeypatch):
    """What whoever runs the tests has set up for themselves is not used."""
    for name in list(os.environ):
        if name.startswith(("RLVITALS_SLACK", "RLVITALS_DISCORD", "RLVITALS_TELEGRAM", "RLVITALS_NTFY", "RLVITALS_SMTP",
                            "RLVITALS_EMAIL", "RLVITALS_PAGERDUTY")):  # fmt: skip
            monkeypatch.delenv(name)
