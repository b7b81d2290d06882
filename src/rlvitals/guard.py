"""The promise that rlvitals never raises into training, kept in one place, and messages that are logged once.

Code that runs inside a training loop, or calls what somebody else wrote (a plug-in, a callback, an object with a
`__float__`), is put inside `guarded`. `tests/test_shape.py` limits how many blanket handlers there may be elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar

from rlvitals.terminal import logger

T = TypeVar("T")


class guarded(AbstractContextManager[None]):  # noqa: N801 - reads as a statement, as contextlib.suppress does
    """Contain whatever the block raises and hand it to `handle`. Nothing that `handle` raises escapes either.

    Exceptions of the types in `but` pass, and so do KeyboardInterrupt and SystemExit.

    >>> met = []
    >>> with guarded(met.append):
    ...     int("no number")
    >>> met
    [ValueError("invalid literal for int() with base 10: 'no number'")]
    """

    __slots__ = ("_but", "_handle")

    def __init__(
        self, handle: Callable[[Exception], object] | None = None, *, but: tuple[type[Exception], ...] = ()
    ) -> None:
        self._handle, self._but = handle, but

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception) or isinstance(error, self._but):
            return False
        if self._handle is not None:
            with guarded():
                self._handle(error)
        return True


def value_or(
    default: T, function: Callable[..., T], *arguments: Any, handle: Callable[[Exception], object] | None = None
) -> T:
    """What the function returns, or the default where it raises.

    >>> value_or(0, int, "7"), value_or(0, int, "seven")
    (7, 0)
    """
    with guarded(handle):
        return function(*arguments)
    return default


def words_of(error: BaseException) -> str:
    """An exception in one line, type first, also where it cannot be turned into text.

    >>> words_of(ValueError("no number")), words_of(KeyError())
    ('ValueError: no number', 'KeyError')
    """
    name = type(error).__name__
    said = value_or("", str, error)
    return f"{name}: {said}" if said else name


class Once:
    """Messages of one owner, each logged once by its key.

    >>> said = []
    >>> warn_once = Once(said.append)
    >>> warn_once("the disk is full"), warn_once("the disk is full"), warn_once("row 2 is torn", key="torn")
    (True, False, True)
    >>> warn_once("row 3 is torn", key="torn"), said
    (False, ['the disk is full', 'row 2 is torn'])
    """

    def __init__(self, warn: Callable[[str], object] | None = None) -> None:
        self._warn = warn
        self._keys: set[Hashable] = set()

    def __call__(self, sentence: str, key: Hashable = None) -> bool:
        """Log a sentence unless its key has been used; the sentence itself is the key where none is given."""
        mark = sentence if key is None else key
        if mark in self._keys:
            return False
        self._keys.add(mark)
        if self._warn is not None:
            self._warn(sentence)
        else:
            logger.warning("%s", sentence)
        return True

    def forget(self, key: Hashable) -> None:
        """Let a message be logged again: what it told of is over."""
        self._keys.discard(key)
