"""KTO: `rlvitals train kto`. Read `trainer.py` from top to bottom."""

from rlvitals.train.kto.trainer import Settings, train

__all__ = ["Settings", "train"]
