"""TensorBoard: real event files, read back by TensorBoard's own EventAccumulator and Custom Scalars plug-in."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("tensorboard", reason="needs the tensorboard package")

import numpy as np
from kills import kill_at_random
from rows import CONFIG, START, facts, files_with, row, rows, samples, write_log

from rlvitals.records import Attempt
from rlvitals.sinks.base import SinkError
from rlvitals.sinks.tensorboard import TensorBoardSink

pytestmark = pytest.mark.slow

RESUMED = (Attempt(1, START), Attempt(2, START + 1000, from_step=5))


def read(log_dir: Path):
    """A folder as TensorBoard reads it: all points, without the superseded ones."""
    from tensorboard.backend.event_processing.event_accumulator import (
        STORE_EVERYTHING_SIZE_GUIDANCE,
        EventAccumulator,
    )

    return EventAccumulator(str(log_dir), STORE_EVERYTHING_SIZE_GUIDANCE, purge_orphaned_data=True).Reload()


def points(log_dir: Path, tag: str) -> list[tuple[int, float]]:
    """The points of one metric. TensorBoard's two readers (for scripts and for its pages) must give the same."""
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

    found = [(event.step, event.value) for event in read(log_dir).Scalars(tag)]
    pages = EventAccumulator(str(log_dir), tensor_size_guidance={"scalars": 0}, purge_orphaned_data=True).Reload()
    shown = [(event.step, event.tensor_proto.float_val[0]) for event in pages.Tensors(tag)]
    assert repr(shown) == repr(found)
    return found


def text(log_dir: Path, tag: str) -> list[tuple[int, str]]:
    return [(event.step, event.tensor_proto.string_val[0].decode()) for event in read(log_dir).Tensors(tag)]


def at_float32(number: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(number))


def write(of, log_dir, *batches, memory=None):
    sink = TensorBoardSink(of, {"log_dir": str(log_dir)}, dict(memory or {}))
    for batch in batches:
        sink.write(batch)
        sink.commit()
    sink.close()
    return sink.memory


def test_every_value_is_at_its_step_and_time_at_float32(tmp_path):
    given = rows(range(1, 400))
    write(facts(tmp_path), tmp_path / "tb", given[:150], given[150:])
    for tag in ("loss", "rewards/margins"):
        expected = [(item.row.step, at_float32(item.row.numbers[tag])) for item in given]
        assert points(tmp_path / "tb", tag) == expected
    assert [event.wall_time for event in read(tmp_path / "tb").Scalars("loss")] == [START + n for n in range(1, 400)]


def test_late_and_repeated_steps_keep_every_value(tmp_path):
    given = [row(step, loss=float(number)) for number, step in enumerate([5, 1, 9, 2**53, 0, -3, 5])]
    write(facts(tmp_path), tmp_path / "tb", given)
    assert points(tmp_path / "tb", "loss") == [(item.row.step, item.row.numbers["loss"]) for item in given]


def test_numbers_that_are_not_finite_are_kept(tmp_path):
    write(facts(tmp_path), tmp_path / "tb", [row(1, a=math.nan, b=math.inf, c=-math.inf, d=1e300)])
    values = {tag: points(tmp_path / "tb", tag)[0][1] for tag in "abcd"}
    assert math.isnan(values["a"])
    assert (values["b"], values["c"], values["d"]) == (math.inf, -math.inf, math.inf)


def test_a_row_without_a_time_gets_the_present_one(tmp_path):
    before = time.time()
    write(facts(tmp_path), tmp_path / "tb", [row(1, loss=1.0, timestamp=math.nan)])
    assert before <= read(tmp_path / "tb").Scalars("loss")[0].wall_time <= time.time()


def test_texts_and_the_configuration_are_text_summaries(tmp_path):
    write(facts(tmp_path), tmp_path / "tb", [row(3, texts={"sample": "schön"}, loss=1.0, sample_length=4.0)])
    assert text(tmp_path / "tb", "sample/text_summary") == [(3, "schön")]
    assert "sample/text_summary" in read(tmp_path / "tb").PluginTagToContent("text")
    ((step, config),) = text(tmp_path / "tb", "config/text_summary")
    assert step == 0
    assert json.loads(config) == CONFIG


def test_a_name_may_be_a_number_here_and_a_text_there(tmp_path):
    write(facts(tmp_path), tmp_path / "tb", [row(1, kl=0.5), row(2, texts={"kl": "off"})])
    assert points(tmp_path / "tb", "kl") == [(1, 0.5)]
    assert text(tmp_path / "tb", "kl/text_summary") == [(2, "off")]


def test_evaluations_get_their_prefix(tmp_path):
    given = [row(1, loss=1.0), row(1, stream="eval", numbers={"loss": 2.0, "eval_kl": 3.0, "eval/f1": 4.0})]
    write(facts(tmp_path), tmp_path / "tb", given)
    assert sorted(read(tmp_path / "tb").Tags()["scalars"]) == ["eval/f1", "eval/loss", "eval_kl", "loss"]
    assert points(tmp_path / "tb", "eval/loss") == [(1, 2.0)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # TensorBoard's own, when its plug-in is imported
def test_metric_groups_are_the_custom_scalars_layout(tmp_path):
    from tensorboard import context
    from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
    from tensorboard.plugins import base_plugin
    from tensorboard.plugins.custom_scalar.custom_scalars_plugin import CustomScalarsPlugin

    of = facts(tmp_path)
    memory = write(of, tmp_path / "tb", rows([1, 2]), [row(2, stream="eval", loss=1.0, own=3.0)])
    write(of, tmp_path / "tb", rows([3]), memory=memory)
    multiplexer = plugin_event_multiplexer.EventMultiplexer().AddRunsFromDirectory(str(tmp_path / "tb")).Reload()
    provider = data_provider.MultiplexerDataProvider(multiplexer, str(tmp_path / "tb"))
    plugin = CustomScalarsPlugin(base_plugin.TBContext(data_provider=provider, multiplexer=multiplexer))
    layout = json.loads(plugin.layout_impl(context.RequestContext(), ""))
    charts = {chart["title"]: chart["multiline"]["tag"] for each in layout["category"] for chart in each["chart"]}
    assert "Vitals: KTO, DPO and relatives" in [category["title"] for category in layout["category"]]
    assert ["^eval/loss$", "^loss$"] in charts.values()
    assert [r"^rewards/margins$"] in charts.values()
    assert not any("own" in tag for tags in charts.values() for tag in tags)
    assert len(text_layouts(tmp_path / "tb")) == 2, "once when first possible, once when an evaluation joined"


def text_layouts(log_dir):
    return read(log_dir).Tensors("custom_scalars__config__")


def test_a_resumed_attempt_replaces_what_it_overtook(tmp_path):
    of = facts(tmp_path, RESUMED)
    memory = write(facts(tmp_path), tmp_path / "tb", rows(range(1, 11)))
    write(of, tmp_path / "tb", rows(range(6, 9), attempt=2), rows([4, 7], attempt=1, stream="eval"), memory=memory)
    living = [(step, at_float32(step / 10 + (1 if step < 6 else 2))) for step in range(1, 9)]
    assert points(tmp_path / "tb", "rewards/margins") == living
    assert points(tmp_path / "tb", "eval/rewards/margins") == [(4, at_float32(1.4))], "step 7 of attempt 1 is a ghost"


def test_an_attempt_that_does_not_say_where_it_came_from_is_cut_at_its_first_row(tmp_path):
    of = facts(tmp_path, (Attempt(1, START), Attempt(2, START + 1)))
    write(of, tmp_path / "tb", rows(range(0, 5)), rows(range(0, 3), attempt=2))
    assert points(tmp_path / "tb", "rewards/margins") == [(step, at_float32(step / 10 + 2)) for step in range(3)]
    assert len(text(tmp_path / "tb", "config/text_summary")) == 2, "written again, since step 0 was dropped"


def test_an_evaluation_before_the_first_row_of_an_attempt_survives_it(tmp_path):
    of = facts(tmp_path, (Attempt(1, START), Attempt(2, START + 1)))
    batches = [
        rows(range(1, 8)),
        [*rows([5], attempt=2, stream="eval"), *rows([6], attempt=2, stream="eval")],
        rows(range(5, 8), attempt=2),
    ]
    memory = {}
    for batch in batches:
        write_log(of, batch)
        memory = write(of, tmp_path / "tb", batch, memory=memory)
    expected = [(step, at_float32(step / 10 + (1 if step < 5 else 2))) for step in range(1, 8)]
    assert points(tmp_path / "tb", "rewards/margins") == expected
    assert points(tmp_path / "tb", "eval/rewards/margins") == [(5, 2.5), (6, at_float32(2.6))]


def test_streams_that_arrive_one_after_the_other_keep_three_attempts_apart(tmp_path):
    attempts = (Attempt(1, START), Attempt(2, START + 1, from_step=6), Attempt(3, START + 2, from_step=3))
    of = facts(tmp_path, attempts)
    logged = {1: range(1, 10), 2: range(7, 12), 3: range(4, 9)}
    train = [item for number, steps in logged.items() for item in rows(steps, attempt=number)]
    evals = [item for number, steps in logged.items() for item in rows(steps, attempt=number, stream="eval")]
    write_log(of, [*train, *evals])
    write(of, tmp_path / "tb", train[:2], evals[:-2], train[2:], evals[-2:])
    living = [(step, at_float32(step / 10 + (1 if step < 4 else 3))) for step in range(1, 9)]
    for tag in ("rewards/margins", "eval/rewards/margins"):
        assert sorted(points(tmp_path / "tb", tag)) == living


def test_rows_sent_again_after_an_error_are_read_once(tmp_path):
    of, settings = facts(tmp_path), {"log_dir": str(tmp_path / "tb")}
    sink = TensorBoardSink(of, settings, {})
    sink.write(rows(range(1, 6)))
    sink.abandon()
    memory = write(of, tmp_path / "tb", rows(range(1, 6)))
    sink = TensorBoardSink(of, settings, dict(memory))
    sink.write(rows(range(6, 20_000)))  # more than the buffer holds: some rows are in the file
    assert sum(path.stat().st_size for path in (tmp_path / "tb").iterdir()) > 2**20
    sink.abandon()
    write(of, tmp_path / "tb", rows(range(6, 12)), memory=memory)
    assert [step for step, _ in points(tmp_path / "tb", "loss")] == list(range(1, 12))


def test_rows_written_whose_cursor_was_not_saved_are_read_once(tmp_path):
    of = facts(tmp_path)
    memory = write(of, tmp_path / "tb", rows(range(1, 6)))
    write(of, tmp_path / "tb", rows(range(6, 9)), memory=memory)  # committed, and killed before the cursor was saved
    write(of, tmp_path / "tb", rows(range(6, 12)), memory=memory)
    assert [step for step, _ in points(tmp_path / "tb", "loss")] == list(range(1, 12))


def test_a_torn_record_is_cut_off(tmp_path):
    of = facts(tmp_path)
    memory = write(of, tmp_path / "tb", rows(range(1, 6)))
    (path,) = (tmp_path / "tb").iterdir()
    path.write_bytes(path.read_bytes() + b"\x40\0\0\0\0\0\0\0half a record")
    write(of, tmp_path / "tb", rows(range(6, 9)), memory=memory)
    assert [step for step, _ in points(tmp_path / "tb", "loss")] == list(range(1, 9))


def test_only_files_of_this_run_are_touched(tmp_path):
    others = {"events.out.tfevents.1763190000.host.1.0": b"x", "events.out.tfevents.1.rlvitals-other.000009": b"y"}
    (tmp_path / "tb").mkdir()
    for name, content in others.items():
        (tmp_path / "tb" / name).write_bytes(content)
    write(facts(tmp_path), tmp_path / "tb", rows([1]))
    assert {name: (tmp_path / "tb" / name).read_bytes() for name in others} == others


CHILD = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, {here!r})
from rows import facts, rows
from rlvitals.sinks.tensorboard import TensorBoardSink
tmp = Path(sys.argv[1])
saved = tmp / "cursor.json"
state = json.loads(saved.read_text()) if saved.exists() else {{"next": 0, "memory": {{}}}}
sink = TensorBoardSink(facts(tmp), {{"log_dir": str(tmp / "tb")}}, state["memory"])
print("open", flush=True)
step = state["next"]
while step < {total}:
    size = 1 + step * 7 % 40
    sink.write(rows(range(step, min(step + size, {total}))))
    sink.commit()
    step = min(step + size, {total})
    (tmp / "new").write_text(json.dumps({{"next": step, "memory": sink.memory}}))
    os.replace(tmp / "new", saved)
sink.close()
"""


def test_a_writer_killed_at_random_moments_leaves_every_row_once(tmp_path, child_environment):
    command = [sys.executable, "-c", CHILD.format(here=str(Path(__file__).parent), total=10**9), str(tmp_path)]
    cursor = tmp_path / "cursor.json"
    assert kill_at_random(command, child_environment, cursor, random.Random(5), times=6, longest=0.12) == 6
    reached = json.loads(cursor.read_text())["next"]
    command[2] = CHILD.format(here=str(Path(__file__).parent), total=reached + 100)
    subprocess.run(command, env=child_environment, check=True, capture_output=True)
    found = points(tmp_path / "tb", "rewards/margins")
    assert Counter(step for step, _ in found) == Counter(range(reached + 100))
    assert all(value == at_float32(step / 10 + 1) for step, value in found)
    assert len(list((tmp_path / "tb").iterdir())) > 3, "the kills came while it was writing"


def test_the_default_folder_is_below_the_run(tmp_path):
    sink = TensorBoardSink(facts(tmp_path), {}, {})
    sink.write(rows([1]))
    sink.commit()
    sink.close()
    assert points(tmp_path / "run" / "logs" / "tensorboard", "loss") == [(1, 0.5)]


def test_log_dir_is_used_exactly_as_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(facts(tmp_path), "some/where", rows([1]))
    assert points(tmp_path / "some" / "where", "loss") == [(1, 0.5)]


def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError, match="log_dir"):
        TensorBoardSink(facts(tmp_path), {"log_dir": str(tmp_path / "file" / "tb")}, {})


def test_an_unknown_setting_gets_a_suggestion(tmp_path):
    with pytest.raises(SinkError, match=r"'logdir'.*Did you mean 'log_dir'"):
        TensorBoardSink(facts(tmp_path), {"logdir": "x"}, {})


def test_without_the_package_the_error_holds_the_command(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(SinkError, match=r"pip install 'rlvitals\[tensorboard\]'"):
        TensorBoardSink(facts(tmp_path), {}, {})


def test_no_secret_reaches_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    write(facts(tmp_path, config={"api_key": "***"}), tmp_path / "tb", rows([1]))
    assert files_with(tmp_path, "***"), "the configuration goes out as it is given: masked"
    assert not files_with(tmp_path, "hf_verysecret")


def test_samples_of_the_machine_have_an_axis_of_their_own(tmp_path):
    write(facts(tmp_path), tmp_path / "tb", [*rows(range(100, 103)), *samples(range(3))], samples(range(3, 5)))
    assert points(tmp_path / "tb", "System/CPU_Percent") == [(place, float(place)) for place in range(5)]
    assert [step for step, _ in points(tmp_path / "tb", "loss")] == [100, 101, 102]
    times = [event.wall_time for event in read(tmp_path / "tb").Scalars("System/CPU_Percent")]
    assert times == [START + 5 * place for place in range(5)]


def test_a_resume_overtakes_rows_and_no_samples(tmp_path):
    of = facts(tmp_path, RESUMED)
    first, second = rows(range(1, 11)), rows(range(6, 9), attempt=2)
    write_log(of, [*first, *second, *samples(range(12)), *samples(range(12, 15), attempt=2)])
    memory = write(facts(tmp_path), tmp_path / "tb", [*first, *samples(range(10))], samples(range(10, 12)))
    write(of, tmp_path / "tb", [*second, *samples(range(12, 15), attempt=2)], memory=memory)
    assert [step for step, _ in points(tmp_path / "tb", "loss")] == list(range(1, 9))
    assert points(tmp_path / "tb", "System/CPU_Percent") == [(place, float(place)) for place in range(15)]


def test_a_resume_from_the_beginning_keeps_the_samples(tmp_path):
    of = facts(tmp_path, (Attempt(1, START), Attempt(2, START + 1000, from_step=0)))
    write_log(of, [*rows(range(1, 4)), *rows([1], attempt=2), *samples(range(3))])
    write(of, tmp_path / "tb", [*rows(range(1, 4)), *samples(range(3))], rows([1], attempt=2))
    assert points(tmp_path / "tb", "System/CPU_Percent") == [(0, 0.0), (1, 1.0), (2, 2.0)]
