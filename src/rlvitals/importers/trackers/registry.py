"""Lists the trackers that runs can be fetched from."""

from __future__ import annotations

SOURCES = {
    "wandb": "WandbSource",
    "mlflow": "MlflowSource",
    "trackio": "TrackioSource",
    "swanlab": "SwanLabSource",
    "neptune": "NeptuneSource",
}
"""The scheme of a tracker's addresses, and the class in the module of that name, a `base.Source`. It is imported when
its scheme is used, because vendors' packages are large.
"""
