"""How a tracker's runs are addressed: `SCHEME:[PLACE#]PATH`.

The scheme is the tracker. The place is its server, database or folder; without one, the tracker's own setting decides
(its environment variables and its login). The path names a project, or a run of it.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from rlvitals.masking import mask_text

SCHEMES = ("wandb", "mlflow", "trackio", "swanlab", "neptune")

PUBLIC_HOSTS = frozenset({"wandb.ai", "www.wandb.ai", "swanlab.cn", "www.swanlab.cn", "swanlab.com"})
"""Pages of the vendors' own services: their clients know where the data is."""

_LINKED = frozenset({"wandb", "swanlab"})
"""Trackers whose pages' addresses name project and run, so that a link can be pasted."""

_PAGES = frozenset({"runs", "workspace", "overview", "chart", "charts", "logs", "files", "table", "experiments", ""})
"""Parts of such an address that name neither."""

_ONE_SLASH = re.compile(r"^(https?):/(?=[^/])")


@dataclass(frozen=True, slots=True)
class Address:
    """Where runs are."""

    scheme: str
    place: str
    """A server, a database or a folder; empty: what the tracker's client is set to."""
    path: str
    """A project or a run; what the parts mean is the tracker's."""

    def __str__(self) -> str:
        return self._said(mask_text(self.place))

    @property
    def shown(self) -> str:
        """The same without the way to a local file or folder: for what may leave the machine.

        >>> Address("mlflow", "sqlite:////home/me/mlflow.db", "grpo").shown
        'mlflow:mlflow.db#grpo'
        """
        is_remote = self.place.startswith(("http://", "https://"))
        return str(self) if is_remote else self._said(self.place.rstrip("/").rpartition("/")[2])

    @property
    def place_mark(self) -> str:
        """Tells places apart without naming them."""
        return hashlib.sha256(self.place.encode("utf-8", "replace")).hexdigest()[:16] if self.place else ""

    def _said(self, place: str) -> str:
        return f"{self.scheme}:{place}{'#' if place and (self.path or self.scheme != 'neptune') else ''}{self.path}"


def address_in(text: object) -> Address | None:
    """The address that a text is; None where it is something else, a file of that name for instance.

    >>> address_in("wandb:team/grpo/3f2a"), address_in("train.log"), address_in("C:/runs")
    (Address(scheme='wandb', place='', path='team/grpo/3f2a'), None, None)
    >>> address_in("mlflow:http://host:5000#grpo")
    Address(scheme='mlflow', place='http://host:5000', path='grpo')
    >>> address_in("mlflow:http://host:5000/#/experiments/3/runs/77ab")
    Address(scheme='mlflow', place='http://host:5000', path='3/77ab')
    >>> address_in("wandb:https://wandb.ai/team/grpo/runs/3f2a/overview?nw=1")
    Address(scheme='wandb', place='', path='team/grpo/3f2a')
    """
    said = str(text)
    scheme, colon, rest = said.partition(":")
    if not colon or scheme not in SCHEMES or rest.startswith("//") or os.path.lexists(said):
        return None
    rest = _ONE_SLASH.sub(r"\1://", rest)  # a path object has made one slash of two
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
    """The server and the path that a page's address names."""
    parts = urlsplit(link)
    host = parts.hostname or ""
    place = "" if host in PUBLIC_HOSTS else f"{parts.scheme}://{parts.netloc}"
    return place, "/".join(part.removeprefix("@") for part in parts.path.split("/") if part not in _PAGES)
