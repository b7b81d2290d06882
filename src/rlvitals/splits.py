"""Recognises metric names of held-out data. This is the only list of their prefixes and words: all code that separates
training from evaluation by name uses it.
"""

from __future__ import annotations

import re

HELD_OUT_WORDS = frozenset({
    "eval", "evals", "evaluation", "evaluations", "val", "valid", "validation", "test", "heldout", "held_out",
    "holdout",
})  # fmt: skip
"""Words that mean held-out data where they stand alone: a folder, a column that gives the split, a part of a file's
name."""

_HELD_OUT = re.compile(
    r"(?:(?:data|metrics)/)?"  # a prefix that exports add to every name
    # TRL's PPO and open-instruct log numbers of training under val/
    r"(?!val/(?:ratio|clipfrac|rho_|advantages_|sequence_lengths|stop_rate|num_eos|contain_eos|num_(?:total|step)_tokens"
    r"|format_scores|total_reward_groups|actor_tokens))"
    r"(?:(?:eval|val|test|validation|heldout|held_out|holdout)[-_/. ]|valid[-/. ]"
    r"|valid_(?=loss|acc|ppl|perplexity|reward|score)"  # not a share of valid actions or samples
    r"|验证|测试|评估|検証)",
    re.IGNORECASE,
)


def is_held_out(name: str) -> bool:
    """Whether a name alone shows that it was measured on held-out data.

    >>> [is_held_out(name) for name in ("eval_loss", "val-core/gsm8k/reward", "Test/f1", "valid_loss")]
    [True, True, True, True]
    >>> [is_held_out(name) for name in ("value_loss", "evaluate", "valid_action_ratio")]
    [False, False, False]
    >>> [is_held_out(name) for name in ("Validation Loss", "data/val-core/gsm8k/reward", "验证损失", "val/ratio")]
    [True, True, True, False]
    """
    return _HELD_OUT.match(name) is not None


def is_of_whole_training(name: str) -> bool:
    """Whether a number summarises a whole training. transformers logs such numbers once, at the end. They belong to no
    step, so they are stored with the evaluations, but they are not an evaluation.

    >>> [is_of_whole_training(name) for name in ("train_runtime", "train_loss", "total_flos", "eval_loss", "epoch")]
    [True, True, True, False, False]
    """
    return name == "total_flos" or name.startswith(("train_", "init_mem_", "before_init_mem_"))


def held_out_name(name: str) -> str:
    """A metric of an evaluation under a held-out name: a bare `loss` would be read as the training loss.

    >>> held_out_name("loss"), held_out_name("eval_loss"), held_out_name("val/accuracy")
    ('eval/loss', 'eval_loss', 'val/accuracy')
    """
    return name if is_held_out(name) else f"eval/{name}"


def without_held_out_prefix(name: str) -> str:
    """The name as training logs it.

    >>> without_held_out_prefix("eval_loss"), without_held_out_prefix("val/accuracy"), without_held_out_prefix("loss")
    ('loss', 'accuracy', 'loss')
    """
    found = _HELD_OUT.match(name)
    return name[found.end() :] if found and found.end() < len(name) else name
