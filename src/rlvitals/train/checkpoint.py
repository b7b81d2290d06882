"""The checkpoints of trainers with their own loop: `checkpoint-50/` holds everything that the next step depends on.

| file | what |
|---|---|
| `model.safetensors`, `config.json`, tokenizer files | the model, as transformers loads it |
| `trainer.pt` | optimizer, scheduler, the trainer's own state, random state; loaded with `weights_only` |
| `trainer_state.json` | `global_step`, for people and for `rlvitals.start(resume=...)` |

A checkpoint is written to a temporary folder and renamed when it is complete, so `checkpoint-50` is never partial. Its
format does not depend on the number of processes or on sharding: a sharded training can be resumed on one process, and
the reverse.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate import PartialState

from rlvitals.capture.start import refuse_existing
from rlvitals.errors import ConfigError
from rlvitals.store.files import bring_back
from rlvitals.store.layout import RunDir, kept_folder
from rlvitals.train import models, sharded

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

STATE_FILE = "trainer.pt"
WAYS_OUT = "Pass --resume-from last to continue with it, or another --output-dir."
"""Advice for a folder that already holds a run."""


def save(
    folder: Path,
    step: int,
    *,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    optimizer: Any,
    scheduler: Any = None,
    extra: Mapping[str, Any],
    keep_last: int | None,
) -> Path:
    """Write `folder/checkpoint-STEP`, replacing an existing one. `extra` holds tensors, numbers, texts, and lists and
    mappings of these. Of the checkpoints up to this step, the newest `keep_last` are kept.

    Every rank calls it: all gather sharded tensors, the main process writes, and all ranks wait until it has finished.
    """
    process = PartialState()
    is_main = process.is_main_process
    weights = sharded.weights_of(model, is_kept=is_main)
    state = {
        "step": step,
        **sharded.gathered({"optimizer": optimizer.state_dict(), "extra": dict(extra)}, is_kept=is_main),
        "scheduler": None if scheduler is None else scheduler.state_dict(),
        "random": random_state(),
    }
    place = folder / f"checkpoint-{step}"

    def add_state(draft: Path) -> None:
        torch.save(state, draft / STATE_FILE)
        (draft / "trainer_state.json").write_text(json.dumps({"global_step": step}) + "\n", encoding="utf-8")

    if is_main:
        models.write(place, models.Loaded(model, tokenizer), weights, add_state)
        if keep_last is not None:
            older = [path for number, path in checkpoints(folder).items() if number <= step]
            for path in older[: max(0, len(older) - keep_last)]:
                shutil.rmtree(path, ignore_errors=True)
    process.wait_for_everyone()
    return place


def save_model(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write only the model and its tokenizer, in the format of transformers. Every rank calls it."""
    is_main = PartialState().is_main_process
    weights = sharded.weights_of(model, is_kept=is_main)
    if is_main:
        models.write(folder, models.Loaded(model, tokenizer), weights)


def load(path: Path, *, model: PreTrainedModel, optimizer: Any, scheduler: Any = None) -> dict[str, Any]:
    """Restore a checkpoint's weights, optimizer, scheduler and random state. Returns its `extra` with `step` added."""
    if not (path / STATE_FILE).is_file():
        raise ConfigError(f"{path} is not a checkpoint of this trainer: it has no {STATE_FILE}")
    state = _read(path, model)
    load_weights(path, model)
    sharded.put_optimizer(optimizer, state["optimizer"])
    if scheduler is not None and state["scheduler"] is not None:
        scheduler.load_state_dict(state["scheduler"])
    set_random_state(state["random"])
    return {**state["extra"], "step": state["step"]}


def revert(path: Path, *, model: PreTrainedModel, optimizer: Any) -> dict[str, Any]:
    """Restore only a checkpoint's weights and the optimizer's moments. Returns its `extra`.

    Learning rate, random state and step count continue: the same batches at the same rate would fail in the same way.
    """
    state = _read(path, model)
    load_weights(path, model)
    rates = [{key: group[key] for key in ("lr", "initial_lr") if key in group} for group in optimizer.param_groups]
    sharded.put_optimizer(optimizer, state["optimizer"])
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group.update(rate)
    extra: dict[str, Any] = state["extra"]
    return extra


def load_weights(path: Path, model: PreTrainedModel) -> None:
    """Load a checkpoint's weights into a model of the same shape, in place."""
    from transformers import AutoModelForCausalLM

    dtype = next(weight.dtype for weight in model.state_dict().values() if weight.is_floating_point())
    saved: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    sharded.put_weights(model, saved.state_dict())


def _read(path: Path, model: PreTrainedModel) -> dict[str, Any]:
    """The content of `trainer.pt`. For sharded models the file is memory-mapped, so that ranks share its pages."""
    is_shared = sharded.is_sharded(model)
    state: dict[str, Any] = torch.load(path / STATE_FILE, map_location="cpu", weights_only=True, mmap=is_shared)
    return state


def checkpoints(folder: Path, marker: str = STATE_FILE) -> dict[int, Path]:
    """The checkpoint folders by step, in order. Folders without the file `marker` are ignored."""
    return {step: path for step, path in RunDir(folder).checkpoints().items() if (path / marker).is_file()}


def newest(folder: Path, marker: str = STATE_FILE) -> Path | None:
    """The checkpoint with the highest step, or None."""
    return next(reversed(checkpoints(folder, marker).values()), None)


def origin(output_dir: str, resume_from: str | None, marker: str = STATE_FILE) -> Path | None:
    """The checkpoint that the setting `resume_from` names: a path, a name in the run's folder, or `last` (the newest,
    or None if there is none yet). None means to start from the beginning. Raises an error if the folder holds a run
    that is not resumed.
    """
    folder = kept_folder(output_dir)
    if resume_from is None:
        refuse_existing(RunDir(folder), WAYS_OUT)
        return None
    _bring_back(folder)
    if resume_from == "last":
        return newest(folder, marker)
    named = Path(resume_from)
    place = next((path for path in (named, folder / named) if (path / marker).is_file()), None)
    if place is None:
        have = ", ".join(path.name for path in checkpoints(folder, marker).values()) or "none"
        raise ConfigError(f"resume_from {resume_from!r} is not a checkpoint; {folder} has: {have}")
    place = kept_folder(place)
    if place.parent != folder:
        raise ConfigError(f"resume_from {resume_from!r} is not a checkpoint of the run in {folder}")
    return place


def tidy(folder: Path, after: int | None = None) -> None:
    """Remove the remains of a killed save, and checkpoints later than the step from which the training continues."""
    _bring_back(folder)
    for path in [*folder.glob(f"{models.UNFINISHED}*"), *folder.glob(".checkpoint-*.before")]:
        shutil.rmtree(path, ignore_errors=True)
    for step, path in checkpoints(folder).items():
        if after is not None and step > after:
            shutil.rmtree(path, ignore_errors=True)


def _bring_back(folder: Path) -> None:
    """Restore old checkpoints that were being replaced when the process was killed."""
    for path in folder.glob(".checkpoint-*.before"):
        bring_back(folder / path.name.removeprefix(".").removesuffix(".before"))


def random_state() -> dict[str, Any]:
    """The state of Python's, numpy's and torch's generators, as plain types."""
    version, numbers, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(numbers), gauss],
        "numpy": [name, [int(key) for key in keys], int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Restore the generators to a state from `random_state`."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
