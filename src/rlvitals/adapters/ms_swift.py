"""ms-swift: `VitalsCallback` in its table of callbacks, for every trainer of `swift sft`, `swift rlhf` and `swift pt`.

    # vitals.py
    from rlvitals.adapters import ms_swift

    ms_swift.register()

    swift rlhf --rlhf_type grpo ... --external_plugins vitals.py --callbacks rlvitals

Written against ms-swift 4.6.0, whose trainers are transformers' and TRL's: the callback records and acts as it does
there. The trainers of `megatron` have another table and other callbacks, which this does not reach.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from rlvitals.adapters.transformers import VitalsCallback

NAME = "rlvitals"


def register(output_dir: str | os.PathLike[str] | None = None, **settings: Any) -> None:
    """Let `--callbacks rlvitals` add a callback with these settings, which are those of `VitalsCallback`."""
    given = {"framework": "ms_swift", **settings}
    VitalsCallback(output_dir, **given)  # wrong settings are told here
    # ms-swift calls what it finds there with its arguments and its trainer.
    import_module("swift.callbacks").callbacks_map[NAME] = lambda args, trainer: VitalsCallback(output_dir, **given)
