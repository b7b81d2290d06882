"""Shared by all tests: only loopback connections are allowed, and no test leaves an open run or a metric behind."""

from __future__ import annotations

import compileall
import gc
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
from _pytest.assertion import rewrite
from _pytest.doctest import DoctestModule
from _pytest.logging import catching_logs
from hypothesis import HealthCheck, settings

from warm_python import Warm

# CI draws the same examples every time: a new failing example should appear on a developer's machine, not in a release.
settings.register_profile(
    "suite", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.register_profile("quick", settings.get_profile("suite"), max_examples=25)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))

REPO = Path(__file__).parent.parent
SHARED = REPO.parent / "shared"


def until(condition, seconds=30.0, pause=0.01):
    """Wait for another thread or process; returns the last value of `condition`. Use a longer `pause` if calling
    `condition` takes processor time.
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(pause)
    return found


def free_port() -> int:
    """A port without a listener, for programs that need a given port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def torchrun(*program: str) -> list[str]:
    """The command that starts a program in two processes. With `--standalone` torchrun would search all modules for its
    own name at each of two dozen debug messages, two seconds of processor time where many modules are loaded.
    """
    return [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", str(free_port()),
            *program]  # fmt: skip


def unexplained(folder):
    """The names in a run's rows and in its system samples that the catalogue does not know. They are read as names of
    the framework that the run is set to.
    """
    import rlvitals
    from rlvitals import catalog

    view = rlvitals.open_run(folder)
    sampled = [name for name in view.system() if name not in ("timestamp", "step", "attempt")]
    assert view.metrics, "nothing was logged"
    return [name for name in (*view.metrics, *sampled) if not catalog.reader(view.framework).matches(name)]


WARM = pytest.StashKey[Warm]()
STARTING_HEAVY_PROGRAMS = (
    "tests/train/", "tests/adapters/", "tests/capture/test_carrying_out.py", "tests/capture/test_device_rows.py",
    "tests/capture/test_live_monitor.py::test_every_rank", "tests/web/test_pages_trl.py",
    "tests/docs/test_first_ten_minutes.py::test_a_trl_script",
    "tests/docs/test_paths.py",
    "tests/importers/test_import_mlflow.py", "tests/sinks/test_mlflow.py",
)  # fmt: skip


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Fork programs that import torch, a tracker or matplotlib from a process that has done so; see warm_python.py."""
    is_cold = sys.platform != "linux" or item.get_closest_marker("cold") or "OMP_NUM_THREADS" not in os.environ
    if is_cold or not item.nodeid.startswith(STARTING_HEAVY_PROGRAMS):
        return (yield)
    with item.config.stash[WARM].taking_over():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_sessionstart(session):
    """Fork the processes of xdist from that interpreter. While it imports, compile the files that all of them read."""
    config = session.config
    is_one_process = config.getoption("dist", "no") == "no" or hasattr(config, "workerinput")
    if is_one_process or sys.platform != "linux" or "OMP_NUM_THREADS" not in os.environ:
        return (yield)
    config.stash[WARM].start()
    if not sys.dont_write_bytecode:
        compile_for_all(config)
    with config.stash[WARM].taking_over():
        return (yield)


def compile_for_all(config):
    """Rewrite the asserts of all test files and compile the package once; otherwise each process would do it."""
    for folder, _, names in os.walk(REPO / "tests"):
        for file in (Path(folder, name) for name in names if name.endswith(".py")):
            if not file.name.startswith("test_"):
                compileall.compile_file(file, quiet=2)
                continue
            kept = rewrite.get_cache_dir(file) / f"{file.stem}{rewrite.PYC_TAIL}"
            if rewrite.try_makedirs(kept.parent) and rewrite._read_pyc(file, kept) is None:
                sources, code = rewrite._rewrite_test(file, config)
                rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, sources, kept)
    compileall.compile_dir(REPO / "src", quiet=2)


LONGEST = Path(__file__).with_name("longest.txt")
"""Measured seconds of the longest pieces of work: of processor time, and by the clock while four processes run tests.
Work that is not listed is short."""
SHORT = 0.01
"""The assumed seconds of a piece that is not listed."""
EXAMPLES = "_hypothesis_internal_use_settings"
"""The attribute in which hypothesis keeps the settings of a test, such as its number of examples."""
LONG = 0.1
"""A test without shared fixtures that takes this many seconds or more counts as slow, marked or not."""


def pytest_ignore_collect(collection_path, config):
    """Do not import files that hold only slow tests when slow tests are deselected."""
    if config.option.markexpr == "not slow" and collection_path.match("test_*.py"):
        return bool(re.search(r"^pytestmark = .*\bmark\.slow\b", collection_path.read_text(), re.MULTILINE)) or None
    return None


class Examples:
    """A plug-in, because pytest calls a function of this file for tests/ only."""

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(self, file_path):
        """Examples are in the docstrings of the package and of helpers; tests have none. Modules without examples are
        not imported.
        """
        found = yield
        has_examples = not file_path.name.startswith("test_") and b">>> " in file_path.read_bytes()
        return [one for one in found if has_examples or not isinstance(one, DoctestModule)]


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config, items):
    """Mark long tests as slow before pytest deselects slow tests. Under xdist, then put the longest first."""
    most = settings.get_profile("quick").max_examples
    for test in {item.obj for item in items if config.option.markexpr == "not slow" and hasattr(item, "obj")}:
        if (own := getattr(test, EXAMPLES, None)) and own.max_examples > most:
            setattr(test, EXAMPLES, settings(own, max_examples=most))
    lines = (line.split(maxsplit=2) for line in LONGEST.read_text(encoding="utf-8").splitlines())
    listed = {name: (float(processor), float(clock)) for processor, clock, name in lines}
    for item in items:
        if is_long_alone(item, listed):
            item.add_marker("slow")
    result = yield
    if hasattr(config, "workerinput"):
        put_in_order(items, listed)
    return result


def is_long_alone(item, listed):
    work, is_shared = work_of(item)
    return not is_shared and listed.get(work, (0.0, 0.0))[0] >= LONG


def put_in_order(items, listed):
    """Order the work so that all processes are busy to the end. A process gets one piece at a time: one long test, the
    tests that share a fixture of their module, or all short tests of a file.

    The longest pieces by the clock come first. Pieces that mostly wait are spread evenly between those that compute:
    side by side they would leave the processors idle.
    """
    groups, first, works = {}, {}, {}
    for number, item in enumerate(items):
        work, is_shared = work_of(item)
        group = item.nodeid if is_long_alone(item, listed) else work if is_shared else item.path.name
        groups[item] = group
        first.setdefault(group, number)
        works.setdefault(group, Counter())[work] += 1
        if is_shared:
            works[group][work] = 1
    pieces = []
    for group, counts in works.items():
        seconds = [(count, *listed.get(work, (SHORT, SHORT))) for work, count in counts.items()]
        processor = sum(count * each for count, each, _ in seconds)
        clock = sum(count * each for count, _, each in seconds)
        pieces.append((clock, processor < clock / 2, group))
    order = spread(sorted(pieces, key=lambda piece: (-piece[0], first[piece[2]])))
    items.sort(key=lambda item: order[groups[item]])
    for item, work in groups.items():
        if work != item.nodeid and not item.nodeid.endswith(f"@{work}"):
            put_into(item, work)


def spread(pieces):
    """The place of each piece when waiting and computing pieces have always done the same share of their seconds.

    >>> spread([(9.0, True, "a"), (4.0, False, "b"), (3.0, False, "c"), (1.0, True, "d")])
    {'a': 0, 'b': 1, 'c': 2, 'd': 3}
    """
    lines = [[piece for piece in pieces if piece[1] is is_waiting] for is_waiting in (True, False)]
    shares = []
    for line in lines:
        total, done = sum(clock for clock, _, _ in line), 0.0
        for clock, _, group in line:
            shares.append((done / total, group))
            done += clock
    return {group: place for place, (_, group) in enumerate(sorted(shares, key=lambda one: one[0]))}


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect no garbage meanwhile: the collector would scan ten thousand live tests again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_runtest_logstart():
    """Freeze imported objects: accelerate collects garbage in each training, and scanning the million objects of torch
    and transformers takes two seconds.
    """
    if len(sys.modules) > Frozen.modules + 100:
        Frozen.modules = len(sys.modules)
        gc.freeze()


class NotPropagating:
    """The loggers that do not pass records to the root logger, and how many loggers there were when they were found."""

    loggers: list[logging.Logger] = []  # noqa: RUF012
    among = -1

    @classmethod
    def found(cls) -> list[logging.Logger]:
        every = logging.root.manager.loggerDict
        if len(every) != cls.among:
            cls.among = len(every)
            cls.loggers = [one for one in every.values() if isinstance(one, logging.Logger) and not one.propagate]
        return cls.loggers


def attach(self):
    """pytest attaches a handler in each phase of a test, and looks at every logger each time: torch, transformers and
    MLflow have thousands. This looks again only when there are new ones.
    """
    if self.level is not None:
        self.handler.setLevel(self.level)
        self.orig_level = logging.root.level
        logging.root.setLevel(min(self.orig_level, self.level))
    self.attached_loggers += [logging.root, *NotPropagating.found()]
    for one in self.attached_loggers:
        one.addHandler(self.handler)
    return self.handler


catching_logs.__enter__ = attach


class Frozen:
    """The number of modules that were imported at the last `gc.freeze`."""

    modules = 0


def put_into(item, group):
    """Append the group to the test's id: xdist reads the group there. xdist 3.8 writes it into an attribute that pytest
    9.2 no longer reads.
    """
    named = f"{item.nodeid}@{group}"
    if hasattr(item, "_id"):
        item._id = type(item._id).parse(named)
    else:
        item._nodeid = named


def work_of(item):
    """The name of the piece of work that one process does without a break, and whether several tests belong to it."""
    if group := item.get_closest_marker("xdist_group"):
        return group.args[0], True
    info = getattr(item, "_fixtureinfo", None)
    made = info.name2fixturedefs if info else {}
    shared = [name for name, found in made.items() if found[-1].scope == "module" and not name.startswith("_")]
    if shared:
        return f"{item.path.name} {' '.join(sorted(shared))}", True
    return f"{item.path.name}::{getattr(item, 'originalname', item.name)}", False


MEMORY = Path("/dev/shm")
"""A file system in memory, if Linux has one: a run waits for the disk a dozen times."""
ROOM = 4 << 30
"""Bytes that must be free in it. A complete run of the suite writes a third of that."""
DRAFTS = pytest.StashKey[Path]()


def pytest_configure(config):
    config.pluginmanager.register(Examples())
    config.stash[WARM] = Warm.inherited or Warm(is_light=config.option.markexpr == "not slow")
    if not hasattr(config, "workerinput") and "TMPDIR" not in os.environ and has_room(MEMORY):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
        config.stash[DRAFTS] = Path(tempfile.mkdtemp(prefix="rlv", dir=MEMORY))
        config.stash[DRAFTS].chmod(0o1777)  # like /tmp: some tests change the user
        os.environ["TMPDIR"] = tempfile.tempdir = str(config.stash[DRAFTS])


def has_room(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > ROOM


def pytest_unconfigure(config):
    config.stash[WARM].close()
    if folder := config.stash.get(DRAFTS, None):
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True, scope="session")
def _own_surroundings(tmp_path_factory):
    """A test that connects to another machine fails, and tables of dumps are not written to the user's cache."""
    real_connect = socket.socket.connect

    def connect(self: socket.socket, address: object) -> object:
        host = address[0] if isinstance(address, tuple) else "localhost"
        if host not in ("127.0.0.1", "::1", "localhost"):
            raise AssertionError(f"a test tried to connect to {host}")
        return real_connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", connect)
        patch.setenv("RLVITALS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _no_open_runs():
    """Tests are not ranks of the job that started them. Runs that a test left open are closed, and the test fails."""
    from rlvitals.capture import endings

    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"):
        os.environ.pop(name, None)
    yield
    left = list(endings._open_runs)
    for run in left:
        run.close_at_exit(None)
    assert not left, "the test left a run open"


@pytest.fixture
def shared() -> Path:
    """The folder of reference documents and real logs beside the checkout; tests that need it skip without it."""
    if not (SHARED / "reference").is_dir():
        pytest.skip("needs the reference documents in ../shared, which are not part of the repository")
    return SHARED


@pytest.fixture
def child_environment() -> dict[str, str]:
    """The environment for a Python child process that imports rlvitals."""
    return {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 256 KiB. Only root may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def fill(disk):
    """Use up the last byte; returns the file to delete to make room."""
    filler = disk / "filler"
    with pytest.raises(OSError, match="No space left"):
        filler.write_bytes(b"x" * 2**20)
    return filler


@pytest.fixture
def shipped_catalogue():
    """The catalogue as shipped, without earlier registrations, such as those of a docstring's example. What the test
    registers is removed after it.
    """
    from rlvitals import catalog

    catalog._catalog.cache_clear()
    yield
    catalog._catalog.cache_clear()
