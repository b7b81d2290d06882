"""`rlvitals share`: writes the dashboard as a static site, which needs no server.

The answers come from `web/api.py`, which reads a folder of redacted copies (`store/redaction.py`), and are written to
files. `SHARED` defines for each address which questions are answered. A page that asks another question gets an
explanation. Each new address of the server needs an entry there.

    index.html, static/     the pages, with their policy as a meta tag
    site.json               the time, the version of rlvitals, and the file of each address and run
    data/HASH.gz            answers by question, and the long lists that they share
    README.md               the card of a Hugging Face Space

Each list of numbers is stored once and referenced as `{"=": [file, place]}`. A curve over steps and the same curve over
time share their values, and a comparison shares the values of its runs. Files are named by a hash of their content.
Equal files are therefore stored once, and a second share into the same place writes only changed files.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlvitals.codec import encode, parse_json
from rlvitals.contract import ListedMetric
from rlvitals.errors import ConfigError, RlvitalsError, RunNotFound
from rlvitals.records import Group
from rlvitals.store.layout import RunDir
from rlvitals.store.redaction import Redaction, redacted_copy
from rlvitals.version import __version__
from rlvitals.views.chart_lines import AXES
from rlvitals.views.rollouts import RolloutSource
from rlvitals.views.run import RunView, open_run
from rlvitals.web.answers import MOST_RUNS, Query, as_json, status_of
from rlvitals.web.api import ANSWERS, PAGE_SIZE
from rlvitals.web.folder import Folder, Open, Served
from rlvitals.web.guard import PAGE_POLICY

STATIC = Path(__file__).parent / "static"

MARK = "site.json"
"""The file that identifies a folder as a shared site."""

FORMAT = 1

POINTS_OF_A_RUN = 24_000
"""Points of all curves of a run together. The limit of each curve is between LEAST_POINTS and MOST_POINTS."""
MOST_POINTS, LEAST_POINTS = 400, 60

DIGITS = 5
"""Significant digits of a number on a curve: more than a screen shows."""

SHORTEST_SHARED = 8
"""Minimum length of a list that is stored separately."""

OF_A_STEP = 8
"""Maximum number of rollouts per step, if there are enough steps."""

LONGEST_NAME = 60
"""Maximum number of characters of a run's name in a site. File systems allow 255 bytes."""

MOST_METRICS = 1_000
"""Maximum number of metrics of a run, and of a comparison."""

SIDE_BY_SIDE = 12
"""Maximum number of runs that a page compares in curves and tables. In a site with more runs, two can be compared only
if one of them is the first of the list.
"""

MOST_GROUPINGS = 4
"""Maximum number of settings by which runs can be grouped."""

MOST_COLUMNS = 200
"""Maximum number of metrics, and of settings, that can be columns of the list of runs."""

MOST_ARRANGED = 3
"""Up to this many runs, every selection in every order can be compared. With more runs: any two, or all."""

NOT_HERE = "This page is a shared copy, made from files. This question needs the run itself: rlvitals serve."

Question = list[tuple[str, str]]


class Sources:
    """The runs of a site, and the facts about them that the questions need."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.runs = [line["run"] for line in folder.runs()["runs"]]
        self._metrics: dict[str, list[ListedMetric]] = {}
        self._axes: dict[str, list[str]] = {}

    def metrics(self, run: str) -> list[str]:
        """The metric names of a run, without duplicates."""
        if run not in self._metrics:
            answer = ANSWERS["metrics"](self.folder, Query([("run", run)]))
            self._metrics[run] = answer["metrics"]  # type: ignore[assignment]
        return list(dict.fromkeys(line["name"] for line in self._metrics[run]))[:MOST_METRICS]

    def points(self, run: str) -> int:
        """The limit of points of each curve of a run."""
        return min(MOST_POINTS, max(LEAST_POINTS, POINTS_OF_A_RUN // max(1, len(self.metrics(run)))))

    def axes(self, run: str) -> list[str]:
        """The x-axes that a run has."""
        if run not in self._axes:
            names = self.metrics(run)[:1]
            self._axes[run] = [x for x in AXES if names and self._has_axis(run, names[0], x)]
        return self._axes[run]

    def rollouts(self, run: str) -> RolloutSource:
        return self.folder.view(run).rollout_log

    def _has_axis(self, run: str, name: str, x: str) -> bool:
        try:
            ANSWERS["series"](self.folder, Query([("run", run), ("name", name), ("x", x), ("points", "1")]))
        except RlvitalsError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Shared:
    """How an address is answered without a server."""

    questions: Callable[[Sources], Iterable[Question]]
    """The questions asked when the site is made."""
    ignored: tuple[str, ...] = ()
    """Parameters of a page's question that the files do not depend on."""
    each: str = ""
    """A parameter that a page repeats: each value is its own question, and the answers are joined."""
    appended: tuple[str, ...] = ()
    """Lists of such answers that are concatenated. Everything else is the same in all of them."""
    narrowed: bool = False
    """Whether the answer covers all runs, from which a page selects those it needs."""
    missing: str = NOT_HERE
    """The message if the files have no answer."""


def of_each_run(*further: tuple[str, str]) -> Callable[[Sources], Iterator[Question]]:
    """One question per run."""

    def questions(sources: Sources) -> Iterator[Question]:
        for run in sources.runs:
            yield [("run", run), *further]

    return questions


def _once(sources: Sources) -> Iterator[Question]:
    yield []


def _series(sources: Sources) -> Iterator[Question]:
    for run in sources.runs:
        points = str(sources.points(run))
        for x in sources.axes(run):
            for name in sources.metrics(run):
                yield [("run", run), ("name", name), ("x", x), ("points", points)]


def _explained(sources: Sources) -> Iterator[Question]:
    for run in sources.runs:
        view = sources.folder.view(run)
        known = {name: concept for name in sources.metrics(run) if (concept := view.concept(name))}
        for name in dict.fromkeys([*known, *known.values()]):
            yield [("run", run), ("name", name)]


def _rollouts(sources: Sources) -> Iterator[Question]:
    for run in sources.runs:
        yield [("run", run)]
        log = sources.rollouts(run)
        outcomes: dict[str, None] = {}
        for step in log.steps:
            groups = log.at(step)
            at = [("run", run), ("step", str(step))]
            yield from ([*at, ("page", str(page))] for page in range(math.ceil(len(groups) / PAGE_SIZE)))
            yield from ([*at, ("group", str(number))] for number in range(1, len(groups) + 1))
            outcomes |= {rollout.outcome: None for group in groups for rollout in group.rollouts if rollout.outcome}
        for where in [[], *([("step", str(step))] for step in log.steps)]:
            yield [("run", run), *where, ("page", "0"), ("worst", "1")]
            yield from ([("run", run), *where, ("page", "0"), ("outcome", outcome)] for outcome in outcomes)


def _comparisons(sources: Sources) -> Iterator[Question]:
    runs = sources.runs
    sizes = range(2, len(runs) + 1) if len(runs) <= MOST_ARRANGED else [2]
    for size in sizes:
        for chosen in itertools.permutations(runs, size):
            if len(runs) <= SIDE_BY_SIDE or runs[0] in chosen:
                yield [("run", run) for run in chosen]
    if len(runs) > MOST_ARRANGED:
        for base in runs:
            everyone = [base, *(other for other in runs if other != base)]
            yield [("run", run) for run in everyone[:SIDE_BY_SIDE]]


def _overlays(sources: Sources) -> Iterator[Question]:
    """Every metric of all runs, once with each run in the first place, because runs are compared with the first one."""
    runs = sources.runs
    if len(runs) < 2:
        return
    counts: dict[str, int] = {}
    for run in runs:
        for name in sources.metrics(run):
            counts[name] = counts.get(name, 0) + 1
    names = sorted(counts, key=lambda name: counts[name] < 2)[:MOST_METRICS]  # metrics of several runs come first
    points = str(min(map(sources.points, runs)))
    for base in runs:
        order = [("run", run) for run in [base, *(other for other in runs if other != base)]]
        for x in sources.axes(base):
            yield from ([*order, ("name", name), ("x", x), ("points", points)] for name in names)


def _everyone(sources: Sources) -> Iterator[Question]:
    """All runs, once with each run in the first place."""
    for base in sources.runs if len(sources.runs) > 1 else []:
        yield [("run", run) for run in [base, *(other for other in sources.runs if other != base)]]


def _overlays_by(sources: Sources) -> Iterator[Question]:
    """The questions of `_overlays`, also with the runs grouped by each of the first settings."""
    for question in _overlays(sources):
        yield question
        answer = ANSWERS["overlays"](sources.folder, Query(question))
        settings = answer["settings"]
        for by in settings[:MOST_GROUPINGS] if isinstance(settings, list) else ():
            yield [*question, ("by", by)]


def _columns(sources: Sources) -> Iterator[Question]:
    """The table of all runs without columns, and with each column alone."""
    yield [("choices", "1")]
    answer = ANSWERS["table"](sources.folder, Query([("choices", "1")]))
    choices: Any = answer["choices"] or {"metrics": [], "settings": []}
    names = choices["metrics"][:MOST_COLUMNS]
    columns = [f"{name}.{kind}" for name in names for kind in ("last", "best")] + choices["settings"][:MOST_COLUMNS]
    yield from ([("column", column), ("choices", "1")] for column in columns)


def _images(sources: Sources) -> Iterator[Question]:
    for run in sources.runs:
        for image in sources.folder.view(run).images:
            yield [("run", run), ("name", image.name), ("step", str(image.step))]


def _sweeps(sources: Sources) -> Iterator[Question]:
    """A sweep over all runs, with the default target and with every vital sign."""
    if len(sources.runs) < 2:
        return
    everyone = [("run", run) for run in sources.runs]
    yield everyone
    signs = dict.fromkeys(sign for run in sources.runs for sign in sources.folder.view(run).vital_signs)
    yield from ([*everyone, ("target", sign)] for sign in signs)


ZOOM = ("from", "to", "points")

FIRST_PAGE = ("page", "0")
"""Also the default if no page is given."""

SHARED: dict[str, Shared] = {
    "runs": Shared(_once),
    "run": Shared(of_each_run()),
    "metrics": Shared(of_each_run()),
    "series": Shared(_series, ZOOM, each="name", appended=("lines", "findings")),
    "explain": Shared(_explained, missing="The catalogue does not know this metric, or none of these runs logs it."),
    "findings": Shared(of_each_run()),
    "hindsight": Shared(of_each_run()),
    "performance": Shared(of_each_run(), ("from", "to")),
    "rollouts": Shared(
        _rollouts,
        missing="A shared copy holds some of the rollouts, without their tokens.",
    ),
    "evaluations": Shared(of_each_run()),
    "compare": Shared(
        _comparisons,
        missing="A shared copy compares two runs, or all in the order of the list. If it has more than "
        f"{SIDE_BY_SIDE} runs, one of two must be the first of the list.",
    ),
    "overlay": Shared(_overlays, ZOOM, narrowed=True),
    "overlays": Shared(
        _overlays_by,
        ZOOM,
        each="name",
        appended=("overlays",),
        narrowed=True,
        missing="A shared copy holds the first metrics of its runs, grouped by the first settings.",
    ),
    "others": Shared(_everyone, narrowed=True),
    "table": Shared(
        _columns,
        ("choices", "hidden"),
        each="column",
        appended=("columns", "cells"),
        missing="A shared copy has columns for the last and best value of a metric and for settings.",
    ),
    "sweep": Shared(_sweeps, missing="A shared copy holds the sweep of all its runs, in the order of the list."),
    "marks": Shared(_once),
    "distributions": Shared(of_each_run()),
    "images": Shared(of_each_run()),
    "image": Shared(_images, missing="A shared copy holds some of the images."),
}
"""How a shared site answers each address that a page requests with GET."""


@dataclass(slots=True)
class Bundle:
    """A file: answers by question, or lists of numbers."""

    number: int
    answers: dict[str, Any] = field(default_factory=dict)
    lists: list[str] = field(default_factory=list)
    """Each list as JSON."""


class Store:
    """The answers of a site, and the lists that they share."""

    def __init__(self) -> None:
        self.bundles: dict[tuple[str, str], Bundle] = {}
        """Answers by address and run."""
        self._lists: dict[str, tuple[int, int]] = {}
        """The place of each list by its JSON."""
        self.pools: dict[str, Bundle] = {}
        """Lists by the run in whose answers they first occurred."""
        self.alike: dict[str, set[str]] = {}
        """Questions about all runs whose answer does not depend on which comes first, by address."""
        self._first: dict[str, str] = {}

    def add(self, address: str, run: str, key: str, answer: Any) -> None:
        bundle = self.bundles.setdefault((address, run), Bundle(len(self.bundles)))
        bundle.answers[key] = self._shared(answer, run)

    def alike_seen(self, address: str, run: str) -> bool:
        """Whether the first question of this address began with another run."""
        self.alike.setdefault(address, set())
        return self._first.setdefault(address, run) != run

    def _shared(self, value: Any, run: str) -> Any:
        if isinstance(value, dict):
            return {key: self._shared(item, run) for key, item in value.items()}
        if not isinstance(value, list):
            return value
        if len(value) < SHORTEST_SHARED or not all(item is None or isinstance(item, int | float) for item in value):
            return [self._shared(item, run) for item in value]
        text = encode({"": [_few_digits(item) for item in value]}).decode().strip()[4:-1]
        if text not in self._lists:
            pool = self.pools.setdefault(run, Bundle(len(self.pools)))
            self._lists[text] = pool.number, len(pool.lists)
            pool.lists.append(text)
        return {"=": list(self._lists[text])}


@dataclass(frozen=True, slots=True)
class Made:
    """The files of a site, and the number of its runs and answers."""

    runs: int
    answers: int
    files: dict[str, bytes]

    @property
    def size(self) -> int:
        return sum(map(len, self.files.values()))


class Copies(Folder):
    """A folder that nobody else writes to: the files of a run are read once, not for each of a thousand questions."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._served: dict[str, Served] = {}

    def served(self, run: str) -> Served:
        if run not in self._served:
            self._served[run] = super().served(run)
        return self._served[run]

    def _opened(self, entry: Served) -> Open:
        return self._open.get(entry) or super()._opened(entry)

    def _whole(self, entry: Served) -> RunView:
        return self._opened(entry).view


def copy_runs(
    paths: Sequence[Path],
    root: Path,
    *,
    patterns: Sequence[str],
    texts: bool,
    rollouts: int,
    progress: Callable[[str], None],
) -> Folder:
    """Write redacted copies of runs below a folder, each under a different name."""
    if len(paths) > MOST_RUNS:
        raise ConfigError(f"a shared site holds at most {MOST_RUNS} runs, and these are {len(paths)}: choose some")
    taken: set[str] = set()
    for path in paths:
        source = RunDir(path)
        if not source.holds_run:
            raise RunNotFound(f"there is no run in {path}. A log of another tool becomes one by: rlvitals import")
        redaction = Redaction.of(source, patterns, texts=texts)
        shown = redaction.text(_whole_letters(path.resolve().name), is_own=False)
        plain = shown.replace("/", "_").lstrip(".")[:LONGEST_NAME] or "run"
        name = next(
            name
            for number in itertools.count(1)
            if (name := plain if number == 1 else f"{plain}-{number}") not in taken
        )
        taken.add(name)
        progress(f"copying {name}")
        view = open_run(path)
        now = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        running = (
            f"still running when this copy was made, {now}"
            if view.status == "running"
            else "its process is gone without finishing"
        )
        redacted_copy(source, RunDir(root / name), redaction, chosen_groups(view.rollout_log, rollouts), running)
    return Copies(root)


def chosen_groups(log: RolloutSource, most: int) -> Iterator[Group]:
    """Groups with at most `most` rollouts in total, from steps spread evenly over the run, including its first and last
    step. A group is cut if it has more rollouts than its step may still add.
    """
    steps = log.steps if most > 0 else []
    if not steps:
        return
    at_first = sum(len(group.rollouts) for group in log.at(steps[0]))
    wanted = min(len(steps), max(2, math.ceil(most / min(OF_A_STEP, max(1, at_first)))))
    places = sorted({round(number * (len(steps) - 1) / max(1, wanted - 1)) for number in range(wanted)})
    taken = 0
    for number, place in enumerate(places, 1):
        until = round(most * number / len(places))
        for group in log.at(steps[place]):
            room = until - taken
            if room <= 0:
                break
            yield group if len(group.rollouts) <= room else replace(group, rollouts=group.rollouts[:room])
            taken += min(len(group.rollouts), room)


def make_site(folder: Folder, title: str, progress: Callable[[str], None] = lambda text: None) -> Made:
    """Every file of a site over a folder of runs."""
    title = _whole_letters(title)
    sources = Sources(folder)
    store = Store()
    for address in ANSWERS:
        if address not in SHARED:
            raise ConfigError(f"nothing says how a shared site answers /api/{address}")
        progress(f"answering {address}")
        for question in SHARED[address].questions(sources):
            _ask(folder, store, address, question)
    files = _data(store, sources.runs, title)
    files |= _pages()
    files["README.md"] = _space_card(title)
    return Made(len(sources.runs), sum(len(bundle.answers) for bundle in store.bundles.values()), files)


def key_of(shared: Shared, question: Question) -> str:
    r"""The key of a question in its file. It does not depend on the order of parameters. `shared.js` computes the same.

    >>> key_of(SHARED["series"], [("run", "a"), ("x", "step"), ("name", "loss"), ("points", "200")])
    'name=loss\nx=step'
    """
    kept = [pair for pair in question if pair[0] not in shared.ignored and pair != FIRST_PAGE]
    first = next((number for number, (name, _) in enumerate(kept) if name == "run"), None)
    if first is not None:  # each run has its own file
        kept = [pair for number, pair in enumerate(kept) if (pair[0] != "run" if shared.narrowed else number != first)]
    return "\n".join(f"{name}={value}" for name, value in sorted(kept, key=lambda pair: pair[0]))


def _ask(folder: Folder, store: Store, address: str, question: Question) -> None:
    """Compute the answer that a page would get, and store it."""
    shared, answer = SHARED[address], ANSWERS[address]
    run = next((value for name, value in question if name == "run"), "")
    key = key_of(shared, question)
    if shared.narrowed and key in store.alike.get(address, ()):
        return
    try:
        result = answer(folder, Query(question))
        while result.get("judging"):  # pages ask again later; a site needs the final answer
            result = answer(folder, Query(question))
        facts = parse_json(as_json(result))
    except RlvitalsError as error:
        facts = {"error": str(error), "status": status_of(error)}
    store.add(address, run, key, facts)
    if shared.narrowed and not store.alike_seen(address, run) and _is_of_equals(facts):
        store.alike[address].add(key)


def _is_of_equals(facts: Any) -> bool:
    """Whether an answer about several runs would be the same if another of them came first."""
    if isinstance(facts, list):
        return all(map(_is_of_equals, facts))
    if not isinstance(facts, dict):
        return True
    return (
        not facts.get("error")
        and not facts.get("caution")
        and not facts.get("refused")
        and all(map(_is_of_equals, facts.values()))
    )


def _data(store: Store, runs: Sequence[str], title: str) -> dict[str, bytes]:
    """The files with answers, and `site.json`, which lists them."""
    files: dict[str, bytes] = {}

    def put(data: bytes) -> str:
        packed = gzip.compress(data, 9, mtime=0)
        name = f"data/{hashlib.sha256(packed).hexdigest()[:16]}.gz"
        files[name] = packed
        return name

    addresses = {}
    for address, shared in SHARED.items():
        held = {run: put(encode(bundle.answers)) for (of, run), bundle in store.bundles.items() if of == address}
        addresses[address] = {
            "ignored": shared.ignored, "each": shared.each, "appended": shared.appended, "narrowed": shared.narrowed,
            "missing": shared.missing, "files": held,
        }  # fmt: skip
    pools = [put(f"[{','.join(pool.lists)}]".encode()) for pool in store.pools.values()]
    site = {
        "format": FORMAT, "title": title, "made": round(time.time()), "rlvitals": __version__, "runs": list(runs),
        "addresses": addresses, "lists": pools,
    }  # fmt: skip
    return files | {MARK: encode(site)}


def _pages() -> dict[str, bytes]:
    files = {
        f"static/{path.relative_to(STATIC).as_posix()}": path.read_bytes()
        for path in sorted(STATIC.rglob("*"))
        if path.is_file() and path.name not in ("index.html", "jsconfig.json")
    }
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    policy = f'<meta http-equiv="Content-Security-Policy" content="{PAGE_POLICY}" />'
    head = f'{policy}\n    <meta name="rlvitals-site" content="{MARK}" />'
    notice = (
        "<p>This page is loading. If this text stays, the page was opened as a file, which browsers do not allow for "
        "scripts in modules: serve the folder, for example with python -m http.server.</p>"
    )
    page = page.replace('<meta charset="utf-8" />', f'<meta charset="utf-8" />\n    {head}', 1)
    page = page.replace("<noscript>", f"{notice}\n        <noscript>", 1)
    return files | {"index.html": page.encode()}


def _space_card(title: str) -> bytes:
    """The card of a static Hugging Face Space. The title is written as JSON, which is valid YAML."""
    quoted = encode({"": title}).decode().strip()[4:-1]
    lines = ["---", f"title: {quoted}", "emoji: 📈", "colorFrom: blue", "colorTo: green", "sdk: static"]
    lines += ["app_file: index.html", "pinned: false", "---", "", "Training runs, shared by `rlvitals share`."]
    return ("\n".join(lines) + "\n").encode()


def _whole_letters(text: str) -> str:
    """A text without lone surrogates, which file names may contain."""
    return text.encode("utf-8", "replace").decode()


def _few_digits(number: float | int | None) -> float | int | None:
    if not isinstance(number, float) or number == 0 or not math.isfinite(number):
        return number
    if abs(number) >= 10**DIGITS:  # a time, a count
        whole = round(number, 1)
        return int(whole) if whole == int(whole) and abs(whole) < 2**53 else whole
    return round(number, DIGITS - 1 - math.floor(math.log10(abs(number))))
