"""Keeps exceptions of rlvitals out of training, in one place, and logs messages once.

Code that runs inside a training loop, or that calls foreign code (a plug-in, a callback, an object with a `__float__`),
runs inside `guarded`. `tests/test_architecture.py` limits the number of broad exception handlers elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar

from rlvitals.terminal import logger

T = TypeVar("T")


class guarded(AbstractContextManager[None]):  # noqa: N801 - reads as a statement, as contextlib.suppress does
    """Catch every exception of the block and pass it to `handle`. Exceptions that `handle` raises are caught too.

    Exceptions of the types in `but` are raised, and so are KeyboardInterrupt and SystemExit.

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
    """The function's result, or the default if it raises.

    >>> value_or(0, int, "7"), value_or(0, int, "seven")
    (7, 0)
    """
    with guarded(handle):
        return function(*arguments)
    return default


def words_of(error: BaseException) -> str:
    """An exception in one line, type first. Works also if the exception cannot be converted to text.

    >>> words_of(ValueError("no number")), words_of(KeyError())
    ('ValueError: no number', 'KeyError')
    """
    name = type(error).__name__
    text = value_or("", str, error)
    return f"{name}: {text}" if text else name


class Once:
    """Messages of one owner, each logged once by its key.

    >>> logged = []
    >>> warn_once = Once(logged.append)
    >>> warn_once("the disk is full"), warn_once("the disk is full"), warn_once("row 2 is torn", key="torn")
    (True, False, True)
    >>> warn_once("row 3 is torn", key="torn"), logged
    (False, ['the disk is full', 'row 2 is torn'])
    """

    def __init__(self, warn: Callable[[str], object] | None = None) -> None:
        self._warn = warn
        self._keys: set[Hashable] = set()

    def __call__(self, sentence: str, key: Hashable = None) -> bool:
        """Log a sentence unless its key has been used. Without a key, the sentence itself is the key."""
        mark = sentence if key is None else key
        if mark in self._keys:
            return False
        self._keys.add(mark)
        if self._warn is not None:
            self._warn(sentence)
        else:
            logger.warning("%s", sentence)
        return True
