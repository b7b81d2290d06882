"""Axolotl: a plug-in that adds `VitalsCallback` to every trainer that Axolotl creates.

    plugins:
      - rlvitals.adapters.axolotl.VitalsPlugin
    rlvitals:                 # optional: the settings of VitalsCallback
      actions: act

Written against Axolotl 0.19.0. Its trainers are those of transformers and TRL, so the callback works in the same way.
"""

from __future__ import annotations

from typing import Any

from rlvitals.adapters.framework import plain_config
from rlvitals.adapters.transformers import VitalsCallback

try:
    from axolotl.integrations.base import BasePlugin
    from pydantic import BaseModel
except ImportError:  # only for tools that import every module: the plug-in itself is loaded by Axolotl
    BasePlugin = BaseModel = object  # type: ignore[assignment, misc]


class VitalsArguments(BaseModel):
    """The section that the plug-in adds to Axolotl's configuration."""

    rlvitals: dict[str, Any] | None = None
    """The settings of `VitalsCallback`; `output_dir` defaults to Axolotl's own."""


class VitalsPlugin(BasePlugin):  # type: ignore[misc]
    """Records the run of `axolotl train`."""

    def get_input_args(self) -> str:
        return f"{VitalsArguments.__module__}.{VitalsArguments.__qualname__}"

    def add_callbacks_pre_trainer(self, cfg: Any, model: Any) -> list[Any]:
        """Return the callback. The trainer does not exist yet; its arguments are recorded when training begins."""
        settings = {str(name): value for name, value in dict(cfg.get("rlvitals") or {}).items()}
        own = {"axolotl": {name: value for name, value in plain_config(dict(cfg)).items() if name != "rlvitals"}}
        return [VitalsCallback(**{"framework": "axolotl", "config": own, **settings})]
