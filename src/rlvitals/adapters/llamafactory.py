"""LLaMA-Factory: its own `run_exp` with `VitalsCallback` among the callbacks.

    python -m rlvitals.adapters.llamafactory train.yaml       # in place of: llamafactory-cli train train.yaml
    torchrun --nproc-per-node 8 -m rlvitals.adapters.llamafactory train.yaml

A section `rlvitals` of the YAML file, which LLaMA-Factory does not see, holds the settings of `VitalsCallback`. In a
program of your own the callback is passed to LLaMA-Factory itself: `run_exp(args, callbacks=[VitalsCallback()])`.
Written against LLaMA-Factory 0.9.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from rlvitals.adapters.transformers import VitalsCallback
from rlvitals.errors import ConfigError


def run_exp(args: Any = None, **settings: Any) -> None:
    """Train as LLaMA-Factory's `run_exp` does, recorded. `args` are its settings; by default the command line's.

    `settings` are those of `VitalsCallback` and win over the section `rlvitals`.
    """
    args = import_module("llamafactory.hparams").read_args(args)
    section: Any = {}
    if isinstance(args, Mapping):
        args = dict(args)
        section = args.pop("rlvitals", None) or {}
    if not isinstance(section, Mapping):
        raise ConfigError(f"the section rlvitals holds settings, such as actions: act, not {section!r}")
    callback = VitalsCallback(**{"framework": "llamafactory", **section, **settings})
    import_module("llamafactory.train.tuner").run_exp(args, callbacks=[callback])


if __name__ == "__main__":
    run_exp()
