"""Reads files written by `torch.save` without unpickling them: a zip archive with a pickle and the tensors' numbers.

A pickle is a program. Unpickling imports modules and calls their functions, so a file from somebody else can run any
code. This module interprets the pickle's instructions with only containers, numbers and texts. A class becomes a
`Foreign` with its name, and a call becomes a `Foreign` with its arguments. Nothing is imported and nothing is called. A
tensor becomes a `Tensor`, which reads its numbers on request. An unknown instruction raises NotPlain.
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
"""The most values of a file. A part that is referred to several times counts each time."""

MOST_DEPTH = 60


class NotPlain(ValueError):
    """The file is not a torch archive, is damaged, or holds more than plain data."""


@dataclass(slots=True, eq=False)
class Foreign:
    """An object that only the writer's code could create: its name, arguments and state."""

    name: str
    arguments: tuple[Any, ...] = ()
    state: Any = None


@dataclass(slots=True, eq=False)
class Tensor:
    """A tensor of the archive. `tolist()` returns None if it is not stored row by row."""

    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], Any] = field(repr=False)

    def tolist(self) -> Any:
        return self.read()


_KINDS = {
    "DoubleStorage": "f8", "FloatStorage": "f4", "HalfStorage": "f2", "LongStorage": "i8", "IntStorage": "i4",
    "ShortStorage": "i2", "CharStorage": "i1", "ByteStorage": "u1", "BoolStorage": "?",
}  # fmt: skip
"""numpy types of torch's storages."""

_REBUILT = frozenset({"torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor"})


class Archive:
    """A file that `torch.save` wrote. Use it as a context manager; tensors can only be read while it is open."""

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
        """The saved value. Raises NotPlain if it is damaged or not plain data."""
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
        if member.compress_type != zipfile.ZIP_STORED:  # torch never compresses; this excludes zip bombs
            raise NotPlain("its members are packed")
        if member.file_size > most:
            raise NotPlain(f"{name} has {member.file_size:,} bytes")
        return self._zip.read(member)

    def _tensor(self, storage: Any, arguments: tuple[Any, ...]) -> Any:
        """The tensor of a storage that the pickle refers to as ("storage", class, name, device, size)."""
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
"""The most bytes of an integer."""


def read_pickle(data: bytes, tensor: Callable[[Any, tuple[Any, ...]], Any]) -> Any:
    """The value of a pickle. `tensor` creates a tensor from a storage and the arguments of torch's rebuild function."""
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
    """The stack and memo of one pickle, and the effect of each instruction. `pickletools` defines the names."""

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
            # A set becomes a list, because its items may not be hashable here.
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
            "BINPERSID": lambda _: None,  # the description of a storage stays on the stack
            "POP": lambda _: self.stack.pop(),
            "POP_MARK": lambda _: self._since_mark(),
            "DUP": lambda _: push(self.stack[-1]),
        }

    def do(self, name: str, argument: Any) -> None:
        """Execute one instruction with its argument."""
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
        """Store the top of the stack in the memo, under the given number or the next one."""
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
            # A key of another type is replaced by its type's name.
            is_plain = isinstance(key, str | int | float | bytes | None)
            target[key if is_plain else f"<{type(key).__name__}>"] = value

    def _make(self, what: Any, arguments: Any) -> None:
        if not isinstance(what, Foreign) or not isinstance(arguments, tuple):
            raise NotPlain("its pickle calls something that is not a class")
        if what.name in _REBUILT and isinstance(arguments[0], tuple):
            self.stack.append(self._tensor(arguments[0], arguments))
        elif what.name == "collections OrderedDict":
            self.stack.append({})
        elif what.name == "_codecs encode" and isinstance(arguments[0], str):  # older protocols write bytes this way
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
    """Raise NotPlain if a value is nested too deeply, contains itself, or refers to its parts so often that walking
    through it would take too long.
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
