"""KTO: `rlvitals train kto`. Read `trainer.py` from top to bottom."""

from rlvitals.train.kto.trainer import KTOSettings as Settings
from rlvitals.train.kto.trainer import train

__all__ = ["Settings", "train"]
