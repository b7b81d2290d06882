"""rlvitals: the vital-signs monitor of RL post-training.

    run = rlvitals.start("out/kto", name="kto-7b")
    run.log({"loss": 0.62, "rewards/margins": 0.027}, step=10)
    run.finish()

    rlvitals.explain("rewards/margins")
    steps, values = rlvitals.open_run("out/kto").series("loss")

The public names are those in `__all__`. Each is imported at its first use, which keeps the import of the package fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rlvitals.version import __version__ as __version__

__all__ = [
    "Actions", "MetricsTracker", "Monitor", "catalog", "check", "check_slice", "check_slices", "errors", "explain",
    "find_runs", "finish", "init", "log", "open_run", "start", "values",
]  # fmt: skip

if TYPE_CHECKING:
    from rlvitals import catalog, errors, values
    from rlvitals.capture.actions import Actions
    from rlvitals.capture.epochs import MetricsTracker
    from rlvitals.capture.global_run import finish, init, log
    from rlvitals.capture.start import start
    from rlvitals.catalog import explain
    from rlvitals.health.monitor import Monitor
    from rlvitals.views.check import check
    from rlvitals.views.discovery import find_runs
    from rlvitals.views.run import open_run
    from rlvitals.views.slice_check import check_slice, check_slices

_HOMES = {
    "Actions": "rlvitals.capture.actions",
    "start": "rlvitals.capture.start",
    "init": "rlvitals.capture.global_run",
    "log": "rlvitals.capture.global_run",
    "finish": "rlvitals.capture.global_run",
    "MetricsTracker": "rlvitals.capture.epochs",
    "explain": "rlvitals.catalog",
    "Monitor": "rlvitals.health.monitor",
    "check": "rlvitals.views.check",
    "check_slice": "rlvitals.views.slice_check",
    "check_slices": "rlvitals.views.slice_check",
    "open_run": "rlvitals.views.run",
    "find_runs": "rlvitals.views.discovery",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        found = getattr(import_module(_HOMES[name]), name)
    elif name in __all__:
        found = import_module(f"rlvitals.{name}")
    else:
        raise AttributeError(f"module 'rlvitals' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
