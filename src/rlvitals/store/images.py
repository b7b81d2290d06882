"""Images over the steps, `logs/images.jsonl`: one line per image, a PNG as base64 under its name.

Images are stored in lines and not in their own files. No name from outside becomes a path, and images are pushed,
shared and removed like every other log. A PNG is checked when it is written and when it is read. Only the picture is
kept; texts, profiles and times in the file are removed. The number and the size of images are limited: this is not a
media store.
"""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rlvitals.store.files import open_regular
from rlvitals.store.lines import read_side_line
from rlvitals.store.reader import read_blocks

MOST_IMAGES = 256
"""Largest number of images of one run."""

MOST_BYTES = 32 * 2**20
"""Largest total size of the images of one run."""

LARGEST = 2**20
"""Largest size of one image, in bytes."""

LONGEST_SIDE = 4096
MOST_PIXELS = 2048 * 2048
"""Largest number of pixels of one image: a small file may decompress to gigabytes."""

MOST_LETTERS = 300
"""Largest number of characters of a caption."""

SIGNATURE = b"\x89PNG\r\n\x1a\n"

_CHUNK, _HEAD = struct.Struct(">I4s"), struct.Struct(">IIBBBBB")
_CHECKSUM = struct.Struct(">I")
_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
"""The bit depths that PNG allows for each colour type."""
_PICTURE = frozenset({b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"})


class Png(NamedTuple):
    """A PNG that was checked."""

    data: bytes
    width: int
    height: int


class Image(NamedTuple):
    """One image of one step."""

    step: int
    attempt: int
    name: str
    png: Png
    caption: str = ""

    @property
    def fields(self) -> dict[str, Any]:
        """The value stored under the image's name in a line."""
        fields = {"width": self.png.width, "height": self.png.height, "png": base64.b64encode(self.png.data).decode()}
        return fields | ({"caption": self.caption} if self.caption else {})

    @property
    def stored(self) -> dict[str, Any]:
        """The image as a line of the log stores it."""
        return {"step": self.step, "attempt": self.attempt, self.name: self.fields}


def checked_png(data: bytes) -> Png:
    """A PNG reduced to its picture. Raises ValueError if the data is not a PNG, damaged, or too large.

    >>> checked_png(b"GIF89a")
    Traceback (most recent call last):
    ValueError: it is not a PNG
    """
    if not data.startswith(SIGNATURE):
        raise ValueError("it is not a PNG")
    if len(data) > LARGEST:
        raise ValueError(f"it has {len(data):,} bytes; at most {LARGEST:,} are allowed")
    kept, kinds, position = [SIGNATURE], list[bytes](), len(SIGNATURE)
    while position < len(data) and (not kinds or kinds[-1] != b"IEND"):
        if position + _CHUNK.size + _CHECKSUM.size > len(data):
            raise ValueError("the PNG is cut off")
        length, kind = _CHUNK.unpack_from(data, position)
        end = position + _CHUNK.size + length + _CHECKSUM.size
        if end > len(data):
            raise ValueError("the PNG is cut off")
        body = data[position + 4 : end - _CHECKSUM.size]
        if _CHECKSUM.unpack_from(data, end - _CHECKSUM.size)[0] != zlib.crc32(body):
            raise ValueError("the PNG is damaged")
        kinds.append(kind)
        kept += [data[position:end]] if kind in _PICTURE else []
        position = end
    if kinds[:1] != [b"IHDR"] or kinds[-1] != b"IEND" or b"IDAT" not in kinds:
        raise ValueError("the PNG is damaged")
    head = kept[1][_CHUNK.size : -_CHECKSUM.size]
    if len(head) != _HEAD.size:
        raise ValueError("the PNG is damaged")
    width, height, depth, colours, *_ = _HEAD.unpack(head)
    if depth not in _DEPTHS.get(colours, ()):
        raise ValueError("the PNG is damaged")
    if not 0 < width <= LONGEST_SIDE or not 0 < height <= LONGEST_SIDE or width * height > MOST_PIXELS:
        raise ValueError(
            f"it is {width} x {height} pixels; at most {MOST_PIXELS:,} pixels and {LONGEST_SIDE} per side are allowed"
        )
    return Png(b"".join(kept), width, height)


def png_of_pixels(pixels: bytes, width: int, height: int, channels: int) -> Png:
    """Rows of bytes as a PNG: grey, grey with alpha, RGB or RGBA by the number of channels.

    >>> png_of_pixels(bytes(12), 2, 2, 3)[1:]
    (2, 2)
    """
    colours = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    stride = width * channels
    if len(pixels) != stride * height:
        raise ValueError("the pixels do not fill the image")
    rows = b"".join(b"\0" + pixels[at : at + stride] for at in range(0, len(pixels), stride))  # no filter
    head = _HEAD.pack(width, height, 8, colours, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(rows, 6)), (b"IEND", b"")]
    return checked_png(SIGNATURE + b"".join(_chunk(kind, body) for kind, body in parts))


def _chunk(kind: bytes, body: bytes) -> bytes:
    return _CHUNK.pack(len(body), kind) + body + _CHECKSUM.pack(zlib.crc32(kind + body))


class Room:
    """Counts the images of a run against the limits."""

    def __init__(self, log: Path) -> None:
        """Includes the images of earlier attempts."""
        self.images = self.bytes = 0
        try:
            with open_regular(log) as file:
                for line in file:
                    self.images += 1
                    self.bytes += len(line)
        except OSError:
            pass  # there is no log yet; the writer reports one that cannot be read

    def refusal(self, line: bytes) -> str:
        """Why an image is refused; empty if it is accepted, and then it is counted."""
        if self.images >= MOST_IMAGES:
            return f"the run already has {MOST_IMAGES} images, the maximum"
        if self.bytes + len(line) > MOST_BYTES:
            return f"the images of the run would take more than {MOST_BYTES // 2**20} MiB"
        self.images += 1
        self.bytes += len(line)
        return ""


def read_images(log: Path) -> Iterator[Image]:
    """The images of a log, in order, up to the limits. Torn and foreign lines and invalid PNGs are skipped."""
    found = size = 0
    for lines, _ in read_blocks(log, 0):
        for line in lines:
            size += len(line)
            for image in _parsed(line) if len(line) < 2 * LARGEST else ():
                found += 1
                if found > MOST_IMAGES or size > MOST_BYTES:
                    return
                yield image


def _parsed(line: bytes) -> Iterator[Image]:
    step, attempt, raw_by_name = read_side_line(line)
    for name, raw in raw_by_name.items():
        encoded = raw.get("png") if isinstance(raw, dict) else None
        if not isinstance(encoded, str):
            continue
        caption = raw.get("caption", "")
        try:
            png = checked_png(base64.b64decode(encoded, validate=True))
        except (ValueError, binascii.Error):
            continue
        yield Image(step, attempt, name, png, caption[:MOST_LETTERS] if isinstance(caption, str) else "")
