"""What `torch.save` wrote, read without running any of it: a zip archive with a pickle and the tensors' numbers.

A pickle is a program: unpickling one imports modules and calls what they hold, so a file from somebody else can run
anything. Here an interpreter reads its instructions that has only containers, numbers and texts. Where the program
names a class it gets the name alone, in a `Foreign`, and where it would call something it gets a `Foreign` with the
arguments: nothing is imported and nothing is called. A tensor is a `Tensor`, whose numbers are read when they are
asked for. An instruction that is not in the list is refused.
"""

from __future__ import annotations

import pickletools
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from rlvitals.importers.base import open_foreign

PICKLE_BYTES = 2**30
"""The largest pickle that is read."""

MOST_VALUES = 200_000_000
"""Values that a file may come to when everything it refers to twice is counted twice."""

MOST_DEPTH = 60


class NotPlain(ValueError):
    """A file that is not an archive of torch, or does what plain data does not need."""


@dataclass(slots=True, eq=False)
class Foreign:
    """Something that only the writer's own code could make: its name, and what it would be made of."""

    name: str
    arguments: tuple[Any, ...] = ()
    state: Any = None


@dataclass(slots=True, eq=False)
class Tensor:
    """A tensor that lies row by row in one storage of the archive, or `tolist()` is None."""

    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], Any] = field(repr=False)

    def tolist(self) -> Any:
        return self.read()


_KINDS = {
    "DoubleStorage": "f8", "FloatStorage": "f4", "HalfStorage": "f2", "LongStorage": "i8", "IntStorage": "i4",
    "ShortStorage": "i2", "CharStorage": "i1", "ByteStorage": "u1", "BoolStorage": "?",
}  # fmt: skip
"""Storages of torch by the numbers they hold."""

_REBUILT = frozenset({"torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor"})


class Archive:
    """A file that `torch.save` wrote. Close it, or use it as a context manager; tensors are read while it is open."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = open_foreign(path)
        try:
            self._zip = zipfile.ZipFile(self._file)
            names = [name for name in self._zip.namelist() if name.endswith("/data.pkl")]
            if len(names) != 1:
                raise NotPlain("it holds no pickle of torch's")
            self._folder = names[0].removesuffix("data.pkl")
            order = f"{self._folder}byteorder"
            has_order = order in self._zip.namelist()
            self._order = ">" if has_order and self._member(order, 16).strip() == b"big" else "<"
            self._pickle = names[0]
        except (zipfile.BadZipFile, ValueError) as error:
            self._file.close()
            raise NotPlain(str(error)) from error
        except OSError:
            self._file.close()
            raise

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *error: object) -> None:
        self._zip.close()
        self._file.close()

    def value(self) -> Any:
        """What was saved. Raises NotPlain where it is more than plain data."""
        try:
            read = read_pickle(self._member(self._pickle, PICKLE_BYTES), self._tensor)
            bounded(read)
        except NotPlain:
            raise
        except (LookupError, TypeError, ValueError, OverflowError, RecursionError, MemoryError) as error:
            raise NotPlain(f"its pickle is damaged ({type(error).__name__})") from error
        return read

    def _member(self, name: str, most: int) -> bytes:
        member = self._zip.getinfo(name)
        if member.compress_type != zipfile.ZIP_STORED:  # torch never packs them, and a packed one may grow without end
            raise NotPlain("its members are packed")
        if member.file_size > most:
            raise NotPlain(f"{name} has {member.file_size:,} bytes")
        return self._zip.read(member)

    def _tensor(self, storage: Any, arguments: tuple[Any, ...]) -> Any:
        """A tensor of a storage that the pickle refers to: ("storage", its class, its name, its device, its size)."""
        offset, shape, stride = arguments[1:4]
        _, kind, key, _, _ = storage
        name = kind.name.rpartition(" ")[2]
        size = 1
        strides = []
        for length in reversed(shape):
            strides.append(size)
            size *= int(length)
        is_row_by_row = all(
            mine == theirs or length == 1 for mine, theirs, length in zip(strides[::-1], stride, shape, strict=True)
        )

        def read() -> Any:
            if not is_row_by_row or size < 0 or offset < 0 or (name != "BFloat16Storage" and name not in _KINDS):
                return None
            data = self._member(f"{self._folder}data/{key}", PICKLE_BYTES)
            if name == "BFloat16Storage":  # the upper half of a 32-bit number
                halves = np.frombuffer(data, f"{self._order}u2")[offset : offset + size].astype(np.uint32)
                flat: Any = (halves << 16).view(np.float32)
            else:
                flat = np.frombuffer(data, f"{self._order}{_KINDS[name]}")[offset : offset + size]
            return flat.reshape(shape).tolist() if len(flat) == size else None

        return Tensor(name.removesuffix("Storage").lower(), tuple(int(length) for length in shape), read)


_MARK = object()

_MOST_DIGITS = 64
"""Bytes of a whole number."""


def read_pickle(data: bytes, tensor: Callable[[Any, tuple[Any, ...]], Any]) -> Any:
    """The value of a pickle; `tensor` makes one of a storage and the arguments of torch's function for it."""
    machine = _Machine(tensor)
    instructions = pickletools.genops(data)
    while True:
        try:
            instruction, argument, _ = next(instructions)
        except ValueError as error:
            raise NotPlain(f"its pickle ends too early or is damaged ({error})") from error
        if instruction.name == "STOP":
            return machine.stack.pop()
        machine.do(instruction.name, argument)


class _Machine:
    """The stack and the memo of one pickle, and what each instruction does to them; their names are `pickletools`'."""

    def __init__(self, tensor: Callable[[Any, tuple[Any, ...]], Any]) -> None:
        self._tensor = tensor
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        push = self.stack.append
        self._instructions: dict[str, Callable[[Any], object]] = {
            **dict.fromkeys(("BININT", "BININT1", "BININT2", "BINFLOAT"), push),
            **dict.fromkeys(("LONG1", "LONG4"), self._push_whole),
            **dict.fromkeys(("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"), self._push_text),
            **dict.fromkeys(
                ("SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"), lambda found: push(bytes(found))
            ),
            **dict.fromkeys(("SHORT_BINSTRING", "BINSTRING"), lambda found: push(found.encode("latin-1"))),
            **dict.fromkeys(("PROTO", "FRAME"), lambda _: None),
            **dict.fromkeys(("BINPUT", "LONG_BINPUT", "MEMOIZE"), self._remember),
            **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda place: push(self._memo[place])),
            "NONE": push,
            "NEWTRUE": lambda _: push(True),
            "NEWFALSE": lambda _: push(False),
            "MARK": lambda _: push(_MARK),
            "EMPTY_DICT": lambda _: push({}),
            "EMPTY_TUPLE": lambda _: push(()),
            # A set is a list here: what it holds may be no key.
            **dict.fromkeys(("EMPTY_LIST", "EMPTY_SET"), lambda _: push([])),
            **dict.fromkeys(("LIST", "FROZENSET"), lambda _: push(self._since_mark())),
            "TUPLE": lambda _: push(tuple(self._since_mark())),
            "TUPLE1": lambda _: push(tuple(self._popped(1))),
            "TUPLE2": lambda _: push(tuple(self._popped(2))),
            "TUPLE3": lambda _: push(tuple(self._popped(3))),
            "DICT": self._dictionary,
            "APPEND": lambda _: self._extend(self._popped(1)),
            **dict.fromkeys(("APPENDS", "ADDITEMS"), lambda _: self._extend(self._since_mark())),
            "SETITEM": lambda _: self._set(self._popped(2)),
            "SETITEMS": lambda _: self._set(self._since_mark()),
            "GLOBAL": lambda name: push(Foreign(name)),
            "STACK_GLOBAL": lambda _: push(Foreign(" ".join(map(str, self._popped(2))))),
            **dict.fromkeys(("REDUCE", "NEWOBJ"), lambda _: self._make(*self._popped(2))),
            "NEWOBJ_EX": self._make_with_names,
            "BUILD": self._build,
            "BINPERSID": lambda _: None,  # what it refers to stands for itself, the description of a storage
            "POP": lambda _: self.stack.pop(),
            "POP_MARK": lambda _: self._since_mark(),
            "DUP": lambda _: push(self.stack[-1]),
        }

    def do(self, name: str, argument: Any) -> None:
        """One instruction with the argument that stands behind it."""
        instruction = self._instructions.get(name)
        if instruction is None:
            raise NotPlain(f"its pickle has an instruction that is not read ({name})")
        instruction(argument)

    def _push_whole(self, number: int) -> None:
        if number.bit_length() > 8 * _MOST_DIGITS:
            raise NotPlain(f"a number of it has {(number.bit_length() + 7) // 8:,} bytes")
        self.stack.append(number)

    def _push_text(self, text: str) -> None:
        self.stack.append(text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8"))

    def _remember(self, place: int | None) -> None:
        """Under the number that follows, or the next one."""
        self._memo[len(self._memo) if place is None else place] = self.stack[-1]

    def _popped(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise NotPlain("its pickle is damaged (too little on its stack)")
        items = self.stack[-count:]
        del self.stack[-count:]
        return items

    def _since_mark(self) -> list[Any]:
        place = len(self.stack) - 1
        while self.stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise NotPlain("its pickle is damaged (no mark)")
        items = self.stack[place + 1 :]
        del self.stack[place:]
        return items

    def _dictionary(self, _: None) -> None:
        items = self._since_mark()
        self.stack.append({})
        self._set(items)

    def _extend(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise NotPlain("its pickle appends to something that is not a list")
        self.stack[-1].extend(items)

    def _set(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise NotPlain("its pickle sets an item of something that is not a dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # A key of another kind is nobody's field.
            is_plain = isinstance(key, str | int | float | bytes | None)
            target[key if is_plain else f"<{type(key).__name__}>"] = value

    def _make(self, what: Any, arguments: Any) -> None:
        if not isinstance(what, Foreign) or not isinstance(arguments, tuple):
            raise NotPlain("its pickle calls something that is not a class")
        if what.name in _REBUILT and isinstance(arguments[0], tuple):
            self.stack.append(self._tensor(arguments[0], arguments))
        elif what.name == "collections OrderedDict":
            self.stack.append({})
        elif what.name == "_codecs encode" and isinstance(arguments[0], str):  # how older protocols write bytes
            self.stack.append(arguments[0].encode("latin-1", "replace"))
        else:
            self.stack.append(Foreign(what.name, arguments))

    def _make_with_names(self, _: None) -> None:
        what, arguments, named = self._popped(3)
        self._make(what, (*arguments, named))

    def _build(self, _: None) -> None:
        (state,) = self._popped(1)
        if isinstance(self.stack[-1], Foreign):
            self.stack[-1].state = state


def bounded(value: Any) -> None:
    """Raise NotPlain where a value is nested too deeply or in itself, or refers to its own parts so often that walking
    through it would not end.
    """
    sizes: dict[int, int] = {}

    def size_of(part: Any, depth: int) -> int:
        if depth > MOST_DEPTH:
            raise NotPlain("it is nested too deeply, or holds itself")
        if isinstance(part, Foreign):
            items: Any = (*part.arguments, part.state)
        elif isinstance(part, dict):
            items = part.values()
        elif isinstance(part, list | tuple):
            items = part
        else:
            return 1
        known = sizes.get(id(part))
        if known is None:
            known = 1 + sum(1 if isinstance(item, _LEAVES) else size_of(item, depth + 1) for item in items)
            sizes[id(part)] = known
            if known > MOST_VALUES:
                raise NotPlain("it refers to its own parts too often")
        return known

    size_of(value, 0)


_LEAVES = (int, float, str, bytes, type(None))
