"""`rlvitals rollouts RUN [--step N] [--group G] [--worst K] [--search TEXT] [--diff STEP] [--tokens] [--full]`."""

from __future__ import annotations

import argparse
import shutil
import sys
from typing import Any

from rich.text import Text

from rlvitals.cli.output import add_json_flag, print_json, show
from rlvitals.errors import ConfigError, RunError
from rlvitals.records import Group
from rlvitals.render.rollout_lists import render_changes, render_groups, render_hits, render_steps, text_changes
from rlvitals.render.screen import PIPED_WIDTH, standard_output
from rlvitals.render.token_overlay import OVERLAYS, token_transcript
from rlvitals.render.transcript import folded, group_heading, rollout_heading, transcript
from rlvitals.render.turn_table import turn_table
from rlvitals.store.rollout_forms import plain
from rlvitals.terminal import warn
from rlvitals.views.places import open_rollouts
from rlvitals.views.rollouts import (
    SHOWN,
    RolloutHit,
    RolloutSource,
    brief,
    changes,
    groups_at,
    outcomes,
    pick,
    rollout_of,
    tried_before,
    whole,
)

_SIGNED = r"(?<![\w.])\+\d+\.\d{3}\b"
_NEGATIVE = r"(?<![\w.])-\d+\.\d{3}\b"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN", help="a run's directory, or a framework's dump of rollouts")
    parser.add_argument("--step", type=int, metavar="N", help="the groups of one step (default: list the steps)")
    parser.add_argument("--group", metavar="G", help="one group of the step, by number or id: turn table, transcripts")
    parser.add_argument(
        "--worst", type=int, metavar="K", help="the K rollouts with the lowest reward, of a step or all"
    )
    parser.add_argument("--search", metavar="TEXT", help="rollouts that contain this text, of a step or all")
    parser.add_argument("--outcome", help="rollouts with this outcome")
    parser.add_argument("--diff", type=int, metavar="STEP", help="compare the same prompts with those of that step")
    parser.add_argument("--validation", action="store_true", help="the rollouts of evaluations")
    parser.add_argument(
        "--tokens", nargs="?", const=OVERLAYS[0], choices=OVERLAYS,
        help="a group's rollouts token by token, coloured by this number (default: probability)",
    )  # fmt: skip
    parser.add_argument("--full", action="store_true", help="show complete texts, tool calls and results")
    parser.add_argument("--verbose", action="store_true", help="every group's rollouts and turn table")
    parser.add_argument("--limit", type=int, default=SHOWN, metavar="N", help=f"hits shown (default: {SHOWN})")
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    source = open_rollouts(arguments.path, "validation" if arguments.validation else None)
    if arguments.worst is not None or arguments.search is not None or arguments.outcome is not None:
        _found(source, arguments)
    elif arguments.step is None:
        if arguments.group is not None or arguments.diff is not None or arguments.tokens is not None:
            raise ConfigError("--group, --tokens and --diff need a step: --step N")
        rows = source.overview()
        print_json({"steps": rows}) if arguments.json else show(render_steps(rows))
    elif arguments.diff is not None:
        _difference(source, arguments)
    else:
        _step(source, arguments)
    for problem in source.problems:
        warn(problem)
    return 0


def _step(source: RolloutSource, arguments: argparse.Namespace) -> None:
    groups = groups_at(source, arguments.step)
    chosen = [pick(groups, arguments.group)] if arguments.group is not None else list(enumerate(groups, 1))
    if arguments.json:
        print_json({"step": arguments.step, "groups": [whole(number, group) for number, group in chosen]})
    elif arguments.tokens is not None:
        if arguments.group is None:
            raise ConfigError("--tokens needs a group: --group G")
        _print_tokens(*chosen[0], arguments.tokens)
    elif arguments.group is None and not arguments.verbose:
        show(render_groups(arguments.step, [(number, group, outcomes(group)) for number, group in chosen]))
    else:
        for number, group in chosen:
            _print(_in_full(number, group, transcripts=arguments.group is not None, full=arguments.full))


def _print_tokens(number: int, group: Group, overlay: str) -> None:
    """Print the rollouts of a group that have recorded tokens."""
    console = standard_output()
    is_plain = console.no_color or console.color_system not in ("256", "truecolor")
    transcripts = [
        (place, rollout, text)
        for place, rollout in enumerate(group.rollouts, 1)
        if (text := token_transcript(rollout, overlay, marks=is_plain)) is not None
    ]
    if not transcripts:
        traced = any(rollout.trace for rollout in group.rollouts)
        why = f"have no {overlay}" if traced else "were recorded without their tokens (docs/tokens.md)"
        raise RunError(f"the rollouts of group {number} {why}")
    show(Text(group_heading(number, group)))
    for place, rollout, text in transcripts:
        show(Text(rollout_heading(place, rollout)))
        show(text)


def _found(source: RolloutSource, arguments: argparse.Namespace) -> None:
    is_worst = arguments.worst is not None
    hits = source.find(
        step=arguments.step,
        outcome=arguments.outcome,
        text=arguments.search,
        worst=is_worst,
        limit=max(arguments.worst if is_worst else arguments.limit, 0),
    )
    if arguments.json:
        print_json({"rollouts": [_hit(source, hit) for hit in hits]})
    elif is_worst or arguments.full:
        for hit in hits:
            groups = source.at(hit.step)
            group, rollout = groups[hit.group - 1], rollout_of(groups, hit)
            parts = [f"Step {hit.step}, {group_heading(hit.group, group)}", folded(group.prompt, indent="  ")]
            parts += [rollout_heading(hit.rollout, rollout), transcript(rollout, full=arguments.full)]
            _print("\n".join(parts) + "\n")
    else:
        show(render_hits(hits))


def _difference(source: RolloutSource, arguments: argparse.Namespace) -> None:
    after, before = groups_at(source, arguments.step), groups_at(source, arguments.diff)
    if arguments.group is None:
        found = changes(before, after)
        if arguments.json:
            prompts = [{"key": key, "before": brief(old), "after": brief(new)} for key, old, new in found]
            print_json({"from": arguments.diff, "to": arguments.step, "prompts": prompts})
        else:
            show(render_changes(arguments.diff, arguments.step, found, outcomes))
        return
    number, group = pick(after, arguments.group)
    place, old = tried_before(before, group, number, arguments.diff)
    if arguments.json:
        print_json({"before": whole(place, old), "after": whole(number, group)})
    else:
        _print(text_changes(arguments.diff, old, arguments.step, group, full=arguments.full))


def _in_full(number: int, group: Group, *, transcripts: bool, full: bool) -> str:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPED_WIDTH
    lines = [group_heading(number, group), folded(group.prompt, full=full, indent="  ")]
    if group.answer:
        lines.append(folded(f"reference answer: {group.answer}", full=full, indent="  "))
    for place, rollout in enumerate(group.rollouts, 1):
        lines.append(rollout_heading(place, rollout))
        if transcripts:
            lines.append(transcript(rollout, full=full))
    return "\n".join([*(line for line in lines if line), turn_table(group, width), ""])


def _hit(source: RolloutSource, hit: RolloutHit) -> dict[str, Any]:
    return hit._asdict() | {"turns": plain(rollout_of(source.at(hit.step), hit)).get("turns", [])}


def _print(text: str) -> None:
    """Print a text with signed numbers in colour. The signs give the same information."""
    styled = Text(text)
    styled.highlight_regex(_SIGNED, "green")
    styled.highlight_regex(_NEGATIVE, "red")
    show(styled)
