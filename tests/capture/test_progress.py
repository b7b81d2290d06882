"""Bars in a real terminal and outside one: the drawing, the lines that remain after a loop, and no harm to the loop."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

import rlvitals
from rlvitals.capture.progress import Progress

pytestmark = pytest.mark.slow

PIECES = re.compile(r"\x1b\[(?P<count>\d*)(?P<move>[A-Za-z])|(?P<control>[\r\n])|(?P<text>[^\x1b\r\n]+)")


def in_a_terminal(code: str, columns: int = 100, **environment: str) -> str:
    """The output of a script in a separate terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    script = f"import sys, time\nfrom rlvitals.capture.progress import Progress\n{code}"
    child = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=theirs, stdout=theirs, stderr=theirs,
        env={**os.environ, "TERM": "xterm", "PYTHONIOENCODING": "utf-8", **environment},
    )  # fmt: skip
    os.close(theirs)
    written = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        written += piece
    child.wait()
    os.close(ours)
    return written.decode()


def screen(written: str) -> list[str]:
    """The lines that a terminal shows at the end. Supports the few cursor movements that bars use."""
    lines, row, column = [""], 0, 0
    for piece in PIECES.finditer(written):
        if piece["move"] == "A":
            row = max(0, row - int(piece["count"] or 1))
        elif piece["move"] in ("K", "J"):
            lines[row] = lines[row][:column]
            if piece["move"] == "J":
                del lines[row + 1 :]
        elif piece["control"] == "\r":
            column = 0
        elif piece["control"] == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif piece["text"]:
            text = piece["text"]
            lines[row] = lines[row].ljust(column)[:column] + text + lines[row][column + len(text) :]
            column += len(text)
        else:
            raise AssertionError(f"an unknown movement: {piece[0]!r}")
    return [line.rstrip() for line in lines if line.strip()]


def without_times(line: str) -> str:
    return re.sub(r"\[.*?\]", "[]", line)


def test_a_bar_and_its_numbers_stay_when_the_epoch_is_over():
    written = in_a_terminal(
        "bar = Progress(range(8), epoch=3, epochs=10, total_steps=1000)\n"
        "for step in bar:\n"
        "    bar.see(300 + step, {'train/loss': 2.34561, 'reward': 0.78214, 'learning_rate': 1e-5})\n"
        "    time.sleep(0.06)\n"
    )
    assert [without_times(line) for line in screen(written)] == [
        "Epoch 3/10 |████████████████████| 8/8 []",
        "  loss: 2.3456  reward: 0.7821  lr: 1.00e-05  step: 307/1000",
    ]
    assert re.search(r"\| [1-7]/8 \[", written)  # it moved
    assert re.search(r"8/8 \[00:0\d<00:00, \d+\.\d\dbatch/s\]", written)


def test_an_evaluation_inside_an_epoch_has_its_bar_below_and_leaves_it_above():
    written = in_a_terminal(
        "for step in Progress(range(4), epoch=1, epochs=2):\n"
        "    time.sleep(0.11)\n"
        "    if step == 1:\n"
        "        bar = Progress([[0] * 8] * 5, evaluating=True)\n"
        "        for batch in bar:\n"
        "            time.sleep(0.11)\n"
        "            bar.score([0.5, 0.9, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7])\n"
    )
    assert [without_times(line) for line in screen(written)] == [
        "Evaluating |████████████████| 5/5 []",
        "  processed: 40  avg_reward: 0.7000",
        "Epoch 1/2 |████████████████████| 4/4 []",
    ]
    together = [
        screen(written[: match.end()])
        for match in re.finditer(re.escape("\x1b[J"), written)
        if "Evaluating" in written[: match.end()]
    ]
    assert any("Epoch" in lines[0] and "Evaluating" in lines[1] for lines in together)


def test_an_exception_leaves_a_clean_terminal():
    lines = screen(
        in_a_terminal(
            "for step in Progress(range(10), epoch=1, epochs=2):\n"
            "    time.sleep(0.06)\n"
            "    if step == 5: raise RuntimeError('boom')\n"
        )
    )
    assert without_times(lines[0]) == "Epoch 1/2 |██████████          | 5/10 []"
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[-1] == "RuntimeError: boom"


def test_a_loop_that_is_left_early_makes_room_for_the_next_line():
    lines = screen(
        in_a_terminal(
            "for step in Progress(range(10), epoch=1, epochs=2):\n"
            "    if step == 5: break\n"
            "print('after', file=sys.stderr)\n"
            "try:\n"
            "    for step in Progress(range(10), epoch=2, epochs=2): raise ValueError\n"
            "except ValueError:\n"
            "    print('caught', file=sys.stderr)\n"
        )
    )
    assert [without_times(line) for line in lines] == [
        "Epoch 1/2 |██████████          | 5/10 []",
        "after",
        "Epoch 2/2 |                    | 0/10 []",
        "caught",
    ]


def test_what_the_run_prints_stands_above_the_bar(tmp_path):
    written = in_a_terminal(
        "import rlvitals\n"
        f"run = rlvitals.start({str(tmp_path / 'run')!r}, display='plain', total_steps=6, monitor=False)\n"
        "for step in run.progress(range(1, 7), epoch=1, epochs=1):\n"
        "    time.sleep(0.06)\n"
        "    run.log({'loss': 1.0 / step}, step=step)\n"
        "run.finish()\n"
    )
    lines = screen(written)
    assert [line.split()[:2] for line in lines[:6]] == [["step", f"{step}/6"] for step in range(1, 7)]
    assert without_times(lines[6]) == "Epoch 1/1 |████████████████████| 6/6 []"
    assert lines[7] == "  loss: 0.1667  step: 6/6"


def test_ascii_and_width_are_settings():
    lines = screen(in_a_terminal("for _ in Progress(range(3), epoch=1, ascii=True, width=60): pass"))
    assert len(lines[0]) == 60
    assert re.match(r"Epoch 1 \|#+\| 3/3 ", lines[0])


@pytest.mark.parametrize("environment", [{"PYTHONIOENCODING": "ascii"}, {"TERM": "dumb"}])
def test_a_terminal_that_cannot_show_blocks_gets_ascii(environment):
    written = in_a_terminal("for _ in Progress(range(3), epoch=1, epochs=1): time.sleep(0.11)", **environment)
    assert written.isascii()
    assert without_times(screen(written)[-1]) == "Epoch 1/1 |####################| 3/3 []"


def test_a_dumb_terminal_gets_no_cursor_movements():
    written = in_a_terminal(
        "bar = Progress(range(3), epoch=1, epochs=1)\nfor step in bar: bar.see(step, {'loss': 0.5}); time.sleep(0.11)",
        TERM="dumb",
    )
    assert "\x1b" not in written
    assert without_times(screen(written)[0]) == "Epoch 1/1 |####################| 3/3 []"


def test_a_narrow_terminal_is_not_overrun():
    written = in_a_terminal(
        "bar = Progress(range(3), epoch=1, epochs=1)\n"
        "for step in bar: bar.set(one=1.0, two=2.0, three=3.0, four=4.0); time.sleep(0.11)",
        columns=40,
    )
    assert max(map(len, screen(written))) < 40


# Without a terminal


class Clock:
    """A clock that the test advances."""

    def __init__(self):
        self.time = 0.0

    def __call__(self):
        return self.time


def plain(iterable, seconds: float, **settings) -> list[str]:
    """The lines of a loop with iterations of `seconds` seconds."""
    clock, stream = Clock(), io.StringIO()
    for _ in Progress(iterable, stream=stream, now=clock, **settings):
        clock.time += seconds
    return stream.getvalue().splitlines()


def test_without_a_terminal_a_plain_line_comes_every_tenth():
    lines = plain(range(100), 3.32, epoch=3, epochs=10)
    assert lines[0] == "Epoch 3/10  10/100 [00:33<04:58, 3.32s/batch]"
    assert [line.split()[2].split("/")[0] for line in lines] == [str(done) for done in range(10, 101, 10)]


def test_a_quick_loop_says_one_line():
    assert plain(range(100), 0.001, epoch=1) == ["Epoch 1  100/100 [00:00<00:00, 1000.00batch/s]"]


def test_an_unknown_length_is_printed_every_half_minute():
    lines = plain(iter(range(100)), 1.0, evaluating=True)
    assert [line.split()[1] for line in lines] == ["30", "60", "90", "100"]


def test_no_escape_sequence_reaches_a_log(tmp_path):
    stream = io.StringIO()
    bar = Progress(range(3), epoch=1, stream=stream)
    for _ in bar:
        bar.set(**{"evil\x1b[2J": 1.0})
    assert "\x1b" not in stream.getvalue()


# Numbers.


def fields(bar) -> str:
    return bar.lines(200)[-1].strip()


def test_the_numbers_come_from_the_runs_rows_whatever_the_trainer_calls_them(tmp_path):
    with rlvitals.start(tmp_path / "run", total_steps=400, monitor=False) as run:
        bar = run.progress(range(3), epoch=1, epochs=1, stream=io.StringIO())
        for step in bar:
            run.log({"actor/lr": 1e-6, "time": 3.0}, step=step)
            run.log({"critic/score/mean": 0.5 * step, "loss": float("nan") if step == 2 else 0.25}, step=step)
        assert fields(bar) == "loss: nan  reward: 1.0000  lr: 1.00e-06  step: 2/400"


def test_a_finished_bar_sees_no_more_rows(tmp_path):
    with rlvitals.start(tmp_path / "run", monitor=False) as run:
        for epoch in range(1, 6):
            for step in run.progress(range(2), epoch=epoch, stream=io.StringIO()):
                run.log({"loss": 1.0}, step=step)
        (bar,) = run._display._bars
        run.log({"loss": 2.0}, step=10)
        assert "loss: 1.0000" in fields(bar)


def test_an_evaluation_counts_the_samples_of_its_batches():
    for batch, size in (([1] * 8, 8), ({"input_ids": [1] * 4, "labels": [1] * 4}, 4), ("a prompt", 1), (7, 1)):
        bar = Progress([batch] * 3, evaluating=True, stream=io.StringIO())
        for _ in bar:
            pass
        assert fields(bar) == f"processed: {3 * size}"


def test_the_average_reward_is_of_samples_not_of_batches():
    bar = Progress([[0] * 9, [0]], evaluating=True, stream=io.StringIO())
    for rewards, _ in zip(([1.0] * 9, [0.0]), bar, strict=False):
        bar.score(rewards)
    assert fields(bar) == "processed: 10  avg_reward: 0.9000"


def test_arrays_of_rewards_are_taken():
    import numpy as np

    bar = Progress([0], evaluating=True, stream=io.StringIO())
    for _ in bar:
        bar.score(np.array([0.25, 0.75]))
        bar.set(pass_rate=np.float32(0.5))
    assert fields(bar) == "processed: 2  avg_reward: 0.5000  pass_rate: 0.5000"


# No harm to the loop


def test_every_item_comes_through_in_order_and_the_loop_may_be_repeated():
    bar = Progress([3, 1, 2], stream=io.StringIO())
    assert list(bar) == [3, 1, 2]
    assert list(bar) == [3, 1, 2]


def test_a_broken_stream_costs_no_item():
    class Broken(io.StringIO):
        def write(self, text):
            raise OSError("gone")

    assert list(Progress(range(100), stream=Broken())) == list(range(100))
    closed = io.StringIO()
    closed.close()
    assert list(Progress(range(5), stream=closed)) == list(range(5))


def test_disable_draws_nothing_and_so_do_other_ranks(tmp_path, capsys):
    assert list(Progress(range(5), disable=True)) == list(range(5))
    with rlvitals.start(tmp_path / "run", monitor=False), rlvitals.start(tmp_path / "run", rank=1) as other:
        assert list(other.progress(range(5), epoch=1)) == list(range(5))
    assert capsys.readouterr().err == ""


def test_a_length_that_raises_is_unknown():
    class Stream:
        def __iter__(self):
            return iter(range(3))

        def __len__(self):
            raise TypeError("no length")

    stream = io.StringIO()
    assert list(Progress(Stream(), epoch=1, stream=stream)) == [0, 1, 2]
    assert stream.getvalue().startswith("Epoch 1  3 [")
