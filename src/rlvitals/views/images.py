"""Logged images by name and step, and the data of one image."""

from __future__ import annotations

import base64

from rlvitals.contract import ImageFacts, Images, ListedImage
from rlvitals.errors import RunNotFound
from rlvitals.store.images import Image
from rlvitals.views.run import RunView


def image_list(view: RunView) -> Images:
    """The response of `/api/images`. Of several images with the same name and step, the last one is used."""
    names: dict[str, dict[int, ListedImage]] = {}
    for image in view.images:
        names.setdefault(image.name, {})[image.step] = {
            "step": image.step,
            "width": image.png.width,
            "height": image.png.height,
            "caption": image.caption,
        }
    return {
        "images": [{"name": name, "images": [found[step] for step in sorted(found)]} for name, found in names.items()]
    }


def one_image(view: RunView, name: str, step: int) -> ImageFacts:
    """The response of `/api/image`. Raises RunNotFound if there is none."""
    found: Image | None = None
    for image in view.images:
        if image.name == name and image.step == step:
            found = image
    if found is None:
        raise RunNotFound(f"there is no image {name[:80]!r} at step {step}")
    return {"name": name, "step": step, "png": base64.b64encode(found.png.data).decode()}
