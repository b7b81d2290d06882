"""What the loggers of other frameworks share: a run opened from what the framework tells, rows taken as they come."""

from __future__ import annotations

import dataclasses
import re
from argparse import Namespace
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Protocol

from rlvitals import catalog
from rlvitals.capture.intake import MAX_DEPTH
from rlvitals.capture.run import Run
from rlvitals.capture.start import start
from rlvitals.errors import BadValue
from rlvitals.guard import Once, guarded, words_of
from rlvitals.splits import is_held_out

_REFERENCE = re.compile(r"(?<!\\)\$\{(?=[^${}]+\})")

warn_once = Once()

TRACED = 8
"""Rollouts of a step that are recorded token by token; of the others the texts are."""


class TakesRows(Protocol):
    """A run, or a Ray worker's end of one."""

    def log(self, metrics: Mapping[str, Any], step: int | None = None) -> None: ...

    def log_eval(self, stats: Mapping[str, Any], step: int | None = None) -> None: ...


def open_run(framework: str, config: Any, defaults: Mapping[str, Any], given: Mapping[str, Any]) -> Run:
    """Start the run of a framework's one logging process. `given` are the user's settings: those of `rlvitals.start`,
    and `output_dir`; `defaults` is what the framework's own configuration says of them.
    """
    settings = settings_for(framework, config, defaults, given)
    return start(settings.pop("output_dir"), **settings)


def settings_for(framework: str, config: Any, defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What `rlvitals.start` is given for a framework's run, `output_dir` included."""
    told = {key: value for key, value in defaults.items() if value is not None}
    if given.get("overwrite"):
        told.pop("resume", None)
    return {
        # Set here, because a framework's keys of these names are about its own trackers, and its logging process need
        # not be the launcher's rank 0.
        "track_with": [],
        "tracker_kwargs": {},
        "rank": 0,
        "framework": framework,
        **told,
        **given,
        "config": plain_config(config),
    }


def record(run: TakesRows, values: Any, step: Any) -> None:
    """One row of a framework's. What its name says was measured on held-out data is recorded as an evaluation, so that
    the adapters, the doctor and the views agree on which rows are held out. Raises BadValue alone, where strict=True
    asks for it.
    """
    with guarded(lambda error: warn_once(f"a row could not be recorded: {words_of(error)}"), but=(BadValue,)):
        if not isinstance(values, Mapping):
            run.log(values, step)  # which says what is wrong with it
            return
        held_out = {name: value for name, value in values.items() if _is_held_out(str(name), value)}
        trained = {name: value for name, value in values.items() if name not in held_out}
        if trained:
            run.log(trained, step)
        if held_out:
            run.log_eval(held_out, step)


def _is_held_out(name: str, value: Any) -> bool:
    return is_held_out(f"{name}/" if isinstance(value, Mapping) else name)


def plain_config(config: Any, depth: int = 0) -> Any:
    r"""A framework's settings as plain data: mappings, namespaces and dataclasses opened, other objects as their text.

    The framework has resolved its references; a `${...}` that is left is a text, and stays one.

    >>> plain_config(Namespace(lr=1e-6, wandb=SimpleNamespace(project="x"), prompt="${name}"))
    {'lr': 1e-06, 'wandb': {'project': 'x'}, 'prompt': '\\${name}'}
    """
    if config is None:
        return {} if depth == 0 else None
    if isinstance(config, Namespace | SimpleNamespace):
        config = vars(config)
    elif dataclasses.is_dataclass(config) and not isinstance(config, type):
        config = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    if isinstance(config, Mapping) and depth < MAX_DEPTH:
        return {str(key): plain_config(value, depth + 1) for key, value in config.items()}
    if isinstance(config, list | tuple | set | frozenset) and depth < MAX_DEPTH:
        return [plain_config(value, depth + 1) for value in config]
    if type(config) in (bool, int, float):
        return config
    return _REFERENCE.sub(r"\\${", config if type(config) is str else str(config))


def setting(config: Any, path: str) -> Any:
    """The setting at a dotted path of mappings or namespaces; None where there is none.

    >>> setting({"trainer": SimpleNamespace(total_epochs=3)}, "trainer.total_epochs")
    3
    """
    for part in path.split("."):
        config = config.get(part) if isinstance(config, Mapping) else getattr(config, part, None)
    return config


def algorithm_named(word: Any) -> str | None:
    """The algorithm a framework's setting names, such as its advantage estimator; others are left to the metric names.

    >>> algorithm_named("gae"), algorithm_named("reinforce_plus_plus_baseline"), algorithm_named(None)
    ('ppo', 'reinforce++', None)
    """
    known = catalog.algorithm(word) if isinstance(word, str) else None
    return known.id if known else None


def known_settings(config: Any, paths: Mapping[str, str]) -> dict[str, Any]:
    """The settings the doctor knows, under its names: `paths` says where the framework keeps them."""
    found = {name: setting(config, path) for name, path in paths.items()}
    return {name: value for name, value in found.items() if isinstance(value, int | float) and value > 0}


def whole_or_none(value: Any) -> int | None:
    """A planned number of steps, where there is one."""
    return value if type(value) is int and value > 0 else None
