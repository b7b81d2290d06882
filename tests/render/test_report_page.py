"""The report as a page and as Markdown: complete, self-contained, and no text of a run is read as markup."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest

import rlvitals
from judged_logs import dying_rows, healthy_rows
from rlvitals.compute import groups
from rlvitals.records import Finding, Group, Rollout, ToolCall, Turn
from rlvitals.render.numbers import number
from rlvitals.render.report import ReportTable, compared_table, evaluations_table
from rlvitals.render.report_html import page
from rlvitals.render.report_markdown import code, markdown, plain, spark
from rlvitals.render.run_plots import Mark, Panel, Picture, PlotLine
from rlvitals.render.svg_panels import BUCKETS, HEIGHT, WIDTH, panel_figure, sparkline
from rlvitals.views.report import gather

EVIL = (
    "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&lt;\x1b[2J\u202e`|*_[x](http://evil.example)@everyone #1"
)
VOID = {"meta", "br"}


class Seen(HTMLParser):
    """The content of a page as a browser parses it: elements, attributes, text, and elements that are not closed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.style = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attributes]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attributes]

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] == ["style"]:
            self.style += data
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


def assert_stands_alone(seen: Seen) -> None:
    """The page runs no script, loads nothing and closes all its elements."""
    assert not seen.open
    assert not {"script", "img", "iframe", "object", "embed", "link", "base", "form", "audio", "video"} & set(seen.tags)
    assert not [name for _, name, _ in seen.attributes if name.startswith("on") or name in ("src", "srcset", "style")]
    assert all(value.startswith("#") for _, name, value in seen.attributes if name.endswith("href"))
    assert not re.search(r"url\(|@import|expression", seen.style)
    policies = [value for _, name, value in seen.attributes if name == "content" and "default-src" in (value or "")]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]


def record(path, rows, **options):
    with rlvitals.start(path, display="none", **options) as run:
        for row in rows:
            run.log({name: value for name, value in row.items() if name != "step"}, step=row["step"])
    return path


@pytest.fixture
def hostile(tmp_path):
    rules = tmp_path / "rules.yaml"
    rules.write_text("rules: []")
    rollout = Rollout(
        reward=1.0,
        outcome=EVIL,
        stop=EVIL,
        error=EVIL,
        reward_parts={EVIL: 1.0},
        rubric={EVIL: EVIL},
        turns=(Turn(EVIL, (ToolCall(EVIL, {EVIL: EVIL}, EVIL, EVIL),), EVIL, EVIL),),
    )
    group = Group(prompt=EVIL + "\n```\n# not a heading", id=EVIL, answer=EVIL, rollouts=(rollout, Rollout(reward=0.0)))
    with rlvitals.start(tmp_path / "run", name=EVIL, config={EVIL: EVIL, "n": {EVIL: [EVIL]}}, display="none") as run:
        for row in dying_rows():
            numbers = {name: value for name, value in row.items() if name != "step"}
            run.log({**numbers, EVIL: row["loss"], "note": EVIL, "epoch": row["step"] // 20}, step=row["step"])
        run.log_eval({"accuracy": 0.5, EVIL: 0.25})
        run.log_groups(groups.advantages([group]), step=70)
    return tmp_path / "run"


@pytest.fixture
def sick(tmp_path):
    return gather(record(tmp_path / "sick", dying_rows(), algorithm="grpo", config={"lr": 5e-7}))


def test_the_page_holds_every_part_and_nothing_else_is_needed(sick):
    seen = Seen(page(sick))
    assert_stands_alone(seen)
    for words in (
        "✖ Act",
        "Findings",
        "Curves",
        "Settings",
        "Environment",
        "dead_gradient",
        "since step 41",
        "5e-07",
        "Last and best values",
        ": critical",
    ):  # the title of a part of the bar of steps
        assert words in seen.text
    assert ("rect", "class", "act") in seen.attributes


def test_the_page_names_what_it_leaves_out_and_what_could_not_be_read(sick, tmp_path):
    path = record(tmp_path / "run", healthy_rows())
    with rlvitals.start(path, resume=True, display="none") as run:
        for step in range(1, 33):
            run.log_eval({"accuracy": step / 100}, step=step)
    (path / "eval_logs" / "eval_step_0032.json").write_text("{")
    report = gather(path)
    picture = replace(report.curves, remarks=[("watch", "compare with care")])
    seen = Seen(page(replace(report, curves=picture)))
    assert "the last 30 of 32 evaluations" in seen.text
    assert "eval_step_0032.json" in seen.text
    assert ("li", "class", "watch") in seen.attributes
    assert "compare with care" in seen.text


def test_the_pages_numbers_are_the_runs(tmp_path):
    rows = healthy_rows()
    seen = Seen(page(gather(record(tmp_path / "run", rows, algorithm="grpo"))))
    last, highest, lowest = (number(pick(row["reward"] for row in rows)) for pick in (last_of, max, min))
    assert f"last {last} · {lowest} to {highest}" in seen.text
    labels = [value for tag, name, value in seen.attributes if (tag, name) == ("svg", "aria-label")]
    assert any(value.startswith("Mean reward") and f"last {last}" in value for value in labels)


def last_of(values):
    return list(values)[-1]


def test_a_hostile_run_stays_text(hostile):
    report = gather(hostile, [hostile])
    text = page(report)
    seen = Seen(text)
    assert_stands_alone(seen)
    assert "<script" not in text
    assert "<img" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert seen.text.count("<script>alert(1)</script>") > 10  # all of it is shown as text


def test_a_hostile_run_stays_text_in_markdown_too(hostile):
    text = markdown(gather(hostile, [hostile]))
    assert "\x1b" not in text
    assert "\u202e" not in text
    outside = re.sub(r"(?ms)^(`{3,})text\n.*?^\1$", "", text)
    outside = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", outside)
    assert "<script" not in outside
    assert "<img" not in outside
    assert "@everyone" not in outside
    parsed = re.sub("<summary>.*", "", outside)  # a summary is HTML: Markdown is not parsed in it
    assert not re.search(r"(?<!\\)\]\(", parsed)
    assert not re.search(r"(?<!\\)://", parsed)
    assert not re.search(r"#\d", outside.replace("&#8203;", "_"))
    assert set(re.findall(r"</?(\w+)", outside)) <= {"details", "summary", "sub"}


def test_every_line_of_a_markdown_table_has_as_many_cells(hostile):
    width = None
    for line in markdown(gather(hostile, [hostile])).split("\n"):
        if not line.startswith("|"):
            width = None
            continue
        cells = len(re.findall(r"(?<!\\)\|", line)) - 1
        assert width in (None, cells), line
        width = cells


def test_markdown_tells_verdict_evidence_and_settings(sick):
    text = markdown(sick)
    assert text.startswith("## ✖ Act: sick\n")
    assert "started at step 41, critical at 50" in text
    assert "| `grad_norm` | ✖ 0 |" in text
    assert "| `lr` | 5e-07 |" in text
    assert "\n  - do: check that parameters have requires\\_grad" in text


def test_attempts_are_distinguished_and_what_was_abandoned_stays_visible(tmp_path):
    rows = healthy_rows()
    path = record(tmp_path / "run", rows[:30], config={"lr": 1e-6})
    with rlvitals.start(path, resume=20, config={"lr": 2e-6}, display="none") as run:
        for row in rows[20:]:
            run.log({name: value for name, value in row.items() if name != "step"}, step=row["step"])
    seen = Seen(page(gather(path)))
    assert {"ghost", "boundary"} <= {value for _, name, value in seen.attributes if name == "class"}
    assert "2 attempts, 10 rows superseded" in seen.text
    assert "from step 20; lr: 1e-06 -> 2e-06" in seen.text


def test_a_healthy_run_has_no_findings_section(tmp_path):
    report = gather(record(tmp_path / "run", healthy_rows()))
    assert 'id="findings"' not in page(report)
    assert "### Findings" not in markdown(report)


def test_a_run_without_rows_is_a_page(tmp_path):
    report = gather(record(tmp_path / "run", []))
    assert_stands_alone(Seen(page(report)))
    assert "Cannot judge" in markdown(report)


def figure(y, **parts):
    line = PlotLine(
        "loss", np.arange(1.0, len(y) + 1), np.array(y, dtype=float), is_sparse=parts.pop("is_sparse", False)
    )
    panel = Panel("Loss", "loss", [line], **parts)
    return Seen(panel_figure(panel, Picture("t", "a", "step", [panel])))


def points_of(seen, tag="polyline", style="middle s0"):
    found = []
    for place, (name, attribute, value) in enumerate(seen.attributes):
        if (name, attribute) == (tag, "points") and ("class", style) == seen.attributes[place - 1][1:]:
            found.append([tuple(map(float, pair.split(","))) for pair in value.split()])
    return found


def test_a_curve_is_where_its_numbers_are():
    (line,) = points_of(figure([0.0, 10.0, 5.0]))
    assert line[0][0] < line[1][0] < line[2][0]
    assert line[1][1] < line[2][1] < line[0][1]  # in SVG, y grows downwards
    assert line[2][1] == pytest.approx((line[0][1] + line[1][1]) / 2, abs=0.1)
    assert line[1][0] == pytest.approx((line[0][0] + line[2][0]) / 2, abs=0.1)


def test_numbers_of_many_sizes_are_on_an_axis_that_shows_them_and_is_named():
    powers = figure([10.0**power for power in range(-3, 6)])
    assert "log axis" in powers.text
    ((*places,),) = points_of(powers)
    steps = [later - earlier for (_, earlier), (_, later) in pairwise(places)]
    assert steps == pytest.approx([steps[0]] * 8, abs=0.11)
    assert HEIGHT - 20 > places[0][1] > places[-1][1] > 0
    both = figure([-1e5, -1.0, 0.0, 1.0, 1e5, *[0.5, -0.5] * 20])
    assert "symlog axis" in both.text
    (((_, low), _, (_, zero), (_, one), (_, high), *_),) = points_of(both)
    assert zero - one > 2  # in units of the picture; on a linear axis it would be 0.001
    assert low - zero == pytest.approx(zero - high, abs=0.11)
    assert [seen.attributes.count(("line", "class", "axis")) for seen in (powers, figure([1.0]))] == [3, 2]
    assert sparkline([], "reward") == sparkline([[1, None]], "reward") == ""


def test_a_gap_is_not_drawn_over_and_what_is_not_finite_is_counted():
    seen = figure([1.0, 2.0, math.nan, math.inf, 3.0])
    assert [len(line) for line in points_of(seen)] == [2, 2]  # a line of two points; a single point drawn as a dot
    assert "2 not finite" in seen.text


def test_what_is_not_finite_is_counted_over_all_lines():
    values = {"whole": [1, 2, 3, 4], "one": [1, math.nan, 3, 4], "two": [math.inf, 2, 3, math.nan]}
    lines = [PlotLine(name, np.arange(4.0), np.array(y, dtype=float)) for name, y in values.items()]
    panel = Panel("Loss", "loss", lines)
    assert panel.not_finite.tolist() == [0.0, 1.0, 3.0]
    seen = Seen(panel_figure(panel, Picture("t", "a", "step", [panel])))
    assert "3 not finite" in seen.text
    assert seen.text.count("✕") == 3


def test_thinning_keeps_a_single_spike_and_says_so():
    values = [1.0] * 5000
    values[3210] = 90.0
    seen = figure(values)
    ((*corners,),) = points_of(seen, "polygon", "range s0")
    assert min(y for _, y in corners) < 40  # the top of the picture
    assert f"{BUCKETS} of 5,000 points, every extreme kept" in seen.text


def test_nothing_finite_is_reported_and_not_drawn():
    seen = figure([math.nan, math.nan])
    assert "no finite value in 2 points" in seen.text
    assert "svg" not in seen.tags


@pytest.mark.parametrize(
    "values", [[1.7e308, -1.7e308, 0.0], [5e-324, 1e300] * 9, [0.0] * 9, [3.0], [-1e9, *[0.1] * 50, 1e9], [1e-9] * 99]
)
def test_whatever_the_numbers_the_picture_stays_in_its_frame(values):
    band, marks = (0.0, 1e300), [Mark(1.0, "critical", 1), Mark(99.0, "warning", 2, is_about=False)]
    ghosts = [PlotLine("old", np.ones(1), np.array(values[:1])), PlotLine("none", np.zeros(0), np.zeros(0))]
    seen = figure(values, band=band, marks=marks, ghosts=ghosts)
    for line in points_of(seen):
        assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in line)
    numbers = [value for _, name, value in seen.attributes if name in ("x1", "y1", "x", "y", "width", "height")]
    assert all(math.isfinite(float(value)) for value in numbers)


def test_the_typical_range_is_drawn_within_the_axis():
    seen = figure([1.0, 2.0, 3.0], band=(2.0, 100.0))
    assert ("rect", "class", "band") in seen.attributes
    assert "typical: 2 to 100" in seen.text


def test_evaluations_have_a_dot_with_its_number():
    seen = figure([0.25, 0.5], is_sparse=True)
    assert seen.tags.count("circle") == 2
    assert "2: 0.5" in seen.text


def test_many_evaluations_are_cut_to_the_newest_and_say_so():
    table = evaluations_table({"evaluations": [{"step": step, "accuracy": step / 100} for step in range(100)]})
    assert table.rows[-1] == ["99", "0.99"]
    assert len(table.rows) == 30
    assert table.note == "the last 30 of 100 evaluations"


def test_what_is_not_the_same_quantity_is_left_out_of_the_comparison():
    best = {"last": 1.0, "best": None}
    metric = {"name": "kl", "verdict": "different", "best": [best, best], "first_divergence": None}
    runs = [{"name": "a", "path": "a"}, {"name": "b", "path": "b"}]
    table = compared_table({"runs": runs, "metrics": [metric, metric | {"name": "loss", "verdict": "same"}]})
    assert isinstance(table, ReportTable)
    assert [row[0] for row in table.rows] == ["loss"]
    assert table.note == "left out, not the same quantity: kl"


def test_code_and_plain_text_hold_whatever_they_are_given():
    assert code("```") == "```` ``` ````"
    assert plain("1. one") == "1\\. one"
    assert plain("- www.x.y https://x") == "\\- www\\.x.y https\\://x"
    assert plain(":tada: at 19:46") == "\\:tada: at 19:46"
    assert spark([[1, None]]) == ""
    assert spark([[1, 2.0], [2, 2.0]]) == "▄▄"


def test_a_finding_and_a_run_show_themselves_in_a_notebook(hostile, tmp_path):
    finding = Finding("r", "data", "critical", 5, 4, EVIL, advice=(EVIL,), causes=(EVIL,))
    cards = [finding._repr_html_(), rlvitals.open_run(hostile)._repr_html_()]
    with rlvitals.start(tmp_path / "live", name=EVIL, display="none") as run:
        cards.append(run._repr_html_())
        run.log({EVIL: 0.5}, step=3)
        cards.append(run._repr_html_())
    for card in cards:
        seen = Seen(card)
        assert not seen.open
        assert set(seen.tags) <= {"div", "b", "table", "tbody", "tr", "td", "svg", "polyline"}
        assert "<script>alert(1)</script>" in seen.text
        assert len(card) < 20_000
    assert "dead_gradient" in cards[1]
    assert "step 70" in cards[1]
    assert "no rows yet" in cards[2]
    assert "step 3" in cards[3]
    assert "0.5" in cards[3]
