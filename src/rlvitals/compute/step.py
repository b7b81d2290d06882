"""A training step's statistics in one pass over its per-token tensors, and without waiting for the device.

On CUDA two kernels and one small asynchronous copy are queued and the call returns; the numbers are read when they have
arrived, normally a step later. On other devices the same numbers come from plain torch operations. The channels are
listed in `step_channels`; every value merges over micro-batches and ranks without bias.

    statistics = StepStatistics(clip_low=0.2, clip_high=0.28)
    arrival = statistics(logprobs=lp, old_logprobs=old, advantages=adv, mask=mask)   # queued, nothing waits
    ...
    run.log(arrival.values(), step=step)                                             # about 70 numbers

In a CUDA graph call `enqueue` while capturing, and `arrival()` after each replay.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from rlvitals.compute.names import CANONICAL, naming
from rlvitals.compute.packing import Entry, Packed
from rlvitals.compute.step_channels import (
    CHANNELS,
    FIELDS,
    ROW_KINDS,
    TOKEN_CHANNELS,
    TOKEN_INDEX,
    entries,
)
from rlvitals.compute.step_plain import Clipping, plain_moments
from rlvitals.values import Derived, Value

if TYPE_CHECKING:
    import torch
    from torch import Tensor

INPUTS = ("logprobs", "old_logprobs", "ref_logprobs", "rollout_logprobs", "advantages", "returns", "values",
          "old_values", "entropy", "mask", "rewards", "prompt_lengths")  # fmt: skip
"""In the order in which the kernels take them; the last two have one number per sequence."""

Given = tuple["Tensor | None", ...]
"""The inputs in that order."""

MOMENTS_SIZE = len(CHANNELS) * FIELDS

MAX_CALLS = 256
"""Shapes of inputs that are remembered; where every batch has a new one, the oldest are of no use."""


class Arrival:
    """A step's numbers on their way to the host."""

    def __init__(self, host: Tensor, event: torch.Event | None, entries: tuple[Entry, ...]) -> None:
        self._host = host
        self._event = event
        self._entries = entries

    def ready(self) -> bool:
        """Whether the numbers are here. Never waits."""
        return self._event is None or bool(self._event.query())

    def values(self) -> dict[str, Value | Derived]:
        """The step's mergeable values by name, ready for `run.log`. Waits where they are not here yet."""
        if self._event is not None:
            self._event.synchronize()
        return Packed(self._host.view(-1, FIELDS), self._entries).values()


class _Call(NamedTuple):
    """What a call with inputs of some shapes and types needs, looked up instead of worked out."""

    entries: tuple[Entry, ...]
    by_kernels: bool
    device: torch.device
    programs: int = 0
    size: int = 0
    """Numbers of the buffer on the device: the moments, then the table."""
    settings: tuple[Any, ...] = ()
    """The arguments of the first kernel after its tensors."""
    sizes: tuple[Any, ...] = ()
    """The arguments of the second kernel after its tensors."""
    kernels: list[Any] | None = None
    """The two, once they are built."""


class _Kept(NamedTuple):
    plan: Tensor
    """How each channel is merged, on the device."""
    host: Tensor
    """The page-locked buffer that a captured copy writes at every replay."""


class StepStatistics:
    """Queues the statistics of a step. Keep one per trainer.

    `names` are the catalogue's, or those of a framework, as in `policy.stats`. `use_kernels=False` asks for the plain
    torch operations everywhere.
    """

    def __init__(
        self,
        *,
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        dual_clip: float = 3.0,
        clip_value: float | None = 0.2,
        names: str = CANONICAL,
        use_kernels: bool = True,
    ) -> None:
        self._clipping = Clipping(clip_low, clip_high, dual_clip, clip_value)
        self._naming = naming(names, "policy")
        self._use_kernels = use_kernels
        self._calls: dict[Any, _Call] = {}
        self._kept: dict[torch.device, _Kept] = {}
        self._host: Tensor | None = None
        self._last: _Call | None = None

    def __call__(
        self,
        *,
        logprobs: Tensor,
        mask: Tensor | None = None,
        old_logprobs: Tensor | None = None,
        ref_logprobs: Tensor | None = None,
        rollout_logprobs: Tensor | None = None,
        advantages: Tensor | None = None,
        returns: Tensor | None = None,
        values: Tensor | None = None,
        old_values: Tensor | None = None,
        entropy: Tensor | None = None,
        rewards: Tensor | None = None,
        prompt_lengths: Tensor | None = None,
    ) -> Arrival:
        """Queue the statistics of per-token tensors [B, T] and return at once.

        `mask` is true where a token counts. `advantages` may have one number per sequence; `rewards` and
        `prompt_lengths` always do. The mismatch compares `rollout_logprobs` with `old_logprobs` where given, and with
        `logprobs` otherwise.
        """
        self._enqueue((logprobs, old_logprobs, ref_logprobs, rollout_logprobs, advantages, returns, values, old_values,
                       entropy, mask, rewards, prompt_lengths))  # fmt: skip
        return self.arrival()

    def enqueue(self, **given: Tensor | None) -> None:
        """Queue the kernels and the copy; may be captured in a CUDA graph. The arguments are those of a call."""
        if unknown := given.keys() - set(INPUTS):
            raise TypeError(f"no input is called {sorted(unknown)[0]!r}; there are {', '.join(INPUTS)}")
        self._enqueue(tuple(map(given.get, INPUTS)))

    def arrival(self) -> Arrival:
        """What was queued last, as something to read when it has arrived; after a graph's replay, the replay's."""
        if self._host is None or self._last is None:
            raise RuntimeError("nothing was queued yet: call enqueue first")
        if self._last.device.type != "cuda":
            return Arrival(self._host, None, self._last.entries)
        import torch

        event = torch.Event(self._last.device)
        event.record()
        return Arrival(self._host, event, self._last.entries)

    def _enqueue(self, given: Given) -> None:
        tensors = [None if tensor is None else tensor.contiguous() for tensor in given]
        # A kernel is built for types, alignment and some properties of the sizes.
        key = tuple([None if t is None else (t.shape, t.dtype, t.get_device(), t.data_ptr() % 16) for t in tensors])
        call = self._calls.get(key)
        if call is None:
            if len(self._calls) >= MAX_CALLS:
                self._calls.clear()
            call = self._calls[key] = self._prepare(given)
        if call.by_kernels:
            self._host = self._by_kernels(tensors, call)
        else:
            moments = self._by_operations(given)
            self._host = self._copy(moments) if moments.is_cuda else moments
        self._last = call

    def _prepare(self, given: Given) -> _Call:
        """Look at inputs of new shapes or types: whether they fit, and how they are handed to the kernels."""
        logprobs = given[0]
        if logprobs is None:
            raise TypeError("logprobs are needed")
        _check(logprobs, given)
        names = {name for name, tensor in zip(INPUTS, given, strict=True) if tensor is not None}
        call = _Call(entries(names, self._naming), False, logprobs.device)
        if not (self._use_kernels and logprobs.numel() and logprobs.device.type == "cuda" and has_triton()):
            return call
        from rlvitals.compute.triton_step import STRETCH, TOKEN_FIELDS

        rows, length = logprobs.shape
        stretches = -(-length // STRETCH)
        columns = rows * stretches
        counts = MOMENTS_SIZE + len(TOKEN_CHANNELS) * TOKEN_FIELDS * columns
        clipping, advantages = self._clipping, given[INPUTS.index("advantages")]
        return call._replace(
            by_kernels=True,
            programs=columns,
            size=counts + columns,
            settings=(
                length, columns, stretches, clipping.low, clipping.high, clipping.dual, clipping.value or 0.0,
                advantages is not None and advantages.ndim == 1,
                "old_values" in names and clipping.value is not None, STRETCH, MOMENTS_SIZE, counts, 128,
            ),
            sizes=(rows, columns, stretches, MOMENTS_SIZE, counts, 128),
            kernels=[],
        )  # fmt: skip

    def _by_operations(self, given: Given) -> Tensor:
        inputs = {name: tensor for name, tensor in zip(INPUTS, given, strict=True) if tensor is not None}
        logprobs, mask = inputs["logprobs"], inputs.pop("mask", None)
        if "advantages" in inputs and inputs["advantages"].ndim == 1:
            inputs["advantages"] = inputs["advantages"].unsqueeze(1).expand(logprobs.shape)
        used = logprobs.new_ones(logprobs.shape) if mask is None else mask
        return plain_moments(inputs, used, self._clipping).flatten()

    def _by_kernels(self, tensors: list[Tensor | None], call: _Call) -> Tensor:
        import torch

        from rlvitals.compute.triton_step import queue

        plan = self._keep(call.device).plan
        buffer = torch.empty(call.size, dtype=torch.float64, device=call.device)
        if torch.cuda.current_device() == call.device.index:
            queue(call, len(CHANNELS), tensors, buffer, plan)
        else:
            with torch.cuda.device(call.device):
                queue(call, len(CHANNELS), tensors, buffer, plan)
        return self._copy(buffer[:MOMENTS_SIZE])

    def _copy(self, moments: Tensor) -> Tensor:
        import torch

        if torch.cuda.is_current_stream_capturing():
            host = self._keep(moments.device).host
        else:  # one of its own for each call: an earlier one may not have been read yet
            host = torch.empty(MOMENTS_SIZE, dtype=torch.float64, pin_memory=True)
        host.copy_(moments, non_blocking=True)
        return host

    def _keep(self, device: torch.device) -> _Kept:
        """What outlives a call. Made by the first call on a device, before any graph is captured."""
        kept = self._kept.get(device)
        if kept is None:
            import torch

            if torch.cuda.is_current_stream_capturing():
                raise RuntimeError("call enqueue once before capturing it: the kernels are built by the first call")
            plan = torch.tensor(_plan(), dtype=torch.int32).pin_memory().to(device, non_blocking=True)
            host = torch.empty(MOMENTS_SIZE, dtype=torch.float64, pin_memory=True)
            kept = self._kept[device] = _Kept(plan, host)
        return kept


def _plan() -> list[list[int]]:
    """How each channel is merged: [kind, source], as `merge_channels` reads it."""
    return [
        [ROW_KINDS.index(channel.row), TOKEN_INDEX.get(channel.source, 0)]
        if channel.row
        else [-1, TOKEN_INDEX[channel.name]]
        for channel in CHANNELS
    ]


def _check(logprobs: Tensor, given: Given) -> None:
    if logprobs.ndim != 2:
        raise ValueError(f"logprobs must be [sequences, tokens], not of shape {list(logprobs.shape)}")
    for place, (name, tensor) in enumerate(zip(INPUTS, given, strict=True)):
        if tensor is None:
            continue
        per_row = place >= len(INPUTS) - 2 or (name == "advantages" and tensor.ndim == 1)
        wanted = logprobs.shape[:1] if per_row else logprobs.shape
        if tensor.shape != wanted:
            raise ValueError(f"{name} must be of shape {list(wanted)} like the log-probs, not {list(tensor.shape)}")
        if tensor.device != logprobs.device:
            raise ValueError(f"{name} is on {tensor.device}, the log-probs are on {logprobs.device}")


@cache
def has_triton() -> bool:
    """Whether kernels can be built here."""
    return find_spec("triton") is not None
