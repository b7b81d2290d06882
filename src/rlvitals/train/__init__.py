"""The trainers: `rlvitals train grpo|kto|ppo|rlaif`. They are recorded and monitored like a user's own trainer.

Each has a folder with `Settings`, a frozen dataclass of simple values, and `train(settings) -> TrainingOutcome`. Its
main file reads from top to bottom, and `recipes/NAME.yaml` holds each setting's default and explanation. KTO uses TRL's
KTOTrainer; the others are loops written here, on torch, transformers and accelerate (`loop`). The modules in this
folder are shared: settings, learning rate, seeds, models, data files, sampling, losses, checkpoints. Formulas are in
`rlvitals.compute`.
"""
