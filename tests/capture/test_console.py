"""When and where a run's steps are printed, and that printing never disturbs a training."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import pytest

from rlvitals.capture.console import DISPLAYS, PACE_ROWS, Console, Pace, open_console
from rlvitals.errors import ConfigError


def kto_row(step, **others):
    """A row as the run writes it, with two seconds per step."""
    return {"step": step, "timestamp": step * 2.0, "attempt": 1, "loss": 0.62, "rewards/margins": 0.027, **others}


def printed(steps, *args, rows=None, finish=False, **kwargs):
    """The lines that a console prints for some steps."""
    stream = io.StringIO()
    console = Console(*args, stream=stream, started=0.0, **kwargs)
    for step in steps:
        console.step(step, (rows or {}).get(step) or kto_row(step), step * 2.0)
    assert console.is_on or args[0] == "none"
    if finish:
        console.finish(now=100.0)
    return stream.getvalue().splitlines()


def steps_of(lines):
    return [int(line.split()[0]) for line in lines if line[0] in "-0123456789"]


def test_plain_is_one_line_a_step_with_progress_and_eta(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert printed([9, 10], "plain", total_steps=145, algorithm="kto", finish=True) == [
        "step   9/145  margins 0.027  loss 0.62",
        "step  10/145  margins 0.027  loss 0.62  eta 4 min 30 s",
        "finished at step 10/145 after 1 min 40 s",
    ]


def test_the_kto_table_is_printed_every_five_steps():
    assert printed(range(1, 13), "plain", "kto") == [
        "Step     Loss    Chosen  Reject  Margin",
        "5        0.620                   0.027",
        "10       0.620                   0.027",
    ]


def test_json_is_one_strict_line_a_step_and_nothing_else():
    row = kto_row(7, _nonfinite="kl=nan grad%20norm=-inf", _m={"loss": [1, 0.62, 0, 0.62, 0.62]}, note="x")
    (line,) = printed([7], "json", rows={7: row}, total_steps=9, finish=True)
    tag, _, text = line.partition(" ")
    assert tag == "metrics_tag:"
    assert json.loads(text, parse_constant=pytest.fail) == {
        "step": 7,
        "metrics": {"loss": 0.62, "rewards/margins": 0.027, "note": "x", "kl": "nan", "grad norm": "-inf"},
    }


def test_a_number_that_is_none_is_printed_and_a_missing_one_is_not():
    row = {"step": 1, "timestamp": 2.0, "attempt": 1, "note": "text", "_nonfinite": "loss=nan"}
    assert printed([1], "plain", rows={1: row}) == ["step 1  loss nan"]


@pytest.mark.parametrize(
    ("logged", "every", "expected"),
    [
        (range(0, 11), 5, [0, 5, 10]),
        (range(51, 62), 5, [55, 60]),
        (range(3, 25, 3), 5, [6, 12, 15, 21]),  # a trainer that logs every three steps
        ([1, 5, 4, 6, 7, 10], 5, [5, 10]),  # a late row
        ([5, 5, 6], 5, [5, 5]),  # all rows of a step are printed
        ([6, 6], 5, []),
        ([1, 2, 10, 1, 2], 1, [1, 2, 10, 1, 2]),
        ([-3, -2, -1], 2, [-2]),
        (range(95, 99), 5, [95, 98]),  # the last step is always shown
    ],
)
def test_which_steps_are_due(logged, every, expected):
    assert steps_of(printed(logged, "plain", "kto", every, 98)) == expected


def test_a_due_row_with_nothing_to_show_leaves_its_turn_to_the_next():
    rows = {6: {"step": 6, "learning_rate": 5e-7}}
    assert steps_of(printed([3, 6, 7, 8], "plain", "kto", 5, rows=rows)) == [7]


def test_the_end_shows_the_last_row_that_was_not_its_turn():
    lines = printed(range(1, 9), "plain", "kto", finish=True, rows={8: {"step": 8, "train_runtime": 12.0}})
    assert lines[-2:] == ["7        0.620                   0.027", "finished at step 8 after 1 min 40 s"]
    assert steps_of(printed(range(1, 6), "plain", "kto", finish=True)) == [5]


def test_a_failure_is_printed_and_a_run_without_rows_prints_nothing():
    stream = io.StringIO()
    console = Console("plain", stream=stream, started=0.0)
    console.step(3, kto_row(3), 6.0)
    console.finish("failed", RuntimeError("out of memory"), now=61.0)
    assert stream.getvalue().splitlines()[-1] == "failed at step 3 after 1 min 1 s: RuntimeError: out of memory"
    console.step(4, kto_row(4), 8.0)
    console.finish()
    assert len(stream.getvalue().splitlines()) == 2
    assert printed([], "plain", finish=True) == []


def test_the_eta_is_this_attempts_own_pace():
    pace = Pace()
    assert pace.eta(100, 145) is None
    pace.note(101, 5000.0)  # resumed at step 100, long after the first attempt began
    assert pace.eta(101, 145) is None
    pace.note(102, 5010.0)
    pace.note(102, 5011.0)  # a second row of the step
    pace.note(99, 5012.0)  # a late row
    assert pace.eta(102, 145) == 430.0
    assert pace.eta(145, 145) is None
    assert pace.eta(150, 145) is None
    assert pace.eta(102, None) is None


def test_the_eta_forgets_a_slow_beginning_and_survives_a_clock_set_back():
    pace = Pace()
    pace.note(0, 0.0)
    for step in range(1, PACE_ROWS + 1):
        pace.note(step, 1000.0 + step)
    assert pace.eta(PACE_ROWS, PACE_ROWS + 50) == 50.0
    pace.note(PACE_ROWS + 1, -5000.0)
    assert pace.eta(PACE_ROWS + 1, PACE_ROWS + 50) is None


class Broken(io.StringIO):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def write(self, text):
        raise self.error


@pytest.mark.parametrize("display", ["plain", "json"])
@pytest.mark.parametrize("error", [BrokenPipeError(), ValueError("closed"), OSError(28, "full"), RuntimeError()])
def test_a_broken_stream_turns_it_off_without_a_word(display, error, capfd):
    console = Console(display, stream=Broken(error))
    console.step(1, kto_row(1), 2.0)
    assert not console.is_on
    console.step(2, kto_row(2), 4.0)
    console.finish()
    assert capfd.readouterr() == ("", "")


def test_a_stream_that_breaks_at_the_end_does_not_raise():
    stream = io.StringIO()
    console = Console("plain", stream=stream)
    console.step(1, kto_row(1), 2.0)
    stream.close()
    console.finish()
    assert not console.is_on


def test_a_closed_or_absent_stream_is_off_from_the_start(monkeypatch):
    closed = io.StringIO()
    closed.close()
    assert not Console("plain", stream=closed).is_on
    monkeypatch.setattr(sys, "stderr", None)  # a Windows program without a console
    assert not Console("auto").is_on


def test_a_strange_row_does_not_raise():
    console = Console("plain", "kto", stream=io.StringIO())
    console.step(5, {"step": 5, "_nonfinite": 7}, 1.0)
    assert not console.is_on


def test_an_encoding_that_lacks_letters_gets_escapes():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", newline="\n")
    for display in ("plain", "json"):
        Console(display, stream=stream).step(1, {"step": 1, "奖励": 0.5}, 1.0)
    assert raw.getvalue().decode("ascii").splitlines() == [
        r"step 1  \u5956\u52b1 0.5",
        r'metrics_tag: {"step":1,"metrics":{"\u5956\u52b1":0.5}}',
    ]


def test_the_width_is_that_of_the_terminal_or_the_one_asked_for(monkeypatch):
    monkeypatch.setenv("COLUMNS", "33")
    assert printed([1], "plain", algorithm="kto") == ["step 1  margins 0.027  loss 0.62"]
    monkeypatch.setenv("COLUMNS", "30")
    assert printed([1], "plain", algorithm="kto") == ["step 1  margins 0.027"]
    monkeypatch.setenv("COLUMNS", "nonsense")
    assert printed([1], "plain", algorithm="kto") == ["step 1  margins 0.027  loss 0.62"]


def test_unknown_names_are_errors_with_a_suggestion():
    with pytest.raises(
        ConfigError, match=r"unknown display 'plian'. Did you mean 'plain'\? Displays: alarms, none, auto, rich"
    ):
        Console("plian")
    with pytest.raises(ConfigError, match=r"unknown display layout 'ktoo'. Did you mean 'kto'\? Layouts: line, kto"):
        Console("none", "ktoo")


def test_it_prints_on_stderr_and_for_the_stdout_tracker_on_stdout(capsys):
    for display, trackers, rank in (("plain", (), 0), ("none", ("stdout",), 0), ("none", (), 0), ("plain", (), 1)):
        console = open_console(display, track_with=trackers, rank=rank)
        console.step(1, kto_row(1), 2.0)
    output = capsys.readouterr()
    assert output.err == "step 1  margins 0.027  loss 0.62\n"
    assert output.out == 'metrics_tag: {"step":1,"metrics":{"loss":0.62,"rewards/margins":0.027}}\n'
    open_console("plain", "kto", 1, track_with=("stdout",)).step(1, kto_row(1), 2.0)
    assert capsys.readouterr().out.startswith("Step     Loss")


QUIET = """
import sys
from rlvitals.capture.console import Console
console = Console({display!r}, {layout!r})
for step in range(1, 11):
    console.step(step, {{"step": step, "loss": 0.5}}, float(step))
console.finish()
sys.stdout.write(" ".join(sys.modules))
"""


@pytest.mark.slow
@pytest.mark.parametrize("display", [display for display in DISPLAYS if display != "rich"])
@pytest.mark.parametrize("layout", ["line", "kto"])
def test_nothing_is_imported_that_is_not_shown(display, layout, child_environment):
    code = QUIET.format(display=display, layout=layout)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=child_environment
    )
    modules = set(done.stdout.split())
    assert not modules & {"rich", "numpy", "yaml"}
    assert bool(done.stderr) is (display not in ("none", "alarms"))
    if display == "none":
        assert "rlvitals.catalog" not in modules


@contextmanager
def terminal(columns):
    """A real terminal: a stream that writes to it, and a function that closes the stream and returns its output."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    stream = os.fdopen(theirs, "w", encoding="utf-8")

    def received():
        stream.close()
        got = b""
        with suppress(OSError):  # Linux raises at the end of the output
            while piece := os.read(ours, 65536):
                got += piece
        return got.decode().replace("\r\n", "\n")

    try:
        yield stream, received
    finally:
        stream.close()
        os.close(ours)


@pytest.fixture
def _colours(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


def without_colours(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.usefixtures("_colours")
@pytest.mark.parametrize("display", ["auto", "rich"])
def test_on_a_terminal_it_is_a_coloured_table(display):
    with terminal(80) as (stream, received):
        console = Console(display, total_steps=145, stream=stream, algorithm="kto", started=0.0)
        console.step(9, kto_row(9), 18.0)
        console.step(10, {"step": 10, "rewards/margins": 0.027, "_nonfinite": "loss=nan"}, 20.0)
        console.finish(now=60.0)
        text = received()
    assert without_colours(text).splitlines() == [
        "Step      margins      loss   Done  ETA",
        "9          0.0270     0.620     6%",
        "10         0.0270       nan     6%  4 min 30 s",
        "finished at step 10/145 after 1 min",
    ]
    assert "\x1b[1;31m       nan\x1b[0m" in text


@pytest.mark.usefixtures("_colours")
def test_a_terminal_may_be_narrow_resized_and_without_colours(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    with terminal(20) as (stream, received):
        console = Console("rich", "kto", 1, stream=stream)
        console.step(1, kto_row(1), 2.0)
        fcntl.ioctl(stream.fileno(), termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
        console.step(2, kto_row(2), 4.0)
        assert without_colours(received()).splitlines() == [
            "Step     Loss",
            "1        0.620",
            "Step     Loss    Chosen  Reject  Margin",
            "2        0.620                   0.027",
        ]


@pytest.mark.usefixtures("_colours")
def test_plain_on_a_terminal_is_plain():
    with terminal(40) as (stream, received):
        Console("plain", stream=stream).step(1, kto_row(1), 2.0)
        assert received() == "step 1  margins 0.027  loss 0.62\n"


@pytest.mark.usefixtures("_colours")
def test_a_terminal_that_hangs_up_turns_it_off():
    ours, theirs = pty.openpty()
    stream = os.fdopen(theirs, "w")
    console = Console("rich", stream=stream)
    console.step(1, kto_row(1), 2.0)
    assert console.is_on
    os.close(ours)
    console.step(2, kto_row(2), 4.0)
    assert not console.is_on
    with pytest.raises(OSError, match="Input/output"):
        stream.close()


def test_a_progress_bar_on_the_same_terminal_steps_aside(monkeypatch):
    with terminal(80) as (stream, received):

        @contextmanager
        def external_write_mode(file):
            assert file is stream
            stream.write("<bar away>\n")
            yield
            stream.write("<bar back>\n")
            stream.flush()

        bars = SimpleNamespace(tqdm=SimpleNamespace(external_write_mode=external_write_mode))
        monkeypatch.setitem(sys.modules, "tqdm", bars)
        Console("plain", stream=stream).step(1, kto_row(1), 2.0)
        assert received().splitlines() == ["<bar away>", "step 1  margins 0.027  loss 0.62", "<bar back>"]
