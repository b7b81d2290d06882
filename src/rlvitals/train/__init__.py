"""The trainers: `rlvitals train grpo|kto|ppo|rlaif`, recorded and watched like anybody's trainer.

Each has a folder with `Settings`, a frozen dataclass of simple values, and `train(settings) -> Outcome`; its main file
reads from top to bottom, and `recipes/NAME.yaml` holds each setting's default and explanation. KTO drives TRL's
KTOTrainer; the others are loops written here, on torch, transformers and accelerate (`loop`). What they share is here:
settings, learning rate, seeds, models, data files, sampling, losses, checkpoints. Formulas are `rlvitals.compute`'s.
"""
