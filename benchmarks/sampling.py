"""Sampled tokens per second: one pass per token as in transformers, ours as CUDA graphs, and `generate`.

TRL's trainers call `generate` if no serving engine is set up. Answers do not end before the limit, so every way writes
the same number of tokens. Needs a CUDA device:

    python benchmarks/sampling.py
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from rlvitals.train.decoding import Growing
from rlvitals.train.models import without_cudnn_attention
from rlvitals.train.sampling import Sampling, evaluating, sample, take_token

PAD = 0
SHAPES = {
    "106M": {"hidden_size": 576, "intermediate_size": 1536, "layers": 30, "heads": 9, "kv_heads": 3},
    "0.5B": {"hidden_size": 896, "intermediate_size": 4864, "layers": 24, "heads": 14, "kv_heads": 2},
}
"""The architectures of SmolLM2-135M and Qwen2.5-0.5B."""


def build(name: str, vocabulary: int) -> Any:
    shape = SHAPES[name]
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=shape["hidden_size"], intermediate_size=shape["intermediate_size"],
        num_hidden_layers=shape["layers"], num_attention_heads=shape["heads"], num_key_value_heads=shape["kv_heads"],
        max_position_embeddings=8192,
    )  # fmt: skip
    return LlamaForCausalLM(config).to("cuda").eval()


def one_pass_a_token(model: Any, ids: torch.Tensor, mask: torch.Tensor, new: int) -> torch.Tensor:
    generator, cache, taken = torch.Generator("cuda").manual_seed(0), Growing(model), []
    with torch.no_grad(), evaluating(model):
        for _ in range(new):
            token, _ = take_token(cache.read(ids, mask), 1.0, generator)
            taken.append(token)
            ids, mask = token[:, None], torch.nn.functional.pad(mask, (0, 1), value=1)
    return torch.stack(taken, dim=1)


def ours(model: Any, ids: torch.Tensor, mask: torch.Tensor, new: int) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(0)
    return sample(model, ids, mask, Sampling(new, eos_id=-1, pad_id=PAD), generator).tokens


def generate(model: Any, ids: torch.Tensor, mask: torch.Tensor, new: int, **more: Any) -> torch.Tensor:
    config = GenerationConfig(
        max_new_tokens=new, min_new_tokens=new, do_sample=True, top_k=0, top_p=1.0, pad_token_id=PAD, **more
    )
    with torch.no_grad():
        return model.generate(ids, attention_mask=mask, generation_config=config)[:, ids.shape[1] :]


def seconds(work: Callable[[], torch.Tensor], rounds: int) -> tuple[float, torch.Tensor]:
    """The fastest of some rounds, after two that are not counted: graphs are captured in them."""
    for _ in range(2):
        found = work()
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        began = time.perf_counter()
        found = work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return min(times), found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", nargs="*", default=["106M"], choices=SHAPES)
    options = parser.parse_args()
    without_cudnn_attention()
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    ways: dict[str, Callable[..., torch.Tensor]] = {
        "one pass a token": one_pass_a_token,
        "rlvitals": ours,
        "generate": generate,
    }
    for name in options.models:
        model = build(name, 200 if name == "106M" else 32_000)
        for is_bf16 in (False, True):
            for rows, prompt, new in ((256, 48, 16), (256, 48, 128), (64, 512, 256)):
                ids = torch.randint(2, 200, (rows // 8, prompt), device="cuda").repeat_interleave(8, dim=0)
                precision = torch.autocast("cuda", torch.bfloat16) if is_bf16 else contextlib.nullcontext()
                with precision:
                    found = {
                        way: seconds(partial(run, model, ids, torch.ones_like(ids), new), options.rounds)
                        for way, run in ways.items()
                    }
                plain = found["one pass a token"]
                alike = (plain[1] == found["rlvitals"][1]).float().mean().item()
                summary = ", ".join(
                    f"{way} {rows * new / took:,.0f} ({plain[0] / took:.1f}x)" for way, (took, _) in found.items()
                )
                kind = "bf16" if is_bf16 else "float32"
                print(
                    f"{name} {kind} {rows} rows, {prompt} + {new} tokens: {summary}; same tokens {alike:.1%}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
