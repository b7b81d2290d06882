"""Evaluations of an agent: their statistics, the comparison with the policy before training, when to stop.

    evaluations = Evaluations(run, target_accuracy=0.9, keep_last_evals=20)
    evaluations.record(samples, step=0, seconds=12.5)            # the control: before the first update
    judged = evaluations.record(samples, step=10, seconds=11.8)
    if judged.stop: ...

An evaluation's file has exactly the fields of the document; counts are written as counts. Its row, which trackers
receive, has fractions instead of three of the counts, under different names, so that the two are not confused. An
average over no samples is null in the file and missing from the row.
"""

from __future__ import annotations

import math
import statistics as standard
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlvitals.capture.run import Run
from rlvitals.compute import rollout
from rlvitals.compute.evaluation import turnover
from rlvitals.errors import ConfigError, RunUnreadable
from rlvitals.render.evaluations import rubric_lines
from rlvitals.store.evaluations import Control, drop_evaluations, read_control, write_control
from rlvitals.store.layout import RunDir
from rlvitals.terminal import logger, put
from rlvitals.train.mailbox.reward import Rubric
from rlvitals.views.evaluations import COUNTS
from rlvitals.views.run import open_run

PATIENCE = 5


def _mean(total: float, count: int) -> float | None:
    return total / count if count else None


class Sample(NamedTuple):
    """One evaluated episode."""

    query: str
    """The question's id. Episodes of one question count as one query in the comparison with the control."""
    reward: float
    rubric: Rubric


class Beat(NamedTuple):
    """Number of queries whose best reward is above, equal to or below the control's, and of those it lacks."""

    wins: int
    ties: int
    losses: int
    unmatched: int

    @property
    def rate(self) -> float | None:
        """Wins divided by all compared queries; a tie is not a win. None if no query was compared.

        >>> Beat(3, 6, 1, 0).rate, Beat(0, 0, 0, 4).rate
        (0.3, None)
        """
        return _mean(self.wins, self.wins + self.ties + self.losses)


class Judged(NamedTuple):
    """The result of an evaluation."""

    stats: dict[str, Any]
    """The fields of its file."""
    beat: Beat | None
    best_accuracy: float | None
    without_improvement: int
    """How many evaluations came after the best one."""
    stop: str
    """Why training should stop now; empty if it should continue."""


def statistics(samples: Sequence[Sample], *, step: int, seconds: float, beat: Beat | None = None) -> dict[str, Any]:
    """The content of an evaluation's file: the fields of the document, in its order."""
    rubrics, rewards, total = [sample.rubric for sample in samples], [sample.reward for sample in samples], len(samples)

    def count(name: str) -> int:
        return sum(getattr(rubric, name) for rubric in rubrics)

    correct, searches = count("answer_correct"), count("num_total_searches")
    given_up = [rubric.num_turns for rubric in rubrics if rubric.returned_i_dont_know]
    solved = [rubric.num_turns for rubric in rubrics if rubric.answer_correct]
    return {
        "step": step,
        "accuracy": _mean(correct, total),
        "correct_answers": correct,
        "total_samples": total,
        "attempted_answer": count("attempted_answer"),
        "avg_reward": _mean(math.fsum(rewards), total),
        "median_reward": standard.median(rewards) if rewards else None,
        "std_reward": standard.pstdev(rewards) if rewards else None,
        "min_reward": min(rewards, default=None),
        "max_reward": max(rewards, default=None),
        "found_correct_email": count("ever_found_right_email"),
        "read_correct_email": count("ever_read_right_email"),
        "total_repeated_searches": count("num_repeated_searches"),
        "total_unique_searches": count("num_unique_searches"),
        "total_searches": searches,
        "avg_turns_correct": _mean(sum(solved), len(solved)),
        "avg_turns_idk": _mean(sum(given_up), len(given_up)),
        "avg_search_attempts": _mean(searches, total),
        "num_idk": len(given_up),
        "eval_time": seconds,
        "beat_rate": None if beat is None else beat.rate,
    }


FIELDS = tuple(statistics((), step=0, seconds=0.0))
"""The fields of an evaluation's file, in this order."""


def tracker_row(stats: Mapping[str, Any], beat: Beat | None = None) -> dict[str, Any]:
    """The row of the same evaluation: with fractions under their own names, wins, ties and losses, and without nulls.

    Trackers put `eval/` before each name that does not begin with `eval`; `eval_time` has it already.
    """
    total = stats["total_samples"]
    row: dict[str, Any] = {name: value for name, value in stats.items() if name not in COUNTS and name != "step"}
    row |= {fraction: _mean(stats[count], total) for count, fraction in COUNTS.items()}
    row["eval/eval_time"] = row.pop("eval_time")
    if beat is not None:
        row |= {"wins": beat.wins, "ties": beat.ties, "losses": beat.losses}
    return {name: value for name, value in row.items() if value is not None}


def best_rewards(samples: Iterable[Sample]) -> dict[str, float]:
    """The best reward of each query."""
    best: dict[str, float] = {}
    for query, reward, _ in samples:
        best[str(query)] = max(reward, best.get(str(query), -math.inf))
    return best


def against(samples: Iterable[Sample], control: Control) -> Beat:
    """Compare each query's best reward with the control's."""
    best = best_rewards(samples)
    both = [(reward, control.rewards[query]) for query, reward in best.items() if query in control.rewards]
    wins, ties = sum(now > before for now, before in both), sum(now == before for now, before in both)
    return Beat(wins, ties, losses=len(both) - wins - ties, unmatched=len(best) - len(both))


def pass_rates(samples: Iterable[Sample]) -> dict[str, float]:
    """The share of correct answers to each query."""
    correct: dict[str, list[bool]] = {}
    for sample in samples:
        correct.setdefault(str(sample.query), []).append(sample.rubric.answer_correct)
    return {query: sum(found) / len(found) for query, found in correct.items()}


def prompts_row(samples: Sequence[Sample], before: Mapping[str, float] | None) -> dict[str, float]:
    """Metrics per prompt: with several answers each, how much the best answer solves beyond the average one; and how
    many prompts were lost and won since `before`, the pass rates of the previous evaluation.
    """
    row: dict[str, Any] = {}
    now = pass_rates(samples)
    answers = len(samples) // max(len(now), 1)
    if answers > 1:
        stats = rollout.stats(
            success=[sample.rubric.answer_correct for sample in samples],
            group_ids=[str(sample.query) for sample in samples],
            pass_k=(answers,),
        )
        row |= {name: stats[name] for name in (f"eval.pass_at_k/{answers}", f"eval.pass_gap_at_k/{answers}")}
    if before is not None:
        row |= turnover(before, now).stats
    return {name: value.number for name, value in row.items() if value.number is not None}


class Evaluations:
    """Records the evaluations of one run: files, rows, printed lines, the control, and when to stop.

    A resumed run continues with the stored control and best accuracy.
    """

    def __init__(
        self, run: Run, *, target_accuracy: float | None = None, patience: int | None = PATIENCE,
        keep_last_evals: int | None = None, say: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        if keep_last_evals is not None and keep_last_evals < 1:
            raise ConfigError(f"keep_last_evals must be 1 or more, or null to keep all; it is {keep_last_evals}")
        if patience is not None and patience < 1:
            raise ConfigError(f"patience must be 1 evaluation or more, or null to never stop; it is {patience}")
        self._run, self._dir = run, RunDir(Path(run.dir))
        self._target, self._patience, self._keep = target_accuracy, patience, keep_last_evals
        self._say = say or (lambda line: put(line, sys.stderr))
        self._best: float | None = None
        self._best_step, self._without = 0, 0
        self._pass_rates: dict[str, float] | None = None  # of the last evaluation; not restored on resume
        is_resumed = run.attempt > 1
        self.control = self._stored_control() if is_resumed else None
        """The rewards of the policy before training, or None if not known yet."""
        if is_resumed:
            for row in open_run(run.dir).iterate(stream="eval"):
                if row.step <= max(run.last_step, 0) and "accuracy" in row.numbers:
                    self._weigh(row.numbers["accuracy"], row.step)

    def record(self, samples: Sequence[Sample], *, step: int, seconds: float) -> Judged:
        """Record one evaluation. The one at step 0 becomes the control and is not compared."""
        if step == 0:
            self._keep_control(Control(step, best_rewards(samples)))
        beat = against(samples, self.control) if self.control is not None and step != self.control.step else None
        stats = statistics(samples, step=step, seconds=seconds, beat=beat)
        if stats["accuracy"] is not None:
            self._weigh(stats["accuracy"], step)
        row = tracker_row(stats, beat) | {"eval/evals_without_improvement": self._without}
        row |= prompts_row(samples, self._pass_rates)
        self._pass_rates = pass_rates(samples)
        if self._best is not None:
            row["best_accuracy"] = self._best
        if self._target and stats["accuracy"] is not None:
            row["progress_to_target"] = stats["accuracy"] / self._target
        whole = {name: value for name, value in stats.items() if name != "step"}
        self._run.log_eval(row, step=step, whole=whole)
        if self._run.rank == 0:
            if self._keep is not None:
                drop_evaluations(self._dir, self._keep, spare={0})
            self._print(stats, beat)
        return Judged(stats, beat, self._best, self._without, self._why_stop(stats["accuracy"]))

    def _weigh(self, accuracy: float, step: int) -> None:
        if self._best is None or accuracy > self._best:
            self._best, self._best_step, self._without = accuracy, step, 0
        else:
            self._without += 1

    def _why_stop(self, accuracy: float | None) -> str:
        if self._target is not None and accuracy is not None and accuracy >= self._target:
            return f"accuracy {accuracy:.3f} has reached the target of {self._target:g}"
        if self._patience is not None and self._without >= self._patience and self._best is not None:
            best = f"the best is {self._best:.3f} of step {self._best_step}"
            return f"no better accuracy in {self._without} evaluations; {best}"
        return ""

    def _print(self, stats: Mapping[str, Any], beat: Beat | None) -> None:
        for line in rubric_lines(stats):
            self._say(line)
        if beat is not None:
            lost = f", {beat.unmatched} without a control" if beat.unmatched else ""
            self._say(f"   Against the control: {beat.wins} wins, {beat.ties} ties, {beat.losses} losses{lost}")
        path = self._dir.eval_file(stats["step"])
        if path.exists():
            self._say(f"Eval stats saved to: {path}")

    def _keep_control(self, control: Control) -> None:
        self.control = control
        if self._run.rank != 0:
            return
        try:
            write_control(self._dir, control)
        except OSError as error:
            logger.warning("the control cannot be written, so a resumed run will have none: %s", error)

    def _stored_control(self) -> Control | None:
        try:
            return read_control(self._dir)
        except RunUnreadable as error:
            logger.warning("beat_rate will be null: %s", error)
            return None
