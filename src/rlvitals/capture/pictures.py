"""Converts the images that a trainer logs to PNG: bytes of a PNG, arrays, tensors and nested lists of pixels, PIL
images and matplotlib figures. None of these packages is imported; their objects are recognised by their methods.
"""

from __future__ import annotations

import io
import math
from itertools import chain
from typing import Any

from rlvitals.store.images import LONGEST_SIDE, MOST_PIXELS, Png, checked_png, png_of_pixels

CHANNELS = (1, 3, 4)
"""Grey, RGB, RGBA."""


def png_of(image: Any) -> Png:
    """The PNG of an image. Raises ValueError or TypeError if it is not an image or is too large."""
    if isinstance(image, bytes | bytearray | memoryview):
        return checked_png(bytes(image))
    if callable(getattr(image, "savefig", None)):
        return checked_png(_saved(image.savefig))
    if callable(getattr(image, "save", None)) and hasattr(image, "mode"):
        width, height = image.size
        _refuse_large(width, height)
        return checked_png(_saved(image.save))
    return _of_pixels(image)


def _saved(save: Any) -> bytes:
    file = io.BytesIO()
    save(file, format="png")
    return file.getvalue()


def _refuse_large(width: int, height: int) -> None:
    if max(width, height) > LONGEST_SIDE or width * height > MOST_PIXELS:
        limits = f"at most {MOST_PIXELS:,} pixels and {LONGEST_SIDE} per side are allowed"
        raise ValueError(f"it is {width} x {height} pixels; {limits}")


def _of_pixels(image: Any) -> Png:
    """Height x width, with the channels last or first. Integers range from 0 to 255, fractions from 0 to 1."""
    if hasattr(image, "detach"):  # a tensor: tolist() does not support half precision everywhere
        image = image.detach().cpu()
        image = image.float() if image.is_floating_point() else image
    shape = getattr(image, "shape", None)
    shape = tuple(map(int, shape)) if shape is not None else _shape_of_lists(image)
    if len(shape) not in (2, 3) or 0 in shape:
        raise ValueError(f"pixels are height x width, with 1, 3 or 4 channels, not {' x '.join(map(str, shape)) or 0}")
    is_first = len(shape) == 3 and shape[2] not in CHANNELS and shape[0] in CHANNELS
    channels = 1 if len(shape) == 2 else shape[0] if is_first else shape[2]
    height, width = shape[1:] if is_first else shape[:2]
    if channels not in CHANNELS:
        raise ValueError(f"an image has 1, 3 or 4 channels, not {channels}")
    _refuse_large(width, height)
    rows = image.tolist() if hasattr(image, "tolist") else image
    if is_first:
        planes = [list(chain.from_iterable(plane)) for plane in rows]
        numbers = list(chain.from_iterable(zip(*planes, strict=True)))
    else:
        numbers = list(chain.from_iterable(rows))
        numbers = list(chain.from_iterable(numbers)) if len(shape) == 3 else numbers
    return png_of_pixels(_bytes(numbers), width, height, channels)


def _shape_of_lists(image: Any) -> tuple[int, ...]:
    shape = []
    while isinstance(image, list | tuple):
        shape.append(len(image))
        image = image[0] if image else None
    return tuple(shape)


def _bytes(numbers: list[Any]) -> bytes:
    """Samples as bytes. Values outside the range are clipped; NaN becomes 0."""
    if all(type(number) is int for number in numbers):
        return bytes(min(max(number, 0), 255) for number in numbers)
    return bytes(
        round(min(max(number, 0.0), 1.0) * 255) if not math.isnan(number) else 0 for number in map(float, numbers)
    )
