"""Writes a copy of a run that can be shared, without secrets, private names and everything the user excluded.

A shared site reads only such copies, so it cannot disclose anything else. Numbers are not changed. In texts:

- secrets are masked in every text, not only in settings;
- host names, user names, process ids, the command line and the git remote are removed;
- absolute paths in settings and messages are shortened to their last part. In prompts and completions only paths below
  a home folder are shortened;
- settings, metrics, texts and rollout fields whose names match a pattern are removed. The texts of such settings are
  masked wherever else they occur;
- with `texts=False` prompts, completions, tool results and logged texts are removed. Images are removed too, because
  they may show text.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rlvitals.codec import NONFINITE, encode, leaves, parse_shallow, read_nonfinite, to_json, write_nonfinite
from rlvitals.masking import MASK, Masking, matches
from rlvitals.records import RESERVED, Group
from rlvitals.store.archive import open_log
from rlvitals.store.cards import read_attempts, read_config, read_info, write_config, write_info
from rlvitals.store.files import make_folder, read_json, replace_file
from rlvitals.store.findings import read_events
from rlvitals.store.images import Image, read_images
from rlvitals.store.layout import RunDir
from rlvitals.store.lines import MOMENTS
from rlvitals.store.rollouts import group_line

LEFT_OUT = "(left out)"

SHORTEST_NAME = 3
"""Shortest host or user name, in characters, that is searched for in texts."""

SHORTEST_VALUE = 6
"""Shortest text of a redacted setting, in characters, that is searched for elsewhere."""

IMAGE_BYTES, MOST_IMAGES = 200_000, 40
"""Limits for all images of one run together."""

NO_NAMES = frozenset({"localhost", "root", "user", "users", "ubuntu", "admin", "runner", "shared", "data", "home"})
"""Generic names that identify nobody."""

_PATH = re.compile(
    r"""(?<![\w.:/~\\…])(?:~?/(?:[^\s/"'<>|:;,()\[\]{}=]+/)+|[A-Za-z]:\\(?:[^\s\\"'<>|:;,]+\\)+|\\\\(?:[^\s\\"']+\\)+)"""
)
"""An absolute path up to its last part."""
_HOME = re.compile(
    r"""(?<![\w.:/~\\…])(?:/(?:home|Users)/[^\s/"']+/(?:[^\s/"']+/)*|~/(?:[^\s/"']+/)*|[A-Za-z]:\\Users\\(?:[^\s\\"']+\\)+)"""
)
_USER = re.compile(r"""(?:/(?:home|Users)/|\\Users\\{1,2})([^\s/\\"']+)""")
_TEXTS = frozenset({"prompt", "answer", "text", "result", "observation", "error", "content", "reason", "sources"})
"""Fields of a rollout that hold text of a model, a user or a tool."""
_OBJECTS = frozenset({"arguments", "meta", "rubric"})
_ROW = frozenset({*RESERVED, MOMENTS, NONFINITE})
_SHAPE = frozenset({*_ROW, "rollouts", "turns", "calls"})
"""Fields that a row or a group must have. Patterns do not remove them."""


@dataclass(frozen=True, slots=True)
class Redaction:
    """Decides what is removed from a copy or masked in it."""

    patterns: tuple[str, ...] = ()
    """Names or globs of settings, metrics, texts and fields of rollouts."""
    texts: bool = True
    """Whether texts of models, users and tools are kept."""
    values: tuple[str, ...] = ()
    """Texts that are masked wherever they occur, the longest first."""
    masking: Masking = field(default_factory=Masking)
    decided: dict[str, bool] = field(default_factory=dict)
    """Cache: name in a row -> whether it is left out."""

    @classmethod
    def of(cls, run_dir: RunDir, patterns: Sequence[str] = (), *, texts: bool = True) -> Redaction:
        """A redaction that masks the host names, user names and secrets found in a run's metadata."""
        info, settings = read_info(run_dir), read_config(run_dir)
        lowered = tuple(pattern.lower() for pattern in patterns)
        text = "\n".join([info.command, *map(str, leaves(settings)), str(run_dir.root.absolute())])
        hosts = {platform.node(), info.host, *(attempt.host for attempt in read_attempts(run_dir))}
        names = {*hosts, *(host.partition(".")[0] for host in hosts), *_USER.findall(text), os.environ.get("USER", "")}
        names |= {event.facts.get("asked_by", "") for event in read_events(run_dir)}
        words = {name for name in names if len(name) >= SHORTEST_NAME and name.lower() not in NO_NAMES}
        words |= {value for value in _named(settings, lowered, ()) if len(value) >= SHORTEST_VALUE}
        return cls(lowered, texts, tuple(sorted(words, key=lambda word: (-len(word), word))), Masking.of(settings))

    def leaves_out(self, *path: str) -> bool:
        """Whether a name matches a pattern of the user."""
        return bool(self.patterns) and matches(self.patterns, path)

    def text(self, text: str, *, is_own: bool = True) -> str:
        """The text with private parts masked. `is_own` is False for texts that a model or a user wrote."""
        text = self.masking.text(text)
        text = _PATH.sub("…/", text) if is_own else _HOME.sub("…/", text)
        for value in self.values:
            if value in text:
                text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", MASK, text)
        return text

    def settings(self, tree: Any, path: tuple[str, ...] = ()) -> Any:
        """Nested settings. A setting that matches a pattern keeps its name and has the value `***`."""
        if path and self.leaves_out(*path):
            return MASK
        if isinstance(tree, Mapping):
            return {
                self.text(str(name)): self.settings(item, (*path, *str(name).split("."))) for name, item in tree.items()
            }
        if isinstance(tree, list | tuple):
            return [self.settings(item, path) for item in tree]
        return self.text(tree) if isinstance(tree, str) else tree

    def loses(self, name: str) -> bool:
        """`leaves_out` with a cache, for the names in rows."""
        if name not in self.decided:
            self.decided[name] = self.leaves_out(name)
        return self.decided[name]

    def row(self, row: dict[str, Any]) -> dict[str, Any]:
        """A logged row, without the metrics and texts whose names are left out."""
        kept: dict[str, Any] = {}
        for key, value in row.items():
            if key == MOMENTS and isinstance(value, dict):
                kept[key] = {self.name(one): item for one, item in value.items() if not self.loses(one)}
            elif key == NONFINITE and isinstance(value, str):
                numbers = read_nonfinite(value)
                named = {self.name(one): item for one, item in numbers.items() if not self.loses(one)}
                kept[key] = write_nonfinite(named)
            elif key in _ROW or isinstance(value, int | float):
                if key in _ROW or not self.loses(key):
                    kept[self.name(key)] = value
            elif not self.loses(key):
                kept[self.name(key)] = self.masked_texts(value, (key,)) if self.texts else self.silenced(value, (key,))
        return kept

    def name(self, name: str) -> str:
        """A metric's name or another key, masked if it contains a private text."""
        return self.text(name, is_own=False) if any(value in name for value in self.values) else name

    def finding(self, event: dict[str, Any]) -> dict[str, Any]:
        """An event of the health log. Raises ValueError if it mentions a metric that is left out. The rows must be
        copied first, because they determine which names are left out.
        """
        gone = [name for name, is_out in self.decided.items() if is_out]
        if any(name in text for name in gone for text in leaves(event) if isinstance(text, str)):
            raise ValueError("of a metric that is left out")
        cited = event.get("cited")
        fields: dict[str, Any] = self.noted({key: value for key, value in event.items() if key != "cited"})
        if self.texts and isinstance(cited, list):  # text of a model
            fields["cited"] = self.masked_texts(cited)
        return fields

    def noted(self, tree: Any) -> Any:
        """Data written by rlvitals: findings, phases, system samples."""
        if isinstance(tree, Mapping):
            return {self.name(str(name)): self.noted(item) for name, item in tree.items()}
        if isinstance(tree, list):
            return [self.noted(item) for item in tree]
        return self.text(tree) if isinstance(tree, str) else tree

    def masked_texts(self, tree: Any, path: tuple[str, ...] = ()) -> Any:
        """Data with texts of models, users and tools: rollouts and evaluations."""
        if isinstance(tree, Mapping):
            return {
                self.name(str(name)): self.masked_texts(item, (*path, str(name)))
                for name, item in tree.items()
                if name in _SHAPE or not self.leaves_out(str(name))
            }
        if isinstance(tree, list):
            return [self.masked_texts(item, path) for item in tree]
        return self.text(tree, is_own=False) if isinstance(tree, str) else tree

    def silenced(self, tree: Any, path: tuple[str, ...] = ()) -> Any:
        """`masked_texts` with every text replaced."""
        return _without_texts(self.masked_texts(tree, path))

    def group(self, line: dict[str, Any]) -> dict[str, Any]:
        """A group of rollouts."""
        fields: dict[str, Any] = self.masked_texts(line)
        if self.texts:
            return fields
        fields["id"] = ""
        return _without_words(fields)  # type: ignore[no-any-return]


def redacted_copy(source: RunDir, target: RunDir, redaction: Redaction, groups: Iterable[Group], running: str) -> None:
    """Write the copy of a run, with the given groups of rollouts. A run that is still recorded gets the status
    `interrupted` and the error text `running` in the copy.
    """
    make_folder(target.logs)
    info = read_info(source)
    write_info(
        target,
        replace(
            info,
            name=redaction.text(info.name, is_own=False),
            status="interrupted" if info.status == "running" else info.status,
            error=running if info.status == "running" else redaction.text(info.error or "") or None,
            git={key: value for key, value in info.git.items() if key in ("commit", "dirty")},
            host="", pid=0, command="", left_out={}, id="",
        ),
    )  # fmt: skip
    settings = redaction.settings(read_config(source))
    if settings:
        write_config(target, settings)
    attempts = [
        replace(
            attempt, host="", pid=0, from_checkpoint=redaction.text(attempt.from_checkpoint or "") or None,
            changed=_mapping(redaction.settings(attempt.changed)),
        )
        for attempt in read_attempts(source)
    ]  # fmt: skip
    if attempts:
        replace_file(target.attempts, [encode(asdict(attempt)) for attempt in attempts])
    for stream in ("train", "eval"):
        for rank in [0, *source.rank_numbers(stream)]:
            _copy_lines(source.log(stream, rank), target.log(stream, rank), redaction.row)
    for side in ("phases", "system"):
        for rank in [0, *source.rank_numbers(side)]:
            _copy_lines(source.log(side, rank), target.log(side, rank), redaction.noted)
    _copy_lines(source.log("distributions"), target.log("distributions"), redaction.row)
    if redaction.texts:
        _copy_images(source, target, redaction)
    _copy_lines(source.findings, target.findings, redaction.finding)
    _copy_lines(source.epochs.record, target.epochs.record, redaction.row)
    redact = redaction.masked_texts if redaction.texts else redaction.silenced
    for path in sorted(source.eval_logs.glob("*.json")):
        try:
            evaluation = redact(read_json(path))
        except (OSError, ValueError):
            continue
        make_folder(target.eval_logs)
        replace_file(target.eval_logs / path.name, to_json(evaluation))
    for group in groups:
        bare = replace(group, rollouts=tuple(replace(rollout, trace=None) for rollout in group.rollouts))
        line = parse_shallow(group_line(bare, group.step, group.attempt, group.timestamp))
        make_folder(target.rollouts)
        with open(target.rollout_file(group.step), "ab") as file:
            file.write(encode(redaction.group(line)))


def _copy_images(source: RunDir, target: RunDir, redaction: Redaction) -> None:
    """Copy some of the images, spread evenly over the run, to keep the page small."""
    images = [image for image in read_images(source.log("images")) if not redaction.loses(image.name)]
    sizes = [len(image.png.data) for image in images]
    stride = max(1, -(-sum(sizes) // IMAGE_BYTES), -(-len(images) // MOST_IMAGES))
    chosen: list[Image] = []
    room = IMAGE_BYTES
    for number, image in enumerate(reversed(images)):  # from the newest, so that it is included
        if number % stride == 0 and len(image.png.data) <= room:
            chosen.append(image._replace(name=redaction.name(image.name), caption=redaction.text(image.caption)))
            room -= len(image.png.data)
    if chosen:
        replace_file(target.log("images"), [encode(image.stored) for image in reversed(chosen)])


def _copy_lines(source: Path, target: Path, clean: Any) -> None:
    """Copy the valid lines of a log, each cleaned with `clean`."""
    try:
        log = open_log(source)
    except FileNotFoundError:
        return
    make_folder(target.parent)
    with log, open(target, "wb") as copy:
        for line in log:
            try:
                copy.write(encode(clean(_mapping(parse_shallow(line)))))
            except ValueError:
                continue


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def _named(tree: Any, patterns: tuple[str, ...], path: tuple[str, ...]) -> Iterator[str]:
    """The texts of the settings that match a pattern."""
    if isinstance(tree, Mapping):
        for name, item in tree.items():
            yield from _named(item, patterns, (*path, *str(name).split(".")))
    elif patterns and path and matches(patterns, path):
        yield from (leaf for leaf in leaves(tree) if isinstance(leaf, str))


def _without_texts(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {name: _without_texts(item) for name, item in tree.items()}
    if isinstance(tree, list):
        return [_without_texts(item) for item in tree]
    return LEFT_OUT if isinstance(tree, str) else tree


def _without_words(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {
            name: LEFT_OUT if name in _TEXTS else _without_words(item)
            for name, item in tree.items()
            if name not in _OBJECTS
        }
    return [_without_words(item) for item in tree] if isinstance(tree, list) else tree
