"""slime and miles: `rollout_data/10.pt` from `--dump-details` or `--save-debug-rollout-data`, and the `train_data`
folder next to it.

Read in THUDM/slime at 624b824a (`slime/observability/rollout_data_utils.py`, `train_data_utils.py`) and
radixark/miles at 31f1ca96 (`miles/ray/rollout/debug_data.py`, `miles/utils/train_dump_utils.py`). `torch.save` wrote a
file from a dictionary with `samples`; each is a dictionary with the fields of a `Sample`. `pickles` reads it without
unpickling. Evaluations are `eval_10.pt`. The trainer's log-probs, entropies and advantages are in `train_data/10.pt`
(slime) or `train_data/10_RANK.pt` (miles). They are joined to the samples if they have one value per token of the
answer. This is not the case if miles split sequences over ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlvitals.errors import NotALog
from rlvitals.importers.base import Notes
from rlvitals.importers.dumps.base import (
    NO_ROLLOUT,
    DocumentForm,
    RowContents,
    Split,
    beside,
    is_usable,
    numbers,
    object_in,
    step_in,
    whole,
)
from rlvitals.importers.dumps.chatml import completion_fields
from rlvitals.importers.dumps.pickles import Archive, Foreign, NotPlain, Tensor
from rlvitals.store.messages import are_messages
from rlvitals.store.rollout_forms import prompt_text
from rlvitals.store.rollouts import read_lines

_STOPS = {"completed": "stop", "truncated": "length", "aborted": "aborted", "failed": "failed"}
_TRAINED = {
    "log_probs": "logprobs",
    "ref_log_probs": "reference_logprobs",
    "entropy": "entropies",
    "advantages": "advantages",
}
"""Columns of the trainer's dump, and our names."""

_META = 20
"""The most entries of a sample's metadata that are kept."""


class Slime(DocumentForm):
    """One file per step."""

    name = "slime"
    writes = "slime's and miles' rollout_data/{n}.pt"
    places = ("rollout_data/*.pt", "[0-9]*.pt", "eval_[0-9]*.pt")

    def recognises(self, path: Path, row: Any) -> bool:
        return path.suffix == ".pt" and path.parent.name != "train_data"

    def split_of(self, path: Path) -> Split | None:
        return "validation" if path.name.startswith("eval_") else "train"

    def rows(self, path: Path, notes: Notes, *, whole: bool) -> Iterable[RowContents]:
        try:
            with Archive(path) as archive:
                saved = archive.value()
                samples = saved.get("samples") if isinstance(saved, dict) else None
                if not isinstance(samples, list):
                    raise NotALog(path, "it holds no list of samples")
                step = _step(saved.get("rollout_id"), path)
                trained, conversations = _trained(path, notes) if whole else {}, _conversations(path)
                for place, given in enumerate(samples):
                    sample = given.state if isinstance(given, Foreign) else given  # pickled as a `Sample` object
                    if isinstance(sample, dict):
                        more = trained.get(("place", place)) or trained.get(("index", _index(sample))) or {}
                        conversation = conversations.get(_index(sample))
                        yield RowContents(step, _group(sample, more, conversation), self.split_of(path) or "train")
                    else:
                        notes.count(*NO_ROLLOUT)
        except NotPlain as error:
            raise NotALog(path, f"it cannot be read ({error}). It may not be finished yet") from error


def _step(rollout_id: Any, path: Path) -> int:
    return whole(rollout_id, step_in(path.name))


def _conversations(path: Path) -> dict[int, Any]:
    """The messages of agents by sample index. miles writes them to a file in a separate folder."""
    found = {}
    for file in beside(path, "trajectory", f"{path.stem}.jsonl"):
        for _, line in read_lines(file):
            row = object_in(line)
            if isinstance(row.get("sample_index"), int) and are_messages(row.get("messages")):
                found[row["sample_index"]] = row["messages"]
    return found


def _group(sample: Mapping[str, Any], trained: Mapping[str, Any], conversation: Any) -> dict[str, Any]:
    reward = sample.get("reward")
    parts = (
        {str(key): float(value) for key, value in reward.items() if is_usable(value)}
        if isinstance(reward, dict)
        else {}
    )
    status = sample.get("status")
    stop = str(status.arguments[0] if isinstance(status, Foreign) and status.arguments else status or "")
    versions = sample.get("weight_versions")
    known = [int(str(item)[:16]) for item in versions if str(item).isdecimal()] if isinstance(versions, list) else []
    tokens = _tokens(sample, trained)
    rollout = {
        **({"messages": conversation} if conversation else completion_fields(str(sample.get("response") or ""))),
        "reward": reward
        if is_usable(reward)
        else parts.get("score", parts.get("reward", next(iter(parts.values()), None))),
        "reward_parts": parts,
        "outcome": "error" if stop == "failed" else "",
        "stop": _STOPS.get(stop, stop),
        "tokens": len(ids) if isinstance(ids := _plain(sample.get("tokens")), list) else None,
        "trainable_tokens": sum(tokens["trained"]) if tokens and "trained" in tokens else sample.get("response_length"),
        "policy_version": min(known) if known else None,
        "trace": tokens,
        "meta": _facts(sample.get("metadata")),
    }
    if sample.get("remove_sample") is True:
        rollout["outcome"] = rollout["outcome"] or "removed"
    label = sample.get("label")
    return {
        "prompt": prompt_text(sample.get("prompt")),
        "answer": "" if label is None else str(label),
        "rollouts": [rollout],
    }


def _tokens(sample: Mapping[str, Any], trained: Mapping[str, Any]) -> dict[str, Any] | None:
    """The tokens of the answer, which are the last ones."""
    ids, length = _plain(sample.get("tokens")), sample.get("response_length")
    if not isinstance(ids, list) or not isinstance(length, int) or not 0 < length <= len(ids):
        return None
    found: dict[str, Any] = {"ids": ids[-length:]}
    if (mask := numbers(_plain(sample.get("loss_mask")))) and len(mask) == length:
        found["trained"] = [part != 0 for part in mask]
    if (sampled := numbers(_plain(sample.get("rollout_log_probs")))) and len(sampled) == length:
        found["engine_logprobs"] = sampled
    for theirs, ours in _TRAINED.items():
        if (values := numbers(trained.get(theirs))) and len(values) == length:
            found[ours] = values
    return found


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


def _facts(metadata: Any) -> dict[str, Any]:
    """The metadata of a sample that are single values."""
    known = metadata.items() if isinstance(metadata, dict) else ()
    facts = [(str(key), value) for key, value in known if isinstance(value, str | int | float | bool)]
    return dict(facts[:_META])


def _index(sample: Mapping[str, Any]) -> int:
    index = sample.get("index")
    return index if isinstance(index, int) else -1


def _trained(path: Path, notes: Notes) -> dict[tuple[str, int], dict[str, Any]]:
    """The values for each sample in the trainer's dump of the same step, by the sample's position or index."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for file in beside(path, "train_data", f"{path.stem}.pt", f"{path.stem}_[0-9]*.pt"):
        try:
            with Archive(file) as archive:
                for key, row in _rows_of_training(archive.value()):
                    known = {name: _plain(row[name]) for name in _TRAINED if row.get(name) is not None}
                    found.setdefault(key, {}).update(known)
        except (NotPlain, OSError) as error:
            notes.say(f"{file.parent.name}/{file.name} was left out: {error}")
    return found


def _rows_of_training(saved: Any) -> Iterable[tuple[tuple[str, int], dict[str, Any]]]:
    """The samples of slime by their position in the rollout; the columns of one miles rank by sample index."""
    if not isinstance(saved, dict):
        return
    samples, columns = saved.get("samples"), saved.get("rollout_data")
    if isinstance(samples, list):
        for row in samples:
            if isinstance(row, dict):
                place, index = row.get("rollout_position"), row.get("sample_index")
                if isinstance(place, int):
                    yield ("place", place), row
                elif isinstance(index, int):
                    yield ("index", index), row
    elif isinstance(columns, dict) and saved.get("cp_size", 1) == 1:
        indices = columns.get("sample_indices")
        for number, index in enumerate(indices if isinstance(indices, list) else ()):
            if isinstance(index, int):
                yield (
                    ("index", index),
                    {
                        name: column[number]
                        for name, column in columns.items()
                        if isinstance(column, list) and number < len(column)
                    },
                )
