"""Models whose weights are sharded over the ranks: FSDP2, as accelerate sets it up.

Each rank holds a part of every weight, of its gradient and of the optimizer's moments. This module has everything that
trainers with their own loop need for this. On one process and with plain data parallelism its functions do nothing.

Functions marked "every rank" exchange weights between the ranks. If one rank does not call them, the others hang.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from rlvitals.errors import ConfigError
from rlvitals.train import models


def accelerator(*, is_bf16: bool) -> Any:
    """The accelerator that the launcher has configured. Raises an error if the configuration is not supported."""
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
    """Disable accelerate's `fsdp_cpu_ram_efficient_loading`, which its launcher enables. With it, only the first rank
    loads weights, and only those of the trained model are sent to the others. The reference and the reward model would
    be partly random. Call it before loading any model.
    """
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"


def save_in_one_piece(accelerator: Any) -> None:
    """Make transformers' Trainer write full models from now on. With `fsdp_state_dict_type: SHARDED_STATE_DICT` its
    `save_model` would write nothing.
    """
    if accelerator.distributed_type.value == "FSDP":
        accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")


def to_read(model: Any, accelerator: Any) -> Any:
    """Put a model that is never trained on the accelerator's device. It is sharded if the trained model is; then every
    rank must make the same number of forward passes with it.
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
    """Gather all weights on every rank inside this context, for sampling. A rank may then make any number of forward
    passes, without communication. Every rank must enter and leave it. It cannot be nested.
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
            # The backward pass needs the outermost part first.
            is_let_go = part is not model and accelerator.state.fsdp_plugin.reshard_after_forward
            part.set_reshard_after_forward(is_let_go, recurse=False)


def gathered(things: Any, *, is_kept: bool = True, seen: dict[int, Any] | None = None) -> Any:
    """The same mappings and lists with full tensors, in main memory; every rank. A rank without `is_kept` takes part
    and discards the result. A tensor that occurs twice (tied weights) is gathered once: `seen` holds them by id.
    """
    seen = {} if seen is None else seen
    if isinstance(things, Mapping):
        return {name: gathered(thing, is_kept=is_kept, seen=seen) for name, thing in things.items()}
    if isinstance(things, list | tuple):
        return type(things)([gathered(thing, is_kept=is_kept, seen=seen) for thing in things])
    if not _is_spread(things):
        return things
    if id(things) not in seen:
        one = things.detach().to(things.device_mesh.device_type).full_tensor()
        seen[id(things)] = one.cpu() if is_kept else None
    return seen[id(things)]


def weights_of(model: Any, *, is_kept: bool = True) -> dict[str, Tensor]:
    """A model's full state dict; every rank. Empty without `is_kept`."""
    found = gathered(model.state_dict(keep_vars=True), is_kept=is_kept)  # keeps tied weights as one object
    return {name: weight.detach() for name, weight in found.items()} if is_kept else {}


def put_weights(model: Any, weights: Mapping[str, Tensor]) -> None:
    """Load all or some full weights into a model, in place; each rank takes its part."""
    own = model.state_dict()
    unknown = weights.keys() - own.keys()
    if unknown:
        raise ConfigError(f"the model has no weight {min(unknown)!r}")
    model.load_state_dict({name: _part_of(weight, own[name]) for name, weight in weights.items()}, strict=False)


def put_optimizer(optimizer: Any, state: Mapping[str, Any]) -> None:
    """Restore an optimizer's full state; each rank takes its part of the moments."""
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
    """Make one optimizer step and clear the gradients. Returns the norm of each group's full gradient.

    The gradient of each group is clipped to `max_norm`. A step with a gradient that is not a number is skipped, because
    it would make every weight NaN. Its norm is returned unchanged, so that the log shows it.
    """
    norms: list[Any] = [torch.nn.utils.clip_grad_norm_(group["params"], max_norm) for group in optimizer.param_groups]
    norms = [(norm.full_tensor() if _is_spread(norm) else norm).detach() for norm in norms]
    if all(bool(norm.isfinite()) for norm in norms):
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norms


def is_sharded(model: Any) -> bool:
    """Whether the model's weights are sharded over the ranks."""
    return bool(_parts(model))


def _precision(is_bf16: bool) -> Any:
    """Layers compute in bfloat16 if enabled. Gradients are summed over the ranks in float32, and a model's outputs are
    not cast: log-probs rounded to bfloat16 would change PPO's ratios by a percent.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return MixedPrecisionPolicy(torch.bfloat16, torch.float32) if is_bf16 else MixedPrecisionPolicy()


def _parts(model: Any) -> list[Any]:
    """The modules that are gathered one by one, torch's FSDPModules; empty if nothing is sharded."""
    return [module for module in model.modules() if hasattr(module, "unshard")]


def _is_spread(tensor: Any) -> bool:
    """Whether this is torch's DTensor, of which each rank holds a part."""
    return hasattr(tensor, "full_tensor")


def _part_of(one: Tensor, own: Any) -> Any:
    """The part of a full tensor that this rank holds, placed like `own`."""
    if not _is_spread(own):
        return one
    from torch.distributed.tensor import distribute_tensor

    # Every rank has read the file, so no communication is needed.
    spread: Any = distribute_tensor(one.to(own.dtype), own.device_mesh, own.placements, src_data_rank=None)
    return spread.to(own.device).clone()
