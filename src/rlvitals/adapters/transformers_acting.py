"""Carries out in a Hugging Face trainer what the doctor asks for.

The main process decides, all processes get the same order at the same place, and each carries it out on its own copy
of the optimizer and the flow. What cannot be done in place ends in a stop that says how to go on by hand.
"""

from __future__ import annotations

import logging
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlvitals.adapters.learning_rate import CannotCut, cut_learning_rate, learning_rate
from rlvitals.records import Action, Request
from rlvitals.store.files import read_json

logger = logging.getLogger("rlvitals")

REVERT_FACTOR = 0.5
"""Going back with the same learning rate would take the same way again."""

MOST_REVERTS = 2
"""How often a run is taken back in place; after that it stops."""

WEIGHTS, WEIGHTS_INDEX, OPTIMIZER = "model.safetensors", "model.safetensors.index.json", "optimizer.pt"


@dataclass(frozen=True, slots=True)
class Order:
    """What every process does now."""

    action: Action
    factor: float = 1.0
    checkpoint: str = ""
    obstacle: str = ""
    """revert: why it cannot be done in place."""


@dataclass(slots=True)
class Reverts:
    """The ways back a run has taken: what was saved on a way that was given up holds spoiled weights."""

    count: int = 0
    spoiled: tuple[tuple[int, int], ...] = ()

    def note(self, onset: int, now: int) -> None:
        self.count += 1
        self.spoiled = (*self.spoiled, (onset, now))

    def choose(self, request: Request) -> Path | None:
        """The newest checkpoint from before the onset that was saved on a good way."""
        if request.checkpoint is None:
            return None
        asked = Path(request.checkpoint)
        found: dict[int, Path] = {}
        for folder in asked.parent.glob("checkpoint-*"):
            number = folder.name.removeprefix("checkpoint-")
            if number.isdecimal() and int(number) < request.finding.onset_step and self._is_good(int(number)):
                found[int(number)] = folder
        if asked in found.values():
            return asked
        return found[max(found)] if found else None

    def _is_good(self, step: int) -> bool:
        return not any(onset <= step <= now for onset, now in self.spoiled)


def order_for(request: Request, args: Any, model: Any, reverts: Reverts) -> Order:
    """What a request means here. Called on the main process alone: it looks at the checkpoint's files."""
    if request.action == "reduce_lr":
        return Order("reduce_lr", factor=request.factor or 1.0)
    if request.action != "revert":
        return Order(request.action)
    checkpoint = reverts.choose(request)
    if checkpoint is None:
        return Order("revert", obstacle="no good checkpoint is left")
    if reverts.count >= MOST_REVERTS:
        obstacle = f"it went back {MOST_REVERTS} times already"
    else:
        obstacle = obstacle_to_reloading(args, model, checkpoint)
    return Order("revert", factor=REVERT_FACTOR, checkpoint=str(checkpoint), obstacle=obstacle)


def shared(order: Order | None) -> Order | None:
    """The main process's order on every process. Every process of a distributed job calls it at the same place."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return order
    held: list[Any] = [asdict(order) if order is not None else None]
    dist.broadcast_object_list(held, src=0)
    return Order(**held[0]) if held[0] is not None else None


def carry_out(order: Order, control: Any, *, model: Any, optimizer: Any, scheduler: Any) -> tuple[bool, str]:
    """Do it; returns whether it was done, and what is to be said about it. A save is only asked for here."""
    if order.action == "stop":
        control.should_training_stop = True
        return True, "training stops"
    if order.action == "checkpoint":
        control.should_save = True
        return True, ""
    if order.action == "reduce_lr":
        try:
            before, after = cut_learning_rate(optimizer, scheduler, order.factor)
        except CannotCut as problem:
            return False, str(problem)
        return True, f"learning rate {before:.4g} -> {after:.4g}"
    if order.action == "revert":
        return _revert(order, control, model=model, optimizer=optimizer, scheduler=scheduler)
    return True, ""


def _revert(order: Order, control: Any, *, model: Any, optimizer: Any, scheduler: Any) -> tuple[bool, str]:
    obstacle = order.obstacle
    if not obstacle:
        try:
            reload(Path(order.checkpoint), model, optimizer)
            before, after = cut_learning_rate(optimizer, scheduler, order.factor)
        except Exception as error:  # noqa: BLE001 - half a way back is none: stop, and say so
            obstacle = f"{type(error).__name__}: {error}"
        else:
            rate = f"learning rate {before:.4g} -> {after:.4g}"
            name = Path(order.checkpoint).name
            return True, f"back to the weights and the optimizer of {name}, {rate}; steps, schedule and data go on"
    control.should_training_stop = True
    return False, f"cannot go back in place ({obstacle}): training stops{_by_hand(order, optimizer)}"


def _by_hand(order: Order, optimizer: Any) -> str:
    if not order.checkpoint:
        return ""
    advice = f". Go on with trainer.train(resume_from_checkpoint={order.checkpoint!r})"
    try:
        rate = learning_rate(optimizer) * order.factor
    except CannotCut:
        return advice
    return f"{advice} and VitalsCallback(resume_learning_rate={rate:.4g})"


def obstacle_to_reloading(args: Any, model: Any, checkpoint: Path) -> str:
    """Why a checkpoint cannot be loaded into a running trainer; empty where it can: one process, one device, a plain
    model whose every weight is in the checkpoint, an optimizer's state beside it.
    """
    if args.world_size > 1 or getattr(args, "n_gpu", 1) > 1:
        return "several processes or devices train the model"
    if getattr(args, "deepspeed", None) or getattr(args, "fsdp", None):
        return "the model is sharded"
    if any(os.environ.get(f"ACCELERATE_USE_{engine}", "").lower() in ("1", "true") for engine in ("DEEPSPEED", "FSDP")):
        return "the model is sharded"
    if hasattr(model, "peft_config"):
        return "the model has adapters"
    if getattr(model, "hf_quantizer", None) is not None or getattr(model, "is_quantized", False):
        return "the model is quantised"
    if not (checkpoint / OPTIMIZER).is_file():
        return f"{checkpoint.name} has no {OPTIMIZER}"
    try:
        saved = {name for file in weight_files(checkpoint) for name in names_in(file)}
    except (OSError, ValueError, KeyError) as error:
        return f"the weights of {checkpoint.name} cannot be read: {error}"
    own = model.state_dict()
    if saved - own.keys():
        return f"{checkpoint.name} holds other weights than the model has"
    stored = {own[name].data_ptr() for name in saved}
    if any(own[name].data_ptr() not in stored for name in own.keys() - saved):  # tied weights are saved once
        return f"{checkpoint.name} does not hold all of the model's weights"
    return ""


def weight_files(checkpoint: Path) -> list[Path]:
    """The files a checkpoint's weights are in. Raises FileNotFoundError where there are none."""
    index = checkpoint / WEIGHTS_INDEX
    if index.is_file():
        return [checkpoint / name for name in sorted(set(read_json(index)["weight_map"].values()))]
    if not (checkpoint / WEIGHTS).is_file():
        raise FileNotFoundError(f"there is no {WEIGHTS}")
    return [checkpoint / WEIGHTS]


def names_in(file: Path) -> list[str]:
    """The names of the weights in a file; nothing is loaded."""
    from safetensors import safe_open

    with safe_open(file, framework="pt") as weights:
        return list(weights.keys())


def reload(checkpoint: Path, model: Any, optimizer: Any) -> None:
    """Put a checkpoint's weights and the optimizer's moments back. The optimizer's settings, its learning rate among
    them, stay as they are: the schedule goes on.
    """
    import torch
    from safetensors.torch import load_file

    # Read everything before anything is changed.
    weights = {name: tensor for file in weight_files(checkpoint) for name, tensor in load_file(file).items()}
    moments = torch.load(checkpoint / OPTIMIZER, map_location="cpu", weights_only=True)
    present = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    model.load_state_dict(weights, strict=False)  # tied weights are saved once
    optimizer.load_state_dict(moments)
    for group, settings in zip(optimizer.param_groups, present, strict=True):
        group.update(settings)
