"""The trainers: `rlvitals train kto|ppo|rlaif`. One readable file each, recorded and watched like anybody's trainer.

`kto.py` drives TRL's KTOTrainer; `ppo.py` and `rlaif.py` are loops of their own, on torch, transformers and accelerate
alone. What they share has a module each: the recipe with its settings, the model, the data, sampling, checkpoints.
Formulas come from `rlvitals.compute`. Every trainer module has `Settings` (a frozen dataclass of simple values) and
`train(settings) -> Outcome`; `recipes/NAME.yaml` holds each setting's default and what it means.
"""
