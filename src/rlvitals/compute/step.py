"""A training step's statistics in one pass over its per-token tensors, without waiting for the device.

On CUDA a call queues two kernels and returns. The second kernel writes the numbers directly into page-locked host
memory. They are read when they have arrived, normally a step later. On other devices plain torch operations compute the
same numbers. `step_channels` lists the channels. Every value merges over micro-batches and ranks without bias.

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

from rlvitals.compute.host_memory import HostNumbers, HostPlaces
from rlvitals.compute.names import CANONICAL, naming
from rlvitals.compute.packing import Entry, Packed
from rlvitals.compute.step_channels import (
    CHANNELS,
    FIELDS,
    ROW_KINDS,
    TOKEN_INDEX,
    entries,
)
from rlvitals.compute.step_plain import Clipping, Given, plain_moments
from rlvitals.values import Derived, Value

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from rlvitals.compute.step_launch import Start

INPUTS = ("logprobs", "old_logprobs", "ref_logprobs", "rollout_logprobs", "advantages", "returns", "values",
          "old_values", "entropy", "mask", "rewards", "prompt_lengths")  # fmt: skip
"""The inputs in the order of the kernels' arguments; the last two have one number per sequence."""

HOST_PLACES = HostPlaces(len(CHANNELS) * FIELDS)
"""Shared by all objects: a kernel may still write to a place after the object that queued it is gone."""

MAX_CALLS = 256
"""Kinds of input that are cached. A full cache is cleared, because then nearly every batch has a new shape."""


class Arrival:
    """A step's numbers on their way to the host."""

    def __init__(self, place: HostNumbers, entries: tuple[Entry, ...]) -> None:
        self.place = place
        self._entries = entries

    def ready(self) -> bool:
        """Whether the numbers are here. Never waits."""
        return self.place.is_reached()

    def values(self) -> dict[str, Value | Derived]:
        """The step's mergeable values by name, ready for `run.log`. Waits until they have arrived."""
        self.place.wait()
        return Packed(self.place.numbers.view(-1, FIELDS), self._entries).values()


class _Call(NamedTuple):
    """Everything that a call needs for inputs of certain shapes and types. It is cached."""

    entries: tuple[Entry, ...]
    device: torch.device
    start: Start | None = None
    """Starts the kernels; None if plain operations are used."""


class StepStatistics:
    """Queues the statistics of a step. Keep one per trainer.

    The clips are those of the trainer's loss: `clip_low` and `clip_high` around a ratio of 1, `dual_clip` for the loss
    of negative advantages, `clip_value` around the old values. None means that the trainer has no such clip. `names`
    are the catalogue's or a framework's, as in `policy.stats`. With `use_kernels=False`, plain torch operations are
    used on every device.
    """

    def __init__(
        self,
        *,
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        dual_clip: float | None = None,
        clip_value: float | None = 0.2,
        names: str = CANONICAL,
        use_kernels: bool = True,
    ) -> None:
        self._clipping = Clipping(clip_low, clip_high, dual_clip, clip_value)
        self._naming = naming(names, "policy")
        self._use_kernels = use_kernels
        self._calls: dict[Any, _Call] = {}
        self._captured: dict[torch.device, HostNumbers] = {}
        self._last: Arrival | None = None

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
        `prompt_lengths` always do. The mismatch compares `rollout_logprobs` with `old_logprobs` if given, and with
        `logprobs` otherwise. `old_values` are the critic's predictions when the rollouts were collected, `values` those
        of this update. `value.*` and the explained variance use `old_values` if given.
        """
        return self._enqueue((logprobs, old_logprobs, ref_logprobs, rollout_logprobs, advantages, returns,
                              values, old_values, entropy, mask, rewards, prompt_lengths))  # fmt: skip

    def enqueue(self, **given: Tensor | None) -> None:
        """Queue the kernels. It can be captured in a CUDA graph and takes the same arguments as a call."""
        if unknown := given.keys() - set(INPUTS):
            raise TypeError(f"no input is called {sorted(unknown)[0]!r}; there are {', '.join(INPUTS)}")
        self._last = self._enqueue(tuple(map(given.get, INPUTS)))

    def arrival(self) -> Arrival:
        """The numbers of the last `enqueue`, or of the last replay of a graph, to read when they have arrived."""
        if self._last is None:
            raise RuntimeError("nothing was queued yet: call enqueue first")
        if self._last.place in self._captured.values():
            self._last.place.record()
        return self._last

    def _enqueue(self, given: Given) -> Arrival:
        # A kernel is built for types, alignment and some properties of the sizes. Every call pays for this check, so
        # it is one pass.
        key: list[Any] = []
        addresses: list[int | None] = []
        for tensor in given:
            if tensor is None:
                key.append(None)
                addresses.append(None)
            else:
                address = tensor.data_ptr()
                key += (tensor.shape, tensor.dtype, tensor.get_device(), address & 15, tensor.is_contiguous())
                addresses.append(address)
        call = self._calls.get(known := tuple(key))
        if call is None:
            if len(self._calls) >= MAX_CALLS:
                self._calls.clear()
            call = self._calls[known] = self._prepare(given)
        captured = self._captured_place(call.device)
        place = captured or HOST_PLACES.take(call.device)
        if call.start is not None:
            call.start(given, addresses, place)
        else:
            # Other devices have no event that marks the end of a copy, so the copy blocks there.
            place.numbers.copy_(self._by_operations(given).detach(), non_blocking=call.device.type == "cuda")
        arrival = Arrival(place, call.entries)
        if captured is None:
            HOST_PLACES.expect(place, call.device, arrival)
        return arrival

    def _captured_place(self, device: torch.device) -> HostNumbers | None:
        """The place that a graph under capture writes to at every replay; None outside a capture."""
        if device.type != "cuda":
            return None
        import torch

        if torch.cuda.is_current_stream_capturing():
            if device not in self._captured:
                raise RuntimeError("call enqueue once before capturing it: the kernels are built by the first call")
            return self._captured[device]
        if device not in self._captured:
            self._captured[device] = HOST_PLACES.keep(device)
        return None

    def _prepare(self, given: Given) -> _Call:
        """Check inputs of new shapes or types, and prepare how they are passed to the kernels."""
        logprobs = given[0]
        if logprobs is None:
            raise TypeError("logprobs are needed")
        _check(logprobs, given)
        names = {name for name, tensor in zip(INPUTS, given, strict=True) if tensor is not None}
        clips = {"dual_clip": self._clipping.dual, "value_clip": self._clipping.value}
        settings = {name for name, bound in clips.items() if bound is not None}
        call = _Call(entries(names | settings, self._naming), logprobs.device)
        if not (self._use_kernels and logprobs.numel() and logprobs.device.type == "cuda" and has_triton()):
            return call
        from rlvitals.compute.step_launch import Start

        advantages = given[INPUTS.index("advantages")]
        return call._replace(
            start=Start(
                given,
                self._clipping,
                _plan(),
                advantage_per_row=advantages is not None and advantages.ndim == 1,
                clips_values="old_values" in names and self._clipping.value is not None,
            )
        )

    def _by_operations(self, given: Given) -> Tensor:
        inputs = {name: tensor for name, tensor in zip(INPUTS, given, strict=True) if tensor is not None}
        logprobs, mask = inputs["logprobs"], inputs.pop("mask", None)
        if "advantages" in inputs and inputs["advantages"].ndim == 1:
            inputs["advantages"] = inputs["advantages"].unsqueeze(1).expand(logprobs.shape)
        used = logprobs.new_ones(logprobs.shape) if mask is None else mask
        return plain_moments(inputs, used, self._clipping).flatten()


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
