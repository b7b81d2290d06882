"""What `torch.save` wrote, read without running any of it: a zip archive with a pickle and the tensors' numbers.

A pickle is a program: unpickling one imports modules and calls what they hold, so a file from somebody else can run
anything. Here an interpreter reads its instructions that has only containers, numbers and texts. Where the program
names a class it gets the name alone, in a `Foreign`, and where it would call something it gets a `Foreign` with the
arguments: nothing is imported and nothing is called. A tensor is a `Tensor`, whose numbers are read when they are
asked for. An instruction that is not in the list is refused.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
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
        except (LookupError, TypeError, ValueError, struct.error, OverflowError, RecursionError, MemoryError) as error:
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
_REAL = struct.Struct(">d")
_BYTES = {0x42: 4, 0x43: 1, 0x8E: 8, 0x96: 8, 0x54: 4, 0x55: 1}
"""Instructions that bring bytes, and how many hold their number."""

_MOST_DIGITS = 64
"""Bytes of a whole number."""


def read_pickle(data: bytes, tensor: Callable[[Any, tuple[Any, ...]], Any]) -> Any:
    """The value of a pickle; `tensor` makes one of a storage and the arguments of torch's function for it."""
    return _Machine(data, tensor).run()


class _Machine:
    """The stack and the memo of one pickle, and what each instruction does to them."""

    def __init__(self, data: bytes, tensor: Callable[[Any, tuple[Any, ...]], Any]) -> None:
        self._data = data
        self._at = 0
        self._tensor = tensor
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        take, push = self._take, self._stack.append
        self._instructions: dict[int, Callable[[], object]] = {
            **{code: partial(self._push_whole, size) for code, size in {0x4B: 1, 0x4D: 2}.items()},  # K M
            **{code: partial(self._push_text, size) for code, size in {0x8C: 1, 0x58: 4, 0x8D: 8}.items()},
            **{code: partial(self._push_bytes, size) for code, size in _BYTES.items()},
            **{code: partial(self._remember, size) for code, size in {0x71: 1, 0x72: 4, 0x94: 0}.items()},  # q r
            **{code: partial(self._recall, size) for code, size in {0x68: 1, 0x6A: 4}.items()},  # h j
            **{code: partial(self._tuple_of, count) for code, count in {0x85: 1, 0x86: 2, 0x87: 3}.items()},
            0x4A: lambda: push(self._signed(4)),  # J
            0x8A: lambda: push(self._signed(self._whole(1))),
            0x8B: lambda: push(self._signed(self._signed(4))),
            0x47: lambda: push(_REAL.unpack(take(8))[0]),  # G
            0x28: lambda: push(_MARK),  # (
            0x4E: lambda: push(None),  # N
            0x88: lambda: push(True),
            0x89: lambda: push(False),
            0x7D: lambda: push({}),  # }
            0x5D: lambda: push([]),  # ]
            0x8F: lambda: push([]),  # a set is a list here: what it holds may be no key
            0x29: lambda: push(()),  # )
            0x74: lambda: push(tuple(self._since_mark())),  # t
            0x6C: lambda: push(self._since_mark()),  # l
            0x91: lambda: push(self._since_mark()),  # a frozen set
            0x64: self._dictionary,  # d
            0x61: self._append,  # a
            0x65: self._extend,  # e
            0x90: self._extend,
            0x73: self._set_item,  # s
            0x75: self._set_items,  # u
            0x63: lambda: push(Foreign(f"{self._line()} {self._line()}")),  # c
            0x93: self._named,
            0x52: self._made,  # R
            0x81: self._made,
            0x92: self._made_with_names,
            0x62: self._build,  # b
            0x51: lambda: None,  # Q: what it refers to stands for itself, the description of a storage
            0x30: self._stack.pop,  # 0
            0x31: self._since_mark,  # 1
            0x32: lambda: push(self._stack[-1]),  # 2
            0x80: lambda: take(1),
            0x95: lambda: take(8),
        }

    def run(self) -> Any:
        while True:
            (code,) = self._take(1)
            if code == 0x2E:  # .
                return self._stack.pop()
            instruction = self._instructions.get(code)
            if instruction is None:
                raise NotPlain(f"its pickle has an instruction that is not read ({bytes([code])!r})")
            instruction()

    def _take(self, size: int) -> bytes:
        start, self._at = self._at, self._at + size
        if size < 0 or self._at > len(self._data):
            raise NotPlain("its pickle ends too early")
        return self._data[start : self._at]

    def _whole(self, size: int) -> int:
        return int.from_bytes(self._take(size), "little")

    def _signed(self, size: int) -> int:
        if size > _MOST_DIGITS:
            raise NotPlain(f"a number of it has {size:,} bytes")
        return int.from_bytes(self._take(size), "little", signed=True)

    def _push_whole(self, size: int) -> None:
        self._stack.append(self._whole(size))

    def _push_text(self, size: int) -> None:
        self._stack.append(self._take(self._whole(size)).decode("utf-8", "replace"))

    def _push_bytes(self, size: int) -> None:
        self._stack.append(self._take(self._whole(size)))

    def _line(self) -> str:
        return self._take(self._data.index(b"\n", self._at) + 1 - self._at)[:-1].decode("utf-8", "replace")

    def _remember(self, size: int) -> None:
        """Under the number that follows, or the next one."""
        self._memo[self._whole(size) if size else len(self._memo)] = self._stack[-1]

    def _recall(self, size: int) -> None:
        self._stack.append(self._memo[self._whole(size)])

    def _since_mark(self) -> list[Any]:
        place = len(self._stack) - 1
        while self._stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise NotPlain("its pickle is damaged (no mark)")
        items = self._stack[place + 1 :]
        del self._stack[place:]
        return items

    def _tuple_of(self, count: int) -> None:
        items = tuple(self._stack[-count:])
        del self._stack[-count:]
        self._stack.append(items)

    def _dictionary(self) -> None:
        items = self._since_mark()
        self._stack.append({})
        _put(self._stack[-1], items)

    def _append(self) -> None:
        item = self._stack.pop()
        _as_list(self._stack[-1]).append(item)

    def _extend(self) -> None:
        items = self._since_mark()
        _as_list(self._stack[-1]).extend(items)

    def _set_item(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        _put(self._stack[-1], [key, value])

    def _set_items(self) -> None:
        items = self._since_mark()
        _put(self._stack[-1], items)

    def _named(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        self._stack.append(Foreign(f"{module} {name}"))

    def _made(self) -> None:
        arguments, what = self._stack.pop(), self._stack.pop()
        if not isinstance(what, Foreign) or not isinstance(arguments, tuple):
            raise NotPlain("its pickle calls something that is not a class")
        if what.name in _REBUILT and isinstance(arguments[0], tuple):
            self._stack.append(self._tensor(arguments[0], arguments))
        elif what.name == "collections OrderedDict":
            self._stack.append({})
        elif what.name == "_codecs encode" and isinstance(arguments[0], str):  # how older protocols write bytes
            self._stack.append(arguments[0].encode("latin-1", "replace"))
        else:
            self._stack.append(Foreign(what.name, arguments))

    def _made_with_names(self) -> None:
        named, arguments = self._stack.pop(), self._stack.pop()
        self._stack.append((*arguments, named))
        self._made()

    def _build(self) -> None:
        state = self._stack.pop()
        if isinstance(self._stack[-1], Foreign):
            self._stack[-1].state = state


def _as_list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise NotPlain("its pickle appends to something that is not a list")
    return value


def _put(target: Any, items: list[Any]) -> None:
    if not isinstance(target, dict):
        raise NotPlain("its pickle sets an item of something that is not a dictionary")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if isinstance(key, str | int | float | bytes | None):
            target[key] = value
        else:  # a key of another kind is nobody's field
            target[f"<{type(key).__name__}>"] = value


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
