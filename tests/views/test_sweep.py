"""Importance of settings, against scipy and by hand; where curves diverge; which settings are bookkeeping."""

from __future__ import annotations

import numpy as np
import pytest

from rlvitals.views.divergence import bands_part, parting_step
from rlvitals.views.settings import families, is_bookkeeping
from rlvitals.views.sweep import importance_of, sweep

stats = pytest.importorskip("scipy.stats")


def test_importance_by_hand():
    """Ranks 1 2 3 4 5 against 1 2 3 5 4: 1 - 6 * 2 / (5 * 24) = 0.9."""
    found = importance_of("lr", [1e-6, 1e-5, 1e-4, 1e-3, 1e-2], [0.1, 0.2, 0.3, 0.9, 0.8])
    assert (found["strength"], found["n"], found["kind"], found["is_clear"]) == (0.9, 5, "number", False)
    assert found["note"] == "may be chance"
    longer = importance_of("lr", list(range(20)), [float(-number) for number in range(20)])
    assert (longer["strength"], longer["is_clear"], longer["note"]) == (-1.0, True, "")


@pytest.mark.parametrize(
    ("values", "targets", "note"),
    [
        ([1, 2, 3, 4], [1.0, 2.0, 3.0, 4.0], "only 4 runs"),
        ([1, 2, 3, 4, 5, None], [1.0, 2.0, 3.0, 4.0, None, 6.0], "only 4 runs"),
        ([7, 7, 7.0, 7, 7, 7.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "the same in every run"),
        ([1, 2, 3, 4, 5, 6], [2.0] * 6, "the target is the same"),
    ],
)
def test_what_cannot_be_computed_is_not_reported(values, targets, note):
    found = importance_of("x", values, targets)
    assert found["strength"] is None
    assert note in found["note"]


def test_words_without_an_order_are_judged_by_kruskal_and_wallis():
    chance = np.random.default_rng(3)
    words = [word for word in "abc" for _ in range(10)]
    apart = [float(chance.normal() + 4 * "abc".index(word)) for word in words]
    clear = importance_of("scheduler", words, apart)
    assert (clear["kind"], clear["is_clear"]) == ("category", True)
    assert 0.8 < clear["strength"] <= 1.0
    alike = [float(chance.normal()) for _ in words]
    assert importance_of("scheduler", words, alike)["is_clear"] == (
        stats.kruskal(*(alike[place : place + 10] for place in (0, 10, 20))).pvalue < 0.05
    )
    ids = importance_of("id", [str(number) for number in range(30)], alike)
    assert (ids["strength"], ids["is_clear"]) == (0.0, False)  # a different word in each run explains nothing
    flags = importance_of("flag", [True, False] * 5, [1.0, 0.0] * 5)
    assert (flags["kind"], flags["strength"]) == ("number", 1.0)


def test_a_sweep_leaves_bookkeeping_and_what_does_not_vary_out():
    runs = {
        f"r{number}": {
            "lr": 10.0**-number,
            "seed": number % 2,
            "model": "m",
            "output_dir": f"/o/{number}",
            "fp16": number > 3,
        }
        for number in range(1, 7)
    }
    answer = sweep("reward.last", {run: float(place) for place, run in enumerate(runs)}, runs)
    assert [setting["key"] for setting in answer["settings"]] == ["fp16", "lr", "seed"]
    assert {setting["key"]: setting["is_log"] for setting in answer["settings"]} == {
        "fp16": False,
        "lr": True,
        "seed": False,
    }
    assert answer["settings"][0]["words"] == ["false", "true"]
    assert answer["importance"][0] == {
        "key": "lr", "n": 6, "kind": "number", "strength": -1.0, "is_clear": True, "note": "",
    }  # fmt: skip


def test_curves_part_where_they_were_made_to():
    steps = np.arange(1, 201)
    chance = np.random.default_rng(0)

    def curve(bend):
        return 0.3 * np.log(steps) + chance.normal(0, 0.1, 200) + np.where(steps > bend, 0.02 * (steps - bend), 0.0)

    assert 100 <= parting_step(steps, curve(10**6), curve(100)) <= 120
    found = [parting_step(steps, curve(10**6), curve(10**6)) for _ in range(200)]
    assert sum(step is not None for step in found) <= 2
    same = curve(10**6)
    assert parting_step(steps, same, same) is None
    assert parting_step(steps, same, same + 5.0) == 1
    bump = np.where((steps > 50) & (steps < 80), 2.0, 0.0)
    assert parting_step(steps, same, curve(10**6) + bump) is None  # the curves converge again
    holes = same.copy()
    holes[::3] = np.nan
    assert parting_step(steps, holes, same + 5.0) == 2
    assert parting_step(steps[:5], same[:5], same[:5] + 5.0) is None  # too few points


def test_bands_part_where_the_deviations_do_not_overlap():
    steps = np.arange(200)
    chance = np.random.default_rng(1)

    def seeds(slope):
        own = chance.normal(0, 0.5, (4, 1)) + chance.normal(0, 0.1, (4, 200))
        return own + np.where(steps > 100, slope * (steps - 100), 0.0)

    assert 100 < bands_part(steps, seeds(0.0), seeds(0.1)) < 140
    assert bands_part(steps, seeds(0.0), seeds(0.0)) is None  # the seeds differ as much from each other
    assert bands_part(steps, seeds(0.0)[:1], seeds(0.1)) is None  # one run has no band
    assert bands_part(steps[:5], seeds(0.0)[:, :5], seeds(9.0)[:, :5]) is None


@pytest.mark.parametrize(
    "key",
    ["rlvitals.monitor", "output_dir", "args.logging_dir", "run_id", "wandb_project", "git.commit", "trl_version",
     "started", "master_port", "trainer.hostname", "local_rank", "uuid", "experiment_name", "hub_model_id"],
)  # fmt: skip
def test_bookkeeping_is_known(key):
    assert is_bookkeeping(key)


@pytest.mark.parametrize(
    "key",
    ["learning_rate", "beta", "seed", "model_name_or_path", "max_steps", "data_dir", "pad_token_id", "num_generations",
     "lr_scheduler_type", "warmup_time_ratio", "gradient_accumulation_steps", "lora.rank_pattern", "grid", "valid"],
)  # fmt: skip
def test_what_is_trained_is_no_bookkeeping(key):
    assert not is_bookkeeping(key)


def test_many_differences_still_tell_families_apart():
    runs = {f"r{number}": {f"k{key}": number if key == 9 else key for key in range(10)} for number in range(3)}
    runs |= {f"s{number}": {f"k{key}": key + 1 for key in range(10)} | {"seed": number} for number in range(2)}
    labels = families(runs)
    assert len(set(labels.values())) == 4
    assert labels["s0"] == labels["s1"]
