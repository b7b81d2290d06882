"""Fixtures that start servers, close them after the test, and set the environment variables of the services.

This is a plug-in and not a conftest, because tests import the one in the parent folder by the name `conftest`.
PYTEST_DONT_REWRITE: the collection of doctests imports this file first, and it has no asserts to rewrite.
"""

from __future__ import annotations

import os

import pytest
from notify_servers import Desk, Mailbox, environment


@pytest.fixture
def desk(monkeypatch, no_variables):
    """Starts an HTTP server. The variables of all services hold its address."""
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
    """Starts an SMTP server. The variables of the mail service hold its port."""
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
    """Removes the variables that the user who runs the tests may have set."""
    for name in list(os.environ):
        if name.startswith(("RLVITALS_SLACK", "RLVITALS_DISCORD", "RLVITALS_TELEGRAM", "RLVITALS_NTFY", "RLVITALS_SMTP",
                            "RLVITALS_EMAIL", "RLVITALS_PAGERDUTY")):  # fmt: skip
            monkeypatch.delenv(name)
