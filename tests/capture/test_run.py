"""What `Run.log` and related methods write, accept, refuse and count."""

from __future__ import annotations

import decimal
import enum
import fractions
import json
import logging
import math
import os
import time
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

import rlvitals
from rlvitals import values
from rlvitals.capture.intake import MAX_TEXT
from rlvitals.errors import BadValue, RunError

LOG = Path("logs/training_metrics.jsonl")


def refuse_constant(name):
    raise AssertionError(f"{name} is not strict JSON")


def rows_of(folder, log=LOG):
    """Every line of a log, parsed as strict JSON."""
    text = (Path(folder) / log).read_text(encoding="utf-8")
    assert text.endswith("\n")
    return [json.loads(line, parse_constant=refuse_constant) for line in text.splitlines()]


def log_one(folder, metrics, **settings):
    """Log one row in a complete run; returns the row and the finished run."""
    with rlvitals.start(folder, **settings) as run:
        run.log(metrics, step=0)
    (row,) = rows_of(folder)
    return row, run


class TorchScalar:
    """The interface of a one-element torch tensor, without torch."""

    def __init__(self, number, error=None):
        self._number = number
        self._error = error

    shape = ()
    ndim = 0

    def numel(self):
        return 1

    def size(self):  # a method on tensors, a number on numpy arrays
        return ()

    def item(self):
        if self._error:
            raise self._error
        return self._number

    def tolist(self):
        return self.item()

    def __float__(self):
        return float(self.item())

    def __int__(self):
        return int(self.item())

    def __format__(self, spec):
        raise AssertionError("a tensor is never formatted, that would wait for the device")


class TorchVector(TorchScalar):
    shape = (4,)
    ndim = 1

    def numel(self):
        return 4

    def item(self):
        raise RuntimeError("a Tensor with 4 elements cannot be converted to Scalar")


# Rows


def test_a_row_is_one_flat_line_with_step_timestamp_and_attempt_first(tmp_path):
    before = time.time()
    with rlvitals.start(tmp_path) as run:
        run.log({"loss": 0.62, "rewards/margins": 0.027}, step=10)
    after = time.time()
    (row,) = rows_of(tmp_path)
    assert list(row) == ["step", "timestamp", "attempt", "loss", "rewards/margins"]
    assert row["step"] == 10
    assert row["attempt"] == 1
    assert before - 0.001 <= row["timestamp"] <= after + 0.001
    assert (row["loss"], row["rewards/margins"]) == (0.62, 0.027)


def test_the_row_is_in_the_file_when_log_returns(tmp_path):
    with rlvitals.start(tmp_path) as run:
        for step in range(5):
            run.log({"loss": step / 2}, step=step)
            assert rows_of(tmp_path)[-1]["step"] == step


def test_one_line_for_each_call_even_without_metrics(tmp_path):
    with rlvitals.start(tmp_path) as run:
        run.log({}, step=3)
        run.log({}, step=4)
    assert [set(row) for row in rows_of(tmp_path)] == [{"step", "timestamp", "attempt"}] * 2


def test_repeated_late_and_out_of_order_steps_are_all_kept(tmp_path):
    with rlvitals.start(tmp_path) as run:
        for step in (5, 6, 2, 6, -1):
            run.log({"loss": float(step)}, step=step)
    assert [row["step"] for row in rows_of(tmp_path)] == [5, 6, 2, 6, -1]
    steps, _ = rlvitals.open_run(tmp_path).series("loss")
    assert steps.tolist() == [-1, 2, 5, 6, 6]


def test_other_mappings_than_dict_are_taken(tmp_path):
    row, _ = log_one(tmp_path, MappingProxyType({"loss": 0.5}))
    assert row["loss"] == 0.5


def test_the_caller_s_own_dict_is_left_alone(tmp_path):
    metrics = {"loss": float("nan"), "step": 3, "reward": values.mean([1.0]), "nested": {"a": 1}}
    kept = dict(metrics)
    log_one(tmp_path, metrics)
    assert metrics.keys() == kept.keys()
    assert all(metrics[name] is kept[name] for name in kept)


# Steps


def test_without_a_step_rows_count_on_from_the_last_one(tmp_path):
    with rlvitals.start(tmp_path) as run:
        run.log({"loss": 1.0})
        run.log({"loss": 1.0})
        run.log({"loss": 1.0}, step=10)
        run.log({"loss": 1.0})
    assert [row["step"] for row in rows_of(tmp_path)] == [0, 1, 10, 11]


@pytest.mark.parametrize(
    "step", [7.0, np.int64(7), np.int32(7), np.array(7), np.float32(7.0), TorchScalar(7)], ids=type
)
def test_whole_steps_of_other_types_become_plain_whole_numbers(tmp_path, caplog, step):
    with rlvitals.start(tmp_path) as run:
        run.log({"loss": 1.0}, step=step)
    (row,) = rows_of(tmp_path)
    assert row["step"] == 7
    assert type(row["step"]) is int
    assert not caplog.records


@pytest.mark.parametrize("step", [2.5, float("nan"), float("inf"), "ten", [1], {}], ids=repr)
def test_an_odd_step_is_warned_about_once_and_the_row_is_kept(tmp_path, caplog, step):
    with rlvitals.start(tmp_path) as run:
        run.log({"loss": 1.0}, step=4)
        run.log({"loss": 2.0}, step=step)
        run.log({"loss": 3.0}, step=step)
    assert [(row["step"], row["loss"]) for row in rows_of(tmp_path)] == [(4, 1.0), (5, 2.0), (6, 3.0)]
    assert sum("step must be a whole number" in message for message in caplog.messages) == 1


@pytest.mark.parametrize("step", [2**53 + 2, 2**64, -(2**70)], ids=["2**53+2", "2**64", "-2**70"])
def test_a_step_too_big_for_readers_does_not_cost_the_row(tmp_path, caplog, step):
    with rlvitals.start(tmp_path) as run:
        run.log({"loss": 1.0}, step=4)
        run.log({"loss": 2.0}, step=step)
    assert rlvitals.open_run(tmp_path).series("loss").values.tolist() == [1.0, 2.0]
    assert any("step" in message for message in caplog.messages)


def test_strict_refuses_an_odd_step(tmp_path):
    with rlvitals.start(tmp_path, strict=True) as run:
        with pytest.raises(BadValue, match=r"step must be a whole number.*not 2\.5"):
            run.log({"loss": 1.0}, step=2.5)
        run.log({"loss": 1.0}, step=2)
    assert len(rows_of(tmp_path)) == 1


# Supported values


class Phase(enum.IntEnum):
    WARMUP = 2


class Stage(enum.StrEnum):
    SFT = "sft"


TAKEN = {
    "float": (0.5, 0.5),
    "int": (3, 3),
    "true": (True, True),
    "false": (False, False),
    "numpy float64": (np.float64(0.5), 0.5),
    "numpy float32": (np.float32(0.1), float(np.float32(0.1))),
    "numpy float16": (np.float16(0.5), 0.5),
    "numpy longdouble": (np.longdouble(0.5), 0.5),
    "numpy int8": (np.int8(-3), -3),
    "numpy uint64": (np.uint64(2**64 - 1), float(2**64 - 1)),
    "numpy bool": (np.True_, True),
    "numpy 0-d array": (np.array(2.5), 2.5),
    "numpy 0-d int array": (np.array(2), 2),
    "numpy array of one": (np.array([[2.5]]), 2.5),
    "numpy mean": (np.mean([1.0, 2.0]), 1.5),
    "numpy text": (np.str_("warm"), "warm"),
    "torch scalar": (TorchScalar(0.25), 0.25),
    "torch int scalar": (TorchScalar(4), 4),
    "torch bool scalar": (TorchScalar(True), True),
    "text": ("warmup", "warmup"),
    "empty text": ("", ""),
    "text of many languages": ("学习 🙂 é", "学习 🙂 é"),
    "half a surrogate pair": ("a\ud800b", "a?b"),
    "text enum": (Stage.SFT, "sft"),
    "int enum": (Phase.WARMUP, 2),
    "decimal": (decimal.Decimal("0.5"), 0.5),
    "fraction": (fractions.Fraction(1, 4), 0.25),
    "largest int64": (2**63 - 1, 2**63 - 1),
    "smallest int64": (-(2**63), -(2**63)),
    "beyond int64": (2**63, float(2**63)),
    "beyond uint64": (-(10**30), -1e30),
}


@pytest.mark.parametrize("name", TAKEN)
def test_a_value_is_taken_as_plain_json_of_its_kind(tmp_path, caplog, name):
    given, kept = TAKEN[name]
    row, run = log_one(tmp_path, {"x": given})
    assert row["x"] == kept
    assert type(row["x"]) is type(kept)
    assert not run.left_out
    assert not caplog.records


def test_the_second_row_of_a_metric_is_checked_as_well_as_the_first(tmp_path):
    """`log` has a fast path for names it has seen; it must still check the values."""
    later = [2**80, float("nan"), np.float32(0.5), True, 1e308, "text", TorchScalar(2)]
    with rlvitals.start(tmp_path) as run:
        run.log({"x": 1.0, "y": 1.0})
        for value in later:
            run.log({"x": value, "y": 1e308})
    rows = rows_of(tmp_path)[1:]
    assert [row.get("x") for row in rows] == [float(2**80), None, 0.5, True, 1e308, "text", 2]
    assert rows[1]["_nonfinite"] == "x=nan"
    assert [row["y"] for row in rows] == [1e308] * len(later)


def test_an_int_beyond_any_float_is_kept_as_infinity(tmp_path):
    with rlvitals.start(tmp_path) as run:
        run.log({"x": 1, "y": 1})
        run.log({"x": 10**400, "y": -(10**400)})
    assert rows_of(tmp_path)[1]["_nonfinite"] == "x=inf y=-inf"


def test_booleans_read_back_as_one_and_zero(tmp_path):
    with rlvitals.start(tmp_path) as run:
        run.log({"early_stop": False})
        run.log({"early_stop": True})
    assert rlvitals.open_run(tmp_path).series("early_stop").values.tolist() == [0.0, 1.0]


def test_texts_read_back_beside_the_numbers(tmp_path):
    with rlvitals.start(tmp_path) as run:
        run.log({"stage": "warmup", "loss": 1.0})
        run.log({"loss": 2.0})
        run.log({"stage": "main", "loss": 3.0})
    view = rlvitals.open_run(tmp_path)
    assert view.texts == ["stage"]
    assert view.table()["stage"].tolist() == ["warmup", None, "main"]
    assert view.series("loss").values.tolist() == [1.0, 2.0, 3.0]


def test_nested_mappings_are_joined_with_slashes(tmp_path):
    row, _ = log_one(tmp_path, {"rewards": {"margins": 0.5, "by_task": {"mail": 1, 7: 2}}, "loss": 0.1})
    assert {name: row[name] for name in list(row)[3:]} == {
        "rewards/margins": 0.5,
        "rewards/by_task/mail": 1,
        "rewards/by_task/7": 2,
        "loss": 0.1,
    }


def test_a_name_given_twice_keeps_its_last_value_alone(tmp_path):
    """`a/b` and `{"a": {"b": ...}}` are one name, which must not be both NaN and a number."""
    row, _ = log_one(tmp_path, {"a/b": float("nan"), "a": {"b": 2.0}})
    assert row["a/b"] == 2.0
    assert "_nonfinite" not in row
    row, _ = log_one(tmp_path / "other way round", {"a/b": values.mean([2.0]), "a": {"b": float("nan")}})
    assert "a/b" not in row
    assert row["_nonfinite"] == "a/b=nan"
    assert "_m" not in row


def test_none_and_a_mean_of_nothing_are_no_metrics_and_no_zeros(tmp_path, caplog):
    row, run = log_one(tmp_path, {"x": None, "y": values.mean([]), "loss": 1.0})
    assert list(row) == ["step", "timestamp", "attempt", "loss"]
    assert not run.left_out
    assert not caplog.records


def test_a_masked_number_is_not_read_as_zero(tmp_path):
    """numpy's mean over values that are all masked has no number; 0.0 would be wrong."""
    nothing = np.ma.array([1.0, 2.0], mask=[True, True]).mean()
    row, _ = log_one(tmp_path, {"x": nothing, "loss": 1.0})
    assert "x" not in row
    assert row["loss"] == 1.0


# Mergeable values


def test_a_mergeable_value_keeps_its_number_and_its_moments(tmp_path):
    row, _ = log_one(tmp_path, {"reward": values.mean([1.0, 2.0, 6.0]), "tokens": values.total([3, 4]), "loss": 0.5})
    assert row["reward"] == 3.0
    assert row["tokens"] == 7.0
    assert row["_m"]["reward"] == [3.0, 3.0, 14.0, 1.0, 6.0]
    assert row["_m"]["tokens"] == [2.0, 3.5, 0.5, 3.0, 4.0, "sum"]
    assert row["_m"].keys() == {"reward", "tokens"}


def test_a_nested_and_renamed_mergeable_value_keeps_its_moments_under_the_row_s_name(tmp_path):
    row, _ = log_one(tmp_path, {"env": {"reward": values.mean([1.0, 3.0])}, "_hidden": values.mean([5.0])})
    assert row["env/reward"] == 2.0
    assert row["metric/_hidden"] == 5.0
    assert row["_m"].keys() == {"env/reward", "metric/_hidden"}


def test_a_mergeable_value_that_is_not_finite_is_nan_and_keeps_its_count(tmp_path):
    row, _ = log_one(tmp_path, {"reward": values.mean([1.0, math.nan])})
    assert "reward" not in row
    assert row["_nonfinite"] == "reward=nan"
    assert row["_m"]["reward"][0] == 2.0
    assert math.isnan(rlvitals.open_run(tmp_path).series("reward").values[0])


def test_a_spread_of_one_sample_has_no_number_yet_and_keeps_its_moments(tmp_path):
    row, _ = log_one(tmp_path, {"reward": values.spread([2.0], sample=True), "loss": 1.0})
    assert "reward" not in row
    assert "_nonfinite" not in row
    assert row["_m"]["reward"] == [1.0, 2.0, 0.0, 2.0, 2.0, "sample_std"]


# Non-finite numbers


def test_nonfinite_numbers_are_named_apart_and_read_back(tmp_path):
    row, _ = log_one(
        tmp_path,
        {
            "loss": math.nan,
            "kl": math.inf,
            "lp": -math.inf,
            "n32": np.float32("nan"),
            "t": TorchScalar(math.inf),
            "a": 1,
        },
    )
    assert list(row)[3:] == ["a", "_nonfinite"]
    assert row["_nonfinite"] == "loss=nan kl=inf lp=-inf n32=nan t=inf"
    view = rlvitals.open_run(tmp_path)
    assert math.isnan(view.series("loss").values[0])
    assert view.series("kl").values[0] == math.inf
    assert view.series("lp").values[0] == -math.inf
    assert math.isnan(view.series("n32").values[0])
    assert view.series("t").values[0] == math.inf


@pytest.mark.parametrize("name", ["grad norm", "a=b", "100%", "a%20b", "naïve", "tab\tname", "two  spaces", "x=inf"])
def test_a_nonfinite_metric_keeps_its_name_whatever_is_in_it(tmp_path, name):
    log_one(tmp_path, {name: math.nan, "loss": 1.0})
    view = rlvitals.open_run(tmp_path)
    assert set(view.metrics) == {name, "loss"}
    assert math.isnan(view.series(name).values[0])


def test_a_nan_never_becomes_a_missing_value_nor_the_other_way_round(tmp_path):
    with rlvitals.start(tmp_path) as run:
        run.log({"loss": 1.0, "kl": 0.1}, step=0)
        run.log({"loss": math.nan}, step=1)
        run.log({"loss": 3.0, "kl": 0.3}, step=2)
    view = rlvitals.open_run(tmp_path)
    assert view.series("loss").steps.tolist() == [0, 1, 2]
    assert view.series("kl").steps.tolist() == [0, 2]


# Names


@pytest.mark.parametrize("name", ["step", "timestamp", "attempt", "_m", "_nonfinite", "_gap", "_mine", ""])
def test_our_own_names_are_renamed_with_one_warning(tmp_path, caplog, name):
    with rlvitals.start(tmp_path) as run:
        run.log({name: 41, "loss": 1.0}, step=5)
        run.log({name: 42, "loss": 1.0}, step=6)
    rows = rows_of(tmp_path)
    assert [row[f"metric/{name}"] for row in rows] == [41, 42]
    assert [row["step"] for row in rows] == [5, 6]
    assert [row["attempt"] for row in rows] == [1, 1]
    assert all(row["timestamp"] > 1e9 for row in rows)
    assert sum(f"'metric/{name}'" in message for message in caplog.messages) == 1
    assert rlvitals.open_run(tmp_path).series(f"metric/{name}").values.tolist() == [41, 42]


def test_our_names_are_free_inside_a_group(tmp_path, caplog):
    row, _ = log_one(tmp_path, {"env": {"step": 3, "_x": 1}})
    assert row["env/step"] == 3
    assert row["env/_x"] == 1
    assert not caplog.records


def test_a_name_that_cannot_be_encoded_is_made_so(tmp_path):
    row, _ = log_one(tmp_path, {"bad\ud800name": 1.0, "loss": 2.0})
    assert row["bad?name"] == 1.0
    assert row["loss"] == 2.0


# Unsupported values


class Evil:
    """A number that raises when it is converted."""

    def __init__(self, error):
        self.error = error

    def __float__(self):
        raise self.error


class EvilFloat(float):
    """A float that raises on every operation."""

    def _raise(self, *_):
        raise RuntimeError("broken")

    __float__ = __repr__ = __str__ = __format__ = __eq__ = __sub__ = __add__ = __radd__ = __hash__ = item = _raise


class Silent(Exception):
    """An error whose message cannot be formatted."""

    def __str__(self):
        raise RuntimeError("no words")


class EvilAttributes:
    """Every attribute access raises: its class, its number, its size."""

    def __getattribute__(self, name):
        raise RuntimeError("broken")


class EvilGroup(dict):
    """A group of metrics that cannot be iterated."""

    def items(self):
        raise RuntimeError("broken")


class EvilText(str):
    def encode(self, *_):
        raise RuntimeError("broken")

    def __len__(self):
        raise RuntimeError("broken")


class EvilInt(int):
    def __int__(self):
        raise RuntimeError("broken")


def broken_formula(part):
    raise RuntimeError("broken")


REFUSED = {
    "list": ([1, 2], "Log its mean"),
    "set": ({1}, "Log its mean"),
    "bytes": (b"x", "is not a number"),
    "complex": (1 + 2j, "is not a number"),
    "object": (object(), "is not a number"),
    "function": (print, "is not a number"),
    "numpy vector": (np.arange(3), "of 3 elements"),
    "numpy empty": (np.array([]), "of 0 elements"),
    "numpy complex": (np.complex64(1), "not a number"),
    "numpy object": (np.array(object()), "not a number"),
    "torch vector": (TorchVector(0), "of 4 elements"),
    "torch scalar on a dead device": (TorchScalar(0, RuntimeError("CUDA error: device lost")), "CUDA error"),
    "text too long": ("x" * (MAX_TEXT + 1), f"at most {MAX_TEXT}"),
    "signalling NaN": (decimal.Decimal("sNaN"), "cannot be converted to a number"),
    "fraction too big": (fractions.Fraction(10**400), "cannot be converted to a number"),
    "number that raises": (Evil(RuntimeError("broken")), "broken"),
    "number that divides by zero": (Evil(ZeroDivisionError("nothing")), "nothing"),
    "number whose error cannot be told": (Evil(Silent()), "Silent"),
    "float that raises": (EvilFloat(0.5), "broken"),
    "integer that raises": (EvilInt(3), "broken"),
    "text that raises": (EvilText("x"), "broken"),
    "object whose attributes raise": (EvilAttributes(), "broken"),
    "group that raises": (EvilGroup(a=1.0), "broken"),
    "derived number that raises": (values.Derived((values.mean([1.0]),), broken_formula), "broken"),
    "array whose size raises": (TorchScalar(0, RuntimeError("broken")), "broken"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_unsupported_value_alone_is_dropped_and_reported_once(tmp_path, caplog, name):
    value, reason = REFUSED[name]
    with rlvitals.start(tmp_path) as run:
        for step in range(3):
            run.log({"loss": 0.5, "odd": value, "reward": 1.0}, step=step)
        assert run.left_out["odd"]["count"] == 3
        assert reason in run.left_out["odd"]["reason"]
        warnings = [message for message in caplog.messages if "'odd' is dropped" in message]
        assert len(warnings) == 1
        assert reason in warnings[0]
    rows = rows_of(tmp_path)
    assert len(rows) == 3
    assert all(row["loss"] == 0.5 and row["reward"] == 1.0 and "odd" not in row for row in rows)


@pytest.mark.parametrize("name", REFUSED)
def test_strict_raises_on_what_cannot_be_taken_and_writes_no_half_row(tmp_path, name):
    value, reason = REFUSED[name]
    with rlvitals.start(tmp_path, strict=True) as run:
        run.log({"loss": 0.5}, step=0)
        with pytest.raises(BadValue, match="odd") as caught:
            run.log({"loss": 0.5, "odd": value}, step=1)
        assert reason in str(caught.value)
        run.log({"loss": 0.5}, step=2)
    assert [row["step"] for row in rows_of(tmp_path)] == [0, 2]


@pytest.mark.parametrize("kind", [EvilFloat, EvilInt, Evil, EvilAttributes])
def test_a_step_that_raises_costs_nothing_but_itself(tmp_path, caplog, kind):
    step = EvilAttributes() if kind is EvilAttributes else kind(3)
    with rlvitals.start(tmp_path) as run:
        run.log({"loss": 0.5}, step=7)
        run.log({"loss": 0.25}, step=step)
        run.log_eval({"score": 1.0}, step=step)
    assert [(row["step"], row["loss"]) for row in rows_of(tmp_path)] == [(7, 0.5), (8, 0.25)]
    assert rows_of(tmp_path, LOG.with_name("eval_metrics.jsonl"))[0]["score"] == 1.0
    assert "step must be a whole number" in caplog.text


class EvilName(str):
    """A name that can be stored, but not compared or written."""

    def _raise(self, *_):
        raise RuntimeError("broken")

    __eq__ = __format__ = __str__ = _raise
    __hash__ = str.__hash__


def test_a_name_that_raises_costs_no_value(tmp_path):
    with rlvitals.start(tmp_path) as run:
        run.log({"loss": 0.5}, step=0)
        run.log({EvilName("loss"): 0.25}, step=1)
        run.log({"loss": 0.125}, step=2)
    assert [row["loss"] for row in rows_of(tmp_path)] == [0.5, 0.25, 0.125]


@pytest.mark.parametrize("name", REFUSED)
def test_an_evaluation_with_a_value_that_cannot_be_taken_keeps_the_others(tmp_path, name):
    with rlvitals.start(tmp_path) as run:
        run.log_eval({"score": 1.0, "odd": REFUSED[name][0], "accuracy": 0.5}, step=3)
    (row,) = rows_of(tmp_path, LOG.with_name("eval_metrics.jsonl"))
    assert (row["score"], row["accuracy"]) == (1.0, 0.5)
    whole = json.loads((tmp_path / "eval_logs" / "eval_step_0003.json").read_text())
    assert (whole["score"], whole["accuracy"]) == (1.0, 0.5)


def test_a_count_that_raises_is_left_out(tmp_path, caplog):
    with rlvitals.start(tmp_path) as run:
        run.count(tokens=Evil(Silent()), samples=2)
        run.log({"loss": 0.5}, step=0)
    assert rows_of(tmp_path)[0]["system/samples"] == 2
    assert "a count must be a number, not" in caplog.text


@pytest.mark.parametrize("metrics", [None, 0.5, [("loss", 0.5)], "loss=0.5"], ids=repr)
def test_log_takes_no_other_thing_than_a_mapping_and_does_not_raise(tmp_path, caplog, metrics):
    with rlvitals.start(tmp_path) as run:
        run.log(metrics, step=0)
        run.log({"loss": 1.0}, step=1)
    assert rows_of(tmp_path)[-1]["loss"] == 1.0
    warnings = [message for message in caplog.messages if "log() takes a mapping" in message]
    assert len(warnings) == 2  # once when it happened, once in the summary at the end


def test_a_mapping_that_contains_itself_is_refused_without_harm(tmp_path):
    loop = {"x": 1.0}
    loop["self"] = loop
    row, run = log_one(tmp_path, {"loop": loop, "loss": 1.0})
    assert row["loss"] == 1.0
    assert row["loop/x"] == 1.0
    assert ["nested more than" in entry["reason"] for entry in run.left_out.values()] == [True]


def test_dropped_values_are_counted_in_the_identity_card_and_reported_by_the_reader(tmp_path, caplog):
    with rlvitals.start(tmp_path) as run:
        for _ in range(4):
            run.log({"loss": 0.5, "grads": [1, 2]})
        run.log({"loss": 0.5, "note": "x" * 2000})
    card = json.loads((tmp_path / "run.json").read_text())
    assert {name: entry["count"] for name, entry in card["left_out"].items()} == {"grads": 4, "note": 1}
    assert "not a number" in card["left_out"]["grads"]["reason"]
    at_the_end = caplog.messages[-1]
    assert "grads (4x" in at_the_end
    assert "note (1x" in at_the_end
    problems = rlvitals.open_run(tmp_path).problems
    assert any("'grads' was left out 4 times" in sentence for sentence in problems)


def test_nothing_is_reported_where_nothing_was_dropped(tmp_path, caplog):
    log_one(tmp_path, {"loss": 0.5})
    assert rlvitals.open_run(tmp_path).problems == []
    assert not caplog.records


# Axes


def test_every_axis_a_row_can_have_is_kept(tmp_path):
    with rlvitals.start(tmp_path) as run:
        for step in range(3):
            run.log(
                {
                    "loss": 1.0 - step / 10,
                    "epoch": step / 2,
                    "samples": 64 * step,
                    "tokens": 4096 * step,
                    "policy_version": step + 7,
                },
                step=10 * step,
            )
    view = rlvitals.open_run(tmp_path)
    for axis, expected in {
        "step": [0, 10, 20],
        "epoch": [0.0, 0.5, 1.0],
        "samples": [0, 64, 128],
        "tokens": [0, 4096, 8192],
        "policy_version": [7, 8, 9],
        "time": [row["timestamp"] for row in rows_of(tmp_path)],
    }.items():
        steps, numbers = view.series("loss", x=axis)
        assert steps.tolist() == expected
        assert numbers.tolist() == [1.0, 0.9, 0.8]


# Evaluations


def test_an_evaluation_is_a_row_and_a_file_of_its_own(tmp_path, caplog):
    stats = {"accuracy": 0.75, "per_task": {"mail": 0.5}, "answers": ["a", "b"], "scores": np.array([0.5, 1.0])}
    with rlvitals.start(tmp_path) as run:
        run.log({"loss": 1.0}, step=10)
        run.log_eval(stats, step=10)
    (row,) = rows_of(tmp_path, Path("logs/eval_metrics.jsonl"))
    assert (row["step"], row["attempt"], row["accuracy"], row["per_task/mail"]) == (10, 1, 0.75, 0.5)
    assert not row.keys() & {"answers", "scores"}
    whole = json.loads((tmp_path / "eval_logs/eval_step_0010.json").read_text())
    assert whole == {
        "step": 10,
        "accuracy": 0.75,
        "per_task": {"mail": 0.5},
        "answers": ["a", "b"],
        "scores": [0.5, 1.0],
    }
    assert len(rows_of(tmp_path)) == 1
    assert not run.left_out
    assert not caplog.records


def test_a_list_inside_a_group_of_an_evaluation_is_kept_in_the_file_and_is_no_fault(tmp_path, caplog):
    with rlvitals.start(tmp_path, strict=True) as run:
        run.log_eval({"accuracy": 0.5, "tasks": {"mail": {"score": 1.0, "answers": ["a", "b"]}}}, step=3)
    (row,) = rows_of(tmp_path, Path("logs/eval_metrics.jsonl"))
    assert row["tasks/mail/score"] == 1.0
    whole = json.loads((tmp_path / "eval_logs/eval_step_0003.json").read_text())
    assert whole["tasks"]["mail"]["answers"] == ["a", "b"]
    assert not run.left_out
    assert not caplog.records


def test_an_evaluation_without_a_step_belongs_to_the_last_row(tmp_path):
    with rlvitals.start(tmp_path) as run:
        run.log_eval({"accuracy": 0.1})
        run.log({"loss": 1.0}, step=12)
        run.log_eval({"accuracy": 0.2})
        run.log({"loss": 1.0})
    assert [row["step"] for row in rows_of(tmp_path, Path("logs/eval_metrics.jsonl"))] == [0, 12]
    assert [row["step"] for row in rows_of(tmp_path)] == [12, 13]


def test_an_evaluation_file_is_strict_json_with_any_number_in_it(tmp_path):
    with rlvitals.start(tmp_path) as run:
        run.log_eval(
            {"nll": math.nan, "t": TorchScalar(0.5), "m": values.mean([1.0, 2.0]), "curve": [math.inf]}, step=1
        )
    text = (tmp_path / "eval_logs/eval_step_0001.json").read_text()
    whole = json.loads(text, parse_constant=refuse_constant)
    assert whole["nll"] == "nan"
    assert (whole["t"], whole["m"], whole["curve"]) == (0.5, 1.5, ["inf"])
    (row,) = rows_of(tmp_path, Path("logs/eval_metrics.jsonl"))
    assert row["_nonfinite"] == "nll=nan"
    assert (row["t"], row["m"]) == (0.5, 1.5)
    assert "m" in row["_m"]


def test_evaluations_read_back_as_a_stream_of_their_own(tmp_path):
    with rlvitals.start(tmp_path) as run:
        run.log({"loss": 1.0}, step=10)
        run.log_eval({"loss": 0.5, "accuracy": 0.75}, step=10)
    view = rlvitals.open_run(tmp_path)
    assert view.series("loss").values.tolist() == [1.0]
    assert view.series("loss", stream="eval").values.tolist() == [0.5]
    assert view.series("accuracy").values.tolist() == [0.75]


@pytest.mark.parametrize("stats", [None, 3, ["accuracy"]], ids=repr)
def test_log_eval_does_not_raise_on_what_is_no_mapping(tmp_path, caplog, stats):
    with rlvitals.start(tmp_path) as run:
        run.log_eval(stats, step=1)
        run.log_eval({"accuracy": 1.0}, step=2)
    assert rows_of(tmp_path, Path("logs/eval_metrics.jsonl"))[-1]["accuracy"] == 1.0
    assert caplog.records


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_clock_that_is_set_ahead_is_no_slow_disk(tmp_path, monkeypatch, is_slow):
    """The wall clock moves ten seconds during a write; the monotonic clock shows whether they have really passed."""
    moved = {"time": 0.0, "monotonic": 0.0}
    wall, other = time.time, time.monotonic
    monkeypatch.setattr(time, "time", lambda: wall() + moved["time"])
    monkeypatch.setattr(time, "monotonic", lambda: other() + moved["monotonic"])
    monkeypatch.setattr("rlvitals.capture.run._clock", time.time)  # bound there once, for speed

    def write(fd, line):
        moved["time"] += 10
        moved["monotonic"] += 10 if is_slow else 0
        return os.write(fd, line)

    with rlvitals.start(tmp_path, monitor=False, display="none", hardware=False) as run:
        run.log({"loss": 1.0}, step=0)
        run.log({"loss": 1.0}, step=1)
        monkeypatch.setattr("rlvitals.capture.run._write", write)
        run.log({"loss": 1.0}, step=2)
        assert run._writer.is_plain is not is_slow
        monkeypatch.setattr("rlvitals.capture.run._write", os.write)
        run.log({"loss": 1.0}, step=3)
    assert [row["step"] for row in rows_of(tmp_path)] == [0, 1, 2, 3]


# How a run ends


def status_of(folder):
    return json.loads((Path(folder) / "run.json").read_text())["status"]


def test_a_run_is_running_until_finish_and_finished_after(tmp_path):
    run = rlvitals.start(tmp_path)
    run.log({"loss": 1.0})
    assert run.status == "running"
    assert rlvitals.open_run(tmp_path).status == "running"
    run.finish()
    assert run.status == "finished"
    assert rlvitals.open_run(tmp_path).status == "finished"
    assert rlvitals.open_run(tmp_path).info.ended >= rlvitals.open_run(tmp_path).info.created


def test_finishing_twice_does_nothing_the_second_time(tmp_path):
    run = rlvitals.start(tmp_path)
    run.finish("failed", "out of memory")
    card = (tmp_path / "run.json").read_text()
    run.finish()
    assert (tmp_path / "run.json").read_text() == card
    assert json.loads(card)["error"] == "out of memory"


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({}, "finished"),
        ({"error": ""}, "finished"),
        ({"error": "out of memory"}, "failed"),
        ({"error": RuntimeError()}, "failed"),
        ({"error": KeyboardInterrupt()}, "interrupted"),
        ({"status": "interrupted", "error": "out of time"}, "interrupted"),
    ],
)
def test_a_run_that_ends_with_an_error_has_failed_unless_its_status_is_given(tmp_path, given, status):
    run = rlvitals.start(tmp_path)
    run.finish(**given)
    assert status_of(tmp_path) == status


def test_an_exception_in_the_block_marks_the_run_failed_and_goes_on(tmp_path):
    def train():
        with rlvitals.start(tmp_path) as run:
            run.log({"loss": 1.0})
            run.log({"loss": 1 / 0})

    with pytest.raises(ZeroDivisionError):
        train()
    assert status_of(tmp_path) == "failed"
    assert rlvitals.open_run(tmp_path).info.error == "ZeroDivisionError: division by zero"
    assert len(rows_of(tmp_path)) == 1


def test_ctrl_c_in_the_block_marks_the_run_interrupted_and_goes_on(tmp_path):
    with pytest.raises(KeyboardInterrupt), rlvitals.start(tmp_path):
        raise KeyboardInterrupt
    assert status_of(tmp_path) == "interrupted"


def test_rows_after_the_end_are_dropped_with_one_warning(tmp_path, caplog):
    with rlvitals.start(tmp_path) as run:
        run.log({"loss": 1.0})
    for _ in range(3):
        run.log({"loss": 2.0})
        run.log_eval({"accuracy": 1.0})
    assert len(rows_of(tmp_path)) == 1
    assert not (tmp_path / "logs/eval_metrics.jsonl").exists()
    assert sum("the run is finished" in message for message in caplog.messages) == 2  # rows and evaluations


def test_a_finished_run_leaves_no_lock_and_no_drafts(tmp_path):
    with rlvitals.start(tmp_path) as run:
        run.log({"loss": 1.0})
        run.log_eval({"accuracy": 1.0})
    left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    assert left == [
        "attempts.jsonl",
        "config.json",
        "eval_logs/eval_step_0000.json",
        "heartbeat",
        "logs/eval_metrics.jsonl",
        "logs/findings.jsonl",
        "logs/training_metrics.jsonl",
        "run.json",
    ]


@pytest.mark.parametrize(("fsync", "least", "most"), [("never", 0, 0), ("finish", 1, 1), ("always", 4, 5)])
def test_the_disk_is_asked_as_often_as_the_setting_says(tmp_path, monkeypatch, fsync, least, most):
    asked = []  # inodes; files such as run.json are always synced
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (asked.append(os.fstat(fd).st_ino), real(fd))[1])
    log = tmp_path / "logs" / "training_metrics.jsonl"
    with rlvitals.start(tmp_path, fsync=fsync) as run:
        for _ in range(4):
            run.log({"loss": 1.0})
        if fsync == "always":
            assert asked.count(log.stat().st_ino) == 4
    assert least <= asked.count(log.stat().st_ino) <= most


def test_a_timed_fsync_happens_in_the_background(tmp_path, monkeypatch):
    asked = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (asked.append(fd), real(fd))[1])
    with rlvitals.start(tmp_path, fsync=0.02) as run:
        run.log({"loss": 1.0})
        deadline = time.monotonic() + 10
        while len(asked) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(asked) >= 3


# The global run


def test_init_log_and_finish_work_on_one_global_run(tmp_path):
    run = rlvitals.init(tmp_path, name="global")
    rlvitals.log({"loss": 1.0}, step=3)
    rlvitals.log({"loss": 2.0})
    rlvitals.finish()
    assert run.status == "finished"
    assert [(row["step"], row["loss"]) for row in rows_of(tmp_path)] == [(3, 1.0), (4, 2.0)]
    assert rlvitals.open_run(tmp_path).name == "global"
    rlvitals.finish()  # does nothing without a run


def test_a_second_init_finishes_the_first_run(tmp_path):
    first = rlvitals.init(tmp_path / "a")
    rlvitals.init(tmp_path / "b")
    rlvitals.log({"loss": 1.0})
    rlvitals.finish("interrupted")
    assert first.status == "finished"
    assert status_of(tmp_path / "b") == "interrupted"
    assert (tmp_path / "a" / LOG).read_bytes() == b""
    assert len(rows_of(tmp_path / "b")) == 1


def test_the_global_log_without_init_says_what_to_do():
    with pytest.raises(RunError, match=r"rlvitals\.init\("):
        rlvitals.log({"loss": 1.0})


# Secrets


SECRETS = {
    "by name": "0123456789abcdef-by-name",
    "in a list": "in-a-list-0123456789",
    "as a number": 8675309867530986,
    "in a group": "in-a-group-hunter2",
    "hugging face": "hf_" + "A" * 34,
    "openai": "sk-proj-" + "b" * 40,
    "github": "ghp_" + "c" * 36,
    "login": "url-login-s3cret",
    "of the tracker": "tracker-0123456789",
    "in the section": "hf_" + "S" * 34,
    "on the command line": "argv-0123456789",
    "on the command line after a space": "argv-space-0123456789",
    "as an override": "hydra-0123456789",
    "in an error": "sk-" + "e" * 40,
    "changed": "changed-0123456789",
}


def secret_config(by_name):
    return {
        "optim": {"lr": 5e-7},
        "wandb": {"api_key": by_name, "project": "kto"},
        "headers": [{"Authorization": "Bearer " + SECRETS["in a list"]}],
        "db": {"password": SECRETS["as a number"]},
        "credentials": {"user": "me", "value": SECRETS["in a group"]},
        "notes": f"use {SECRETS['hugging face']} and {SECRETS['openai']}",
        "clone": f"https://me:{SECRETS['login']}@example.org/repo.git",
        "env": {"GITHUB": SECRETS["github"]},
        "rlvitals": {
            "tracker_kwargs": {"wandb": {"api_key": SECRETS["of the tracker"], "notes": SECRETS["in the section"]}}
        },
    }


def test_no_secret_is_anywhere_in_the_run_directory(tmp_path, monkeypatch):
    argv = [
        "train.py",
        f"--hub-token={SECRETS['on the command line']}",
        "--wandb_api_key",
        SECRETS["on the command line after a space"],
        f"trainer.wandb.api_key={SECRETS['as an override']}",  # the form of Hydra's overrides
        "--lr=5e-7",
    ]
    monkeypatch.setattr("sys.argv", argv)

    def train():
        with rlvitals.start(tmp_path, config=secret_config(SECRETS["by name"])) as run:
            run.log({"loss": 1.0})
            raise RuntimeError(f"401 with key {SECRETS['in an error']}")

    with pytest.raises(RuntimeError):
        train()
    with rlvitals.start(tmp_path, config=secret_config(SECRETS["changed"]), resume=True) as run:
        run.log({"loss": 1.0})
    written = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    leaks = {
        f"{name}: {path.relative_to(tmp_path)}"
        for name, secret in SECRETS.items()
        for path, data in written.items()
        if str(secret).encode() in data
    }
    assert not leaks
    kept = json.loads((tmp_path / "config.json").read_text())
    assert kept["wandb"] == {"api_key": "***", "project": "kto"}
    assert kept["optim"] == {"lr": 5e-7}
    command = json.loads((tmp_path / "run.json").read_text())["command"]
    assert command.startswith("train.py --hub-token=*** --wandb_api_key *** ")
    assert command.endswith(" --lr=5e-7")


def test_what_only_sounds_like_a_secret_is_kept(tmp_path):
    harmless = {"max_tokens": 512, "pad_token": "<pad>", "num_tokens": 3, "tokenizer": "gpt2", "sk": "sk-short"}
    with rlvitals.start(tmp_path, config=harmless):
        pass
    kept = json.loads((tmp_path / "config.json").read_text())
    assert {name: kept[name] for name in harmless} == harmless


def test_a_config_may_hold_things_json_cannot(tmp_path):
    odd = {
        "weights": np.array([1.0, 2.0]),
        "path": Path("models") / "base",
        "dtype": np.dtype("float32"),
        "limit": math.inf,
        "tasks": {"mail"},
        1: "one",
    }
    with rlvitals.start(tmp_path, config=odd) as run:
        run.log({"loss": 1.0})
    kept = json.loads((tmp_path / "config.json").read_text(), parse_constant=refuse_constant)
    assert kept["path"] == str(Path("models") / "base")
    assert kept["dtype"] == "float32"
    assert kept["limit"] == "inf"
    assert kept["tasks"] == ["mail"]
    assert kept["1"] == "one"


def test_warnings_go_to_the_rlvitals_logger_alone(tmp_path, caplog, capfd):
    with caplog.at_level(logging.DEBUG):
        log_one(tmp_path, {"odd": [1]})
    assert {record.name for record in caplog.records} == {"rlvitals"}
    assert capfd.readouterr().out == ""


def test_an_evaluation_may_carry_its_step_among_its_stats(tmp_path):
    with rlvitals.start(tmp_path) as run:
        run.log_eval({"step": 40, "accuracy": 0.5})
    assert json.loads((tmp_path / "eval_logs" / "eval_step_0040.json").read_text()) == {"step": 40, "accuracy": 0.5}
