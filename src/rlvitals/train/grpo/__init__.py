"""GRPO for agents with tools. `trainer` is to be read first, from top to bottom; `docs/grpo.md` explains it."""

from rlvitals.train.grpo.settings import GRPOSettings as Settings
from rlvitals.train.grpo.trainer import Trainer, train

__all__ = ["Settings", "Trainer", "train"]
