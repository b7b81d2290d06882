"""GRPO for agents with tools. Start with `trainer`, from top to bottom; `docs/grpo.md` explains it."""

from rlvitals.train.grpo.settings import GRPOSettings as Settings
from rlvitals.train.grpo.trainer import GrpoTrainer, train

__all__ = ["GrpoTrainer", "Settings", "train"]
