"""Tools for rollouts: list and search them, read one, and compare two steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from rlvitals.agents.budget import Draft, fit
from rlvitals.agents.quoting import Own, Recorded
from rlvitals.agents.run_lookup import EXCERPT, Given, excerpt, listed, picked, run_of, start_of, without_nothing
from rlvitals.contract import HitFacts
from rlvitals.errors import RunNotFound
from rlvitals.records import Group
from rlvitals.render.rollout_lists import text_changes
from rlvitals.views.rollouts import brief, changes, groups_at, pick, tried_before
from rlvitals.web import api
from rlvitals.web.answers import Query
from rlvitals.web.folder import Folder

PIECE = 900
"""Characters of a text per entry; a long text is split into several entries."""

PROBLEMS = 3


def rollouts(folder: Folder, given: Given) -> dict[str, Any]:
    """The steps with rollouts, a step's groups, the worst rollouts, or those with a given text or outcome."""
    run = run_of(folder, given)
    start = start_of(given)
    asked = [("run", run), ("page", str(start // api.PAGE_SIZE))]
    asked += [(key, str(given[key])) for key in ("step", "outcome", "search") if key in given]
    asked += [("worst", "1")] if given.get("worst") else []
    answer = cast(dict[str, Any], api.rollouts(folder, Query(asked)))
    within = start % api.PAGE_SIZE
    head: dict[str, Any]
    if "hits" in answer:
        hits = answer["hits"][within:]
        head = {"run": run, "sorted_by": "reward" if given.get("worst") else "step"}
        return fit(Draft(head, "hits", _hits(folder, run, hits), start, None if answer["more"] else 0))
    if "groups" in answer:
        groups = [_group(group) for group in answer["groups"][within:]]
        after = answer["total"] - (start - within) - len(answer["groups"])
        head = {"run": run, "step": answer["step"], "groups_in_all": answer["total"]}
        return fit(Draft(head, "groups", groups, start, max(0, after)))
    head = {"run": run, "steps_in_all": len(answer["steps"]), "problems": answer["problems"][:PROBLEMS]}
    keys = ("step", "groups", "kept", "filtered", "rollouts", "mean", "early")
    steps = [picked(step, *keys) for step in answer["steps"]]
    return fit(listed(without_nothing(head), "steps", steps, given))


def _hits(folder: Folder, run: str, hits: Sequence[HitFacts]) -> list[dict[str, Any]]:
    """Hits with the end of the model's text. The groups of a step are read once for consecutive hits."""
    log = folder.view(run).rollout_log
    read_steps: dict[int, list[Group]] = {}
    entries = []
    for hit in hits:
        if hit["step"] not in read_steps:
            read_steps = {hit["step"]: log.at(hit["step"])}
        rollout = read_steps[hit["step"]][hit["group"] - 1].rollouts[hit["rollout"] - 1]
        end = next((turn.text for turn in reversed(rollout.turns) if turn.text), "")
        entries.append(
            picked(
                hit, "step", "group", "rollout", "reward", "outcome", "stop", "turns", prompt=excerpt(hit["prompt"]),
                end_of_answer=Recorded(end[-EXCERPT:]) if end else "",
            )
        )  # fmt: skip
    return entries


def _group(group: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("number", "id", "mean", "std", "kept", "reason", "outcomes", "rollouts", "early")
    return picked(group, *keys, prompt=excerpt(group["prompt"]))


def rollout_text(folder: Folder, given: Given) -> dict[str, Any]:
    """A whole rollout, in pieces."""
    run = run_of(folder, given)
    asked = [("run", run), ("step", str(given["step"])), ("group", given["group"])]
    group = cast(dict[str, Any], api.rollouts(folder, Query(asked)))["groups"][0]
    number = given.get("rollout", 1)
    if not 0 < number <= len(group.get("rollouts", ())):
        raise RunNotFound(f"there is no rollout {number} in this group: it has {len(group.get('rollouts', ()))}")
    rollout = group["rollouts"][number - 1]
    keys = ("reward", "advantage", "outcome", "stop", "error", "reward_parts", "tokens", "seconds")
    head = {
        "run": run,
        "step": given["step"],
        "group": group["number"],
        "rollout": number,
        "rollouts_in_group": len(group["rollouts"]),
        "rewards_in_group": [other.get("reward") for other in group["rollouts"]],
        **{key: rollout[key] for key in keys if key in rollout},
    }
    parts = [("prompt", 0, group.get("prompt", "")), ("reference answer", 0, group.get("answer", ""))]
    for place, turn in enumerate(rollout.get("turns", ()), 1):
        parts.append(("text", place, turn.get("text", "")))
        for number_of_call, call in enumerate(turn.get("calls", ()), 1):
            call_text = f"{call.get('name', '')}({call.get('arguments', '')})"
            parts.append((f"call {number_of_call}", place, call_text))
            parts.append((f"result {number_of_call}", place, call.get("error") or call.get("result") or ""))
        parts.append(("observation", place, turn.get("observation", "")))
    pieces = [
        without_nothing({"part": Own(part), "turn": turn or None, "text": Recorded(piece)})
        for part, turn, text in parts
        for piece in _pieces(str(text))
    ]
    return fit(listed(without_nothing(head), "pieces", pieces, given))


def _pieces(text: str) -> list[str]:
    return [text[place : place + PIECE] for place in range(0, len(text), PIECE)]


def rollout_diff(folder: Folder, given: Given) -> dict[str, Any]:
    """The prompts of two steps compared, or one prompt line by line."""
    run = run_of(folder, given)
    log = folder.view(run).rollout_log
    old, new = groups_at(log, given["before"]), groups_at(log, given["after"])
    head: dict[str, Any] = {"run": run, "before": given["before"], "after": given["after"]}
    if "group" not in given:
        found = changes(old, new)
        head["prompts_at_both"] = sum(change.before is not None and change.after is not None for change in found)
        prompts = [
            without_nothing(
                {"prompt": excerpt(key), "before": brief(earlier), "after": brief(later)}
            )
            for key, earlier, later in found
        ]  # fmt: skip
        return fit(listed(head, "prompts", prompts, given))
    number, group = pick(new, given["group"])
    _, earlier = tried_before(old, group, number, given["before"])
    diff = text_changes(given["before"], earlier, given["after"], group, full=True)
    head |= {"group": number, "before_rewards": brief(earlier), "after_rewards": brief(group)}
    return fit(listed(head, "pieces", [Recorded(piece) for piece in _pieces(diff)], given))
