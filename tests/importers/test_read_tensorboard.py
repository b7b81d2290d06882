"""TensorBoard: event files written by the tensorboard package, in one file or several, complete or torn."""

from __future__ import annotations

import io
import math
import os
import struct
import sys

import numpy as np
import pytest

pytest.importorskip("tensorboard", reason="needs the tensorboard package")

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DataType
from tensorboard.summary.writer.event_file_writer import EventFileWriter

import rlvitals
from rlvitals.cli.main import main
from rlvitals.importers import LogTail, NotALog, importer_for, is_one_log, read_log
from rlvitals.views.distributions import distributions
from rlvitals.views.logs import open_any
from rlvitals.views.raw_logs import open_raw


def write(folder, rows, *, suffix="", start=1_764_000_000.0):
    """One event per value, as PyTorch's SummaryWriter writes them."""
    writer = EventFileWriter(str(folder), filename_suffix=suffix)
    for step, row in rows:
        for tag, value in row.items():
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            writer.add_event(Event(step=step, wall_time=start + step, summary=summary))
    writer.close()
    return folder


def rename(folder, second):
    """Names of event files contain the second of their creation. Tests create several within a second."""
    (path,) = [path for path in folder.glob("*tfevents*") if "kept" not in path.name]
    path.rename(folder / f"events.out.tfevents.{second}.kept")


def test_tags_are_merged_by_step_with_their_time(tmp_path):
    write(tmp_path, [(step, {"train/loss": 0.5, "train/kl": math.nan}) for step in (10, 20)])
    log = read_log(tmp_path)
    assert (log.format, importer_for(next(tmp_path.glob("*tfevents*"))).name) == ("tensorboard", "tensorboard")
    assert [row["step"] for row in log.rows] == [10, 20]
    assert (log.rows[0]["train/loss"], log.rows[0]["timestamp"]) == (0.5, 1_764_000_010.0)
    assert math.isnan(log.rows[1]["train/kl"])


def test_numbers_are_what_float32_kept(tmp_path):
    (row,) = read_log(write(tmp_path, [(1, {"loss": 0.1})])).rows
    assert row["loss"] == struct.unpack("f", struct.pack("f", 0.1))[0]


def test_an_evaluation_logged_later_follows_its_step(tmp_path):
    rows = [(1, {"loss": 0.5}), (2, {"loss": 0.25}), (1, {"eval/acc": 0.75}), (3, {"loss": 0.125})]
    log = read_log(write(tmp_path, rows))
    assert [(row["step"], row.get("eval/acc")) for row in log.rows] == [(1, None), (1, 0.75), (2, None), (3, None)]
    assert log.notes == []


def test_several_files_are_read_in_the_order_of_their_beginning(tmp_path):
    write(tmp_path, [(step, {"loss": 0.5, "kl": 1.0}) for step in (3, 4, 5)])
    rename(tmp_path, 1_764_000_900)
    write(tmp_path, [(step, {"loss": 0.25, "kl": 1.0}) for step in (1, 2, 3)])
    rename(tmp_path, 1_764_000_100)
    log = read_log(tmp_path)
    assert [row["step"] for row in log.rows] == [1, 2, 3, 3, 4, 5]
    assert [row["loss"] for row in log.rows] == [0.25, 0.25, 0.25, 0.5, 0.5, 0.5]


def test_a_restart_inside_one_file_is_reported(tmp_path):
    rows = [(step, {"loss": 0.5, "kl": 0.25}) for step in (1, 2, 3, 4, 1, 2)]
    log = read_log(write(tmp_path, rows))
    assert [row["step"] for row in log.rows] == [1, 2, 3, 4, 1, 2]
    assert log.notes == ["steps start again at row 5: a restart inside the file"]


def test_parts_of_a_run_in_folders_of_their_own_are_one_log(tmp_path):
    write(tmp_path / "train", [(1, {"epoch_loss": 0.5}), (2, {"epoch_loss": 0.25})])
    write(tmp_path / "validation", [(1, {"epoch_loss": 0.75})])
    log = read_log(tmp_path)
    assert [(row["step"], row.get("train/epoch_loss"), row.get("validation/epoch_loss")) for row in log.rows] == [
        (1, 0.5, None),
        (1, None, 0.75),
        (2, 0.25, None),
    ]


def test_of_several_runs_the_newest_is_read_and_the_others_are_named(tmp_path):
    """As Stable-Baselines3 writes them."""
    for number in (1, 2, 10):
        write(tmp_path / f"PPO_{number}", [(1, {"rollout/ep_rew_mean": float(number)})])
        rename(tmp_path / f"PPO_{number}", 1_764_000_000 + number)
    log = read_log(tmp_path)
    assert [row["rollout/ep_rew_mean"] for row in log.rows] == [10.0]
    assert log.notes == [
        "the folder holds 3 runs: read PPO_10, the newest. Others, to be passed by their path: PPO_2, PPO_1"
    ]
    assert read_log(tmp_path / "PPO_2").rows[0]["rollout/ep_rew_mean"] == 2.0


def write_runs(folder, *spans):
    """A folder for each span of steps, created one after the other. The logged loss is the number of the folder."""
    for number, steps in enumerate(spans):
        below = folder / f"Jan0{number + 1}_host"
        write(below, [(step, {"train/loss": float(number)}) for step in steps])
        rename(below, 1_764_000_000 + number)
    return folder


def test_the_folders_of_a_run_that_was_resumed_are_one_log(tmp_path):
    write_runs(tmp_path / "runs", range(10, 101, 10), range(90, 201, 10), range(210, 251, 10))
    log = read_log(tmp_path)
    assert is_one_log(tmp_path / "runs")
    assert [row["step"] for row in log.rows] == [*range(10, 101, 10), *range(90, 201, 10), *range(210, 251, 10)]
    assert [row["train/loss"] for row in log.rows] == [*[0.0] * 10, *[1.0] * 12, *[2.0] * 5]
    assert log.notes == ["steps start again at row 11: a restart inside the file"]


def test_folders_below_event_files_are_parts_and_not_resumed_runs(tmp_path):
    write(write_runs(tmp_path, range(10, 101, 10), range(90, 201, 10)), [(10, {"lr": 0.5})])
    (row, *_) = read_log(tmp_path).rows
    assert (row["lr"], row["Jan01_host/train/loss"]) == (0.5, 0.0)


@pytest.mark.parametrize(
    "second",
    [range(10, 101, 10), range(1, 30), range(50, 201, 50), range(300, 400, 10), [90]],
    ids=["same steps", "from 1", "rarer steps", "after a gap", "one step"],
)
def test_runs_that_do_not_go_on_from_each_other_are_separate(tmp_path, second):
    write_runs(tmp_path, range(10, 101, 10), second)
    assert not is_one_log(tmp_path)
    assert {row["train/loss"] for row in read_log(tmp_path).rows} == {1.0}


def test_the_lines_of_add_scalars_get_the_names_they_were_given(tmp_path):
    """Each is in its own folder, as PyTorch's SummaryWriter writes it."""
    write(tmp_path / "runs" / "host", [(1, {"lr": 0.125})])
    write(tmp_path / "runs" / "host" / "ppo_loss_train", [(1, {"ppo/loss": 0.5})])
    write(tmp_path / "runs" / "host" / "ppo_loss_eval", [(1, {"ppo/loss": 0.25})])
    (row,) = read_log(tmp_path).rows
    assert row == {"step": 1, "timestamp": 1_764_000_001.0, "lr": 0.125, "ppo/loss/eval": 0.25, "ppo/loss/train": 0.5}


def test_scalars_kept_as_tensors_are_read_and_texts_are_not(tmp_path):
    from tensorboard.compat.proto.tensor_pb2 import TensorProto

    metadata = {"plugin_data": {"plugin_name": "scalars"}}
    words = {"plugin_data": {"plugin_name": "text"}}
    values = [
        Summary.Value(tag="loss", metadata=metadata, tensor=TensorProto(dtype=1, float_val=[0.5])),
        Summary.Value(tag="config", metadata=words, tensor=TensorProto(dtype=7, string_val=[b"{}"])),
    ]
    writer = EventFileWriter(str(tmp_path))
    writer.add_event(Event(step=3, wall_time=1_764_000_000.0, summary=Summary(value=values)))
    writer.close()
    assert read_log(tmp_path).rows == [{"step": 3, "timestamp": 1_764_000_000.0, "loss": 0.5}]


def test_a_torn_end_loses_one_event_and_is_reported(tmp_path):
    write(tmp_path, [(1, {"loss": 0.5}), (2, {"loss": 0.25})])
    (path,) = tmp_path.glob("*tfevents*")
    path.write_bytes(path.read_bytes()[:-3])
    log = read_log(path)
    assert [row["step"] for row in log.rows] == [1]
    assert log.notes == ["1 event file ends in the middle of an event"]


def test_event_files_without_scalars_are_no_log(tmp_path):
    with pytest.raises(NotALog, match="hold no scalars"):
        read_log(write(tmp_path, []))


def test_no_package_is_needed_to_read_them(tmp_path, monkeypatch):
    write(tmp_path, [(1, {"loss": 0.5})])
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    assert read_log(tmp_path).rows[0]["loss"] == 0.5


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (1, {"tensor_content": struct.pack("<f", 0.5)}),
        (2, {"tensor_content": struct.pack("<d", 0.5)}),
        (2, {"double_val": [0.5]}),
        (19, {"tensor_content": struct.pack("<e", 0.5)}),
        (3, {"int_val": [-2]}),
        (9, {"int64_val": [-2]}),
        (9, {"tensor_content": struct.pack("<q", -2)}),
    ],
)
def test_a_scalar_of_any_type_is_read_as_the_package_reads_it(tmp_path, kind, content):
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.util.tensor_util import make_ndarray

    tensor = TensorProto(dtype=kind, **content)
    writer = EventFileWriter(str(tmp_path))
    summary = Summary(value=[Summary.Value(tag="loss", tensor=tensor)])
    writer.add_event(Event(step=-3, wall_time=1_764_000_000.0, summary=summary))
    writer.close()
    (row,) = read_log(tmp_path).rows
    assert (row["step"], row["loss"]) == (-3, float(make_ndarray(tensor)))


def test_a_step_that_no_training_reaches_is_skipped(tmp_path):
    log = read_log(write(tmp_path, [(1, {"loss": 0.5}), (2**60, {"loss": 0.25}), (2, {"loss": 0.125})]))
    assert [(row["step"], row["loss"]) for row in log.rows] == [(1, 0.5), (2, 0.125)]
    assert log.notes == ["1 point has no possible step and was skipped"]


def test_a_damaged_event_is_skipped_and_counted(tmp_path):
    write(tmp_path, [(1, {"loss": 0.5}), (2, {"loss": 0.25})])
    (path,) = tmp_path.glob("*tfevents*")
    data = path.read_bytes()
    path.write_bytes(data.replace(b"\x0a\x04loss", b"\x0a\x7floss", 1))
    log = read_log(path)
    assert [row["step"] for row in log.rows] == [2]
    assert log.notes == ["1 event is damaged and was skipped"]


def test_a_growing_folder_is_followed_and_the_newest_step_waits_for_its_tags(tmp_path):
    writer = EventFileWriter(str(tmp_path))

    def add(step, **row):
        for tag, value in row.items():
            writer.add_event(Event(step=step, summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)])))
        writer.flush()

    tail = LogTail(tmp_path)
    add(1, loss=0.5)
    assert tail.poll().rows == []
    add(1, kl=0.25)
    add(2, loss=0.5)
    assert [(row["step"], row["loss"], row["kl"]) for row in tail.poll().rows] == [(1, 0.5, 0.25)]
    assert [row["step"] for row in tail.poll().rows] == [2]
    add(1, accuracy=1.0)
    add(3, loss=0.5)
    late = tail.poll()  # a late evaluation of step 1 replaces the rows so far
    assert [(row["step"], row.get("accuracy")) for row in late.before] == [(1, 1.0), (2, None)]
    assert late.rows == []
    assert [row["step"] for row in tail.poll().rows] == [3]
    os.utime(tmp_path, (0, 0))  # a file that grows leaves the time of its folder
    assert open_raw(tmp_path).status == "running"
    writer.close()


def test_histograms_are_distributions(tmp_path):
    """As PyTorch's `add_histogram` writes them: upper bounds, the first bucket open to the left."""
    writer = EventFileWriter(str(tmp_path / "log"))
    for step in (1, 2):
        limits, counts = [-1e9, 10.0 * step, 20.0 * step, 1e9], [0, 50, 50, 0]
        histo = HistogramProto(min=0.0, max=20.0 * step, num=100, sum=1000.0 * step, bucket_limit=limits, bucket=counts)
        for value in (Summary.Value(tag="loss", simple_value=1.0), Summary.Value(tag="grads", histo=histo)):
            writer.add_event(Event(wall_time=1.0, step=step, summary=Summary(value=[value])))
    writer.close()
    assert main(["import", str(tmp_path / "log"), "--to", str(tmp_path / "run")]) == 0
    for place in (open_any(tmp_path / "log"), rlvitals.open_run(tmp_path / "run")):
        assert place.has_distributions
        (grads,) = distributions(place)["distributions"]
        assert (grads["name"], grads["steps"], grads["counts"]) == ("grads", [1, 2], [100, 100])
        quantiles = dict(zip(grads["levels"], grads["quantiles"], strict=True))
        assert quantiles[0.25] == pytest.approx([5, 10], abs=1e-6)
        assert quantiles[1.0] == [20, 40]


def tensor_value(tag: str, plugin: str, tensor: TensorProto) -> Summary.Value:
    """A summary as TensorFlow 2 writes it. `tensorboard.compat` has the same messages but no writer for them."""
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin))
    return Summary.Value(tag=tag, tensor=tensor, metadata=metadata)


def buckets_of(rows: list[tuple[float, float, float]], *, packed: bool) -> TensorProto:
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=len(rows)), TensorShapeProto.Dim(size=3)])
    numbers = np.array(rows, dtype=np.float64)
    if packed:
        return TensorProto(dtype=DataType.DT_DOUBLE, tensor_shape=shape, tensor_content=numbers.tobytes())
    return TensorProto(dtype=DataType.DT_DOUBLE, tensor_shape=shape, double_val=numbers.flatten().tolist())


def test_histograms_of_tensorflow_2_are_distributions(tmp_path):
    writer = EventFileWriter(str(tmp_path / "log"))
    for step in (1, 2):
        rows = [(0.0, 10.0 * step, 50.0), (10.0 * step, 20.0 * step, 50.0), (20.0 * step, 30.0 * step, 0.0)]
        values = [
            Summary.Value(tag="loss", simple_value=1.0),
            tensor_value("grads", "histograms", buckets_of(rows, packed=step == 1)),
            tensor_value("empty", "histograms", buckets_of([], packed=True)),
            tensor_value("none", "histograms", buckets_of([(0.0, 1.0, 0.0)], packed=True)),
            tensor_value("texts", "text", TensorProto(dtype=DataType.DT_STRING, string_val=[b"x"])),
        ]
        for value in values:
            writer.add_event(Event(wall_time=1.0, step=step, summary=Summary(value=[value])))
    writer.close()
    log = read_log(tmp_path / "log")
    assert log.rows[0].keys() == {"step", "timestamp", "loss"}
    assert not any("damaged" in note for note in log.notes)
    (grads,) = distributions(open_any(tmp_path / "log"))["distributions"]
    assert (grads["name"], grads["steps"], grads["counts"]) == ("grads", [1, 2], [100, 100])
    quantiles = dict(zip(grads["levels"], grads["quantiles"], strict=True))
    assert quantiles[0.25] == pytest.approx([5, 10], abs=1e-6)
    assert (quantiles[0.0], quantiles[1.0]) == ([0, 0], [20, 40])  # the last bucket is empty
    assert log.distributions[0].sketch.mean == pytest.approx(10)


def test_images_that_are_pngs_are_read_from_both_kinds_of_writers(tmp_path):
    torch_writer = pytest.importorskip("torch.utils.tensorboard", reason="needs torch").SummaryWriter
    pixels = np.random.default_rng(0).integers(0, 256, size=(4, 6, 3), dtype=np.uint8)
    with torch_writer(str(tmp_path / "log")) as writer:
        for step in (1, 2):
            writer.add_scalar("loss", 1.0, step)
            writer.add_image("grid", pixels + step, step, dataformats="HWC")
    png = read_log(tmp_path / "log").images[0].png.data
    other = EventFileWriter(str(tmp_path / "two"))
    strings = TensorProto(dtype=DataType.DT_STRING, string_val=[b"6", b"4", png, png])
    jpeg = TensorProto(dtype=DataType.DT_STRING, string_val=[b"6", b"4", b"\xff\xd8\xff a jpeg"])
    values = [tensor_value("pair", "images", strings), tensor_value("photo", "images", jpeg)]
    for value in (Summary.Value(tag="loss", simple_value=1.0), *values):
        other.add_event(Event(wall_time=1.0, step=7, summary=Summary(value=[value])))
    other.close()
    assert main(["import", str(tmp_path / "log"), "--to", str(tmp_path / "run")]) == 0
    for place in (open_any(tmp_path / "log"), rlvitals.open_run(tmp_path / "run")):
        assert place.has_images
        assert [(image.name, image.step) for image in place.images] == [("grid", 1), ("grid", 2)]
        assert np.array_equal(as_pixels(place.images[1].png.data), pixels + 2)
    two = open_any(tmp_path / "two")
    assert [(image.name, image.step) for image in two.images] == [("pair/0", 7), ("pair/1", 7)]
    assert two.images[0].png.data == png
    assert any("1 images were not read" in note for note in two.problems)


def as_pixels(png: bytes) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(png)))
