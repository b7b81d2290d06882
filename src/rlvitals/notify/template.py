"""Any other service, described by a user's template: a YAML or JSON file with the address, the headers and the body.

Two things are replaced in its texts, in one pass: `${env:NAME}` by an environment variable, and `{{word}}` by a part of
the message. Nothing is evaluated, and inserted text is not read again. A body that is not a text is sent as JSON and
filled in value by value, so inserted text cannot change its structure.
"""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from rlvitals.errors import ConfigError, did_you_mean
from rlvitals.masking import masked
from rlvitals.notify.messages import Message
from rlvitals.notify.service import SendOutcome, WebService, checked_address, json_body
from rlvitals.webhook import Sending
from rlvitals.yaml_reader import read_yaml

WORDS = (
    "kind", "key", "run", "severity", "title", "headline", "text", "verdict", "step", "advice", "link", "time",
    "picture",
)  # fmt: skip
KEYS = ("url", "method", "headers", "body", "recovered")
METHODS = ("POST", "PUT", "PATCH")
_FILLED = re.compile(r"\$\{env:(\w+)\}|\{\{\s*(\w+)\s*\}\}")
_SCHEME = re.compile(r"(?i)\s*(bearer|basic|token|apikey|key)?\s*")


class Template(WebService):
    """A service that a file describes."""

    name = "template"
    variables = ()

    def __init__(self, given: Mapping[str, str], file: str = "") -> None:
        """`given` is the environment. Raises ConfigError if the file is invalid or a variable is missing."""
        super().__init__(given)
        if not file:
            raise ConfigError("the service 'template' needs the setting 'file': the path of a template")
        self._file = file
        whole = read_yaml(file, ConfigError)
        self._raised = self._checked(whole, KEYS)
        over = whole.get("recovered")
        if over is not None and not isinstance(over, Mapping):
            raise ConfigError(f"{file!r}: 'recovered' must be a mapping with the keys that differ for a recovery")
        self._recovered = self._checked({**self._raised, **over}, KEYS[:-1]) if over is not None else self._raised
        for part in (self._raised, self._recovered):
            self._filled(part, dict.fromkeys(WORDS, ""))
            checked_address(self._text(part["url"], {}, quoted), f"'url' in {file!r}")

    def compose(self, message: Message, reference: str = "") -> Sending:
        part = self._recovered if message.kind == "recovered" else self._raised
        words = _words(message)
        if "body" not in part:
            body, own = json_body({word: words[word] for word in WORDS if word != "picture"})
        elif isinstance(part["body"], str):
            body = self._text(part["body"], words, str).encode("utf-8", "replace")
            own = {"Content-Type": "text/plain; charset=utf-8"}
        else:
            body, own = json_body(self._filled(part["body"], words))
        headers = {name: self._text(value, words, header) for name, value in part.get("headers", {}).items()}
        url = self._text(part["url"], words, quoted)
        return Sending(url, body, own | headers, part.get("method", "POST"))

    def send(self, message: Message, reference: str = "") -> SendOutcome:
        try:
            return super().send(message, reference)
        except ConfigError as error:  # a variable is no longer set
            return SendOutcome("later", str(error))

    def _checked(self, part: Any, known: tuple[str, ...]) -> dict[str, Any]:
        file = self._file
        if not isinstance(part, Mapping) or not isinstance(part.get("url"), str):
            raise ConfigError(f"{file!r} must hold a mapping with at least a 'url'")
        for key in part:
            if key not in known and key != "recovered":
                raise ConfigError(f"{file!r} has an unknown key {key!r}.{did_you_mean(str(key), known)}")
        if part.get("method", "POST") not in METHODS:
            raise ConfigError(f"{file!r}: 'method' must be one of {', '.join(METHODS)}")
        headers = part.get("headers", {})
        if not isinstance(headers, Mapping) or not all(
            isinstance(name, str) and re.fullmatch(r"[\w-]+", name) and isinstance(value, str)
            for name, value in headers.items()
        ):
            raise ConfigError(f"{file!r}: 'headers' must map names to texts")
        blank = _without_references({key: value for key, value in part.items() if key != "recovered"})
        if masked(blank) != blank:
            raise ConfigError(
                f"{file!r} seems to contain a secret. Put it into an environment variable and write "
                "${env:NAME} in its place"
            )
        return {key: value for key, value in part.items() if key != "recovered"}

    def _filled(self, value: Any, words: Mapping[str, Any]) -> Any:
        """A tree with its texts filled in; other values are unchanged."""
        if isinstance(value, Mapping):
            return {str(key): self._filled(item, words) for key, item in value.items()}
        if isinstance(value, list):
            return [self._filled(item, words) for item in value]
        return self._text(value, words, str) if isinstance(value, str) else value

    def _text(self, text: str, words: Mapping[str, Any], escape: Callable[[str], str]) -> str:
        def fill(found: re.Match[str]) -> str:
            variable, word = found.groups()
            if variable is not None:
                if variable not in self._given:
                    raise ConfigError(f"{self._file!r} needs the variable {variable}, which is not set")
                return self._given[variable]
            if word not in WORDS:
                raise ConfigError(f"{self._file!r} has an unknown word {word!r}.{did_you_mean(word, WORDS)}")
            return escape(str(words.get(word, "")))

        return _FILLED.sub(fill, text)


def environment_of(file: str) -> dict[str, str]:
    """The variables that a template names and that are set, for masking."""
    whole = read_yaml(file, ConfigError)
    names = {found[1] for found in _FILLED.finditer(repr(whole)) if found[1]}
    return {name: os.environ[name] for name in names if name in os.environ}


def quoted(text: str) -> str:
    """A value, encoded for an address."""
    return quote(text.encode("utf-8", "replace"), safe="")


def header(text: str) -> str:
    r"""A value, encoded for a header.

    >>> header("a\r\nX-Evil: é")
    'a  X-Evil: ?'
    """
    line = "".join(letter if letter.isprintable() else " " for letter in text)
    return line.encode("ascii", "replace").decode()


def _words(message: Message) -> dict[str, str]:
    return {
        "kind": message.kind,
        "key": message.key,
        "run": message.run,
        "severity": message.severity,
        "title": message.title,
        "headline": message.headline,
        "text": message.text,
        "verdict": message.facts.get("Verdict", ""),
        "step": message.facts.get("Step", ""),
        "advice": "; ".join(message.advice),
        "link": message.link,
        "time": datetime.fromtimestamp(message.timestamp, UTC).isoformat(timespec="seconds"),
        "picture": b64encode(message.picture).decode() if message.picture is not None else "",
    }


def _without_references(value: Any) -> Any:
    """The tree without the placeholders: only the text of the file itself."""
    if isinstance(value, Mapping):
        return {key: _without_references(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_references(item) for item in value]
    if not isinstance(value, str) or not _FILLED.search(value):
        return value
    rest = _FILLED.sub("", value)
    return "" if _SCHEME.fullmatch(rest) else rest
