"""Reads and writes strict JSON: one line for logs, indented text for people.

Uses orjson if it is installed, otherwise the standard library, which is slower and gives equivalent output.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from rlvitals.guard import guarded
from rlvitals.values import NONFINITE_WORDS

try:
    import orjson
except ImportError:
    orjson = None  # type: ignore[assignment]


def encode_with_json(row: Mapping[str, Any]) -> bytes:
    """`encode` without orjson."""
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode() + b"\n"


encode: Callable[[Mapping[str, Any]], bytes] = (
    encode_with_json if orjson is None else partial(orjson.dumps, option=orjson.OPT_APPEND_NEWLINE)
)
"""Encodes one mapping as one line. Callers check the values first: unsupported values raise, and orjson writes NaN as
null.
"""


def dumps_with_json(row: Mapping[str, Any], default: Callable[[Any], Any] | None = None, option: int = 0) -> bytes:
    """`dumps` without orjson."""
    return encode_with_json(row)


NEWLINE = 0 if orjson is None else orjson.OPT_APPEND_NEWLINE
dumps: Callable[..., bytes] = dumps_with_json if orjson is None else orjson.dumps
"""orjson's own function, for the one caller where microseconds matter: `dumps(row, None, NEWLINE)` is `encode(row)`."""


def parse_with_json(text: bytes) -> Any:
    """`parse_json` without orjson; it rejects what orjson rejects."""
    try:
        parsed = json.loads(text.decode(), parse_constant=_refuse, parse_float=_finite, parse_int=_whole)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if b"\\u" in text:
        json.dumps(
            parsed, ensure_ascii=False
        ).encode()  # a lone surrogate is not valid text: UnicodeEncodeError is a ValueError
    return parsed


parse_json: Callable[[bytes], Any] = parse_with_json if orjson is None else orjson.loads
"""Parses strict JSON. Raises ValueError for anything else, at any nesting depth."""


MOST_DEPTH = 100
"""Maximum nesting of lists and objects. rlvitals writes nothing deeper, and code that walks the result is recursive."""


def parse_shallow(text: bytes) -> Any:
    """`parse_json` for values that are passed on unchanged. Also raises ValueError if they are nested deeper than
    `MOST_DEPTH`.
    """
    parsed = parse_json(text)
    if text.count(b"[") + text.count(b"{") > MOST_DEPTH:  # the common case only counts bytes
        refuse_depth(parsed)
    return parsed


def refuse_depth(parsed: Any) -> None:
    """Raise ValueError if lists and objects are nested deeper than `MOST_DEPTH`."""
    layer = [parsed]
    for _ in range(MOST_DEPTH + 1):
        layer = [
            item
            for value in layer
            if isinstance(value, dict | list)
            for item in (value.values() if isinstance(value, dict) else value)
        ]
        if not layer:
            return
    raise ValueError(f"nested more than {MOST_DEPTH} deep")


def to_json(value: Any) -> bytes:
    """Indented strict JSON. Non-finite numbers become texts ("nan", "inf"), other objects their text.

    >>> to_json({"loss": float("nan"), "steps": (1, 2)}).decode().split()
    ['{', '"loss":', '"nan",', '"steps":', '[', '1,', '2', ']', '}']
    """
    text = json.dumps(_strict(value), indent=2, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "replace") + b"\n"  # a command line may hold bytes that are not valid text


NONFINITE = "_nonfinite"
"""The key in a line under which its non-finite numbers are, because JSON cannot hold them."""


def write_nonfinite(numbers: Mapping[str, float]) -> str:
    """The stored form of non-finite numbers.

    >>> write_nonfinite({"loss": float("nan"), "kl": float("-inf")})
    'loss=nan kl=-inf'
    """
    names = {name: name.replace("%", "%25").replace(" ", "%20") for name in numbers}
    return " ".join(f"{names[name]}={float(number)}" for name, number in numbers.items())


def read_nonfinite(text: str) -> dict[str, float]:
    """Parse the stored form. Words that are not such a pair are skipped.

    >>> read_nonfinite("loss=nan grad%20norm=inf oops")
    {'loss': nan, 'grad norm': inf}
    """
    found = {}
    for word in text.split(" "):
        name, _, value = word.rpartition("=")
        if name and value in NONFINITE_WORDS:
            found[name.replace("%20", " ").replace("%25", "%")] = float(value)
    return found


def encodable(value: Any) -> Any:
    """The value in a form that `encode` accepts: numbers that it does not hold become texts, other objects their text,
    and lone surrogates, which are not valid text, question marks.

    >>> encodable({"loss": float("nan"), "seed": 2**70, "steps": (1, 2)})
    {'loss': 'nan', 'seed': '1180591620717411303424', 'steps': [1, 2]}
    """
    if isinstance(value, Mapping):
        return {encodable(str(key)): encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encodable(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool) or (isinstance(value, int) and -(2**63) <= value < 2**64):
        return value
    return encodable(str(value))


_PLAIN = (str, int, bool, type(None))


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refuse(digits)


def _whole(digits: str) -> int | float:
    number = int(digits) if len(digits) < 400 else _refuse(digits[:20])
    return number if -(2**63) <= number < 2**64 else _finite(digits)


def _strict(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    met: list[Exception] = []
    with guarded(met.append, but=(RecursionError,)):  # one unreadable object must not lose the whole text
        return _strict_form(value)
    return unreadable_text(value, met[0])


def unreadable_text(value: object, error: Exception) -> str:
    """The placeholder in a document for an object that could not be read."""
    return f"({type(value).__name__} that cannot be read: {type(error).__name__})"


def _strict_form(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_strict(item) for item in value]
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if value is None or isinstance(value, str | int | bool):
        return value
    return str(value)


def leaves(value: Any) -> Iterator[Any]:
    """The leaf values of parsed JSON, at any depth.

    >>> list(leaves({"a": [1, {"b": "two"}], "c": None}))
    [1, 'two', None]
    """
    if isinstance(value, Mapping):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    else:
        yield value
