"""How old samples are when they are trained on, in policy versions since they were generated.

A version is a number of weight updates. The age of a sample counts from the version that generated its first token. The
versions that passed during its generation are its age in flight, the rest is its age in the queue.

>>> seen = stats(train_version=7, versions=[7, 4, None], end_versions=[7, 6, None])
>>> [seen[f"staleness.{what}"].number for what in ("mean", "in_flight.mean", "in_queue.mean")]
[1.5, 1.0, 0.5]
>>> round(seen["staleness.coverage"].number, 4)
0.6667
"""

from __future__ import annotations

from rlvitals.compute.arrays import Array, gather, library, real
from rlvitals.compute.names import naming
from rlvitals.compute.packing import Packed, StatisticSheet, reading
from rlvitals.errors import ConfigError


def pack(
    *, train_version: float, versions: Array, end_versions: Array = None, mask: Array = None, names: str = "canonical"
) -> Packed:
    """Compute the ages of one batch; `stats` returns them as mergeable values.

    `train_version` is the version that is trained. `versions` are [sequences, tokens] with `mask` 1 on the tokens that
    count, or one for each sample: the version that generated its first token, with `end_versions` for its last token. A
    version that is None, NaN or negative is unknown: its token or sample has no age and lowers the coverage.
    """
    written, ended, kept = gather(versions, end_versions, mask)
    if written.ndim not in (1, 2):
        raise ConfigError(f"versions must be [samples] or [sequences, tokens], not of shape {tuple(written.shape)}")
    sheet = StatisticSheet(naming(names, "policy"))
    if written.ndim == 2:
        started, ended, exists = _by_token(sheet, written, kept, train_version)
    else:
        started, exists = written, library(written).ones_like(written)
    is_known = exists * _known(started) * (1.0 if ended is None else _known(ended))
    sheet.moments(is_known, exists, mean="staleness.coverage")
    age = train_version - started
    sheet.moments(age, is_known, mean="staleness.mean", max="staleness.max", min="staleness.min")
    sheet.moments(real(age > 0), is_known, mean="staleness.stale_fraction")
    if ended is not None:
        _show_parts(sheet, age, ended - started, is_known)
    return sheet.pack()


stats = reading(pack)
"""The statistics as mergeable values; the arguments are those of `pack`."""


def _by_token(sheet: StatisticSheet, versions: Array, mask: Array, train_version: float) -> tuple[Array, Array, Array]:
    """Show the ages of tokens; return the lowest and highest version of each sequence and whether it has tokens."""
    xp = library(versions)
    counts = xp.ones_like(versions) if mask is None else real(mask != 0)
    sheet.moments(
        train_version - versions, counts * _known(versions), mean="staleness.token.mean", max="staleness.token.max"
    )
    # One token of unknown age makes the age of its sequence unknown: the minimum and maximum of a NaN are NaN.
    known = xp.where(_known(versions) > 0, versions, xp.nan + 0.0 * counts)
    first = xp.amin(xp.where(counts > 0, known, xp.inf + 0.0 * counts), axis=-1)
    last = xp.amax(xp.where(counts > 0, known, -xp.inf + 0.0 * counts), axis=-1)
    return first, last, real(counts.sum(axis=-1) > 0)


def _show_parts(sheet: StatisticSheet, age: Array, span: Array, is_known: Array) -> None:
    xp = library(age)
    in_flight = xp.clip(xp.minimum(age, span), 0.0, None)
    sheet.moments(in_flight, is_known, mean="staleness.in_flight.mean", max="staleness.in_flight.max")
    sheet.moments(age - in_flight, is_known, mean="staleness.in_queue.mean", max="staleness.in_queue.max")
    sheet.moments(span + 1.0, is_known, mean="staleness.version_span")


def _known(versions: Array) -> Array:
    """1 where the version is known; the comparison is false for NaN."""
    return real(versions >= 0)
