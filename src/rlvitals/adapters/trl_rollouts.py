"""Records the completions that TRL's trainers sample and score as rollouts: GRPO, RLOO, online DPO.

The training thread only keeps references; it copies nothing and does not wait for a device. `trl_groups` does the rest
on another thread. Nothing here raises into training. If TRL's methods are not as expected, one warning is logged and no
rollouts are recorded.
"""

from __future__ import annotations

import atexit
import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rlvitals.adapters.background import Background
from rlvitals.adapters.framework import caller
from rlvitals.adapters.trl_groups import Decode, ScoredBatch, groups_of
from rlvitals.errors import ConfigError
from rlvitals.guard import Once, guarded, value_or, words_of
from rlvitals.values import is_whole

if TYPE_CHECKING:
    from rlvitals.capture.run import Run

ROOM: Final = 8
"""How many batches may wait for the background thread."""

LAST_SECONDS: Final = 60.0
"""How long the end of a training waits for the remaining batches."""

ROWS: Final = "rlvitals_rows"
"""The key of the row numbers in a batch. TRL shuffles and splits all tensors of a batch in the same way before it
trains on them, so the row numbers identify the completions in each part."""


class RolloutSettings(NamedTuple):
    """Which completions of a training are recorded."""

    every: int | None
    """Record at most one in this many steps; None records nothing."""
    tokens: int
    """How many completions of a step are recorded with their tokens, on each process."""


def checked(rollouts: Any, tokens: Any) -> RolloutSettings:
    """Check the settings of the callback. Raises ConfigError."""
    if not isinstance(rollouts, bool) and (not isinstance(rollouts, int) or rollouts < 1):
        raise ConfigError(f"rollouts must be True, False, or a number of steps from one to the next, not {rollouts!r}")
    if not is_whole(tokens) or tokens < 0:
        raise ConfigError(f"rollout_tokens must be how many rollouts of a step keep their tokens, not {tokens!r}")
    every = None if rollouts is False else int(rollouts)
    return RolloutSettings(every, tokens)


def trainer_of(callback: Any) -> Any:
    """The trainer that is calling this callback; None if it is not on the stack.

    transformers passes the model, the data and the optimizer to its callbacks, but not the trainer. The trainer is the
    object on the call stack whose handler lists this callback. This works with every version that calls callbacks
    through a handler, needs no extra line from the user, and replaces nothing in transformers.
    """
    return caller(lambda owner: any(item is callback for item in owner.callback_handler.callbacks))


@dataclass(slots=True)
class _Scored:
    """The completions that a trainer scored, with their rewards."""

    facts: Sequence[Any] = ()
    prompts: Sequence[Any] = ()
    completions: Sequence[Any] = ()
    ids: Sequence[Sequence[int]] = ()
    rewards: Any = None
    parts: dict[int, Sequence[Any]] = field(default_factory=dict)
    passes: list[Any] = field(default_factory=list)
    """Log-probabilities in the order they were computed."""
    masks: tuple[Any, Any] = (None, None)
    """The masks of the prompts and of the completions."""
    extra: dict[str, Sequence[Any]] = field(default_factory=dict)
    """Columns that the reward functions logged in addition to their rewards."""


class TrlRollouts:
    """Records the rollouts of one trainer from `attach` to `finish`.

    Methods of the trainer object (not of its class) are wrapped to read their arguments and results. Only there are
    completions, rewards and log-probabilities available together, with or without `log_completions`. The completions of
    other processes are read from TRL's own `_logs`, which TRL gathers in any case.
    """

    def __init__(
        self, trainer: Any, settings: RolloutSettings, open_run: Callable[[], Run], warn_once: Once, *, rank: int
    ) -> None:
        self._trainer, self._settings, self._rank = trainer, settings, rank
        self._warn_once = warn_once
        self._open_run = open_run
        self._run: Run | None = None
        self._background = Background("rlvitals-rollouts", self._record, room=ROOM, handle=self._not_recorded)
        self._replaced: list[tuple[str, Any]] = []
        self._scored: _Scored | None = None
        self._open: ScoredBatch | None = None
        self._unseen: set[int] = set()
        self._rows: list[int] | None = None
        self._last_step: int | None = None
        self._has_seen = False
        self._decode: Decode | None = None

    # Start and end.

    @property
    def is_possible(self) -> bool:
        """Whether this trainer has the methods that are wrapped here."""
        return bool(self._hooks())

    def attach(self) -> None:
        for name, around in self._hooks().items():
            self._listen(name, around)
        if self._settings.tokens:
            self._decode = value_or(None, _decoder, self._trainer)
        atexit.register(self.finish)  # after an exception; runs before the exit handler of the run

    def finish(self) -> None:
        """Restore the trainer's methods and record the remaining batches."""
        atexit.unregister(self.finish)
        for name, replacement in self._replaced:
            if vars(self._trainer).get(name) is replacement:
                delattr(self._trainer, name)
        self._replaced.clear()
        self._hand_over()
        if not self._background.finish(LAST_SECONDS):
            self._warn_once(f"rollouts were still being written {LAST_SECONDS:.0f} s after the end; the rest is lost")
        if self._background.dropped:
            self._warn_once(f"{self._background.dropped} batches of rollouts were dropped in all", "dropped in all")
        run, self._run = self._run, None
        if run is not None and self._rank > 0:
            run.finish()

    def step_ended(self) -> None:
        """After an optimizer step, pass on the open batch if its log-probabilities are complete."""
        if self._open is not None and not self._unseen:
            self._hand_over()
        if not self._has_seen:
            self._warn_unknown("no completions came by in its first step")
            self._has_seen = True

    def _hooks(self) -> dict[str, Callable[..., Any]]:
        known: tuple[dict[str, Callable[..., Any]], ...] = (
            {
                "_calculate_rewards": self._around_rewards,
                "_generate_and_score_completions": self._around_generation,
            },
            {
                "_calculate_rewards_from_functions": self._around_pair_rewards,
                "_forward": self._around_pair_pass,
                "training_step": self._around_pairs,
            },
        )
        optional: dict[str, Callable[..., Any]] = {
            "_compute_loss": self._around_loss,
            "_get_per_token_logps_and_entropies": self._around_pass,
        }
        for required in known:
            if all(callable(getattr(self._trainer, name, None)) for name in required):
                more = optional if required is known[0] else {}
                there = {name: around for name, around in more.items() if callable(getattr(self._trainer, name, None))}
                return required | there
        return {}

    def _listen(self, name: str, around: Callable[..., Any]) -> None:
        original = getattr(self._trainer, name)
        replacement = wraps(original)(partial(around, original))
        setattr(self._trainer, name, replacement)
        self._replaced.append((name, replacement))

    # GRPO and RLOO: a batch is sampled and scored in one call, then shuffled, split and trained on.

    def _around_generation(self, original: Callable[..., Any], *given: Any, **more: Any) -> Any:
        if value_or(True, lambda: self._trainer.model.training):
            self._hand_over()  # the previous batch is complete
        self._scored = _Scored()
        try:
            output = original(*given, **more)
            with guarded(self._not_understood):
                self._take(output, self._scored)
            return output
        finally:
            self._scored = None

    def _around_rewards(self, original: Callable[..., Any], *given: Any, **more: Any) -> Any:
        rewards = original(*given, **more)
        scored = self._scored
        if scored is not None:
            with guarded(self._not_understood):
                scored.facts, scored.prompts, scored.completions, scored.ids = (*given, *more.values())[:4]
                scored.rewards = rewards
                logged = getattr(self._trainer, "_pending_extra_logs", {})  # TRL clears it next
                scored.extra = {
                    name: list(values) for name, values in logged.items() if len(values) == len(scored.prompts)
                }
        return rewards

    def _around_loss(self, original: Callable[..., Any], *given: Any, **more: Any) -> Any:
        with guarded(self._not_understood):
            inputs = more["inputs"] if "inputs" in more else given[1]
            rows = inputs.get(ROWS)
            self._rows = None if rows is None or self._open is None else rows.tolist()
        try:
            return original(*given, **more)
        finally:
            self._rows = None

    def _around_pass(self, original: Callable[..., Any], *given: Any, **more: Any) -> Any:
        result = original(*given, **more)
        with guarded(self._not_understood):
            if self._scored is not None:
                self._scored.passes.append(result[0])
            elif self._rows is not None and self._open is not None:
                for place, row in enumerate(self._rows):
                    if row in self._unseen:
                        logprobs, entropies = result[0][place], result[1]
                        self._open.traced[row] = {"new_logprobs": logprobs.detach()}
                        if entropies is not None:
                            self._open.traced[row]["entropies"] = entropies[place].detach()
                self._unseen.difference_update(self._rows)
                self._rows = None
        return result

    def _take(self, output: Any, scored: _Scored) -> None:
        if scored.rewards is None:
            self._warn_unknown("it scored completions in another way")
            return
        self._has_seen = True
        trainer = self._trainer
        is_training = bool(trainer.model.training)
        step = self._step(is_training)
        if step is None:
            return
        size = trainer.num_generations if is_training else trainer.num_generations_eval
        count, processes = len(scored.prompts), trainer.accelerator.num_processes
        first = trainer.accelerator.process_index * count
        batch = ScoredBatch(
            step=step,
            version=trainer.state.global_step,
            stream="train" if is_training else "eval",
            groups=[range(start, min(start + size, count)) for start in range(0, count, size)],
            prompts=scored.prompts,
            completions=scored.completions,
            reward_names=trainer.reward_func_names,
            weights=trainer.reward_weights,
            rewards=scored.rewards[first : first + count],
            advantages=output["advantages"],
            own=range(count),
            ids=scored.ids,
            ends=frozenset([*_ends(trainer), _tokenizer(trainer).pad_token_id]),  # as TRL detects truncation
            prompt_mask=output.get("prompt_mask"),
            masks=[mask for name in ("completion_mask", "tool_mask") if (mask := output.get(name)) is not None],
            tool_mask=output.get("tool_mask"),
            facts=scored.facts,
            extra=scored.extra,
            max_turns=_most_turns(trainer),
        )
        if count % size and processes > 1:
            # Groups span processes: the main one records what TRL has gathered from all.
            if self._rank > 0:
                return
            self._widen(batch, range(first, first + count), count * processes, size, scored.rewards)
        passes = dict(zip(("logprobs", "reference_logprobs"), scored.passes, strict=False))
        if "old_logps" not in output:  # GRPO returns them per token if it has computed them, RLOO only their sum
            names = {"logprobs": "old_per_token_logps", "reference_logprobs": "ref_per_token_logps"}
            passes = {field: output[name] for field, name in names.items() if output.get(name) is not None}
        if output.get("sampling_per_token_logps") is not None:
            passes["engine_logprobs"] = output["sampling_per_token_logps"]
        batch.columns = passes
        if is_training and self._settings.tokens:
            self._choose(batch, output, range(first, first + count))
        if batch.traced:
            self._open, self._unseen = batch, set(batch.traced) if self._sees_passes else set()
        else:
            self._send(batch)

    def _step(self, is_training: bool) -> int | None:
        """The step whose row a batch belongs to; None if the batch is not recorded."""
        done = int(self._trainer.state.global_step)
        if not is_training:
            return done
        step, last = done + 1, self._last_step
        # Not a modulo: a batch may last for several steps and start at any step.
        if last is not None and last < step < last + (self._settings.every or 1):
            return None
        self._last_step = step
        return step

    def _widen(self, batch: ScoredBatch, own: range, count: int, size: int, rewards: Any) -> None:
        """Replace this process's completions by those of all processes."""
        logs = self._trainer._logs
        batch.prompts, batch.completions = list(logs["prompt"])[-count:], list(logs["completion"])[-count:]
        batch.advantages = list(logs["advantages"])[-count:]
        batch.rewards, batch.extra, batch.own = rewards, {}, own
        batch.groups = [range(start, start + size) for start in range(0, count, size)]
        if len(batch.prompts) != count:
            raise LookupError(f"TRL keeps {len(batch.prompts)} of {count} completions")

    def _choose(self, batch: ScoredBatch, output: Any, part: range) -> None:
        """Choose the completions with the highest and the lowest advantages for recording tokens. `part` is the share
        of this process. TRL's `_logs` already hold the advantages on the CPU.
        """
        count = len(part)
        newest = list(self._trainer._logs["advantages"])[-count * self._trainer.accelerator.num_processes :]
        known = dict(zip(batch.own, newest[part.start : part.stop], strict=True))
        ranked = sorted(known, key=known.__getitem__)
        wanted = min(self._settings.tokens, count)
        chosen = ranked[: wanted // 2] + ranked[count - (wanted - wanted // 2) :]
        batch.traced = {row: {} for row in chosen}
        if self._sees_passes:
            import torch

            output[ROWS] = torch.arange(batch.own.start, batch.own.stop)

    @property
    def _sees_passes(self) -> bool:
        return {"_compute_loss", "_get_per_token_logps_and_entropies"} <= {name for name, _ in self._replaced}

    # Online DPO: two completions of each prompt, sampled, scored and trained on in one call.

    def _around_pairs(self, original: Callable[..., Any], *given: Any, **more: Any) -> Any:
        self._scored = _Scored()
        try:
            result = original(*given, **more)
            with guarded(self._not_understood):
                inputs = more["inputs"] if "inputs" in more else given[1]
                self._take_pairs(inputs, self._scored)
            return result
        finally:
            self._scored = None

    def _around_pair_pass(self, original: Callable[..., Any], *given: Any, **more: Any) -> Any:
        logprobs = original(*given, **more)
        if self._scored is not None:
            with guarded(self._not_understood):
                self._scored.passes.append(logprobs.detach())
                _, _, prompt_mask, _, completion_mask = (*given, *more.values())[:5]
                self._scored.masks = (prompt_mask, completion_mask)
        return logprobs

    def _around_pair_rewards(self, original: Callable[..., Any], *given: Any, **more: Any) -> Any:
        scored = self._scored
        if scored is None:
            return original(*given, **more)
        with self._recording_rewards(scored):
            rewards = original(*given, **more)
        with guarded(self._not_understood):
            named = dict(zip(("prompts", "completions", "completion_ids_list"), given, strict=False)) | more
            scored.prompts, scored.completions = named["prompts"], named["completions"]
            scored.ids, scored.rewards = named["completion_ids_list"], rewards
        return rewards

    @contextmanager
    def _recording_rewards(self, scored: _Scored) -> Iterator[None]:
        """Keep the reward of each function: TRL adds them up and keeps only the sum."""
        import torch

        trainer = self._trainer
        functions = trainer.reward_funcs

        def wrap(number: int, function: Any) -> Any:
            if isinstance(function, torch.nn.Module):
                return function

            @wraps(function)
            def recorded(*given: Any, **more: Any) -> Any:
                rewards = function(*given, **more)
                scored.parts[number] = rewards
                return rewards

            return recorded

        trainer.reward_funcs = [wrap(number, function) for number, function in enumerate(functions)]
        try:
            yield
        finally:
            trainer.reward_funcs = functions

    def _take_pairs(self, inputs: Any, scored: _Scored) -> None:
        if scored.rewards is None:
            return
        self._has_seen = True
        trainer = self._trainer
        step = self._step(is_training=True)
        if step is None:
            return
        count = len(scored.prompts)
        half, names = count // 2, trainer.reward_func_names
        silent = [None] * count
        prompt_mask, completion_mask = scored.masks
        columns = dict(zip(("logprobs", "reference_logprobs"), scored.passes, strict=False))
        chosen = [row for pair in range(half) for row in (pair, pair + half)][: self._settings.tokens]
        facts = [
            {name: inputs[name][row % half] for name in inputs if isinstance(inputs[name], list)}
            for row in range(count)
        ]
        self._send(
            ScoredBatch(
                step=step,
                version=trainer.state.global_step,
                stream="train",
                groups=[(pair, pair + half) for pair in range(half)],
                prompts=scored.prompts,
                completions=scored.completions,
                reward_names=names,
                weights=trainer.reward_weights,
                rewards=list(zip(*(scored.parts.get(number, silent) for number in range(len(names))), strict=True)),
                totals=scored.rewards,  # with the penalty for a missing end token
                own=range(count),
                ids=scored.ids,
                lengths=completion_mask.sum(1),
                ends=frozenset(_ends(trainer)),
                prompt_mask=prompt_mask,
                masks=[completion_mask],
                columns=columns,
                traced={row: {} for row in chosen},
                facts=facts,
                max_turns=1,
                are_pairs=True,
            )
        )

    # From the training thread to the background thread.

    def _hand_over(self) -> None:
        batch, self._open = self._open, None
        self._unseen = set()
        if batch is not None:
            self._send(batch)

    def _send(self, batch: ScoredBatch) -> None:
        if not self._background.hand_over(batch):
            self._warn_once(
                f"rollouts of step {batch.step} are dropped: {ROOM} batches wait to be written. Record fewer: "
                f"VitalsCallback(rollouts=10) takes every tenth step",
                "dropped",
            )

    def _record(self, batch: ScoredBatch) -> None:
        if self._run is None:
            self._run = self._open_run()
        self._run.log_groups(groups_of(batch, self._decode), step=batch.step, stream=batch.stream)

    def _not_recorded(self, error: Exception) -> None:
        self._warn_once(f"rollouts are not recorded: {words_of(error)}", f"rollouts {type(error)}")

    def _not_understood(self, error: Exception) -> None:
        self._warn_unknown(words_of(error))

    def _warn_unknown(self, why: str) -> None:
        kind = type(self._trainer).__name__
        self._warn_once(f"no rollouts of {kind} are recorded: this version is not built as expected ({why})", "unknown")


def _decoder(trainer: Any) -> Decode:
    """A function that decodes one token. It copies the tokenizer: two threads that share one may raise errors."""
    tokenizer = copy.deepcopy(_tokenizer(trainer))
    known: dict[int, str] = {}

    def decode(token: int) -> str:
        if token not in known:
            known[token] = tokenizer.decode([token])
        return known[token]

    return decode


def _ends(trainer: Any) -> list[int]:
    """The tokens that end a completion."""
    known = getattr(trainer, "eos_token_ids", None)
    return list(known) if known else [_tokenizer(trainer).eos_token_id]


def _tokenizer(trainer: Any) -> Any:
    """The tokenizer, also if the trainer has a processor."""
    return getattr(trainer.processing_class, "tokenizer", trainer.processing_class)


def _most_turns(trainer: Any) -> int | None:
    """How many turns a completion may have: one without tools, None if unknown."""
    if not getattr(trainer, "tools", None) and getattr(trainer, "rollout_func", None) is None:
        return 1
    calls = getattr(trainer, "max_tool_calling_iterations", None)
    return calls + 1 if isinstance(calls, int) else None
