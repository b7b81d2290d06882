"""Models whose weights are spread over the ranks: FSDP2, as accelerate sets it up.

Each rank holds a part of every weight, of its gradient and of the optimizer's moments. Here is everything a trainer
with its own loop needs to know of that; on one process and with plain data parallelism all of it does nothing.

A function that says "every rank" exchanges weights between the ranks: who is left out makes the others wait for ever.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlvitals.errors import ConfigError
from rlvitals.train import models


def accelerator(*, is_bf16: bool) -> Any:
    """An accelerator as the launcher has set it up, or an error where that cannot work here."""
    from accelerate import Accelerator
    from accelerate.utils import DistributedType

    load_on_every_rank()
    models.without_cudnn_attention()
    made = Accelerator(mixed_precision="bf16" if is_bf16 else "no")
    kind = made.distributed_type
    if kind in (DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM):
        raise ConfigError(f"this trainer shards with FSDP2, not with {kind.value}: see accelerate's fsdp_version: 2")
    if kind == DistributedType.FSDP:
        if not made.is_fsdp2:
            raise ConfigError("this trainer shards with FSDP2: set fsdp_version: 2 in accelerate's fsdp_config")
        from torch.distributed.fsdp import FSDPModule

        if not hasattr(FSDPModule, "set_reshard_after_forward"):
            raise ConfigError(f"sampling from sharded weights needs a newer torch than {torch.__version__}")
        made.state.fsdp_plugin.mixed_precision_policy = _precision(is_bf16)
    return made


def load_on_every_rank() -> None:
    """Switch accelerate's `fsdp_cpu_ram_efficient_loading` off, which its launcher switches on: models are then loaded
    with weights on the first rank alone, and only the trained one is sent round. The others would be part noise:
    reference, reward model. To be called before anything is loaded.
    """
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"


def save_in_one_piece(accelerator: Any) -> None:
    """Have transformers' Trainer write whole models from now on: with `fsdp_state_dict_type: SHARDED_STATE_DICT` its
    `save_model` would write nothing.
    """
    if accelerator.distributed_type.value == "FSDP":
        accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")


def to_read(model: Any, accelerator: Any) -> Any:
    """A model that is never trained, on the accelerator's device; spread over the ranks where the trained one is, so
    that from then on every rank must read with it as often as the others.
    """
    model.requires_grad_(False).train(False)
    if not getattr(accelerator, "is_fsdp2", False):
        return model.to(accelerator.device)
    from torch.distributed.fsdp import fully_shard

    precision = _precision(accelerator.mixed_precision == "bf16")
    layers = [each for each in model.modules() if type(each).__name__ in (model._no_split_modules or ())]
    for module in (*layers, model):
        fully_shard(module, mp_policy=precision, reshard_after_forward=True)
    return model


@contextmanager
def whole(model: Any, accelerator: Any) -> Iterator[None]:
    """All weights on every rank as long as this lasts, for sampling: a rank may then read as often as it likes, and a
    token costs no exchange. Every rank enters and leaves; not to be entered twice.
    """
    parts = _parts(model)
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.reshard()
            # The outermost part is needed again as soon as the backward pass begins.
            is_let_go = part is not model and accelerator.state.fsdp_plugin.reshard_after_forward
            part.set_reshard_after_forward(is_let_go, recurse=False)


def gathered(things: Any, *, is_kept: bool = True) -> Any:
    """The same mappings and lists with whole tensors in them, in main memory; every rank. Where it `is_kept` not, the
    rank takes part and forgets. A tensor that is there twice (tied weights) stays one.
    """
    return _gathered(things, {}, is_kept) if _is_distributed() else things


def weights_of(model: Any, *, is_kept: bool = True) -> dict[str, Tensor]:
    """A model's state dict, whole; every rank. Empty where it `is_kept` not."""
    found = gathered(model.state_dict(keep_vars=True), is_kept=is_kept)  # the variables: tied ones are one object
    return {name: weight.detach() for name, weight in found.items()} if is_kept else {}


def put_weights(model: Any, weights: Mapping[str, Tensor]) -> None:
    """Put whole weights into a model, or some of them, in place; each rank takes its part."""
    own = model.state_dict()
    unknown = weights.keys() - own.keys()
    if unknown:
        raise ConfigError(f"the model has no weight {min(unknown)!r}")
    model.load_state_dict({name: _part_of(weight, own[name]) for name, weight in weights.items()}, strict=False)


def put_optimizer(optimizer: Any, state: Mapping[str, Any]) -> None:
    """Put an optimizer's whole state back; each rank takes its part of the moments."""
    owners = [weight for group in optimizer.param_groups for weight in group["params"]]
    moments = {
        place: {
            name: _part_of(kept, owners[place]) if kept.shape == owners[place].shape else kept
            for name, kept in of_one.items()
        }
        for place, of_one in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": moments})


def update(optimizer: Any, max_norm: float) -> list[Tensor]:
    """Change the weights by their gradients, which are forgotten; returns the norm of each group's whole gradient.

    Each group is scaled down to the norm where it is above it. An update with a gradient that is not a number is left
    out: one would make every weight NaN for good. Its norm is returned as it is, so that the log shows it.
    """
    norms = [_clip(group["params"], max_norm) for group in optimizer.param_groups]
    if all(bool(norm.isfinite()) for norm in norms):
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norms


def _clip(parameters: Any, max_norm: float) -> Tensor:
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    found: Tensor = norm.full_tensor() if _is_spread(norm) else norm  # type: ignore[attr-defined]
    return found.detach()


def is_main() -> bool:
    """Whether this process is the one that writes."""
    return not _is_distributed() or dist.get_rank() == 0


def is_sharded(model: Any) -> bool:
    """Whether the model's weights are spread over ranks."""
    return bool(_parts(model))


def wait() -> None:
    """Go on when every rank is here."""
    if _is_distributed():
        from accelerate import PartialState

        PartialState().wait_for_everyone()  # it knows the device of this rank


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _precision(is_bf16: bool) -> Any:
    """Layers compute in bfloat16 where that is wanted; gradients are summed over the ranks in float32, and what a model
    returns is left as it is: log-probs rounded to bfloat16 would move PPO's ratios by a percent.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return MixedPrecisionPolicy(torch.bfloat16, torch.float32) if is_bf16 else MixedPrecisionPolicy()


def _parts(model: Any) -> list[Any]:
    """The modules that are gathered one by one; none where nothing is sharded."""
    if not _is_distributed():
        return []
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def _is_spread(tensor: Any) -> bool:
    if not _is_distributed():
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def _gathered(things: Any, seen: dict[int, Any], is_kept: bool) -> Any:
    if isinstance(things, Mapping):
        return {name: _gathered(thing, seen, is_kept) for name, thing in things.items()}
    if isinstance(things, list | tuple):
        return type(things)([_gathered(thing, seen, is_kept) for thing in things])
    if not _is_spread(things):
        return things
    if id(things) not in seen:
        one = things.detach().to(things.device_mesh.device_type).full_tensor()
        seen[id(things)] = one.cpu() if is_kept else None
    return seen[id(things)]


def _part_of(one: Tensor, own: Any) -> Any:
    """The part this rank has of a whole tensor that is to go where `own` is."""
    if not _is_spread(own):
        return one
    from torch.distributed.tensor import distribute_tensor

    # Every rank has read the file: nobody needs to send anything.
    spread: Any = distribute_tensor(one.to(own.dtype), own.device_mesh, own.placements, src_data_rank=None)
    return spread.to(own.device).clone()
