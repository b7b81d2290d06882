"""Images by step: what becomes a PNG, what is refused, what survives a resume, and what leaves the machine."""

from __future__ import annotations

import base64
import io
import json
import struct
import zlib

import numpy as np
import pytest

import rlvitals
from rlvitals.capture.pictures import png_of
from rlvitals.errors import BadValue, RunNotFound
from rlvitals.store import images as stored
from rlvitals.store.images import LARGEST, MOST_IMAGES, SIGNATURE, checked_png, png_of_pixels, read_images
from rlvitals.store.layout import RunDir, is_run_file
from rlvitals.store.redaction import IMAGE_BYTES, Redaction, redacted_copy
from rlvitals.views.images import image_list, one_image

Pillow = pytest.importorskip("PIL.Image", reason="needs Pillow as the independent reader of PNGs")


def start(path, **more):
    return rlvitals.start(path, display="none", hardware=False, monitor=False, **more)


def read_back(data: bytes) -> np.ndarray:
    """The image as Pillow reads it, independent of our code."""
    picture = Pillow.open(io.BytesIO(data))
    picture.verify()
    return np.asarray(Pillow.open(io.BytesIO(data)))


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


PIXELS = np.random.default_rng(0).integers(0, 256, size=(5, 7, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (PIXELS, PIXELS),
        (PIXELS[:, :, 0], PIXELS[:, :, 0]),
        (PIXELS[:, :, :1], PIXELS[:, :, 0]),
        (PIXELS.transpose(2, 0, 1), PIXELS),
        (PIXELS.tolist(), PIXELS),
        (PIXELS / 255, PIXELS),
        (np.dstack([PIXELS, PIXELS[:, :, 0]]), np.dstack([PIXELS, PIXELS[:, :, 0]])),
        (np.array([[np.nan, -3.0], [7.0, 0.5]]), np.array([[0, 0], [255, 128]])),
        (np.array([[True, False]]), np.array([[255, 0]])),
    ],
)
def test_pixels_become_the_png_that_pillow_reads(given, shown):
    made = png_of(given)
    assert (made.height, made.width) == shown.shape[:2]
    assert np.array_equal(read_back(made.data), shown)


def test_tensors_figures_and_pillow_images_are_taken():
    torch = pytest.importorskip("torch", reason="needs torch")
    assert np.array_equal(read_back(png_of(torch.tensor(PIXELS)).data), PIXELS)
    halves = png_of(torch.tensor(PIXELS.transpose(2, 0, 1) / 255).to(torch.bfloat16).requires_grad_())
    assert np.abs(read_back(halves.data).astype(int) - PIXELS).max() <= 1
    assert np.array_equal(read_back(png_of(Pillow.fromarray(PIXELS)).data), PIXELS)
    plots = pytest.importorskip("matplotlib.figure", reason="needs matplotlib")
    figure = plots.Figure(figsize=(2, 1), dpi=50)
    figure.subplots().plot([1, 2])
    assert read_back(png_of(figure).data).shape == (50, 100, 4)


def test_a_png_keeps_its_picture_and_nothing_else():
    file = io.BytesIO()
    from PIL.PngImagePlugin import PngInfo

    texts = PngInfo()
    texts.add_text("path", "/home/somebody/secret")
    Pillow.fromarray(PIXELS).save(file, "png", pnginfo=texts)
    given = file.getvalue() + b"<script>alert(1)</script>"
    assert b"somebody" in given
    made = checked_png(given)
    assert b"somebody" not in made.data
    assert b"script" not in made.data
    assert np.array_equal(read_back(made.data), PIXELS)


GOOD = png_of_pixels(bytes(12), 2, 2, 3).data
HEAD = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not a PNG"),
        (b"\xff\xd8\xff\xe0 a jpeg", "not a PNG"),
        (b"<svg onload=alert(1)>", "not a PNG"),
        (SIGNATURE, "damaged"),
        (GOOD[:-5], "cut off"),
        (GOOD.replace(b"IDAT", b"IDAX"), "damaged"),
        (SIGNATURE + chunk(b"IHDR", HEAD) + chunk(b"IDAT", b"x") + chunk(b"IEND", b""), "100000 x 100000 pixels"),
        (SIGNATURE + chunk(b"IHDR", HEAD[:-1]) + chunk(b"IDAT", b"x") + chunk(b"IEND", b""), "damaged"),
        (GOOD + bytes(LARGEST), "bytes"),
        (SIGNATURE + struct.pack(">I", 2**31) + b"IHDR" + bytes(20), "cut off"),
    ],
)
def test_what_is_no_png_is_refused(data, why):
    with pytest.raises(ValueError, match=why):
        checked_png(data)


class Hostile:
    @property
    def shape(self):
        raise RuntimeError("gone")


def test_nothing_that_is_no_image_raises_into_training(tmp_path, caplog):
    path = tmp_path / "run"
    with start(path) as run:
        huge = np.zeros((5000, 2), dtype=np.uint8)
        odd = (None, 3, "text", b"GIF", [], [[]], [[1, 2], [3]], Hostile(), object(), np.zeros(3), np.zeros((2, 2, 5)))
        for number, given in enumerate([*odd, huge]):
            run.log_image(f"odd {number}", given, step=1)
        run.log_image("../../../etc/passwd", PIXELS, step=1, caption="\ud800")
        run.log_image("step", PIXELS, step=1)
        run.log({"loss": 1.0}, step=1)
    assert "'odd 3' is dropped" in caplog.text
    assert "5000 pixels" in caplog.text
    view = rlvitals.open_run(path)
    assert [one["name"] for one in image_list(view)["images"]] == ["../../../etc/passwd", "metric/step"]
    assert not [file for file in tmp_path.rglob("*") if file.suffix == ".png" or "passwd" in file.name]
    assert view.rows == 1
    with start(tmp_path / "strict", strict=True) as run, pytest.raises(BadValue, match="not a PNG"):
        run.log_image("x", b"GIF", step=1)


def test_images_are_found_by_name_and_step_on_the_living_line(tmp_path):
    path = tmp_path / "run"
    with start(path) as run:
        for step in range(1, 7):
            run.log({"loss": 1.0}, step=step)
            run.log_image("grid", np.full((2, 3), step, dtype=np.uint8), step=step, caption=f"of {step}")
    with start(path, resume=3) as run:
        run.log({"loss": 1.0}, step=4)
        run.log_image("grid", np.full((2, 3), 40, dtype=np.uint8), step=4)
        run.log_image("grid", np.full((2, 3), 41, dtype=np.uint8), step=4)
    log = path / "logs" / "images.jsonl"
    bad = base64.b64encode(b"\xff\xd8 a jpeg").decode()
    with log.open("ab") as file:
        file.write(b'{"step":5,"attempt":2,"bad":{"png":"%s"},"worse":{"png":3},"y":[]}\n{"step":5,"att' % bad.encode())
    view = rlvitals.open_run(path)
    (listed,) = image_list(view)["images"]
    assert [one["step"] for one in listed["images"]] == [1, 2, 3, 4]
    assert listed["images"][1] == {"step": 2, "width": 3, "height": 2, "caption": "of 2"}
    for step, value in ((2, 2), (4, 41)):  # the last image of a step counts
        assert set(read_back(base64.b64decode(one_image(view, "grid", step)["png"])).flat) == {value}
    with pytest.raises(RunNotFound):
        one_image(view, "grid", 5)
    with pytest.raises(RunNotFound):
        one_image(view, "bad", 5)
    assert is_run_file("logs/images.jsonl")
    assert log in RunDir(path).written_paths


def test_a_run_has_so_many_images_also_after_a_resume(tmp_path, monkeypatch, caplog):
    path = tmp_path / "run"
    monkeypatch.setattr(stored, "MOST_IMAGES", 10)
    for attempt in range(2):
        with start(path, **({"resume": True} if path.exists() else {})) as run:
            for step in range(8):
                run.log({"loss": 1.0}, step=10 * attempt + step)
                run.log_image("grid", PIXELS, step=10 * attempt + step)
    log = path / "logs" / "images.jsonl"
    assert len(log.read_bytes().splitlines()) == 10
    assert "the run already has 10 images, the maximum" in caplog.text
    size = log.stat().st_size
    monkeypatch.setattr(stored, "MOST_IMAGES", MOST_IMAGES)
    monkeypatch.setattr(stored, "MOST_BYTES", size + 10)
    with start(path, **({"resume": True} if path.exists() else {})) as run:
        run.log_image("grid", PIXELS, step=30)
    assert log.stat().st_size == size
    assert "would take more than" in caplog.text
    monkeypatch.setattr(stored, "MOST_BYTES", size // 2)  # a file above the limit is not read completely
    assert 0 < len(list(read_images(log))) < 10


def test_a_shared_copy_has_some_images_and_without_texts_none(tmp_path):
    source = tmp_path / "source"
    noise = np.random.default_rng(1)
    with start(source) as run:
        for step in range(1, 31):
            run.log({"loss": 1.0}, step=step)
            run.log_distribution({"entropy": [1.0, 2.0], "hidden": [3.0]}, step=step)
            run.log_image("grid", noise.integers(0, 256, (80, 80, 3), dtype=np.uint8), step=step, caption="/home/me/x")
            run.log_image("hidden", PIXELS, step=step)
    for number, (texts, names) in enumerate([(True, {"grid"}), (False, set())]):
        target = RunDir(tmp_path / f"copy {number}")
        redaction = Redaction.of(RunDir(source), ["hidden"], texts=texts)
        redacted_copy(RunDir(source), target, redaction, [], "")
        kept = list(read_images(target.log("images")))
        assert {image.name for image in kept} == names
        assert sum(len(image.png.data) for image in kept) <= IMAGE_BYTES
        if texts:
            assert len(kept) >= 8
            assert kept[-1].step == 30
            assert kept[0].step <= 5
            assert "/home/me" not in kept[0].caption
        view = rlvitals.open_run(target.root)
        assert {one.name for one in view.logged_distributions} == {"entropy"}
        assert len(view.logged_distributions) == 30
        assert "hidden" not in json.dumps([path.read_text() for path in target.logs.glob("*.jsonl")])
