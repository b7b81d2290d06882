"""The tools of the MCP server: descriptions, arguments, the functions that answer, and the errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from rlvitals.agents.arguments import Argument, read
from rlvitals.agents.budget import Draft, fit
from rlvitals.agents.rollouts import rollout_diff, rollout_text, rollouts
from rlvitals.agents.run_lookup import Given
from rlvitals.agents.runs import (
    MOST_SERIES,
    PARTS,
    POINTS,
    check_log,
    checkpoint,
    compare,
    explain,
    list_metrics,
    list_runs,
    run_findings,
    run_summary,
    series,
)
from rlvitals.errors import (
    ConfigError,
    NotALog,
    NotComparable,
    RlvitalsError,
    RunNotFound,
    RunUnreadable,
    UnknownMetric,
    did_you_mean,
)
from rlvitals.records import Status, Verdict
from rlvitals.views.chart_lines import AXES
from rlvitals.web.answers import MOST_RUNS
from rlvitals.web.folder import Folder

RUN = Argument("run", "text", "the run's path as list_runs gives it", needed=True)
CURSOR = Argument("cursor", "text", "'more.cursor' of the previous answer, to continue")


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool: the texts that a client shows, its arguments, and the function that answers."""

    name: str
    title: str
    about: str
    arguments: tuple[Argument, ...]
    answer: Callable[[Folder, Given], dict[str, Any]]


class Refused(Exception):
    """A question that cannot be answered; `facts` hold the error."""

    def __init__(self, facts: dict[str, Any]) -> None:
        super().__init__(str(facts))
        self.facts = facts


def ask(folder: Folder, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of a tool, within the budget. Raises Refused."""
    try:
        if name not in TOOLS:
            raise ConfigError(f"there is no tool {name!r}.{did_you_mean(name, TOOLS)}")
        tool = TOOLS[name]
        return tool.answer(folder, read(tool.arguments, given))
    except RlvitalsError as error:
        raise Refused(fit(Draft({"error": _kind_of(error), "message": str(error)}))) from error
    except OSError as error:  # for example a file that was deleted during the read
        reason = error.strerror or type(error).__name__
        raise Refused(
            fit(Draft({"error": "unreadable", "message": f"the run cannot be read now: {reason}"}))
        ) from error


_ERRORS: tuple[tuple[type[RlvitalsError], str], ...] = (
    (RunNotFound, "not_found"),
    (UnknownMetric, "unknown_metric"),
    (RunUnreadable, "unreadable"),
    (NotALog, "not_a_log"),
    (NotComparable, "not_comparable"),
    (ConfigError, "wrong_question"),
)


def _kind_of(error: RlvitalsError) -> str:
    return next((word for kind, word in _ERRORS if isinstance(error, kind)), "failed")


def _tools(*tools: Tool) -> dict[str, Tool]:
    return {tool.name: tool for tool in tools}


_STATUSES = (*get_args(Status), "unreadable")
_VERDICTS = get_args(Verdict)

TOOLS = _tools(
    Tool(
        "list_runs", "List runs",
        "Every run and log in the folder, newest first: verdict (healthy, watch, act, cannot judge), status, last "
        "reward, step.",
        (
            Argument("status", "text", "only these", choices=_STATUSES),
            Argument("verdict", "text", "only these", choices=_VERDICTS),
            Argument("search", "text", "only runs with this in their name"),
            CURSOR,
        ),
        list_runs,
    ),
    Tool(
        "run_summary", "Summary of a run",
        "One run now: status, verdict, step, ETA, attempts, and a list: vital signs with their change, settings, "
        "attempts (resumes) or problems of the log.",
        (RUN, Argument("part", "text", "which list (default: vital_signs)", choices=tuple(PARTS)), CURSOR),
        run_summary,
    ),
    Tool(
        "run_findings", "Verdict and findings",
        "The verdict on a run and its findings, standing and severe ones first: rule, kind, onset, evidence, causes, "
        "advice, requests to the trainer and its answers.",
        (RUN, Argument("standing", "flag", "leave out what has recovered"), CURSOR),
        run_findings,
    ),
    Tool(
        "list_metrics", "Metrics of a run",
        "Names, concepts and last values of a run's metrics, the vital signs first.",
        (RUN, Argument("search", "text", "only those with this in name, concept or title"), CURSOR),
        list_metrics,
    ),
    Tool(
        "series", "Series",
        "Metrics over the steps, thinned to few points that keep every extreme. A name is a logged one or a concept "
        "such as reward.total.mean.",
        (
            RUN,
            Argument("names", "texts", f"1 to {MOST_SERIES} metrics", needed=True, most=MOST_SERIES),
            Argument("start", "whole", "from this x on"),
            Argument("end", "whole", "up to this x"),
            Argument("points", "whole", f"points a metric (default: {POINTS} shared by all)"),
            Argument("x", "text", "the x-axis (default: step)", choices=AXES),
        ),
        series,
    ),
    Tool(
        "compare", "Compare runs",
        "Runs beside the first one: settings that differ, last and best values, the step where they part, and what is "
        "not the same quantity.",
        (
            Argument("runs", "texts", f"2 to {MOST_RUNS} runs", needed=True, most=MOST_RUNS),
            Argument("names", "texts", "only these metrics", most=50),
            CURSOR,
        ),
        compare,
    ),
    Tool(
        "explain", "Explain a name",
        "What a metric is (meaning, formula, typical ranges, traps, names in other frameworks), or a rule or kind of "
        "finding (what it reads, causes, advice).",
        (
            Argument("name", "text", "a metric, rule or kind", needed=True),
            Argument("run", "text", "read the name in this run's framework"),
            CURSOR,
        ),
        explain,
    ),
    Tool(
        "rollouts", "Find rollouts",
        "Recorded rollouts. Without arguments: the steps that have some. With step: its groups. With worst, search or "
        "outcome: single rollouts.",
        (
            RUN,
            Argument("step", "whole", "only this step"),
            Argument("worst", "flag", "the lowest reward first"),
            Argument("search", "text", "words in a row in prompt or answer"),
            Argument("outcome", "text", "such as wrong"),
            CURSOR,
        ),
        rollouts,
    ),
    Tool(
        "rollout_text", "Read a rollout",
        "One rollout: rewards, prompt, reference answer, every turn, tool call and result, in pieces.",
        (
            RUN,
            Argument("step", "whole", "its step", needed=True),
            Argument("group", "text", "number or id of its group", needed=True),
            Argument("rollout", "whole", "its number in the group (default: 1)"),
            CURSOR,
        ),
        rollout_text,
    ),
    Tool(
        "rollout_diff", "Compare rollouts of two steps",
        "Rewards and outcomes of the same prompts at two steps; with group, the best answers line by line.",
        (
            RUN,
            Argument("before", "whole", "the earlier step", needed=True),
            Argument("after", "whole", "the later step", needed=True),
            Argument("group", "text", "number or id of a group of the later step"),
            CURSOR,
        ),
        rollout_diff,
    ),
    Tool(
        "check_log", "Check any log",
        "Judge any log below the folder (JSONL, CSV, TensorBoard, W&B, console output, notebooks, ...) or a run again, "
        "from its rows.",
        (
            Argument("path", "text", "the path of a file or folder, relative to the served folder", needed=True),
            Argument("standing", "flag", "leave out what has recovered"),
            CURSOR,
        ),
        check_log,
    ),
    Tool(
        "best_checkpoint", "Best checkpoint",
        "The checkpoint with the best outcome; of a run that went wrong, the best one before the onset, and what "
        "continuing has cost.",
        (RUN, CURSOR),
        checkpoint,
    ),
)  # fmt: skip
