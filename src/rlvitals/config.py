"""Settings: reads YAML and keyword arguments, checks them, and returns one object; writes the resolved settings as
JSON.

A run's `config` belongs to the trainer: any mapping, or a YAML file. rlvitals reads only its own keys from it
(`exp_name`, `track_with`, `tracker_kwargs`, and everything under `rlvitals:`), resolves `${name}` as OmegaConf does,
and stores the rest with the run. Secrets are masked in what is stored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from rlvitals.errors import ConfigError, did_you_mean
from rlvitals.masking import masked
from rlvitals.plugins import NOTIFY_SERVICES
from rlvitals.records import SEVERITIES
from rlvitals.values import is_number, is_whole
from rlvitals.yaml_reader import read_yaml

ActionMode = Literal["advise", "asked", "act"]

HARDWARE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Settings:
    """The checked settings of `rlvitals.start`. The fields are its keyword arguments."""

    name: str | None = None
    """The run's name; the directory's name by default. `exp_name` in a YAML file means the same."""
    algorithm: str | None = None
    """ppo, grpo, kto, dpo, rlaif, ... ; None: recognised from the metric names."""
    framework: str | None = None
    """trl, verl, openrlhf, roll, ... ; None: recognised from the metric names."""
    total_steps: int | None = None
    """Planned number of steps."""
    track_with: tuple[str, ...] = ()
    """Trackers to forward to."""
    tracker_kwargs: dict[str, Any] = field(default_factory=dict)
    """Settings of the trackers, by tracker (for a single one: its settings directly)."""
    tracker_wait: float = 60.0
    """Seconds that `finish` waits until the trackers have everything. Forwarding continues after that."""
    monitor: bool = True
    """Whether the monitor checks every row (on rank 0 only)."""
    rules: str | tuple[Any, ...] | None = None
    """Rules in addition to the shipped ones: a preset, a rule file, a rule such as "kl > 0.5 for 5:
    warning", or a list of these and of entries."""
    scanners: tuple[Any, ...] = ()
    """Your own scanners for the recorded rollouts, in addition to the shipped ones: a YAML or Python file, a function
    of a rollout and its group, an entry such as {"name": "says_trust_me", "match": "trust me"}, or a list of these."""
    mapping: dict[str, str] = field(default_factory=dict)
    """The concepts of metric names that are unknown or misread: {"my_name": "reward.total.mean"}. A concept of
    the catalogue, a signal of the rules, or "none" for a name that is to be ignored."""
    actions: ActionMode = "advise"
    """advise: findings are only shown; act: they also send requests, which the trainer reads with `run.request()`;
    asked: only people's requests are sent."""
    notify: dict[str, Any] = field(default_factory=dict, repr=False)
    """Who receives findings: a service ("slack", "discord", "telegram", "ntfy", "email", "pagerduty", "template"), a
    list of services, or a mapping: `to` (services; each may be a mapping with `to`, `name`, `on`, `per_hour`,
    `picture`, `file`), `link` (the address of the run's page), `webhook` (an address, or "${env:NAME}"), its `format`
    (json, slack, discord; by default from its host), `sentinel` (a file to write), `on` (the lowest severity:
    critical by default)."""
    strict: bool = False
    """Raise on a value of an unsupported type, instead of dropping it with a warning."""
    fsync: str | float = "finish"
    """When rows are synced to disk: "never", "finish", "always" (each row, in the caller), or a number of seconds
    between syncs in the background."""
    display: str = "alarms"
    """What is printed during training: "alarms" (findings, and the verdict at the end), "plain" lines, a
    "rich" table, "json" lines, "auto" (rich on a terminal, plain elsewhere), or "none". On stderr; on stdout with the
    tracker "stdout", which is "json" by default."""
    display_layout: str = "line"
    """What a printed step shows: "line" (the vital signs first), "kto" or "grpo" (tables)."""
    display_every: int | None = None
    """Steps between printed steps; None: the layout's default (kto: 5, others: 1)."""
    hardware: float | None = HARDWARE_SECONDS
    """Seconds between samples of the machine (`logs/system.jsonl`); None, or `false`: never."""
    rollout_megabytes: float | None = None
    """The limit of the rollouts on disk. Beyond it, older steps are thinned out; the newest and the first are kept.
    None, or `false`: no limit."""
    names: str = "canonical"
    """The names of phases' tokens per second: "canonical" (the catalogue's ids) or "rlaif" (the document's
    `Performance/Generation_TokensPerSec` and so on)."""
    rank: int | None = None
    """This process's rank; None: from the environment (torchrun's RANK). Rank 0 owns the run, others write their
    own files."""
    mask: tuple[str, ...] = ()
    """Names of further settings that are secret, as patterns: "license_code", "internal.*". Those known by name or form
    are masked anyway."""
    unmask: tuple[str, ...] = ()
    """Names of settings that look secret and are not, as patterns: "session_key"."""
    config: dict[str, Any] = field(default_factory=dict)
    """The trainer's settings, stored with the run."""


RATE_NAMES = ("canonical", "rlaif")

OUR_KEYS = tuple(item.name for item in fields(Settings) if item.name != "config")
TOP_LEVEL_KEYS = ("exp_name", "track_with", "tracker_kwargs")
"""Keys that a trainer's configuration file may hold for rlvitals outside the `rlvitals:` section."""


def resolve(config: Mapping[str, Any] | str | os.PathLike[str] | None, given: Mapping[str, Any]) -> Settings:
    """Join the configuration with keyword arguments, which have priority, and check the result.

    `given` holds the keyword arguments; None means not given.
    """
    for key in given:
        if key not in OUR_KEYS:
            raise ConfigError(
                f"start() has no setting {key!r}.{did_you_mean(key, OUR_KEYS)} Settings: {', '.join(OUR_KEYS)}"
            )
    trainer = interpolate(_read(config))
    section = trainer.pop("rlvitals", None) or {}
    if not isinstance(section, Mapping):
        raise ConfigError(f"the configuration's 'rlvitals' must be a mapping of settings, not {type(section).__name__}")
    for key in section:
        if key not in OUR_KEYS:
            raise ConfigError(
                f"unknown setting 'rlvitals.{key}'.{did_you_mean(str(key), OUR_KEYS)} Settings: {', '.join(OUR_KEYS)}"
            )
    for key in trainer:
        near = did_you_mean(str(key), TOP_LEVEL_KEYS, cutoff=0.85)
        if near and key not in TOP_LEVEL_KEYS:
            raise ConfigError(f"the configuration has an unknown key {key!r}.{near}")
    merged: dict[str, Any] = {}
    for key in ("track_with", "tracker_kwargs"):
        if trainer.get(key) is not None:
            merged[key] = trainer[key]
    if trainer.get("exp_name") is not None:
        merged["name"] = trainer["exp_name"]
    merged.update(section)
    merged.update({key: value for key, value in given.items() if value is not None})
    return _checked(merged, trainer)


def _checked(merged: dict[str, Any], trainer: dict[str, Any]) -> Settings:
    settings = Settings(
        name=_text(merged, "name"),
        algorithm=_text(merged, "algorithm"),
        framework=_text(merged, "framework"),
        total_steps=_whole(merged, "total_steps", least=1),
        track_with=_names("track_with", merged.get("track_with"), "a tracker's name"),
        tracker_kwargs=_mapping(merged, "tracker_kwargs"),
        tracker_wait=_seconds(merged, "tracker_wait", 60.0),
        monitor=_boolean(merged, "monitor", True),
        rules=_rules(merged.get("rules")),
        scanners=_scanners(merged.get("scanners")),
        mapping=_names_given(merged),
        actions=merged.get("actions", "advise"),
        notify=_notify(merged),
        strict=_boolean(merged, "strict"),
        fsync=_fsync(merged.get("fsync", "finish")),
        display=_text(merged, "display") or "alarms",
        display_layout=_text(merged, "display_layout") or "line",
        display_every=_whole(merged, "display_every", least=1),
        hardware=_hardware(merged.get("hardware", HARDWARE_SECONDS)),
        rollout_megabytes=_megabytes(merged.get("rollout_megabytes")),
        names=_text(merged, "names") or "canonical",
        rank=_whole(merged, "rank", least=0),
        mask=_names("mask", merged.get("mask"), "a setting's name"),
        unmask=_names("unmask", merged.get("unmask"), "a setting's name"),
        config=trainer,
    )
    if settings.actions not in get_args(ActionMode):
        near = did_you_mean(str(settings.actions), get_args(ActionMode))
        raise ConfigError(f"actions must be 'advise', 'asked' or 'act', not {settings.actions!r}.{near}")
    if settings.names not in RATE_NAMES:
        near = did_you_mean(settings.names, RATE_NAMES)
        raise ConfigError(f"names must be one of {', '.join(RATE_NAMES)}, not {settings.names!r}.{near}")
    needing = ("rules", "scanners", "notify")
    for wanted in needing if settings.actions == "advise" else ("actions", *needing):
        if not settings.monitor and getattr(settings, wanted):
            raise ConfigError(f"{wanted} needs the monitor: leave monitor=False out, or {wanted}")
    return settings


def resolved(settings: Settings) -> dict[str, Any]:
    """The content of `config.json`: the trainer's settings and those of rlvitals, with secrets masked."""
    whole: dict[str, Any] = masked(with_secrets(settings))
    return whole


def with_secrets(settings: Settings) -> dict[str, Any]:
    """The same settings with their secrets, as given. Used to mask texts, never written to a file."""
    own = {key: getattr(settings, key) for key in OUR_KEYS}
    own["scanners"] = tuple(map(_written, settings.scanners))
    return {**settings.config, "rlvitals": {key: value for key, value in own.items() if value not in (None, (), {})}}


def _written(scanner: Any) -> Any:
    """A scanner as it is stored: a function by its name."""
    return getattr(scanner, "__name__", type(scanner).__name__) if callable(scanner) else scanner


def _read(config: Mapping[str, Any] | str | os.PathLike[str] | None) -> dict[str, Any]:
    if config is None:
        return {}
    if isinstance(config, Mapping):
        return dict(config)
    if not isinstance(config, str | os.PathLike):
        if hasattr(config, "__dict__"):  # argparse's Namespace, a dataclass of settings
            return dict(vars(config))
        raise ConfigError(f"config must be a mapping or the path of a YAML file, not {type(config).__name__}")
    loaded = read_yaml(config, ConfigError)
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ConfigError(f"{os.fspath(config)!r} must hold a mapping of settings, not {type(loaded).__name__}")
    return loaded


MOST_REFERRED = 1_000_000
"""Maximum number of values and characters that all `${...}` references together may expand to."""

_REFERENCE = re.compile(r"\\?\$\{([^${}]+)\}")


def interpolate(tree: dict[str, Any]) -> dict[str, Any]:
    r"""Replace `${a.b}` by the value at that path, and `${oc.env:VAR}` or `${oc.env:VAR,default}` by the environment's
    (`${env:VAR}` is the same).

    A text that is only one reference becomes the value itself, with its type. Inside a longer text, the value is
    inserted as text. `\${` is an escape: it becomes `${`.

    >>> interpolate({"exp_name": "kto", "dir": "out/${exp_name}", "lr": 5e-7, "opt": {"lr": "${lr}"}})
    {'exp_name': 'kto', 'dir': 'out/kto', 'lr': 5e-07, 'opt': {'lr': 5e-07}}
    """
    spent = 0

    def spend(cost: int, path: str) -> None:
        """Limit the total size: references of references can grow beyond any memory, and no real configuration is so
        large.
        """
        nonlocal spent
        spent += cost
        if spent > MOST_REFERRED:
            raise ConfigError(
                f"the configuration's references write out more than {MOST_REFERRED:,} values and characters; the last "
                f"one was ${{{path}}}. Write the value down, or refer to something smaller."
            )

    def resolve_value(value: Any, seen: tuple[str, ...]) -> Any:
        if seen:
            spend(1 + (len(value) if isinstance(value, str) else 0), seen[-1])
        if isinstance(value, Mapping):
            return {key: resolve_value(item, seen) for key, item in value.items()}
        if isinstance(value, list):
            return [resolve_value(item, seen) for item in value]
        if not isinstance(value, str) or "${" not in value:
            return value
        whole = _REFERENCE.fullmatch(value)
        if whole and not value.startswith("\\"):
            return look_up(whole[1].strip(), seen)
        return _REFERENCE.sub(
            lambda match: match[0][1:] if match[0].startswith("\\") else written(match[1].strip(), seen), value
        )

    def written(path: str, seen: tuple[str, ...]) -> str:
        text = str(look_up(path, seen))
        spend(len(text), path)
        return text

    def look_up(path: str, seen: tuple[str, ...]) -> Any:
        if path.startswith(("oc.env:", "env:")):
            return _environment(path.partition("env:")[2])
        if path in seen:
            raise ConfigError(f"the configuration refers to itself: {' -> '.join((*seen, path))}")
        value: Any = tree
        for part in path.split("."):
            value = resolve_value(value, (*seen, path)) if isinstance(value, str) else value
            if isinstance(value, Mapping) and part in value:
                value = value[part]
            elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
                value = value[int(part)]
            else:
                near = did_you_mean(part, map(str, value)) if isinstance(value, Mapping) else ""
                raise ConfigError(f"the configuration refers to ${{{path}}}, which is not there.{near}")
        return resolve_value(value, (*seen, path))

    try:
        return {key: resolve_value(value, ()) for key, value in tree.items()}
    except RecursionError:
        raise ConfigError("the configuration is nested too deeply, or holds itself") from None


def _environment(spec: str) -> str:
    variable, comma, default = spec.partition(",")
    value = os.environ.get(variable.strip())
    if value is not None:
        return value
    if comma:
        return default.strip()
    raise ConfigError(f"the configuration refers to the environment variable {variable.strip()}, which is not set")


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as dotted keys, to compare two configurations.

    >>> flatten({"optim": {"lr": 5e-7}, "seed": 1})
    {'optim.lr': 5e-07, 'seed': 1}
    """
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def by_last_name(config: Mapping[str, Any]) -> dict[str, Any]:
    """A trainer's settings by the last part of their names, so that `grpo.num_generations` is found. Names with
    different values in two sections are left out.

    >>> by_last_name({"grpo": {"lr": 1e-6, "beta": 0.1}, "dpo": {"lr": 1e-6, "beta": 0.5}, "seed": 1})
    {'lr': 1e-06, 'seed': 1}
    """
    found: dict[str, Any] = {}
    ambiguous = set()
    for path, value in flatten(config).items():
        name = path.rpartition(".")[2]
        if name in found and found[name] != value:
            ambiguous.add(name)
        found[name] = value
    for name in ambiguous:
        del found[name]
    return found | {name: value for name, value in config.items() if not isinstance(value, Mapping)}


def planned_steps(config: Mapping[str, Any]) -> int | None:
    """The number of steps that a trainer's settings plan."""
    named = by_last_name(config)
    for key in ("total_steps", "max_steps", "total_training_steps"):
        value = named.get(key)
        if is_whole(value) and value > 0:
            return value
    return None


def _text(merged: Mapping[str, Any], key: str) -> str | None:
    value = merged.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{key} must be a text, not {value!r}")
    return value


def _whole(merged: Mapping[str, Any], key: str, least: int) -> int | None:
    value = merged.get(key)
    if value is None:
        return None
    if not is_whole(value) or value < least:
        raise ConfigError(f"{key} must be a whole number of at least {least}, not {value!r}")
    return value


def _seconds(merged: Mapping[str, Any], key: str, default: float) -> float:
    value = merged.get(key, default)
    if not is_number(value) or not value >= 0:
        raise ConfigError(f"{key} must be a number of seconds, not {value!r}")
    return float(value)


def _mapping(merged: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = merged.get(key) or {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key} must be a mapping, not {type(value).__name__}")
    return dict(value)


def _names_given(merged: Mapping[str, Any]) -> dict[str, str]:
    given = _mapping(merged, "mapping")
    for name, concept in given.items():
        if not isinstance(name, str) or not isinstance(concept, str):
            raise ConfigError(f"mapping maps metric names to concepts; {name!r}: {concept!r} are not both texts")
    return given


def _boolean(merged: Mapping[str, Any], key: str, default: bool = False) -> bool:
    value = merged.get(key, default)
    if not isinstance(value, bool):
        raise ConfigError(f"{key} must be true or false, not {value!r}")
    return value


def _names(key: str, value: Any, what: str) -> tuple[str, ...]:
    names = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{key} must be {what}, a list of names, or None, not {value!r}")
    return tuple(names)


def _rules(value: Any) -> str | tuple[Any, ...] | None:
    if value is None or value in ("", [], ()):
        return None
    if isinstance(value, str | os.PathLike):
        return str(os.fspath(value))
    if isinstance(value, list | tuple):
        return tuple(str(os.fspath(item)) if isinstance(item, os.PathLike) else item for item in value)
    raise ConfigError(f"rules must be a preset's name, a rule file or a list of rules, not {value!r}")


def _scanners(value: Any) -> tuple[Any, ...]:
    listed = value if isinstance(value, list | tuple) else () if value in (None, "") else (value,)
    for item in listed:
        if not (callable(item) or isinstance(item, str | os.PathLike | Mapping)):
            raise ConfigError(f"scanners must be files, functions or entries with 'name' and 'match', not {item!r}")
    return tuple(str(os.fspath(item)) if isinstance(item, os.PathLike) else item for item in listed)


NOTIFY_KEYS = ("to", "link", "webhook", "format", "on", "sentinel")
NOTIFY_PER_HOUR = 4
"""The most messages that one target receives in an hour. Further ones are sent as a digest."""

MOST_PER_HOUR = 60
TARGET_KEYS = ("to", "name", "on", "per_hour", "picture", "file")
WEBHOOK_FORMATS = ("json", "slack", "discord")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


def _notify(merged: Mapping[str, Any]) -> dict[str, Any]:
    """Check the notification settings. Error messages never contain an address, because it is a secret. The targets are
    under `to`, one mapping each.
    """
    value = merged.get("notify")
    given: dict[str, Any] = {"to": value} if isinstance(value, str | list | tuple) else _mapping(merged, "notify")
    given = _with_on(given)
    for key in given:
        if key not in NOTIFY_KEYS:
            near = did_you_mean(str(key), NOTIFY_KEYS)
            raise ConfigError(f"notify has no setting {_harmless(key)}.{near} Settings: {', '.join(NOTIFY_KEYS)}")
    given = {key: os.fspath(value) if key == "sentinel" else value for key, value in given.items() if value is not None}
    settings = interpolate({key: value for key, value in given.items() if key != "to"})
    if "webhook" in settings and not re.match(r"https?://[^/\s]+\S*$", str(settings["webhook"])):
        raise ConfigError("notify.webhook must be an http(s) address, or '${env:NAME}' for one in the environment")
    if "link" in settings and (
        masked(settings["link"]) != settings["link"] or not re.match(r"https?://[^/\s@]+\S*$", str(settings["link"]))
    ):
        raise ConfigError("notify.link must be the http(s) address of the run's page, without a token in it")
    for key, known in (("format", WEBHOOK_FORMATS), ("on", SEVERITIES)):
        if key in settings and settings[key] not in known:
            near = did_you_mean(str(settings[key]), known)
            raise ConfigError(f"notify.{key} must be one of {', '.join(known)}, not {settings[key]!r}.{near}")
    if given.get("to"):
        settings["to"] = _targets(given["to"], settings.get("on", "critical"))
    if settings and not settings.keys() & {"to", "webhook", "sentinel"}:
        raise ConfigError("notify needs a service ('to'), a webhook or a sentinel")
    return settings


def _targets(value: Any, on: str) -> list[dict[str, Any]]:
    """The services to notify, one mapping each. A value may be an address by mistake, so errors do not repeat it."""
    targets: list[dict[str, Any]] = []
    for one in value if isinstance(value, list | tuple) else [value]:
        target = {"to": one} if isinstance(one, str) else _with_on(one) if isinstance(one, Mapping) else {}
        service = target.get("to")
        if service not in NOTIFY_SERVICES:
            wrong = f" not {_harmless(service)}." if isinstance(service, str) else ""
            near = did_you_mean(service, NOTIFY_SERVICES) if isinstance(service, str) else ""
            raise ConfigError(
                f"notify names services: {', '.join(NOTIFY_SERVICES)};{wrong}{near} Addresses and tokens are taken "
                "from the environment (docs/notifications.md)"
            )
        for key in target:
            if key not in TARGET_KEYS:
                near = did_you_mean(str(key), TARGET_KEYS)
                raise ConfigError(
                    f"notify: {service} has no setting {_harmless(key)}.{near} Settings: {', '.join(TARGET_KEYS)}. "
                    "Addresses and tokens are taken from the environment"
                )
        target = {"name": service, "on": on} | {key: item for key, item in target.items() if item is not None}
        if not isinstance(target["name"], str) or not _NAME.fullmatch(target["name"]):
            raise ConfigError(f"notify: the name of a target ({service}) must be of small letters, digits, - and _")
        if target["on"] not in SEVERITIES:
            near = did_you_mean(str(target["on"]), SEVERITIES)
            raise ConfigError(f"notify: 'on' of {service} must be one of {', '.join(SEVERITIES)}.{near}")
        if (_whole(target, "per_hour", least=1) or 1) > MOST_PER_HOUR:
            raise ConfigError(f"notify: 'per_hour' of {service} must be at most {MOST_PER_HOUR}")
        _boolean(target, "picture", True)
        if "file" in target:
            if not isinstance(target["file"], str | os.PathLike):
                raise ConfigError("notify: the 'file' of a template must be a path")
            target["file"] = str(os.fspath(target["file"]))
        if ("file" in target) != (service == "template"):
            raise ConfigError("notify: the service 'template' needs a 'file', and no other service takes one")
        targets.append(target)
    names = [target["name"] for target in targets]
    if len(set(names)) < len(names):
        raise ConfigError("notify: two targets have the same name; give one of them a different 'name'")
    return targets


def _with_on(given: Mapping[Any, Any]) -> dict[str, Any]:
    """The same settings with the key `on`: YAML reads an unquoted `on` as `true`."""
    return {"on" if key is True else key: value for key, value in given.items()}


def _harmless(value: Any) -> str:
    """A wrong word as an error shows it. Longer text is not shown: it may be an address or a token."""
    return repr(value) if isinstance(value, str) and re.fullmatch(r"[A-Za-z_-]{1,20}", value) else "what was given"


def _hardware(value: Any) -> float | None:
    if value is None or value is False or value == 0:
        return None
    if value is True:
        return HARDWARE_SECONDS
    if is_number(value) and value >= 0.1:
        return float(value)
    raise ConfigError(f"hardware must be a number of seconds between samples (at least 0.1), or False, not {value!r}")


def _megabytes(value: Any) -> float | None:
    if value is None or value is False:
        return None
    if is_number(value) and value > 0:
        return float(value)
    raise ConfigError(f"rollout_megabytes must be a number of megabytes above 0, or False, not {value!r}")


def _fsync(value: Any) -> str | float:
    if value in ("never", "finish", "always"):
        return str(value)
    if is_number(value) and value > 0:
        return float(value)
    raise ConfigError(f"fsync must be 'never', 'finish', 'always' or a number of seconds, not {value!r}")
