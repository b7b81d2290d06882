"""How time was spent, checked with hand-made phases and samples."""

from __future__ import annotations

import json

import numpy as np
import pytest

import rlvitals
from rlvitals.records import PhaseSpan
from rlvitals.views import performance as module
from rlvitals.views.performance import memory, performance, shares, system, throughput


def record(path, rows=(), spans=(), samples=()):
    logs = path / "logs"
    logs.mkdir(parents=True)
    for name, lines in (("training_metrics", rows), ("phases", spans), ("system", samples)):
        head = {"attempt": 1}
        (logs / f"{name}.jsonl").write_text("".join(json.dumps(head | line) + "\n" for line in lines))
    return rlvitals.open_run(path)


def test_a_phase_s_share_is_without_the_phases_inside_it():
    spans = [
        PhaseSpan("load", 1.0, 2.0, 1, 1, "train"),
        PhaseSpan("train", 0.0, 4.0, 1, 1),
        PhaseSpan("generate", 4.0, 10.0, 1, 1),
    ]
    assert shares(spans) == pytest.approx({"generate": 0.6, "train": 0.3, "load": 0.1})
    assert sum(shares(spans).values()) == pytest.approx(1.0)
    assert shares([]) == {}
    assert shares([PhaseSpan("nothing", 1.0, 1.0, 1, 1)]) == {}


def spans_of(steps):
    return [
        {"step": step, "phase": name, "start": 10.0 * step + start, "end": 10.0 * step + end}
        for step in range(1, steps + 1)
        for name, start, end in (("generate", 0, 6), ("train_step", 6, 9))
    ]


def test_phases_are_listed_step_by_step_within_the_range(tmp_path):
    view = record(tmp_path, [{"step": 1, "loss": 1.0}], spans_of(10))
    answer = performance(view, 3, 4)
    assert [(phase["step"], phase["name"]) for phase in answer["phases"]] == [
        (3, "generate"),
        (3, "train_step"),
        (4, "generate"),
        (4, "train_step"),
    ]
    assert answer["share"] == pytest.approx({"generate": 2 / 3, "train_step": 1 / 3})


def test_of_very_many_phases_the_newest_are_listed_and_a_range_finds_the_old_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_SPANS", 4)
    monkeypatch.setattr(module, "MOST_READ", 10)
    view = record(tmp_path, [{"step": 1, "loss": 1.0}], spans_of(50))
    answer = performance(view)
    assert [phase["step"] for phase in answer["phases"]] == [49, 49, 50, 50]
    assert answer["left_out"] == 6
    assert [phase["step"] for phase in performance(view, 2, 3)["phases"]] == [2, 2, 3, 3]
    assert [phase["step"] for phase in performance(view, None, 1)["phases"]] == [1, 1]


def test_throughput_has_its_tails(tmp_path):
    speeds = np.linspace(100.0, 1000.0, 200)
    view = record(tmp_path, [{"step": step, "system/tps": speed} for step, speed in enumerate(speeds)])
    found = throughput(view)["system/tps"]
    assert (found["p1"], found["p50"], found["p99"]) == pytest.approx(np.quantile(speeds, (0.01, 0.5, 0.99)))
    assert throughput(view, 0, 9)["system/tps"]["points"] == 10


def listed(tmp_path, *names):
    return list(throughput(record(tmp_path, [{"step": step, **dict.fromkeys(names, 9.0 + step)} for step in (1, 2)])))


def test_a_mean_or_percentile_of_a_speed_that_is_reported_is_left_out(tmp_path):
    speeds = [
        "perf.generation_tokens_per_s",
        "perf/train_step/tokens_per_s",
        "system/tps",
        "perf/tokens_per_gpu_per_sec",
    ]
    others = [f"perf.generation_tokens_per_s.{end}" for end in ("mean", "p1", "p99")]
    others += [f"perf/train_step/tokens_per_s/{end}" for end in ("mean", "p1", "p99")]
    assert listed(tmp_path, *speeds, *others) == speeds


def test_so_it_is_under_the_names_of_the_rlaif_document(tmp_path):
    kinds = ("TokensPerSec", "AvgTokensPerSec", "P1TokensPerSec", "P99TokensPerSec")
    names = [f"Performance/{phase}_{kind}" for phase in ("Generation", "Backprop", "TrainStep") for kind in kinds]
    assert listed(tmp_path, *names) == [
        f"Performance/{p}_TokensPerSec" for p in ("Generation", "Backprop", "TrainStep")
    ]


def test_a_percentile_whose_speed_is_not_logged_stays(tmp_path):
    names = ["perf/train_step/tokens_per_s", "perf/compute_log_probs/tokens_per_s/p1", "perf.backward_tokens_per_s.p99"]
    assert listed(tmp_path, *names) == names


def test_memory_passes_from_loading_to_unloading(tmp_path):
    row = {
        "step": 1,
        "memory/train_step/start/offload/allocated/0": 1.0,
        "memory/train_step/start/onload/allocated/0": 5.0,
        "memory/train_step/end/onload/allocated/0": 6.0,
        "memory/train_step/end/onload/max_allocated/0": 9.0,
        "memory/train_step/end/offload/allocated/0": 1.5,
        "memory/cpu/train_step/start/rss": 2.0,
    }
    found = memory(record(tmp_path, [row]))
    assert len(found) == 1
    assert (found[0]["phase"], found[0]["device"], found[0]["peak"]) == ("train_step", "0", {"allocated": 9.0})
    assert [(stage["stage"], stage["allocated"]) for stage in found[0]["stages"]] == [
        ("start/offload", 1.0), ("start/onload", 5.0), ("end/onload", 6.0), ("end/offload", 1.5),
    ]  # fmt: skip


def test_the_machine_s_peaks_outlive_thinning(tmp_path):
    samples = [{"step": 1, "timestamp": 1e9 + place, "System/CPU_Percent": 10.0} for place in range(5000)]
    samples[1234]["System/CPU_Percent"] = 99.0
    found = system(record(tmp_path, [{"step": 1, "loss": 1.0}], samples=samples))
    line = found["lines"]["System/CPU_Percent"]
    assert (found["samples"], line["total"], max(line["high"])) == (5000, 5000, 99.0)
    assert line["shown"] <= 400


def test_a_run_without_any_of_it_says_so_by_empty_lists(tmp_path):
    answer = performance(record(tmp_path, [{"step": 1, "loss": 1.0}]))
    assert (answer["phases"], answer["share"], answer["throughput"], answer["memory"]) == ([], {}, {}, [])
    assert answer["system"] == {"samples": 0, "lines": {}}
