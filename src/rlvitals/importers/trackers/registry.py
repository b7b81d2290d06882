"""Lists the trackers that runs can be fetched from. A source is imported when its scheme is used, because vendors'
packages are large.
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
"""The class in the module with the scheme's name."""

assert tuple(CLASSES) == SCHEMES


def open_source(address: Address, tell: Callable[[str], None] = lambda message: None) -> Source:
    """The source of an address. Raises SourceError if it cannot be reached or the address does not exist."""
    module = import_module(f"rlvitals.importers.trackers.{address.scheme}")
    found: Source = getattr(module, CLASSES[address.scheme])(address, tell)
    return found
