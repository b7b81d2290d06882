"""The key-value cache of a batch of texts, and the logits of the next token.

There are two kinds of cache. `Growing` is that of transformers: a tensor that grows with every token, for any model on
any device. `Fixed` uses tensors of constant size, so that every token is the same work on the same memory. This allows
a CUDA graph, which the GPU replays without waiting for Python. A step of a small model is hundreds of kernels of a few
microseconds each, and launching them one by one takes far longer than running them.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlvitals.guard import value_or, words_of
from rlvitals.terminal import logger

_ATTENTION = "rlvitals_sampling"
FEWEST_ROWS = 8
"""Graphs are captured for all rows, half of them, a quarter and so on, down to this many."""
COLUMN_STEP = 64
"""Graphs are captured for this many columns, twice as many and so on, because attention also reads empty columns."""
KEPT_SHARE = 0.1
"""Share of the device's memory. A cache that takes more is freed after the batch, with its graphs, because the update
needs the memory.
"""


@contextmanager
def reading(model: Any, rows: int, columns: int) -> Iterator[Growing | Fixed]:
    """Start reading at most `rows` rows of about `columns` columns, with the fastest cache that this model supports."""
    if not _has_plain_attention(model) or next(model.parameters()).device.type != "cuda":
        yield Growing(model)
        return
    found = _kept.get(model)
    if found is None or not found.fits(rows, _precision(model)):
        _kept.pop(model, None)  # frees its memory before the next allocation
        found = _kept[model] = Fixed(model, max(1, rows), columns, with_graphs=True)
    found.begin()
    yield found
    if found.nbytes > KEPT_SHARE * torch.cuda.get_device_properties(found.device).total_memory:
        del _kept[model]


class Growing:
    """Keys and values as transformers keeps them."""

    def __init__(self, model: Any) -> None:
        self._model, self._cache = model, None

    def read(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Read new tokens, [rows, new tokens], and return the logits of the next token, [rows, vocabulary]. `mask`
        covers everything so far, including the new columns.
        """
        output = _one_pass(self._model, ids, positions_of(mask)[:, -ids.shape[1] :], mask, self._cache)
        self._cache = output.past_key_values
        logits: Tensor = output.logits[:, -1]
        return logits

    def select(self, rows: Tensor) -> None:
        """Continue with these rows in this order. A row may occur several times."""
        if self._cache is not None:
            self._cache.batch_select_indices(rows)


class _Inputs(NamedTuple):
    """New tokens, their positions in the texts, their attention mask, and their columns in the cache."""

    ids: Tensor
    positions: Tensor
    visible: Tensor
    columns: Tensor


@dataclass(slots=True)
class _Step:
    """The graph for one token of every row, with the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: _Inputs
    logits: Tensor


@dataclass(slots=True)
class _Graphs:
    """The captured graphs and the weights they use. They share one memory pool, because only one runs at a time."""

    steps: dict[tuple[int, int], _Step] = field(default_factory=dict)
    weights: tuple[int, ...] = ()
    pool: Any = None
    are_possible: bool = True


class Fixed:
    """Keys and values in tensors of fixed size, for models whose layers all attend to the whole text. `read` and
    `select` are those of `Growing`.

    The rows of a batch are the first rows of the storage. `with_graphs` needs a CUDA device.
    """

    def __init__(self, model: Any, rows: int, columns: int, *, with_graphs: bool) -> None:
        from transformers.cache_utils import Cache

        self._model = weakref.ref(model)
        self._rows, self._capacity, self._precision = rows, _rounded(columns), _precision(model)
        self.device = next(model.parameters()).device
        self._layers = [_layer_type()(self) for _ in range(model.config.get_text_config().num_hidden_layers)]
        self._cache: Any = Cache(layers=self._layers)
        self._graphs = _Graphs(are_possible=with_graphs)
        self.place = torch.zeros(1, dtype=torch.long, device=self.device), self._capacity
        """The columns that are written next, and the number of columns that are read."""
        self._seen = 0

    def fits(self, rows: int, precision: torch.dtype) -> bool:
        """Whether the storage fits this number of rows in this precision and is not far too large."""
        return rows <= self._rows <= 4 * rows and precision == self._precision

    def begin(self) -> None:
        """Clear the cache."""
        self._seen = 0
        weights = tuple(weight.data_ptr() for weight in self._model().parameters())  # type: ignore[union-attr]
        if weights != self._graphs.weights:  # a graph reads weights at the addresses of its capture
            self._graphs = _Graphs(weights=weights, are_possible=self._graphs.are_possible)

    @property
    def nbytes(self) -> int:
        """The size of the storage in bytes."""
        return sum(layer.nbytes for layer in self._layers)

    def read(self, ids: Tensor, mask: Tensor) -> Tensor:
        rows, new = ids.shape
        first, self._seen = self._seen, self._seen + new
        if self._seen > self._capacity:
            self._make_room()
        columns = torch.arange(first, self._seen, device=self.device)
        width = min(_rounded(self._seen), self._capacity)
        inputs = _Inputs(ids, positions_of(mask)[:, -new:], _visible(mask, columns, width), columns)
        if new == 1 and self._graphs.are_possible:
            step = self._step(inputs)
            if step is not None:
                step.graph.replay()
                return step.logits[:rows]
        return self._forward(inputs)

    def select(self, rows: Tensor) -> None:
        for layer in self._layers:
            layer.select(rows, self._seen)

    def storage(self, like: Tensor) -> Tensor:
        """The storage of a layer. It starts with zeros, because unwritten values are multiplied by a weight of 0."""
        return like.new_zeros((self._rows, like.shape[1], self._capacity, like.shape[3]))

    def _forward(self, inputs: _Inputs) -> Tensor:
        self.place = inputs.columns, inputs.visible.shape[-1]
        model: Any = self._model()
        with _own_attention(model.config.get_text_config()):
            output = _one_pass(model, inputs.ids, inputs.positions, inputs.visible, self._cache)
        logits: Tensor = output.logits[:, -1]
        return logits

    def _make_room(self) -> None:
        self._capacity = _rounded(self._seen)
        for layer in self._layers:
            layer.move()
        self._graphs = _Graphs(weights=self._graphs.weights, are_possible=self._graphs.are_possible)

    def _step(self, inputs: _Inputs) -> _Step | None:
        """A graph for these inputs; None if this model cannot be captured."""
        rows, width, batch = len(inputs.ids), inputs.visible.shape[-1], self._rows
        while batch // 2 >= max(rows, FEWEST_ROWS):
            batch //= 2
        step = self._graphs.steps.get((batch, width))
        if step is None:
            ids, positions, visible = (given.new_ones((batch, *given.shape[1:])) for given in inputs[:3])
            kept_inputs = _Inputs(ids, positions, visible, inputs.columns.clone())
            step = _Step(torch.cuda.CUDAGraph(), kept_inputs, torch.empty(0))
        for kept, given in zip(step.inputs, inputs, strict=True):
            kept[: len(given)].copy_(given)
        if (batch, width) not in self._graphs.steps:
            if not value_or(False, self._capture, step, handle=self._give_up):
                return None
            self._graphs.steps[batch, width] = step
        return step

    def _capture(self, step: _Step) -> bool:
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):  # libraries initialise themselves on their first call
                self._forward(step.inputs)
        torch.cuda.current_stream().wait_stream(stream)
        if self._graphs.pool is None:
            self._graphs.pool = torch.cuda.graph_pool_handle()
        # Autocast caches cast weights until it ends. The graph must cast its own each time, and no other code may use
        # tensors in the graph's memory.
        torch.clear_autocast_cache()
        try:
            with torch.cuda.graph(step.graph, pool=self._graphs.pool):
                step.logits = self._forward(step.inputs)
        finally:
            torch.clear_autocast_cache()
        return True

    def _give_up(self, error: Exception) -> None:
        self._graphs.are_possible = False
        # The failed capture still holds the default generator, which would refuse every later random number.
        generator = torch.cuda.default_generators[self.device.index]
        generator.graphsafe_set_state(generator.clone_state())
        logger.warning("sampling without CUDA graphs, and slower: this model cannot be captured (%s)", words_of(error))


_kept: weakref.WeakKeyDictionary[Any, Fixed] = weakref.WeakKeyDictionary()
"""Caches by model. Graphs are reused across batches, because capturing takes longer than one use."""


@cache
def _layer_type() -> Any:
    """The layer class of `Fixed` for transformers' caches. transformers is imported only on use."""
    from transformers.cache_utils import CacheLayerMixin

    base: Any = CacheLayerMixin

    class Layer(base):  # type: ignore[misc]
        """The keys and values of one layer, [rows, heads, columns, size]."""

        is_compileable = True
        is_sliding = False

        def __init__(self, owner: Fixed) -> None:
            super().__init__()
            self.keys: Any = None
            self.values: Any = None
            self._owner: Any = weakref.proxy(owner)

        def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
            self.keys, self.values = self._owner.storage(key_states), self._owner.storage(value_states)
            self.is_initialized = True

        def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
            if not self.is_initialized:
                self.lazy_initialization(key_states, value_states)
            (columns, width), rows = self._owner.place, len(key_states)
            for kept, new in ((self.keys, key_states), (self.values, value_states)):
                kept[:rows].index_copy_(2, columns, new)
            return self.keys[:rows, :, :width], self.values[:rows, :, :width]

        def select(self, rows: Tensor, columns: int) -> None:
            for kept in (self.keys, self.values):
                kept[: len(rows), :, :columns] = kept[rows, :, :columns]

        def move(self) -> None:
            old = (self.keys, self.values)
            self.lazy_initialization(*old)
            for kept, was in zip((self.keys, self.values), old, strict=True):
                kept[:, :, : was.shape[2]] = was

        @property
        def nbytes(self) -> int:
            return self.keys.nbytes + self.values.nbytes if self.is_initialized else 0

        def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
            return self.get_max_length(), 0

        def get_seq_length(self) -> int:
            return 0  # positions are passed explicitly

        def get_max_length(self) -> int:
            width: int = self._owner.place[1]
            return width

        get_max_cache_shape = get_max_length  # the name before transformers 5.18

    return Layer


@contextmanager
def _own_attention(config: Any) -> Iterator[None]:
    """Use the attention of `_register_attention` inside this context."""
    _register_attention()
    usual, config._attn_implementation = config._attn_implementation, _ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = usual


@cache
def _register_attention() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    def attention(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **how: Any) -> Any:
        """Attention of one new token per row. Heads that share keys and values are computed as several queries;
        transformers would copy the keys and values for each head. For so few queries, two matrix products take half the
        time of torch's attention.
        """
        rows, heads, new, size = query.shape
        if new > 1:
            return sdpa_attention_forward(module, query, key, value, mask, **how)
        together = query.reshape(rows, key.shape[1], heads // key.shape[1], size) * (how.get("scaling") or size**-0.5)
        weights = (together @ key.transpose(-1, -2) + mask).softmax(dim=-1, dtype=torch.float32)
        return (weights.to(value.dtype) @ value).reshape(rows, 1, heads, size), None

    AttentionInterface.register(_ATTENTION, attention)
    AttentionMaskInterface.register(_ATTENTION, sdpa_mask)


def positions_of(mask: Tensor) -> Tensor:
    """The position of each token in its own text; 0 for padding."""
    return (mask.long().cumsum(dim=1) - 1).clamp(min=0)


@cache
def _parameters(kind: type) -> frozenset[str]:
    return frozenset(inspect.signature(kind.forward).parameters)  # type: ignore[attr-defined]


def _parameters_of(model: Any) -> frozenset[str]:
    """The names of the parameters of the model's forward pass."""
    inner = getattr(model, "module", model)  # the model inside a wrapper that forwards all arguments
    kind: type = type(inner.get_base_model() if hasattr(inner, "get_base_model") else inner)
    return _parameters(kind)


def accepted(model: Any, **arguments: Any) -> dict[str, Any]:
    """Those of the arguments that the model's forward pass accepts and that are not None."""
    known = _parameters_of(model)
    return {name: value for name, value in arguments.items() if name in known and value is not None}


def _one_pass(model: Any, ids: Tensor, positions: Tensor, mask: Tensor, cache: Any) -> Any:
    """Read new tokens. The output has the logits of the last one."""
    optional = accepted(model, position_ids=positions, logits_to_keep=1)
    return model(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, **optional)


def _visible(mask: Tensor, columns: Tensor, width: int) -> Tensor:
    """The attention mask of the new tokens, [rows, 1, new, width]: real tokens up to their own column. Padding attends
    to itself, because a softmax over nothing would store NaN, and NaN times 0 is NaN. For one new token it is the
    additive mask, so that it is not computed again in every layer.
    """
    every = torch.arange(width, device=mask.device)
    real = torch.nn.functional.pad(mask.bool(), (0, width - mask.shape[1]))
    seen = real[:, None, :] & (every <= columns[:, None]) | (every == columns[:, None])
    if len(columns) > 1:
        return seen[:, None]
    return torch.zeros(seen.shape, device=mask.device).masked_fill_(~seen, -torch.inf)[:, None]


def _has_plain_attention(model: Any) -> bool:
    """Whether every layer attends to the whole text with torch's attention, with full weights at fixed addresses."""
    config = getattr(model, "config", None)
    if config is None or not {"position_ids", "past_key_values"} <= _parameters_of(model):
        return False
    text = config.get_text_config()
    usual = "full_attention" if getattr(text, "sliding_window", None) is None else "sliding_attention"
    kinds = set(getattr(text, "layer_types", None) or [usual])
    return (
        kinds == {"full_attention"}
        and getattr(text, "_attn_implementation", None) == "sdpa"
        and not getattr(config, "is_encoder_decoder", False)
        and not getattr(model, "is_quantized", False)
        and not hasattr(model, "unshard")  # FSDP2 gathers weights at new addresses each time
        and bool(getattr(model, "_can_compile_fullgraph", False))
    )


def _precision(model: Any) -> torch.dtype:
    """The precision of keys and values. Graphs are valid for one precision only."""
    device = next(model.parameters()).device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else model.dtype


def _rounded(columns: int) -> int:
    """Round up to `COLUMN_STEP` times a power of two.

    >>> [_rounded(columns) for columns in (1, 64, 65, 200)]
    [64, 64, 128, 256]
    """
    width = COLUMN_STEP
    while width < columns:
        width *= 2
    return width
