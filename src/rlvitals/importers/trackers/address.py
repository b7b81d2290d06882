"""The addresses of trackers' runs: `SCHEME:[PLACE#]PATH`.

The scheme is the tracker. The place is its server, database or folder; without one, the tracker's own configuration
applies (its environment variables and its login). The path names a project, or a run of it.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from rlvitals.importers.trackers.registry import SOURCES
from rlvitals.masking import mask_text

PUBLIC_HOSTS = frozenset({"wandb.ai", "www.wandb.ai", "swanlab.cn", "www.swanlab.cn", "swanlab.com"})
"""Hosts of the vendors' own services. Their clients know the server, so the address does not set it."""

_LINKED = frozenset({"wandb", "swanlab"})
"""Trackers whose page URLs name project and run, so a user can paste a link."""

_PAGES = frozenset({"runs", "workspace", "overview", "chart", "charts", "logs", "files", "table", "experiments", ""})
"""Parts of such a URL that name neither."""

_ONE_SLASH = re.compile(r"^(https?):/(?=[^/])")


@dataclass(frozen=True, slots=True)
class Address:
    """The location of runs."""

    scheme: str
    place: str
    """A server, a database or a folder; empty for the client's own configuration."""
    path: str
    """A project or a run. The meaning of its parts depends on the tracker."""

    def __str__(self) -> str:
        return self._formatted(mask_text(self.place))

    @property
    def shown(self) -> str:
        """The address without the folders of a local file, for data that may leave the machine.

        >>> Address("mlflow", "sqlite:////home/me/mlflow.db", "grpo").shown
        'mlflow:mlflow.db#grpo'
        """
        is_remote = self.place.startswith(("http://", "https://"))
        return str(self) if is_remote else self._formatted(self.place.rstrip("/").rpartition("/")[2])

    @property
    def place_mark(self) -> str:
        """A hash that identifies the place without naming it."""
        return hashlib.sha256(self.place.encode("utf-8", "replace")).hexdigest()[:16] if self.place else ""

    def _formatted(self, place: str) -> str:
        return f"{self.scheme}:{place}{'#' if place and (self.path or self.scheme != 'neptune') else ''}{self.path}"


def address_in(text: object) -> Address | None:
    """Parses an address; None if the text is something else, such as an existing file of that name.

    >>> address_in("wandb:team/grpo/3f2a"), address_in("train.log"), address_in("C:/runs")
    (Address(scheme='wandb', place='', path='team/grpo/3f2a'), None, None)
    >>> address_in("mlflow:http://host:5000#grpo")
    Address(scheme='mlflow', place='http://host:5000', path='grpo')
    >>> address_in("mlflow:http://host:5000/#/experiments/3/runs/77ab")
    Address(scheme='mlflow', place='http://host:5000', path='3/77ab')
    >>> address_in("wandb:https://wandb.ai/team/grpo/runs/3f2a/overview?nw=1")
    Address(scheme='wandb', place='', path='team/grpo/3f2a')
    """
    address = str(text)
    scheme, colon, rest = address.partition(":")
    if not colon or scheme not in SOURCES or rest.startswith("//") or os.path.lexists(address):
        return None
    rest = _ONE_SLASH.sub(r"\1://", rest)  # a Path object merges two slashes into one
    place, mark, path = rest.rpartition("#")
    if not mark and scheme == "neptune":
        place, path = rest, ""
    elif not mark and scheme in _LINKED and rest.startswith(("http://", "https://")):
        place, path = _of_link(rest)
    if place.startswith(("http://", "https://")):
        place = place.rstrip("/")
        if path.startswith("/"):
            path = "/".join(part for part in path.split("?")[0].split("/") if part not in _PAGES)
    return Address(scheme, place, path.strip("/") if scheme != "mlflow" else path)


def _of_link(link: str) -> tuple[str, str]:
    """The server and the path in a page's URL."""
    parts = urlsplit(link)
    host = parts.hostname or ""
    place = "" if host in PUBLIC_HOSTS else f"{parts.scheme}://{parts.netloc}"
    return place, "/".join(part.removeprefix("@") for part in parts.path.split("/") if part not in _PAGES)
