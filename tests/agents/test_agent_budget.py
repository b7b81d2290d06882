"""Every answer fits the token budget. Further calls return the rest, without losing or repeating anything."""

from __future__ import annotations

import math
import random

import pytest
from agent_runs import QUIET, groups_at, row

import rlvitals
from rlvitals.agents.budget import MOST_TOKENS, Draft, fit, fit_size, tokens_at_most
from rlvitals.agents.quoting import Own, Recorded
from rlvitals.agents.tools import Refused, ask
from rlvitals.records import Group, Rollout, Turn
from rlvitals.web.answers import as_json
from rlvitals.web.folder import Folder

pytestmark = pytest.mark.slow

LONG = "".join(random.Random(1).choices("abc defg.\n", k=30_000))


def size(answer: dict) -> int:
    return tokens_at_most(as_json(answer).decode())


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Folder:
    root = tmp_path_factory.mktemp("budget")
    draw = random.Random(2)
    config = {f"setting_{number}": f"value {number}" for number in range(400)}
    with rlvitals.start(root / "wide", algorithm="grpo", config=config, **QUIET) as run:
        for step in range(1, 2001):
            kl = {777: 88.5, 778: -3.25}.get(step, draw.random() / 100)
            many = {f"part_{number}/mean": draw.random() for number in range(300)} if step % 500 == 0 else {}
            run.log(row(step, 1, kl=kl) | many, step=step)
        run.log_groups(
            [
                Group(prompt=f"{number}: {LONG[:500]}", rollouts=(Rollout((Turn(LONG),), reward=number / 100),) * 2)
                for number in range(120)
            ],
            step=5,
        )
        run.log_groups(groups_at(10), step=10)
    for number in range(120):
        (root / "wide" / f"checkpoint-{number}").mkdir()
    return Folder(root)


def all_of(folder: Folder, tool: str, key: str, **arguments) -> list:
    """Read a list to its end with as many calls as needed."""
    found, cursor, calls = [], "0", 0
    while True:
        answer = ask(folder, tool, arguments | {"cursor": cursor})
        calls += 1
        assert size(answer) <= MOST_TOKENS
        assert answer[key], "an answer that brings nothing on"
        found += answer[key]
        if answer["more"] is None:
            assert calls > 1
            return found
        assert answer["more"]["cursor"] == str(len(found))
        cursor = answer["more"]["cursor"]


def test_every_metric_is_listed_once(folder):
    names = [metric["name"] for metric in all_of(folder, "list_metrics", "metrics", run="wide")]
    assert sorted(names) == sorted([*row(1, 1), *(f"part_{number}/mean" for number in range(300))])


def test_every_setting_is_listed_once(folder):
    settings = all_of(folder, "run_summary", "settings", run="wide", part="settings")
    assert {one["name"] for one in settings} >= {f"setting_{number}" for number in range(400)}
    assert len({one["name"] for one in settings}) == len(settings)


def test_a_long_answer_is_read_to_its_end(folder):
    pieces = all_of(folder, "rollout_text", "pieces", run="wide", step=5, group="7", rollout=2)
    text = "".join(piece["text"].split(">", 1)[1].rsplit("</data", 1)[0] for piece in pieces if piece["part"] == "text")
    assert text == LONG


def test_hits_and_groups_go_on_beyond_a_page_of_the_server(folder):
    hits = all_of(folder, "rollouts", "hits", run="wide", worst=True)
    assert len(hits) == 2 * 120 + 4
    assert len({(hit["step"], hit["group"], hit["rollout"]) for hit in hits}) == len(hits)
    assert [hit["reward"] for hit in hits] == sorted(hit["reward"] for hit in hits)
    groups = all_of(folder, "rollouts", "groups", run="wide", step=5)
    assert [group["number"] for group in groups] == list(range(1, 121))


def test_the_count_of_what_is_left_is_right(folder):
    answer = ask(folder, "best_checkpoint", {"run": "wide"})
    assert len(answer["checkpoints"]) + (answer["more"] or {"left": 0})["left"] == 120
    answer = ask(folder, "rollouts", {"run": "wide", "step": 5})
    assert len(answer["groups"]) + answer["more"]["left"] == 120


@pytest.mark.parametrize("points", [2, 10, 100, 5_000])
@pytest.mark.parametrize(
    "names", [["kl"], ["kl", "reward", "entropy", "loss", "grad_norm", "reward_std", "part_3/mean"]]
)
def test_a_series_keeps_its_extremes_in_any_size(folder, names, points):
    answer = ask(folder, "series", {"run": "wide", "names": names, "points": points})
    assert size(answer) <= MOST_TOKENS
    assert "cut" not in answer
    assert [line["name"] for line in answer["lines"]] == names
    kl = answer["lines"][0]
    assert kl["shown"] <= points
    assert (max(kl["high"]), min(kl["low"])) == (88.5, -3.25)
    assert len(kl["x"]) == len(kl["mean"]) == kl["shown"] < kl["total"] == 2000


def test_a_series_zoomed_in_is_every_point(folder):
    (line,) = ask(folder, "series", {"run": "wide", "names": ["kl"], "start": 770, "end": "790"})["lines"]
    assert line["x"] == list(range(770, 791))
    assert line["values"][7:9] == [88.5, -3.25]


def anything(draw: random.Random, depth: int = 2):
    """Random data: texts in any script and of any length, numbers (also not finite), lists and mappings of these."""
    letters = draw.choice(["abc ", "報酬", "\U0001f600\u202e", "0123456789.,-", "\x00\n\x1b", 'ABCxyz{}[]"\\\\'])
    text = "".join(draw.choice(letters) for _ in range(draw.choice([0, 3, 30, 300, 3000])))
    leaves = [None, True, draw.randrange(10**18), draw.gauss(0, 1e9), math.nan, text, Recorded(text), Own(text)]
    if depth == 0 or draw.random() < 0.4:
        return draw.choice(leaves)
    parts = [anything(draw, depth - 1) for _ in range(draw.choice([0, 2, 5, 12]))]
    return parts if draw.random() < 0.6 else {f"{text[:40]} {place}": part for place, part in enumerate(parts)}


@pytest.mark.parametrize("seed", range(24))
def test_whatever_is_asked_for_fits(seed):
    draw = random.Random(seed)
    head = {name: anything(draw) for name in "abc"[: draw.randrange(4)]}
    items = [anything(draw) for _ in range(draw.choice([0, 1, 10, 30]))]
    answer = fit(Draft(head, "items", items))
    assert size(answer) <= MOST_TOKENS
    assert len(answer["items"]) + (answer["more"] or {"left": 0})["left"] == len(items)
    assert bool(answer["items"]) == bool(items)  # each call returns an item, so paging ends


def test_what_can_never_fit_does_not_stop_the_list():
    answer = fit(Draft({}, "items", [10**4200, "after"]))
    assert answer["items"] == ["(too large to show)"]
    assert answer["more"] == {"cursor": "1", "left": 1}


def test_what_is_cut_is_reported():
    answer = fit(Draft({"text": Own("y" * 50_000)}))
    assert answer["cut"]
    assert "…" in answer["text"]
    assert "cut" not in fit(Draft({"text": Own("y" * 500)}))


def test_the_largest_size_that_fits_is_taken():
    def drafted(count: int) -> Draft:
        return Draft({}, "numbers", [list(range(1000, 1000 + count))])

    count = len(fit_size(drafted, 10_000)["numbers"][0])
    assert MOST_TOKENS * 0.8 < size(fit_size(drafted, 10_000)) <= MOST_TOKENS
    assert len(fit_size(drafted, 20)["numbers"][0]) == 20 < count


@pytest.mark.parametrize(
    ("tool", "given", "error"),
    [
        ("run_summary", {}, "wrong_question"),
        ("run_summary", {"run": "wide", "part": "x"}, "wrong_question"),
        ("run_summary", {"run": "wode"}, "not_found"),
        ("list_metrics", {"run": "wide", "cursor": "-1"}, "wrong_question"),
        ("series", {"run": "wide", "names": ["kll"]}, "unknown_metric"),
        ("series", {"run": "wide", "names": ["kl"] * 9}, "wrong_question"),
        ("series", {"run": "wide", "names": ["kl"], "x": "tokens"}, "wrong_question"),
        ("series", {"run": "wide", "names": ["kl"], "start": "soon"}, "wrong_question"),
        ("compare", {"runs": ["wide"]}, "wrong_question"),
        ("explain", {"name": "no such thing"}, "unknown_metric"),
        ("rollouts", {"run": "wide", "step": 6}, "not_found"),
        ("rollout_text", {"run": "wide", "step": 10, "group": "9"}, "not_found"),
        ("rollout_text", {"run": "wide", "step": 10, "group": "1", "rollout": 9}, "not_found"),
        ("rollout_diff", {"run": "wide", "before": 5, "after": 6}, "not_found"),
        ("check_log", {"path": "wide/checkpoint-1"}, "not_a_log"),
        ("forget", {}, "wrong_question"),
    ],
)
def test_a_question_without_an_answer_is_refused_in_a_sentence(folder, tool, given, error):
    with pytest.raises(Refused) as refused:
        ask(folder, tool, given)
    assert refused.value.facts["error"] == error
    assert len(refused.value.facts["message"]) > 20


def test_a_name_that_is_near_is_offered(folder):
    with pytest.raises(Refused) as refused:
        ask(folder, "run_summary", {"run": "wode"})
    assert "'wide'" in refused.value.facts["message"]


def test_a_cursor_beyond_the_end_gives_nothing_and_no_more(folder):
    answer = ask(folder, "list_metrics", {"run": "wide", "cursor": "100000"})
    assert (answer["metrics"], answer["more"]) == ([], None)
