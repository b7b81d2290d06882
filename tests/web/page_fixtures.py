"""One browser and one folder of runs for all tests of the pages.

This is a plug-in and not a conftest, because tests import the conftest above by the name `conftest`.
PYTEST_DONT_REWRITE: the search for doctests imports this file first, and it has nothing to rewrite.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from _pytest.runner import runtestprotocol
from browsing import FLAGS, REPO, browsing, chromium
from page_runs import make_runs
from serving import serving


def pytest_collection_modifyitems(items):
    """Run all of them in one process: a browser is expensive, and Playwright's event loop lives as long as it does."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("browser"))
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    """Run a failed test of a page once more and report that: while other tests keep the processors busy, a page may
    answer later than a test expects. A test that fails twice has failed.
    """
    if "browser" not in getattr(item, "fixturenames", ()):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    if failed := next((report for report in reports if report.failed), None):
        with item.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(
                f"\n{item.nodeid} failed and is run again:\n{failed.longreprtext[-2000:]}", file=sys.stderr, flush=True
            )
        item._initrequest()
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


class Opened:
    """The browser, from the first test that needs it to the last of its group. While it is open, no other event loop
    can run in this process.
    """

    playwright = browser = None

    @classmethod
    def get(cls):
        if cls.browser is None:
            sync_api = pytest.importorskip("playwright.sync_api", reason="the tests of the pages need playwright")
            path = chromium()
            cls.playwright = sync_api.sync_playwright().start()
            cls.browser = cls.playwright.chromium.launch(executable_path=path, args=FLAGS)
        return cls.browser

    @classmethod
    def close(cls):
        if cls.browser is not None:
            cls.browser.close()
        if cls.playwright is not None:
            cls.playwright.stop()
        cls.playwright = cls.browser = None


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    is_last_of_module = nextitem is None or nextitem.path != item.path
    if is_last_of_module and "browser" not in getattr(nextitem, "fixturenames", ()):
        Opened.close()


@pytest.fixture(scope="module")
def browser():
    return Opened.get()


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A folder with a healthy and a failing training, an agent's run, a long run and an imported log."""
    folder = tmp_path_factory.mktemp("served")
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    for name, *flags in (("healthy", "--steps", "80"), ("failing", "--learning-rate", "0.1")):
        command = [sys.executable, REPO / "examples" / "numpy_grpo.py", folder / name, *flags]
        subprocess.run(command, check=True, capture_output=True, env=environment)
    make_runs(folder)
    return folder


@pytest.fixture(scope="session")
def port(runs):
    with serving(runs) as client:
        yield client.port


@pytest.fixture
def screen(browser, port):
    with browsing(browser, port) as opened:
        yield opened
