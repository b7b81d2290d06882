"""PPO from human preferences: `rlvitals train ppo`. Read `trainer.py` from top to bottom."""

from rlvitals.train.ppo.settings import PPOSettings as Settings
from rlvitals.train.ppo.trainer import PpoTrainer, train

__all__ = ["PpoTrainer", "Settings", "train"]
