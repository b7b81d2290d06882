"""Extensions by name: the trackers and the notification services of rlvitals, and the entry points of other packages.

| group | what an entry point names |
|---|---|
| `rlvitals.catalog` | a mapping in the catalogue's form, a list of them, or a path to a YAML or JSON file |
| `rlvitals.sinks` | a `rlvitals.sinks.base.Sink`, by the name used in `track_with` |
| `rlvitals.importers` | a `rlvitals.importers.Importer`, which recognises and reads another tool's log |
| `rlvitals.rules` | a health rule file |

In the other package's pyproject.toml: `[project.entry-points."rlvitals.catalog"]`, then `mypkg =
"mypkg.metrics:CATALOG"`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Literal, NamedTuple

from rlvitals.errors import CatalogError, ConfigError, RlvitalsError, RuleError
from rlvitals.guard import guarded, words_of

PluginGroup = Literal["catalog", "sinks", "importers", "rules"]

_ERRORS: dict[PluginGroup, type[RlvitalsError]] = {"catalog": CatalogError, "rules": RuleError}


class Tracker(NamedTuple):
    """A tracker of rlvitals: where its sink is, and which package it needs."""

    module: str
    sink: str
    package: str = ""


TRACKERS = {
    "tensorboard": Tracker("rlvitals.sinks.tensorboard", "TensorBoardSink", "tensorboard"),
    "wandb": Tracker("rlvitals.sinks.wandb", "WandbSink", "wandb"),
    "swanlab": Tracker("rlvitals.sinks.swanlab", "SwanLabSink", "swanlab"),
    "mlflow": Tracker("rlvitals.sinks.mlflow", "MlflowSink", "mlflow"),
    "trackio": Tracker("rlvitals.sinks.trackio", "TrackioSink", "trackio"),
    "prometheus": Tracker("rlvitals.sinks.prometheus", "PrometheusSink"),
    "otel": Tracker("rlvitals.sinks.opentelemetry", "OpenTelemetrySink", "opentelemetry"),
    "csv": Tracker("rlvitals.sinks.csv_file", "CsvSink"),
    "json": Tracker("rlvitals.sinks.json_file", "JsonSink"),
}

CONSOLE_TRACKER = "stdout"
"""Requested like a tracker, but printed by the trainer's own process."""


class NotifyService(NamedTuple):
    """A service that sends messages to people: its class, a `rlvitals.notify.service.Service`."""

    module: str
    kind: str


NOTIFY_SERVICES = {
    "slack": NotifyService("rlvitals.notify.slack", "Slack"),
    "discord": NotifyService("rlvitals.notify.discord", "Discord"),
    "telegram": NotifyService("rlvitals.notify.telegram", "Telegram"),
    "ntfy": NotifyService("rlvitals.notify.ntfy", "Ntfy"),
    "email": NotifyService("rlvitals.notify.mail", "Mail"),
    "pagerduty": NotifyService("rlvitals.notify.pagerduty", "PagerDuty"),
    "template": NotifyService("rlvitals.notify.template", "Template"),
}


def names(group: PluginGroup) -> list[str]:
    """The names that other packages have registered in a group."""
    from importlib.metadata import entry_points

    return [entry.name for entry in entry_points(group=f"rlvitals.{group}")]


def load(
    group: PluginGroup, name: str | None = None, *, handle: Callable[[str, Exception], object] | None = None
) -> Iterator[tuple[str, Any]]:
    """Import and yield the objects that other packages have registered (all, or one name), with a name for messages.

    If an import fails, the reason is passed to `handle` and the entry is skipped. Without `handle` it raises the
    group's error, which names the plug-in.
    """
    from importlib.metadata import entry_points

    for entry in entry_points(group=f"rlvitals.{group}"):
        if name is None or entry.name == name:
            where = f"{entry.value} (plug-in {entry.name!r})"
            met: list[Exception] = []
            with guarded(met.append):
                loaded = entry.load()
            if not met:
                yield where, loaded
            elif handle is not None:
                handle(where, met[0])
            else:
                sentence = f"{where} cannot be imported: {words_of(met[0])}. Repair or uninstall its package"
                raise _ERRORS.get(group, ConfigError)(sentence) from met[0]


def tracker_names() -> list[str]:
    """Every available tracker: those of rlvitals, and those of other packages."""
    return sorted({*TRACKERS, CONSOLE_TRACKER, *names("sinks")})


def tracker_class(name: str) -> Any:
    """A tracker's sink class. Raises KeyError for an unknown name."""
    if name in TRACKERS:
        return getattr(import_module(TRACKERS[name].module), TRACKERS[name].sink)
    for _, sink in load("sinks", name):
        return sink
    raise KeyError(name)
