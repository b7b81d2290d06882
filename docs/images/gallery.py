# ruff: noqa: E402 - the simulation and the example are found once their folders are on the path
"""Makes the runs of docs/gallery.md, draws their pictures, and writes what rlvitals reports into the page.

    python docs/images/gallery.py [NAME ...]

Three runs are trained here and fail: `examples/numpy_grpo.py` with a mistake in it. The others come from the simulation
that the rules are tested with (`tests/corpus`). Every run is the same each time.
"""

from __future__ import annotations

import io
import re
import sys
import tempfile
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

FOLDER = Path(__file__).parent
REPO = FOLDER.parent.parent
PAGE = FOLDER.parent / "gallery.md"
sys.path += [str(REPO / "tests"), str(REPO / "examples")]

import numpy as np
import numpy_grpo as example

import rlvitals
from corpus import build, catalogue, gaps, origins
from corpus.labelled import LabelledRun
from rlvitals.capture.notices import alarm
from rlvitals.views.check import Report

SEED = 4001
"""Of every simulated run; the measurements of the rules use others."""
WIDTH = 94
"""Columns of a line on the page."""
Maker = Callable[[Path], None]


@dataclass(frozen=True)
class Failure:
    """One section of the page."""

    name: str
    rule: str
    """The rule that the section is about."""
    metrics: tuple[str, ...]
    """What the picture shows."""
    make: Maker
    """Records the run into a folder."""
    is_trained: bool = False
    """Whether the last digits depend on the machine."""


def train(steps: int, learning_rate: float = 0.003, **mistakes: Any) -> Maker:
    """Really trained: the example, with functions of it replaced."""

    def make(folder: Path) -> None:
        with patch.multiple(example, **{"CLIP": example.CLIP, **mistakes}), rlvitals.start(
            folder, algorithm="grpo", total_steps=steps, display="none", hardware=False,
            config={"learning_rate": learning_rate, "num_generations": example.GROUP, "beta": example.BETA},
        ) as run:  # fmt: skip
            example.train(run, steps, learning_rate, seed=0)

    return make


def simulate(made: Callable[[], LabelledRun]) -> Maker:
    """Simulated: its rows are recorded as a trainer would log them."""

    def make(folder: Path) -> None:
        known = made()
        with rlvitals.start(
            folder, algorithm=known.algorithm, framework=known.framework, config=known.config,
            total_steps=known.total_steps, display="none", hardware=False,
        ) as run:  # fmt: skip
            for row in known.rows:
                run.log({name: value for name, value in row.items() if name != "step"}, step=row["step"])

    return make


def variant(name: str) -> Maker:
    """A failure of the simulation, by its name."""
    (found,) = (one for one in catalogue.FAILING if one.name == name)
    return simulate(lambda: build.make(found, SEED))


def broken_tool() -> LabelledRun:
    """Tool calls begin to fail, and each spoils its rollout."""
    return origins.failing_run(SEED, origins.Counted("trl", "tool", "tools/failure_frequency"))


def dead_sync() -> LabelledRun:
    """The engine no longer gets new weights."""
    trouble = next(one for one in gaps.TROUBLES if one.framework == "verl" and one.cause == "weight_sync")
    return gaps.make_gap(trouble, SEED)


right_sum, honest = example.score, example.evaluate


def never(prompts: example.Tokens, tokens: example.Tokens, mask: Any) -> example.Array:
    """A verifier that finds no answer."""
    return np.zeros(len(tokens))


def long_answers(prompts: example.Tokens, tokens: example.Tokens, mask: Any) -> example.Array:
    """Pays for the right sum, and for every token."""
    return 0.3 * right_sum(prompts, tokens, mask) + 0.7 * mask.mean(axis=1)


def evaluate_honestly(policy: example.Policy, rng: np.random.Generator) -> dict[str, float]:
    """The evaluation asks for the right sum whatever the training pays for."""
    with patch.object(example, "score", right_sum):
        return honest(policy, rng)


FAILURES = (
    Failure("learning-rate", "early_blow_up", ("reward", "kl", "grad_norm"), variant("grpo_trl_lr_too_high")),
    Failure("same-reward", "reward_constant", ("reward", "frac_reward_zero_std", "grad_norm"), train(40, score=never),
            is_trained=True),
    Failure("gamed", "eval_falls", ("critic/score/mean", "val-core/gsm8k/reward/mean@1", "response_length/mean"),
            variant("grpo_verl_reward_hacking_eval-falls")),
    Failure("length", "truncation_rising", ("reward", "completions/mean_length", "completions/clipped_ratio"),
            train(75, score=long_answers, evaluate=evaluate_honestly), is_trained=True),
    Failure("entropy", "entropy_collapse", ("entropy", "reward", "frac_reward_zero_std"), train(60, 0.1),
            is_trained=True),
    Failure("nan", "nonfinite_core", ("loss", "grad_norm", "reward"), variant("grpo_trl_nonfinite_nan-gradient")),
    Failure("negative-margin", "margin_inversion", ("rewards/margins", "rewards/accuracies"),
            variant("dpo_trl_margin_inversion_swapped")),
    Failure("both-fall", "likelihood_displacement", ("rewards/chosen", "rewards/margins", "logps/chosen"),
            variant("dpo_trl_likelihood_displacement")),
    Failure("overfit", "eval_overfit", ("eval_loss", "loss", "rewards/margins"), variant("dpo_trl_overfit_mild")),
    Failure("drift", "sync_without_effect", ("rollout_corr/kl", "checkpoint_engine/changed_ratio",
            "critic/score/mean"), simulate(dead_sync)),
    Failure("broken-tool", "lost_to_failures", ("tools/failure_frequency", "reward", "entropy"), simulate(broken_tool)),
    Failure("no-tools", "tool_abandonment", ("tool_call_counts/mean", "num_turns/mean", "critic/score/mean"),
            variant("grpo_verl_tool_abandonment_shorter")),
)  # fmt: skip


def shown_text(report: Report, rule: str) -> str:
    """What the page shows of a report: the verdict, and the worst finding of one rule."""
    finding = next(found for found in report.findings if found.rule == rule)
    lines = [f"{report.verdict}: {report.reason}", "", *alarm(finding).splitlines()]
    return "".join(f"{textwrap.fill(line, WIDTH, subsequent_indent='      ')}\n" for line in lines)


def block_of(name: str) -> re.Pattern[str]:
    """Where the page shows it: the text below a failure's picture."""
    return re.compile(rf"(\(images/gallery-{name}\.png\).*?```text\n)(.*?)(```)", re.DOTALL)


def main(names: list[str]) -> None:
    """Make runs and pictures again, all or those named."""
    from PIL import Image

    from render import save_png
    from rlvitals.render.run_plots import draw
    from rlvitals.views.plots import chosen

    for failure in FAILURES:
        if names and failure.name not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / failure.name
            failure.make(place)
            report = rlvitals.check(place)
            assert isinstance(report, Report)
            about = [found for found in report.findings if found.rule == failure.rule]
            assert about, f"{failure.name}: {failure.rule} says nothing; {[found.rule for found in report.findings]} do"
            picture = chosen(rlvitals.open_run(place), failure.metrics, raised=about[:1])
        image = Image.open(io.BytesIO(draw(picture))).convert("RGB")
        save_png(
            f"gallery-{failure.name}",
            image.resize((1240, image.height * 1240 // image.width), Image.Resampling.LANCZOS),
        )
        page = PAGE.read_text(encoding="utf-8")
        shown = block_of(failure.name).search(page)
        assert shown is not None, f"the page does not show {failure.name}"
        start, end = shown.span(2)
        PAGE.write_text(page[:start] + shown_text(report, failure.rule) + page[end:], encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
