"""LLaMA-Factory: runs its own `run_exp` with `VitalsCallback` added to the callbacks.

    python -m rlvitals.adapters.llamafactory train.yaml       # in place of: llamafactory-cli train train.yaml
    torchrun --nproc-per-node 8 -m rlvitals.adapters.llamafactory train.yaml

The section `rlvitals` of the YAML file holds the settings of `VitalsCallback`; it is not passed to LLaMA-Factory. In
your own program, pass the callback to LLaMA-Factory: `run_exp(args, callbacks=[VitalsCallback()])`.
Written against LLaMA-Factory 0.9.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from rlvitals.adapters.transformers import VitalsCallback
from rlvitals.errors import ConfigError


def run_exp(args: Any = None, **settings: Any) -> None:
    """Train as LLaMA-Factory's `run_exp` does, and record the run. `args` default to those of the command line.

    `settings` are those of `VitalsCallback` and override the section `rlvitals`.
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
