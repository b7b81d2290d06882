"""RLAIF: `rlvitals train rlaif`. Read `trainer.py` from top to bottom."""

from rlvitals.train.rlaif.settings import RLAIFSettings as Settings
from rlvitals.train.rlaif.trainer import RlaifTrainer, train

__all__ = ["RlaifTrainer", "Settings", "train"]
