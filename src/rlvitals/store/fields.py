"""Reads records from files: every field is checked against its declared type.

A run's files may be damaged, truncated, edited by hand or written by other programs. All records are read through this
module, so that other code may rely on the types. Numbers are finite and within the range of the type (`Range`); texts
are at most `LONGEST_TEXT` long. A field with an invalid value gets its default and is reported by name. A record that
lacks a required field raises ValueError.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from rlvitals.records import WHOLE, Range

R = TypeVar("R")

LONGEST_TEXT = 10_000
"""Largest number of characters of a text; the rest is cut off."""

MOST_NAMED = 5
"""Largest number of wrong fields that a sentence names."""

_Note = Callable[[str], None]
_Reader = Callable[[Any, str, _Note], Any]


def record_of(
    kind: type[R], raw: object, *, defaults: Mapping[str, Any] | None = None, wrong: list[str] | None = None
) -> R:
    """A dataclass from a parsed JSON object. Keys it has no field for are skipped.

    `defaults` are used for fields that have no default. The names of fields with invalid values are added to `wrong`.
    Raises ValueError if `raw` is not an object or lacks a required field.

    >>> from rlvitals.records import Attempt
    >>> noted = []
    >>> record_of(Attempt, {"number": 2, "started": 1e300, "host": ["a"]}, defaults={"started": 0.0}, wrong=noted)
    Attempt(number=2, started=0.0, from_step=None, from_checkpoint=None, changed={}, host='', pid=0)
    >>> noted
    ['started', 'host']
    """
    if not isinstance(raw, dict):
        raise ValueError("expected a JSON object")
    taken = dict(defaults or {}) | checked(kind, raw, wrong)
    for name in _plan(kind).needed:
        if name not in taken:
            raise ValueError(f"{name!r} is missing or has an invalid value")
    return kind(**taken)


def checked(kind: type[Any], raw: Mapping[str, Any], wrong: list[str] | None = None) -> dict[str, Any]:
    """The valid fields of an object, checked against a dataclass or TypedDict."""
    noted: list[str] = [] if wrong is None else wrong
    note = noted.append
    taken = {}
    for name, reader in _plan(kind).readers.items():
        if name in raw:
            try:
                taken[name] = reader(raw[name], name, note)
            except _Wrong:
                note(name)
    return taken


def damage_in(file: str, wrong: Iterable[str]) -> list[str]:
    """A sentence about fields with invalid values; an empty list if there are none.

    >>> damage_in("run.json", ["created", "status"])
    ["run.json is damaged: 'created', 'status' have invalid values; defaults are used instead"]
    """
    names = list(dict.fromkeys(name[:80] for name in wrong))
    if not names:
        return []
    shown = ", ".join(repr(name) for name in names[:MOST_NAMED])
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    does = "has an invalid value; the default is" if len(names) == 1 else "have invalid values; defaults are"
    return [f"{file} is damaged: {shown}{more} {does} used instead"]


class _Wrong(Exception):
    """A value does not match the type of its field."""


class _Plan(NamedTuple):
    """How to read one kind of record."""

    readers: dict[str, _Reader]
    needed: tuple[str, ...]
    """The fields without a default."""


_plans: dict[type[Any], _Plan] = {}


def _plan(kind: type[Any]) -> _Plan:
    if kind not in _plans:
        readers = {name: _reader(hint) for name, hint in get_type_hints(kind, include_extras=True).items()}
        items = fields(kind) if is_dataclass(kind) else ()
        needed = [item.name for item in items if item.default is MISSING and item.default_factory is MISSING]
        _plans[kind] = _Plan(readers, tuple(needed))
    return _plans[kind]


def _reader(hint: Any, bounds: Range | None = None) -> _Reader:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _reader(arguments[0], next((item for item in arguments[1:] if isinstance(item, Range)), bounds))
    if origin in (Union, types.UnionType):
        return _any_of([_reader(arm, bounds) for arm in arguments])
    if origin is Literal:
        return _word_of(frozenset(arguments))
    if origin is dict:
        return _mapping_of(_reader(arguments[1]))
    if origin in (list, tuple):
        return _list_of(_reader(arguments[0]), origin)
    if isinstance(hint, type) and is_dataclass(hint):
        return _record_in(hint)
    if hint is int:
        return _whole_in(bounds or WHOLE)
    if hint is float:
        return _number_in(bounds or Range(-math.inf, math.inf))
    return _SIMPLE[hint]


def _record_in(kind: type[Any]) -> _Reader:
    def read(value: Any, name: str, note: _Note) -> Any:
        try:
            return record_of(kind, value)
        except ValueError:
            raise _Wrong from None

    return read


def _text(value: Any, name: str, note: _Note) -> str:
    if not isinstance(value, str):
        raise _Wrong
    if len(value) > LONGEST_TEXT:
        note(name)
        return value[:LONGEST_TEXT]
    return value


def _flag(value: Any, name: str, note: _Note) -> bool:
    if not isinstance(value, bool):
        raise _Wrong
    return value


def _nothing(value: Any, name: str, note: _Note) -> None:
    if value is not None:
        raise _Wrong


def _anything(value: Any, name: str, note: _Note) -> Any:
    return value


_SIMPLE: dict[Any, _Reader] = {str: _text, bool: _flag, type(None): _nothing, Any: _anything}


def _whole_in(bounds: Range) -> _Reader:
    def read(value: Any, name: str, note: _Note) -> int:
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int or not bounds.least <= value <= bounds.most:
            raise _Wrong
        return value

    return read


def _number_in(bounds: Range) -> _Reader:
    def read(value: Any, name: str, note: _Note) -> float:
        if type(value) not in (int, float) or not bounds.least <= value <= bounds.most:
            raise _Wrong
        try:
            number = float(value)
        except OverflowError:
            raise _Wrong from None
        if not math.isfinite(number):
            raise _Wrong
        return number

    return read


def _word_of(words: frozenset[Any]) -> _Reader:
    def read(value: Any, name: str, note: _Note) -> Any:
        if not isinstance(value, str) or value not in words:
            raise _Wrong
        return value

    return read


def _any_of(readers: list[_Reader]) -> _Reader:
    def read(value: Any, name: str, note: _Note) -> Any:
        for reader in readers:
            try:
                return reader(value, name, note)
            except _Wrong:
                continue
        raise _Wrong

    return read


def _mapping_of(reader: _Reader) -> _Reader:
    def read(value: Any, name: str, note: _Note) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _Wrong
        taken = {}
        for key, item in value.items():
            try:
                taken[key] = reader(item, f"{name}.{key}", note)
            except _Wrong:
                note(f"{name}.{key}")
        return taken

    return read


def _list_of(reader: _Reader, kind: type[Any]) -> _Reader:
    def read(value: Any, name: str, note: _Note) -> Any:
        if not isinstance(value, list | tuple):
            raise _Wrong
        taken = []
        for place, item in enumerate(value):
            try:
                taken.append(reader(item, f"{name}[{place}]", note))
            except _Wrong:
                note(f"{name}[{place}]")
        return kind(taken)

    return read
