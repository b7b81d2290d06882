"""The targets of notifications: reads them from the settings, and opens their services with values of the environment.

The settings name services and hold no secrets. Each service reads its own variables. A target with its own name
(`name: oncall`) reads `RLVITALS_SLACK_WEBHOOK_ONCALL` first, so two channels of one service can be distinguished.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from rlvitals.config import NOTIFY_PER_HOUR
from rlvitals.errors import ConfigError, did_you_mean
from rlvitals.notify.service import Service
from rlvitals.plugins import NOTIFY_SERVICES
from rlvitals.records import Severity


@dataclass(frozen=True, slots=True)
class Target:
    """One service that notifies people of a run's findings."""

    name: str
    service: str
    on: Severity = "critical"
    """The lowest severity that is sent."""
    per_hour: int = NOTIFY_PER_HOUR
    """The largest number of messages per hour."""
    picture: bool = True
    """Whether a chart is drawn and sent, if the service accepts one."""
    file: str = ""
    """The template of the service `template`."""
    link: str = ""
    """The address of the run's page; `{run}` stands for the name of its directory."""


def targets_of(notify: Mapping[str, Any]) -> list[Target]:
    """The targets in checked settings (`config.Settings.notify`)."""
    link = notify.get("link", "")
    return [
        Target(service=one["to"], link=link, **{key: value for key, value in one.items() if key != "to"})
        for one in notify.get("to", ())
    ]


def service_class(name: str) -> type[Service]:
    """The class of a service. Raises ConfigError for an unknown name."""
    if name in NOTIFY_SERVICES:
        module, kind = NOTIFY_SERVICES[name]
        found: type[Service] = getattr(import_module(module), kind)
        return found
    raise ConfigError(f"no such service.{did_you_mean(name, NOTIFY_SERVICES)} Services: {', '.join(NOTIFY_SERVICES)}")


def open_service(target: Target) -> Service:
    """The service of a target, with its secrets. Raises ConfigError for a missing or invalid one, without its value."""
    kind = service_class(target.service)
    if target.service == "template":
        from rlvitals.notify.template import Template

        return Template(dict(os.environ), target.file)
    given = secrets_of(target)
    missing = [variable for variable in kind.variables if variable.is_needed and not given.get(variable.name)]
    if missing:
        names = ", ".join(f"{_own_name(target, variable.name)} ({variable.holds})" for variable in missing)
        raise ConfigError(f"notify: {target.name!r} needs the environment variable{'s' * (len(missing) > 1)} {names}")
    return kind(given)


def secrets_of(target: Target) -> dict[str, str]:
    """The values of the environment variables that a target reads, by name."""
    if target.service == "template":
        from rlvitals.notify.template import environment_of

        return environment_of(target.file)
    given = {}
    for variable in service_class(target.service).variables:
        value = os.environ.get(_own_name(target, variable.name)) or os.environ.get(variable.name)
        if value:
            given[variable.name] = value
    return given


def check_targets(notify: Mapping[str, Any]) -> None:
    """Raise ConfigError if a target cannot be used here. Called at the start, before anything is written."""
    from rlvitals.notify.messages import trial_message
    from rlvitals.notify.service import WebService

    for target in targets_of(notify):
        service = open_service(target)
        if isinstance(service, WebService):
            service.compose(trial_message())  # finds an invalid address


def _own_name(target: Target, variable: str) -> str:
    suffix = "" if target.name == target.service else f"_{target.name.upper().replace('-', '_')}"
    return f"{variable}{suffix}"
