"""Helpers shared by the adapters: open a run from a framework's configuration, record its rows, wrap its functions."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import runpy
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from inspect import iscoroutinefunction
from itertools import groupby
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, Protocol

from rlvitals import catalog
from rlvitals.capture.intake import MAX_DEPTH
from rlvitals.capture.run import Run
from rlvitals.capture.start import start
from rlvitals.errors import BadValue, RlvitalsError
from rlvitals.guard import Once, guarded, value_or, words_of
from rlvitals.health.actions import CannotGoBack, Declined
from rlvitals.records import Group, Rollout, Turn
from rlvitals.splits import is_held_out

_REFERENCE = re.compile(r"(?<!\\)\$\{(?=[^${}]+\})")

warn_once = Once()

TRACED = 8
"""How many rollouts of a step are recorded token by token; of the others only the texts are."""


class TakesRows(Protocol):
    """A run, or a Ray worker's client of one."""

    def log(self, metrics: Mapping[str, Any], step: int | None = None) -> None: ...

    def log_eval(self, stats: Mapping[str, Any], step: int | None = None) -> None: ...


@dataclasses.dataclass(frozen=True, slots=True)
class StepLimitControls:
    """Controls of a trainer that stops at a limit of steps and keeps its optimizer in other processes.

    `saves` returns the checkpoint's name, or None if the trainer saves later. If the trainer cannot save, `saves` is a
    text with the reason. `fixed_rate` and `no_way_back` are the reasons why it cannot change the rate or revert.
    """

    stops: Callable[[], object]
    saves: Callable[[], str | None] | str
    fixed_rate: str
    no_way_back: str

    def stop(self) -> None:
        self.stops()

    def save(self) -> str | None:
        if isinstance(self.saves, str):
            raise Declined(self.saves)
        return self.saves()

    def scale_rate(self, factor: float) -> tuple[float, float]:
        raise Declined(self.fixed_rate)

    def revert(self, checkpoint: Path) -> None:
        raise CannotGoBack(self.no_way_back)


def safely(sentence: str, *, but: tuple[type[Exception], ...] = ()) -> guarded:
    """Log the first error of a block, after this sentence, and let training continue."""
    return guarded(lambda error: warn_once(f"{sentence}: {words_of(error)}", key=sentence), but=but)


def open_run(
    framework: str,
    config: Any,
    defaults: Mapping[str, Any],
    given: Mapping[str, Any],
    *,
    paths: Mapping[str, str] | None = None,
    known: Mapping[str, Any] | None = None,
) -> Run:
    """Start the run in the framework's single logging process. The arguments are those of `settings_for`."""
    settings = settings_for(framework, config, defaults, given, paths=paths, known=known)
    return start(settings.pop("output_dir"), **settings)


def settings_for(
    framework: str,
    config: Any,
    defaults: Mapping[str, Any],
    given: Mapping[str, Any],
    *,
    paths: Mapping[str, str] | None = None,
    known: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The arguments of `rlvitals.start` for a framework's run, including `output_dir`.

    `given` are the user's settings: those of `rlvitals.start`, and `output_dir`. `defaults` are their values from the
    framework's own configuration. Rules read further settings: `paths` says where the configuration has them (see
    `known_settings`), and `known` holds those that are not in one place of it.
    """
    defaults = {key: value for key, value in defaults.items() if value is not None}
    if given.get("overwrite"):
        defaults.pop("resume", None)
    return {
        # Set here: a framework's keys of these names configure its own trackers, and its logging process may not be
        # the launcher's rank 0.
        "track_with": [],
        "tracker_kwargs": {},
        "rank": 0,
        "framework": framework,
        **defaults,
        **given,
        "config": {**known_settings(config, paths or {}), **(known or {}), **plain_config(config)},
    }


def record(run: TakesRows, values: Any, step: Any) -> None:
    """Record one row of a framework. Metrics whose names mark them as held-out are recorded as an evaluation, so that
    the adapters, the doctor and the views agree on which rows are held out. Raises only BadValue, and only with
    strict=True.
    """
    with safely("a row could not be recorded", but=(BadValue,)):
        if not isinstance(values, Mapping):
            run.log(values, step)  # reports the problem
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
    r"""A framework's settings as plain data. Mappings, namespaces and dataclasses become dicts, other objects text.

    The framework has already resolved its references, so a remaining `${...}` is plain text and is escaped.

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
    """The setting at a dotted path of mappings or namespaces, or None.

    >>> setting({"trainer": SimpleNamespace(total_epochs=3)}, "trainer.total_epochs")
    3
    """
    for part in path.split("."):
        config = config.get(part) if isinstance(config, Mapping) else getattr(config, part, None)
    return config


def algorithm_named(word: Any) -> str | None:
    """The algorithm that a setting names, such as the advantage estimator. None: it is inferred from the metric names.

    >>> algorithm_named("gae"), algorithm_named("reinforce_plus_plus_baseline"), algorithm_named(None)
    ('ppo', 'reinforce++', None)
    """
    known = catalog.algorithm(word) if isinstance(word, str) else None
    return known.id if known else None


def known_settings(config: Any, paths: Mapping[str, str]) -> dict[str, Any]:
    """The settings that rules read, under the names the rules use; `paths` maps them to the framework's own."""
    found = {name: setting(config, path) for name, path in paths.items()}
    return {name: value for name, value in found.items() if isinstance(value, int | float) and value > 0}


def product(config: Any, *paths: str) -> int:
    """The product of integers of a configuration, such as nodes and GPUs per node; 0 if one is missing.

    >>> product({"actor": {"nodes": 2, "gpus": 8}}, "actor.nodes", "actor.gpus"), product({}, "actor.nodes")
    (16, 0)
    """
    values = [setting(config, path) for path in paths]
    return math.prod(values) if all(type(value) is int for value in values) else 0


def whole_or_none(value: Any) -> int | None:
    """The value if it is a positive integer, such as a planned number of steps; else None."""
    return value if type(value) is int and value > 0 else None


def follow(owner: Any, name: str, ours: Callable[..., Any]) -> None:
    """Wrap a function of another project so that `ours` runs after it, with its result and its arguments.

    A coroutine function stays one. A second call does nothing. Errors of `ours` are logged once and not raised, except
    those of rlvitals itself: wrong settings at a run's start, and bad values with strict=True.
    """
    theirs = getattr(owner, name)
    if getattr(theirs, "is_followed", False):
        return

    def run_ours(*given: Any, **named: Any) -> None:
        with safely(f"{name} of {getattr(owner, '__name__', owner)} could not be followed", but=(RlvitalsError,)):
            ours(*given, **named)

    @wraps(theirs)
    def both(*given: Any, **named: Any) -> Any:
        result = theirs(*given, **named)
        run_ours(result, *given, **named)
        return result

    @wraps(theirs)
    async def both_later(*given: Any, **named: Any) -> Any:
        result = await theirs(*given, **named)
        run_ours(result, *given, **named)
        return result

    added: Any = both_later if iscoroutinefunction(theirs) else both
    added.is_followed = True
    setattr(owner, name, added)


def caller(is_wanted: Callable[[Any], bool]) -> Any:
    """The nearest object on the call stack that satisfies `is_wanted`, or None. For frameworks whose trainer calls a
    callback or a logger without passing itself.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if owner is not None and value_or(False, is_wanted, owner):
            return owner
        frame = frame.f_back
    return None


def launch(install: Callable[[], None]) -> None:
    """Run a program of another project, unchanged, after `install`: `python -m rlvitals.adapters.X SCRIPT ...`, or
    `-m MODULE ...`.
    """
    arguments = sys.argv[1:]
    if not arguments or arguments == ["-m"]:
        sys.exit("say what to run: a script or -m and a module, then its own arguments")
    install()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
        runpy.run_path(arguments[0], run_name="__main__")


def groups_by_prompt(rollouts: Iterable[tuple[str, Rollout]]) -> list[Group]:
    """Group the rollouts of one step by their prompt."""
    by_prompt: dict[str, list[Rollout]] = {}
    for prompt, rollout in rollouts:
        by_prompt.setdefault(prompt, []).append(rollout)
    return [Group(prompt=prompt, rollouts=tuple(each)) for prompt, each in by_prompt.items()]


def turns_of_tokens(ids: Sequence[int], mask: Iterable[Any], decode: Callable[[list[int]], str]) -> tuple[Turn, ...]:
    """A response as turns. Tokens in the loss mask are the model's own; those between them are the environment's.

    >>> turns = turns_of_tokens([1, 2, 7, 3], [1, 1, 0, 1], str)
    >>> [(turn.text, turn.observation) for turn in turns]
    [('[1, 2]', '[7]'), ('[3]', '')]
    """
    turns: list[Turn] = []
    for is_own, piece in groupby(zip(ids, mask, strict=False), key=lambda pair: bool(pair[1])):
        text = decode([token for token, _ in piece])
        if is_own:
            turns.append(Turn(text=text))
        elif turns:
            turns[-1] = dataclasses.replace(turns[-1], observation=text)
        else:
            turns.append(Turn(observation=text))
    return tuple(turns)


def listed(values: Any) -> list[Any]:
    """An array, a tensor or a sequence as a list; empty for None."""
    return list(values.tolist() if hasattr(values, "tolist") else values or ())


def mean_advantages(advantages: Any, mask: Any) -> list[float | None]:
    """The mean advantage of each rollout over the tokens in the loss mask. The tensors have one row per rollout."""
    sums, counts = (advantages * mask).sum(-1).tolist(), mask.sum(-1).tolist()
    return [total / count if count else None for total, count in zip(sums, counts, strict=True)]
