"""Which trackers runs can be fetched from. A source is imported when its scheme is asked for: vendors' packages are
large.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from rlvitals.importers.trackers.address import SCHEMES, Address
from rlvitals.importers.trackers.base import Source

CLASSES = {
    "wandb": "WandbSource",
    "mlflow": "MlflowSource",
    "trackio": "TrackioSource",
    "swanlab": "SwanLabSource",
    "neptune": "NeptuneSource",
}
"""In the module of the scheme's name."""

assert tuple(CLASSES) == SCHEMES


def open_source(address: Address, tell: Callable[[str], None] = lambda said: None) -> Source:
    """The source of an address. Raises SourceError where it cannot be reached or holds no such thing."""
    module = import_module(f"rlvitals.importers.trackers.{address.scheme}")
    found: Source = getattr(module, CLASSES[address.scheme])(address, tell)
    return found
