"""The states that a power cut may leave. Every file operation below a folder is recorded, and the states that a disk
may be in after any number of them are written to the real disk, one after the other, and checked.

The disk is as bad as POSIX allows. The content of a file is safe after the file is synced; the names in a folder are
safe after that folder is synced. Until then bytes may be lost, zero or partly written, and each change of a name
(created, deleted, or renamed, which is one change) may have happened or not, independent of later changes.

This works within one process and one thread at a time: the functions of `os` that change files are wrapped, and `open`
is replaced by Python's own implementation, which calls them. Writes of SQLite are not recorded; it holds only derived
files.
"""

from __future__ import annotations

import _pyio
import builtins
import contextlib
import hashlib
import io
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

Number = int
"""A file or folder. Numbers are never used again."""


class Named(NamedTuple):
    """A name in a folder now refers to a node; an `old` name in the same folder no longer does."""

    folder: Number
    name: str
    node: Number
    old: str | None = None


class Unnamed(NamedTuple):
    folder: Number
    name: str
    node: Number


class Written(NamedTuple):
    node: Number
    offset: int
    data: bytes


class Cut(NamedTuple):
    node: Number
    size: int


class Synced(NamedTuple):
    node: Number


Operation = Named | Unnamed | Written | Cut | Synced
NAMING, FILLING = (Named, Unnamed), (Written, Cut)

State = dict[str, bytes | None]
"""The content of the folder: the bytes of each file by its path, None for a folder."""


class CutState(NamedTuple):
    """A possible content of the disk after a power cut."""

    state: State
    promised: frozenset[Any]
    """The facts that had been promised by then."""
    after: int
    """The number of operations before the cut."""

    def put_in(self, folder: Path) -> Path:
        """Write the state to a real folder; returns the folder."""
        folder.mkdir()
        for name, data in sorted(self.state.items()):
            if data is None:
                (folder / name).mkdir()
            else:
                (folder / name).write_bytes(data)
        return folder


@dataclass
class Disk:
    """Files and folders by number."""

    files: dict[Number, bytes] = field(default_factory=dict)
    folders: dict[Number, dict[str, Number]] = field(default_factory=lambda: {0: {}})

    def apply(self, done: Operation) -> None:
        match done:
            case Named(folder, name, node, old):
                names = self.folders.setdefault(folder, {})
                names[name] = node
                if old is not None and names.get(old) == node:
                    del names[old]
            case Unnamed(folder, name, node):
                names = self.folders.setdefault(folder, {})
                if names.get(name) == node:
                    del names[name]
            case Written(node, offset, data):
                before = self.files.get(node, b"").ljust(offset, b"\0")
                self.files[node] = before[:offset] + data + before[offset + len(data) :]
            case Cut(node, size):
                self.files[node] = self.files.get(node, b"")[:size].ljust(size, b"\0")
            case Synced():
                pass

    def find(self, path: str) -> Number | None:
        """The node of a path; None if there is none."""
        node: Number | None = 0
        for part in [part for part in path.split("/") if part not in ("", ".")]:
            node = self.folders.get(node, {}).get(part) if node is not None else None
        return node

    def state(self, folder: Number = 0, above: str = "") -> State:
        found: State = {}
        for name, node in self.folders.get(folder, {}).items():
            if node in self.folders:
                found[above + name] = None
                found |= self.state(node, f"{above}{name}/")
            else:
                found[above + name] = self.files.get(node, b"")
        return found

    def copy(self) -> Disk:
        return Disk(dict(self.files), {number: dict(names) for number, names in self.folders.items()})


class Recording:
    """The operations below one folder, and the facts that were promised in between."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.done: list[Operation] = []
        self._promises: list[tuple[int, frozenset[Any]]] = []
        self._numbers = iter(range(1, sys.maxsize))
        self.now = Disk()
        self._take_in(self.root, 0)
        self._first = self.now.copy()
        self.open: dict[int, Number] = {}
        self.lock = threading.RLock()

    def promise(self, *facts: Any) -> None:
        """These facts must survive every later power cut."""
        self._promises.append((len(self.done), frozenset(facts)))

    def add(self, done: Operation) -> None:
        self.now.apply(done)
        self.done.append(done)

    def new(self, *, is_folder: bool = False) -> Number:
        number = next(self._numbers)
        if is_folder:
            self.now.folders[number] = {}
        return number

    def place(self, path: Any, folder: int | None = None) -> tuple[Number, str] | None:
        """The folder and name of a path, which need not exist; None if it is not below the root."""
        text = os.fsdecode(path) if not isinstance(path, int) else None
        if text is None:
            return None
        if folder is not None:
            return (self.open[folder], text) if folder in self.open else None
        parent = os.path.realpath(os.path.dirname(os.path.abspath(text)))
        if not f"{parent}/".startswith(f"{self.root}/"):
            return None
        above = self.now.find(parent[len(str(self.root)) :])
        return None if above is None else (above, os.path.basename(text))

    def states(self, *, most: int | None = None) -> list[CutState]:
        """Every different state that a power cut may leave. With more than `most` of them, a random sample: two thirds
        are states after the last operation or ones with simple losses, one third are others.
        """
        likely, others = [], []
        for moment in self._moments():
            for names in range(len(moment.names)):
                for fill in range(_fills(moment.fillings)):
                    is_last = moment.after == len(self.done)
                    is_telling = fill < 2 and names in (0, 1, len(moment.names) - 1)
                    (likely if is_last or is_telling else others).append((moment, names, fill))
        dice = random.Random(len(self.done))
        dice.shuffle(likely)
        dice.shuffle(others)
        found: dict[bytes, CutState] = {}
        for moment, names, fill in [*likely, *others] if most is None else _in_turn(likely, others):
            cut = moment.cut(names, fill)
            found.setdefault(_digest(cut), cut)
            if len(found) == most:
                break
        return list(found.values())

    def _moments(self) -> Iterator[Moment]:
        """The disk before each operation and after the last one: what is safe, and which operations are not yet."""
        safe, waiting = self._first.copy(), []
        for number in range(len(self.done) + 1):
            promised = frozenset().union(*(facts for when, facts in self._promises if when <= number))
            fillings = [done for done in waiting if isinstance(done, FILLING)]
            names = _some_of([done for done in waiting if isinstance(done, NAMING)])
            yield Moment(number, promised, safe.copy(), names, fillings)
            if number == len(self.done):
                return
            done = self.done[number]
            if isinstance(done, Named) and done.node in self.now.folders:
                safe.folders.setdefault(done.node, {})
            if isinstance(done, Synced):
                concerned = [each for each in waiting if _owner(each) == done.node]
                waiting = [each for each in waiting if _owner(each) != done.node]
                for each in concerned:
                    safe.apply(each)
            else:
                waiting.append(done)

    def _take_in(self, folder: Path, number: Number) -> None:
        for path in sorted(folder.iterdir()):
            node = self.new(is_folder=path.is_dir())
            self.now.folders[number][path.name] = node
            if path.is_dir():
                self._take_in(path, node)
            else:
                self.now.files[node] = path.read_bytes()


def _owner(done: Operation) -> Number:
    """The node that must be synced to make the operation safe."""
    return done.folder if isinstance(done, NAMING) else done.node


class Moment(NamedTuple):
    """A moment at which the power may be cut."""

    after: int
    promised: frozenset[Any]
    safe: Disk
    names: list[list[Operation]]
    """The sets of name changes that the disk may have made."""
    fillings: list[Operation]
    """Writes that are not safe yet."""

    def cut(self, names: int, fill: int) -> CutState:
        """One of the states. `names` selects the set of name changes, `fill` the fate of the written bytes: lost (0),
        all there (1), zeros (2), the first half there (3), or lost in one file only (4 and more).
        """
        disk = self.safe.copy()
        touched = sorted({done.node for done in self.fillings})
        for done in self.fillings if fill else ():
            if fill < 4:
                disk.apply((_whole, _zeros, _half)[fill - 1](done))
            elif done.node != touched[fill - 4]:
                disk.apply(done)
        for done in self.names[names]:
            disk.apply(done)
        return CutState(disk.state(), self.promised, self.after)


def _some_of(names: list[Operation]) -> list[list[Operation]]:
    """Subsets: none, all, all but one, the first half, the second half, and each one alone, the newest last."""
    one_less = [[other for other in names if other is not each] for each in names]
    half = len(names) // 2
    return [[], names, *one_less, names[:half], names[half:], *([each] for each in names)]


def _fills(fillings: list[Operation]) -> int:
    touched = len({done.node for done in fillings})
    return 1 if touched == 0 else 4 if touched == 1 else 4 + touched


def _in_turn(*lists: list[Any]) -> Iterator[Any]:
    """Two items of the first list for each item of the second."""
    first, second = map(iter, lists)
    for one in first:
        yield one
        yield from (other for other in [next(first, None), next(second, None)] if other is not None)
    yield from second


def _digest(cut: CutState) -> bytes:
    return hashlib.sha256(repr((sorted(cut.state.items()), sorted(map(repr, cut.promised)))).encode()).digest()


def _whole(done: Operation) -> Operation:
    return done


def _zeros(done: Operation) -> Operation:
    return Written(done.node, done.offset, bytes(len(done.data))) if isinstance(done, Written) else done


def _half(done: Operation) -> Operation:
    return Written(done.node, done.offset, done.data[: len(done.data) // 2]) if isinstance(done, Written) else done


@contextlib.contextmanager
def recorded(root: Path) -> Iterator[Recording]:
    """Record what happens below a folder until the block ends."""
    recording = Recording(root)
    wrapped = _Wrapped(recording)
    before: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, value: Any) -> None:
        before.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    modules = [module for name, module in list(sys.modules.items()) if name.split(".")[0] == "rlvitals"]
    for name in wrapped.names:
        real, ours = getattr(os, name), partial(getattr(wrapped, name), getattr(os, name))
        put(os, name, ours)
        for module in modules:  # modules that have imported the function by its name
            for bound in [key for key, value in vars(module).items() if value is real]:
                put(module, bound, ours)
    for owner in (builtins, io):
        put(owner, "open", _pyio.open)
    put(io, "FileIO", _pyio.FileIO)
    try:
        yield recording
    finally:
        for owner, name, value in reversed(before):
            setattr(owner, name, value)


class _Wrapped:
    """The functions of `os`: each does its work and records it. The real function is the first argument."""

    names = (
        "open", "close", "write", "fsync", "fdatasync", "ftruncate", "truncate", "rename", "replace", "link", "unlink",
        "remove", "mkdir", "rmdir", "symlink", "sendfile", "pwrite", "writev", "copy_file_range",
    )  # fmt: skip

    def __init__(self, recording: Recording) -> None:
        self._told = recording

    def open(self, real: Callable[..., int], path: Any, flags: int, mode: int = 0o777, *, dir_fd: Any = None) -> int:
        told = self._told
        with told.lock:
            descriptor = real(path, flags, mode, dir_fd=dir_fd)
            where = told.place(path, dir_fd)
            if where is None:
                if os.path.realpath(os.fsdecode(path)) == str(told.root) and dir_fd is None:
                    told.open[descriptor] = 0
                return descriptor
            node = told.now.folders[where[0]].get(where[1])
            if node is None:
                node = told.new()
                told.now.files[node] = b""
                told.add(Named(*where, node))
            elif flags & os.O_TRUNC:
                told.add(Cut(node, 0))
            told.open[descriptor] = node
            return descriptor

    def close(self, real: Callable[[int], None], descriptor: int) -> None:
        with self._told.lock:
            self._told.open.pop(descriptor, None)
            real(descriptor)

    def write(self, real: Callable[[int, Any], int], descriptor: int, data: Any) -> int:
        with self._told.lock:
            count = real(descriptor, data)
            if descriptor in self._told.open and count:
                end = os.lseek(descriptor, 0, os.SEEK_CUR)
                self._told.add(Written(self._told.open[descriptor], end - count, bytes(data)[:count]))
            return count

    def fsync(self, real: Callable[[int], None], descriptor: Any) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        with self._told.lock:
            if number in self._told.open:
                self._told.add(Synced(self._told.open[number]))
            else:
                real(number)  # not below the folder; a sync below it is only recorded

    fdatasync = fsync

    def ftruncate(self, real: Callable[[int, int], None], descriptor: int, size: int) -> None:
        with self._told.lock:
            real(descriptor, size)
            if descriptor in self._told.open:
                self._told.add(Cut(self._told.open[descriptor], size))

    def truncate(self, real: Callable[[Any, int], None], path: Any, size: int) -> None:
        if isinstance(path, int):
            return self.ftruncate(real, path, size)
        with self._told.lock:
            real(path, size)
            if (where := self._told.place(path)) is not None:
                self._told.add(Cut(self._told.now.folders[where[0]][where[1]], size))

    def rename(self, real: Callable[..., None], old: Any, new: Any, **options: Any) -> None:
        with self._told.lock:
            real(old, new, **options)
            one, other = self._told.place(old), self._told.place(new)
            if one is not None:
                assert other is not None
                assert one[0] == other[0], "a rename from folder to folder is not modelled"
                self._told.add(Named(*other, self._told.now.folders[one[0]][one[1]], one[1]))

    replace = rename

    def link(self, real: Callable[..., None], old: Any, new: Any, **options: Any) -> None:
        with self._told.lock:
            real(old, new, **options)
            one, other = self._told.place(old), self._told.place(new)
            if one is not None and other is not None:
                self._told.add(Named(*other, self._told.now.folders[one[0]][one[1]]))

    def unlink(self, real: Callable[..., None], path: Any, *, dir_fd: Any = None) -> None:
        with self._told.lock:
            real(path, dir_fd=dir_fd)
            where = self._told.place(path, dir_fd)
            if where is not None and where[1] in self._told.now.folders[where[0]]:
                self._told.add(Unnamed(*where, self._told.now.folders[where[0]][where[1]]))

    remove = rmdir = unlink

    def mkdir(self, real: Callable[..., None], path: Any, mode: int = 0o777, *, dir_fd: Any = None) -> None:
        with self._told.lock:
            real(path, mode, dir_fd=dir_fd)
            if (where := self._told.place(path, dir_fd)) is not None:
                self._told.add(Named(*where, self._told.new(is_folder=True)))

    def _unmodelled(self, real: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        raise AssertionError(f"{real.__name__} is not modelled")

    symlink = sendfile = pwrite = writev = copy_file_range = _unmodelled
