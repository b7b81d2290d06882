"""KTO: `rlvitals train kto`. TRL's KTOTrainer trains; this file prepares its data, arguments and model.

The order is data, arguments, model, trainer, so that errors in the settings or the data are raised before a model is
built. A tiny model is built here and trained to write both good and bad answers before KTO starts. It is saved in the
run's folder at this point, because a resume needs it as the reference.
"""

from __future__ import annotations

import copy
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from rlvitals.capture.start import check_settings
from rlvitals.config import resolve
from rlvitals.errors import needs
from rlvitals.store.layout import kept_folder
from rlvitals.terminal import put
from rlvitals.train import functions, models, tiny
from rlvitals.train.kto import data as preferences
from rlvitals.train.kto.data import ClassWeights, LabelledAnswer, Preferences
from rlvitals.train.models import Loaded
from rlvitals.train.recipe import TrainingOutcome
from rlvitals.train.schedule import rate_by_size
from rlvitals.train.settings import Amount, Count, Pair, Part, Rate, TrainerSettings, Whole, check_limits
from rlvitals.views.diagnosis import diagnose
from rlvitals.views.run import open_run

DEFAULT_FOLDER = "out/kto"

TINY_BATCH, BATCH = 32, 4
"""Default number of examples per step and device, for the tiny model and for others."""

WARM_UP_RATE = 3e-3
WARM_UP_BATCH = 32

SAME_IN_TRL = ("beta", "loss_type", "max_grad_norm", "max_length", "gradient_checkpointing", "logging_steps",
               "save_steps", "seed")  # fmt: skip
"""Settings with the same name in KTOSettings and KTOConfig."""

MARGIN, EVAL_MARGIN = "rewards/margins", "eval_rewards/margins"


@dataclass(frozen=True, slots=True)
class KTOSettings(TrainerSettings):
    """The settings of KTO. `recipes/kto.yaml` explains them."""

    output_dir: str | None
    dataset: str | None
    eval_dataset: str | None
    eval_share: Part
    examples: Count
    max_steps: Count | None
    epochs: Rate
    batch_size: Pair | None
    gradient_accumulation: Count
    warmup_ratio: Part
    beta: Rate
    desirable_weight: Amount | None
    undesirable_weight: Amount | None
    loss_type: Literal["kto", "apo_zero_unpaired"]
    max_length: Pair
    warm_up_steps: Whole
    lora: bool
    lora_rank: Count
    lora_alpha: int
    lora_dropout: Part
    display_every: Count


def train(settings: KTOSettings) -> TrainingOutcome:
    """Train, and write `logs/`, `checkpoint-N/` and `final_model/` to the run's folder."""
    check_limits(settings)
    recording = {**settings.recording, "display_layout": "kto", "display_every": settings.display_every}
    check_settings(resolve(None, recording))  # before the model is built
    folder, resumed = folder_of(settings)
    data = read_data(settings)
    with needs("train kto", "train"):
        import datasets  # noqa: F401 - loaded before `quietly`, which disables its progress bars
        from transformers import PrinterCallback
        from trl.trainer.kto_config import KTOConfig
    from rlvitals.adapters.transformers import VitalsCallback
    from rlvitals.train import sharded

    recorder = VitalsCallback(
        folder,
        config={"recipe": asdict(settings)},
        resume=bool(settings.resume_from),  # also for a run that was killed before its first checkpoint
        resume_learning_rate=settings.learning_rate,
        **recording,
    )
    sharded.load_on_every_rank()
    models.without_cudnn_attention()
    with models.quietly():
        weights = preferences.class_weights(data.train, settings.desirable_weight, settings.undesirable_weight)
        args = KTOConfig(**arguments(settings, folder, data, weights, is_resumed=resumed is not None))
        loaded = the_model(settings, folder, data, args, is_resumed=resumed is not None)
        size = models.parameters(loaded.model)
        args.learning_rate = settings.learning_rate or rate_by_size(size, tiny=3e-4, large=5e-7)
        trainer = build_trainer(settings, args, data, loaded, callbacks=[_last_evaluation(), recorder])
        trainer.remove_callback(PrinterCallback)
        if resumed is not None:
            _count_tokens_on(trainer, resumed)
        _print_setup(settings, args, data, size)
        try:
            trainer.train(resume_from_checkpoint=None if resumed is None else str(resumed))
        except BaseException as error:  # callbacks are not notified of it
            recorder.finish(error=error)
            raise
        sharded.save_in_one_piece(trainer.accelerator)
        trainer.save_model(str(folder / "final_model"))
    return outcome(folder, trainer.state)


def build_trainer(settings: KTOSettings, args: Any, data: Preferences, loaded: Loaded, *, callbacks: list[Any]) -> Any:
    """TRL's trainer with everything it needs, before its first step."""
    from datasets import Dataset
    from trl.trainer.kto_trainer import KTOTrainer

    # TRL loads the reference from the model's source, but cannot read packed weights. With adapters it needs none: the
    # model without adapters is the reference.
    is_packed = settings.model is None and settings.model_size == models.PACKAGED
    trainer: Any = KTOTrainer(
        model=loaded.model,
        ref_model=copy.deepcopy(loaded.model) if is_packed and not settings.lora else None,
        args=args,
        train_dataset=Dataset.from_list([asdict(example) for example in data.train]),
        eval_dataset=Dataset.from_list([asdict(example) for example in data.held_out]) if data.held_out else None,
        processing_class=loaded.tokenizer,
        peft_config=adapters(settings) if settings.lora else None,
        callbacks=callbacks,
    )
    return trainer


def batch_size(settings: KTOSettings) -> int:
    """Number of examples per step and device."""
    if settings.batch_size is not None:
        return settings.batch_size
    return TINY_BATCH if settings.is_tiny else BATCH


def folder_of(settings: KTOSettings) -> tuple[Path, Path | None]:
    """The run's folder, and the checkpoint it resumes from. Without output_dir the folder is the checkpoint's
    parent, or the default folder.
    """
    with needs("train kto", "train"):
        from rlvitals.train import checkpoint  # imports torch

    folder = settings.output_dir
    if folder is None:
        is_path = settings.resume_from not in (None, "last")
        folder = str(Path(settings.resume_from or "").parent) if is_path else DEFAULT_FOLDER
    return kept_folder(folder), checkpoint.origin(folder, settings.resume_from, marker="trainer_state.json")


def read_data(settings: KTOSettings) -> Preferences:
    """The checked examples for training and evaluation."""
    share = settings.eval_share if settings.eval_steps else 0.0
    if settings.dataset is None:
        data = preferences.make(settings.examples, seed=settings.seed, held_out_share=share)
    else:
        share = share if settings.eval_dataset is None else 0.0
        data = preferences.split(preferences.read(settings.dataset), held_out_share=share, seed=settings.seed)
    if settings.eval_dataset is not None:
        data = data._replace(held_out=preferences.read(settings.eval_dataset))
    preferences.check(data.train, batch_size(settings), settings.dataset or "the generated data")
    return data


def arguments(
    settings: KTOSettings, folder: Path, data: Preferences, weights: ClassWeights, *, is_resumed: bool
) -> dict[str, Any]:
    """The arguments of KTOConfig."""
    import torch

    is_evaluated = bool(data.held_out and settings.eval_steps)
    return {
        **{name: getattr(settings, name) for name in SAME_IN_TRL},
        "output_dir": str(folder),
        "max_steps": settings.max_steps or -1,
        "num_train_epochs": settings.epochs,
        "per_device_train_batch_size": batch_size(settings),
        "per_device_eval_batch_size": batch_size(settings),
        "gradient_accumulation_steps": settings.gradient_accumulation,
        "dataloader_drop_last": len(data.train) % batch_size(settings) == 1,  # the KL term needs two examples
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": settings.warmup_ratio,  # a value below 1 is a share of the steps
        "desirable_weight": weights.desirable,
        "undesirable_weight": weights.undesirable,
        "bf16": models.wants_bf16(settings.bf16),
        "eval_strategy": "steps" if is_evaluated else "no",
        "eval_steps": settings.eval_steps or None,
        "eval_on_start": is_evaluated and not is_resumed,
        "save_strategy": "steps",
        "save_total_limit": settings.keep_last,
        "use_cpu": not torch.accelerator.is_available(),  # explicit, so that several CPU processes can connect
        "disable_tqdm": True,
        "report_to": "none",
    }


def the_model(settings: KTOSettings, folder: Path, data: Preferences, args: Any, *, is_resumed: bool) -> Loaded:
    """The model before KTO. A resume loads the trained weights into it; its initial state stays the reference."""
    if not settings.is_tiny:
        halves = settings.lora and args.bf16  # enough for frozen weights, not for trained ones
        return models.load(settings.model, settings.model_size, dtype="bfloat16" if halves else "float32")
    return models.keep(folder / models.TINY_FOLDER, lambda: build_tiny(settings, data), rebuild=not is_resumed)


def build_tiny(settings: KTOSettings, data: Preferences) -> Loaded:
    """A tiny model that writes answers like those of the data, both good and bad."""
    import torch

    from rlvitals.train.supervised import TrainingCourse, warm_up

    texts = functions.corpus() if settings.dataset is None else preferences.texts(data.train + data.held_out)
    model, tokenizer = tiny.build(texts, context=settings.max_length, seed=settings.seed)
    if settings.warm_up_steps:
        _say(settings, f"warm-up: {settings.warm_up_steps} supervised steps")
        pairs = [_tokens(tokenizer, example, settings.max_length) for example in data.train]
        generator = torch.Generator().manual_seed(settings.seed)
        course = TrainingCourse(settings.warm_up_steps, WARM_UP_BATCH, WARM_UP_RATE, generator)
        loss = warm_up(model, pairs, course, tokenizer.pad_token_id)
        _say(settings, f"warm-up: done, loss {loss:.3f}")
    return Loaded(model, tokenizer)


def adapters(settings: KTOSettings) -> Any:
    """Low-rank adapters on every linear layer except the head."""
    with needs("lora", package="peft"):
        from peft import LoraConfig
    return LoraConfig(
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha,
        lora_dropout=settings.lora_dropout,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


def outcome(folder: Path, state: Any) -> TrainingOutcome:
    """The outcome, with a sentence that describes it."""
    losses = [row["loss"] for row in state.log_history if "loss" in row]
    is_broken = bool(losses) and not math.isfinite(losses[-1])
    is_short = state.global_step < state.max_steps
    status: Any = "failed" if is_broken else "stopped" if is_short else "finished"
    summary = f"KTO {status} after {state.global_step} of {state.max_steps} steps"
    margins = [row[MARGIN] for row in state.log_history if MARGIN in row]
    if margins:
        summary += f": margin {margins[0]:+.2f} -> {fmean(margins[-10:]):+.2f} (mean of the last {len(margins[-10:])})"
    held_out = [row[EVAL_MARGIN] for row in state.log_history if EVAL_MARGIN in row]
    if held_out:
        summary += f", on held-out prompts {held_out[0]:+.2f} -> {held_out[-1]:+.2f}"
    return TrainingOutcome(str(folder), int(state.global_step), status, f"{summary}. {_findings(folder)}")


def _findings(folder: Path) -> str:
    diagnosis = diagnose(open_run(folder))
    if all(finding.severity == "info" for finding in diagnosis.findings):
        return f"The doctor reports no warnings. Model: {folder / 'final_model'}"
    return f"The doctor reports {diagnosis.reason}. See rlvitals check {folder}"


def _last_evaluation() -> Any:
    """A callback that evaluates after the last step, even if eval_steps does not."""
    from transformers import TrainerCallback

    class LastEvaluation(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> Any:
            if state.global_step >= state.max_steps and args.eval_strategy != "no":
                control.should_evaluate = True
            return control

    return LastEvaluation()


def _count_tokens_on(trainer: Any, checkpoint: Path) -> None:
    """Restore the token count from the checkpoint, because TRL restarts it at 0 after a resume."""
    from transformers import TrainerState

    state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
    counted = [row["num_tokens"] for row in state.log_history if "num_tokens" in row]
    if counted:
        trainer._total_train_tokens = counted[-1]


def _tokens(tokenizer: Any, example: LabelledAnswer, longest: int) -> tuple[list[int], list[int]]:
    """Prompt and answer as token ids, including the end of the sequence."""
    if isinstance(example.prompt, str):
        prompt = tokenizer(example.prompt).input_ids
        whole = prompt + tokenizer(example.completion).input_ids + [tokenizer.eos_token_id]
    else:
        chat: Any = {"tokenize": True, "return_dict": True}
        prompt = tokenizer.apply_chat_template(example.prompt, add_generation_prompt=True, **chat)["input_ids"]
        whole = tokenizer.apply_chat_template([*example.prompt, *example.completion], **chat)["input_ids"]
    return prompt, whole[len(prompt) : max(longest, len(prompt) + 1)]


def _print_setup(settings: KTOSettings, args: Any, data: Preferences, size: int) -> None:
    good = sum(example.label for example in data.train)
    _say(
        settings,
        f"data: {len(data.train)} examples, {good} good (weight {args.desirable_weight:.3g}) and "
        f"{len(data.train) - good} bad (weight {args.undesirable_weight:.3g}); {len(data.held_out)} held out",
    )
    _say(settings, f"model: {size:,} parameters, learning rate {args.learning_rate:.3g}")


def _say(settings: KTOSettings, sentence: str) -> None:
    from accelerate import PartialState

    if not settings.is_quiet and PartialState().is_main_process:
        put(sentence, sys.stderr)
