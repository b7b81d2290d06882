"""Starts the kernels of a step's statistics with as little host time as possible.

Triton's own launcher inspects every argument on each call, which takes longer than all the rest. It is used once for
inputs of one kind (types, alignment, sizes). Later calls start the built kernels with plain addresses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlvitals.compute.step_channels import CHANNELS, TOKEN_CHANNELS
from rlvitals.compute.triton_step import STRETCH, TOKEN_FIELDS, gather_tokens, merge_channels

if TYPE_CHECKING:
    from rlvitals.compute.host_memory import HostNumbers
    from rlvitals.compute.step_plain import Clipping, Given

WARPS = 4
LANES = 128

_scratch: dict[tuple[int, int], Tensor] = {}
"""The kernels' table for each device and stream, with the largest size needed so far. Work on one stream runs in order,
so it can share one table.
"""
_in_turn = Lock()
"""Two threads on one stream must not interleave their kernels."""


class Start:
    """The kernels for inputs of one kind, with the arguments that do not change."""

    def __init__(
        self, given: Given, clipping: Clipping, plan: list[list[int]], *, advantage_per_row: bool, clips_values: bool
    ) -> None:
        like = given[0]
        assert like is not None
        rows, length = like.shape
        stretches = -(-length // STRETCH)
        columns = rows * stretches
        counts = len(TOKEN_CHANNELS) * TOKEN_FIELDS * columns
        self._device = like.device
        self._programs = columns
        self._table_size = counts + columns
        on_host = torch.tensor(plan, dtype=torch.int32)
        # A copy from pageable memory would block, so the memory is page-locked first.
        self._plan = on_host.pin_memory().to(like.device, non_blocking=True) if like.is_cuda else on_host
        self._scattered = [at for at, tensor in enumerate(given) if tensor is not None and not tensor.is_contiguous()]
        self._settings = (
            length, columns, stretches, clipping.low, clipping.high,
            math.inf if clipping.dual is None else clipping.dual, clipping.value or 0.0,
            advantage_per_row, clips_values, STRETCH, counts, LANES,
        )  # fmt: skip
        self._sizes = (rows, columns, stretches, counts, LANES)
        self._plan_address = self._plan.data_ptr()
        self._built: tuple[Any, Any] | None = None
        self._can_start = True

    def __call__(self, given: Given, addresses: list[int | None], place: HostNumbers) -> None:
        """Queue both kernels. `given` and their addresses are in the order of `step.INPUTS`."""
        if torch.cuda.current_device() != self._device.index:
            with torch.cuda.device(self._device):
                self(given, addresses, place)
            return
        if self._scattered:
            given = tuple(None if tensor is None else tensor.contiguous() for tensor in given)
            addresses = [None if tensor is None else tensor.data_ptr() for tensor in given]
        with _in_turn:
            stream = _streams()(self._device.index)
            table = self._table(stream)
            if self._built is None or not self._can_start:
                self.start_by_triton(given, table, place.numbers)
                return
            try:
                self._start(addresses, table, place, stream)
            except TypeError:  # another Triton version, whose kernels take other arguments: queue both again
                self._can_start = False
                self.start_by_triton(given, table, place.numbers)

    def new_table(self) -> Tensor:
        """A new table for the results that the first kernel passes to the second."""
        return torch.empty(self._table_size, dtype=torch.float64, device=self._device)

    def start_by_triton(self, given: Given, table: Tensor, numbers: Tensor) -> None:
        """Let Triton build the kernels if necessary and start them. Also works in its interpreter, without a device."""
        gather = gather_tokens[(self._programs,)](*given[:-2], table, *self._settings, num_warps=WARPS)
        merge = merge_channels[(len(CHANNELS),)](table, numbers, self._plan, *given[-2:], *self._sizes, num_warps=WARPS)
        self._built = gather, merge

    def _start(self, addresses: list[int | None], table: Tensor, place: HostNumbers, stream: int) -> None:
        gather, merge = self._built  # type: ignore[misc]
        at = table.data_ptr()
        nobody = (None, None, None)  # launch metadata and the two launch hooks
        gather.run(self._programs, 1, 1, stream, gather.function, gather.packed_metadata, *nobody,
                   *addresses[:-2], at, *self._settings)  # fmt: skip
        merge.run(len(CHANNELS), 1, 1, stream, merge.function, merge.packed_metadata, *nobody,
                  at, place.address, self._plan_address, *addresses[-2:], *self._sizes)  # fmt: skip

    def _table(self, stream: int) -> Tensor:
        if torch.cuda.is_current_stream_capturing():  # a graph needs its own table
            return self.new_table()
        table = _scratch.get(key := (self._device.index, stream))
        if table is None or len(table) < self._table_size:
            table = _scratch[key] = self.new_table()
        return table


@cache
def _streams() -> Callable[[int], int]:
    """Triton's function for the current stream of a device. Imported here, so this module can be imported without
    Triton.
    """
    from triton.runtime import driver

    found: Callable[[int], int] = driver.active.get_current_stream
    return found
