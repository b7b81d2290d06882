"""All views get the same answers: the meaning of a name in a run, the run's vital signs, and the band that applies."""

from __future__ import annotations

import pytest

import rlvitals
from rlvitals import catalog
from rlvitals.health.monitor import Monitor
from rlvitals.render.steps import LAYOUTS, short_names, step_text
from rlvitals.tui.watched import Watched
from rlvitals.views.diagnosis import diagnose
from rlvitals.views.plots import overview
from rlvitals.views.report import gather
from rlvitals.views.summary import summarise
from rlvitals.views.vitals import vitals

TRAINERS = [(entry.parent, entry.algorithm, entry.id) for entry in catalog.frameworks() if entry.parent]


def record(path, row, rows=12, **settings):
    with rlvitals.start(path, monitor=False, hardware=False, display="none", **settings) as run:
        for step in range(1, rows + 1):
            run.log({name: value * (1 + 0.01 * step) for name, value in row.items()}, step=step)
    return rlvitals.open_run(path)


def test_the_doctor_and_the_views_read_a_name_alike(tmp_path):
    for algorithm, concept in (("rloo", "kl_ref.k1"), ("grpo", "kl_ref.k3"), ("dr_grpo", "kl_ref.k3")):
        row = {"kl": 0.1, "reward": 0.5, "completions/mean_length": 20.0}
        view = record(tmp_path / algorithm, row, algorithm=algorithm, framework="trl")
        monitor = Monitor(algorithm=algorithm, framework="trl")
        for line in view.iterate():
            monitor.update({"step": line.step, **line.numbers})
        assert monitor.case.kl_estimator == concept
        assert view.concept("kl") == concept
        assert Watched(tmp_path / algorithm).poll()
        assert (
            next(tile for tile in vitals(view, diagnose(view))["tiles"] if tile["name"] == "kl")["concept"] == concept
        )
        title = catalog.find(concept)[0].metric.title
        assert title in [panel.title for panel in overview(view).panels]


@pytest.mark.parametrize(("framework", "algorithm", "trainer"), TRAINERS)
def test_an_algorithm_narrows_a_framework_to_its_trainer(framework, algorithm, trainer):
    found = catalog.reader(framework, algorithm).framework
    entry = next(entry for entry in catalog.frameworks() if entry.id == found)
    assert (entry.parent, entry.algorithm) == (framework, algorithm)
    assert catalog.reader(trainer, algorithm).framework == trainer


@pytest.mark.parametrize(
    ("framework", "algorithm", "concept"),
    [
        ("trl", "RLOO", "kl_ref.k1"),
        ("trl_grpo", "rloo", "kl_ref.k1"),  # the names look like GRPO's, but the algorithm is given
        ("trl", "kto", "kl_ref.kto"),
        ("trl", "bco", "kl_ref.kto"),
        ("trl", "dapo", "kl_ref.k3"),
        ("ms_swift", "rloo", "kl_ref.k1"),  # logs TRL's names and has no own trainers
        (None, "kto", "kl_ref.kto"),
        ("trl", "no such algorithm", "kl_ref.k3"),
        ("no such framework", None, "kl_ref.k3"),
    ],
)
def test_a_name_means_what_the_algorithm_s_trainer_means_by_it(framework, algorithm, concept):
    assert catalog.reader(framework, algorithm).meaning("kl").metric.id == concept


def test_a_name_of_evaluations_alone_is_an_evaluations():
    reader = catalog.reader("trl")
    assert reader.meaning("accuracy").metric.id == "rm.accuracy"
    assert reader.meaning("accuracy", evaluated=True).metric.id == "eval.score.mean"


RUNS = {
    "grpo": {
        "epoch": 0.1, "learning_rate": 1e-6, "reward": 0.5, "loss": 0.1, "kl": 0.01, "entropy": 0.4, "grad_norm": 1.0,
        "completions/mean_length": 200.0, "completions/clipped_ratio": 0.1, "frac_reward_zero_std": 0.1,
    },
    "dapo": {"actor/entropy": 0.4, "critic/score/mean": 0.5, "actor/pg_loss": 0.1, "actor/grad_norm": 1.0, "own": 2.0},
    "ppo": {"critic/vf_loss": 0.3, "critic/vf_explained_var": 0.4, "critic/score/mean": 0.5, "actor/pg_clipfrac": 0.1},
    "kto": {"learning_rate": 1e-6, "kl": 0.1, "loss": 0.5, "rewards/margins": 0.1, "rewards/chosen": 0.1, "own": 2.0},
    "simpo": {"loss": 0.5, "rewards/accuracies": 0.6, "rewards/margins": 0.1, "eval_rewards/margins": 0.1},
    "sft": {"grad_norm": 1.0, "mean_token_accuracy": 0.6, "loss": 0.5, "entropy": 0.4},
    "reward_model": {"loss": 0.5, "accuracy": 0.6, "margin": 0.3, "grad_norm": 1.0},
    "unheard of": {"own/b": 1.0, "own/a": 2.0, "loss": 0.5},
}  # fmt: skip


@pytest.mark.parametrize("algorithm", RUNS)
def test_every_view_shows_the_same_vital_signs_in_the_same_order(tmp_path, algorithm):
    row = RUNS[algorithm]
    view = record(tmp_path / "run", row, algorithm=algorithm)
    signs = view.vital_signs
    assert signs
    assert [tile["name"] for tile in vitals(view, diagnose(view))["tiles"]] == signs
    assert [tile["name"] for tile in gather(tmp_path / "run").tiles] == signs
    assert [metric["name"] for metric in summarise(view)["metrics"]][: len(signs)] == signs
    watched = Watched(tmp_path / "run")
    watched.poll()
    assert watched.vital_names == signs
    drawn = [name for panel in overview(view, judged=False).panels for name in panel.name.split(", ")]
    assert [name for name in drawn if name in signs] == signs
    line = step_text(LAYOUTS["line"], algorithm=algorithm, encoding="utf-8").lines(1, row, None, 10_000)[0]
    shown = [piece.text.strip() for piece in line if piece.role == "note" and piece.text.strip()]
    assert [name for label in shown for name in signs if short_names(row)[name] == label] == signs


def test_a_sign_that_only_evaluations_log_has_the_same_title_on_the_page_and_on_the_terminal(tmp_path):
    with rlvitals.start(tmp_path / "run", algorithm="reward_model", display="none", hardware=False) as run:
        for step in range(1, 9):
            run.log({"loss": 1 / step}, step=step)
            run.log_eval({"accuracy": 0.5}, step=step)
    view = rlvitals.open_run(tmp_path / "run")
    watched = Watched(tmp_path / "run")
    watched.poll()
    tiles = {tile["name"]: tile["title"] for tile in vitals(view, diagnose(view))["tiles"]}
    assert "accuracy" in tiles
    assert {tile.name: tile.title for tile in watched.tiles()} == tiles
    assert {name: watched.title(name) for name in tiles} == tiles


def test_the_trainings_own_name_comes_before_the_evaluations():
    names = ["eval_rewards/margins", "eval_loss", "rewards/margins", "loss"]
    reader = catalog.reader("trl_kto", "kto")
    assert reader.vital_signs(names)[:2] == ["rewards/margins", "loss"]
    assert reader.vital_signs(names[:1]) == ["eval_rewards/margins"]


def test_a_name_that_is_another_quantity_is_no_vital_sign():
    counted = [
        (metric.id, alias)
        for metric in catalog.metrics()
        for alias in metric.names
        if alias.caveat is not None and alias.caveat.is_other_quantity and "{" not in alias.name and not alias.when
    ]
    for concept, alias in counted:
        reader = catalog.reader(alias.framework)
        meaning = reader.meaning(alias.name)
        if meaning.caveat == alias.caveat and meaning.metric.id == concept:
            assert reader.named(alias.name) is None
            assert reader.vital_signs(["loss", alias.name])[:1] == ["loss"]


def test_what_an_unknown_algorithm_s_signs_are_follows_from_the_names():
    reader = catalog.reader()
    assert reader.vital_signs(["loss", "rewards/chosen", "rewards/margins"])[0] == "rewards/margins"
    assert reader.vital_signs(["loss", "entropy", "reward"])[0] == "reward"
    assert reader.vital_signs(["loss", "agent.turns.mean", "reward"])[:2] == ["reward", "agent.turns.mean"]


def test_the_machine_is_no_vital_sign_while_there_is_anything_else():
    names = ["epoch", "System/CPU_Percent", "time/rollout", "my/own"]
    assert catalog.reader().vital_signs(names) == ["my/own"]
    assert catalog.reader().vital_signs(names[:3]) == names[:3]


def test_every_algorithm_has_a_kind_vital_signs_and_a_spelling_of_its_own():
    known = {metric.id for metric in catalog.metrics()} | {group.id for group in catalog.groups()}
    ids = [algorithm.id for algorithm in catalog.algorithms()]
    for algorithm in catalog.algorithms():
        assert algorithm.kind
        assert algorithm.vitals
        assert set(algorithm.vitals) <= known
        assert set(algorithm.estimators) <= known
        assert not algorithm.parent or algorithm.parent in ids
        for name in (algorithm.id, *algorithm.aliases):
            assert catalog.algorithm(name).id == algorithm.id
    assert {framework.algorithm for framework in catalog.frameworks()} - {""} <= set(ids)
    assert {band.algorithm for metric in catalog.metrics() for band in metric.bands} - {"any"} <= set(ids)


@pytest.mark.parametrize("spelling", ["Dr-GRPO", "dr_grpo", "DRGRPO", "drgrpo"])
def test_an_algorithm_is_known_however_it_is_spelled(spelling):
    assert catalog.algorithm(spelling).id == "dr_grpo"


@pytest.mark.usefixtures("shipped_catalogue")
def test_an_algorithm_of_one_s_own_has_its_parent_s_signs_and_names():
    catalog.register({"algorithms": [{"id": "mypo", "title": "Mine", "parent": "rloo"}]})
    mine = catalog.algorithm("MyPO")
    assert (mine.kind, mine.vitals) == ("online", ("vitals.policy_gradient",))
    assert catalog.reader("trl", "mypo").framework == "trl_rloo"
    assert Monitor(algorithm="mypo").case.family == "policy"


def limits(band):
    return None if band is None else band.limits


def test_a_band_is_the_algorithm_s_own_where_it_has_one():
    assert limits(catalog.reader("trl_grpo", "grpo").band("frac_reward_zero_std")) == (None, 0.3)
    assert limits(catalog.reader("trl_grpo").band("frac_reward_zero_std")) == (None, 0.55)


@pytest.mark.parametrize(
    ("stage", "expected"),
    [("start", (-0.1, 0.1)), ("mid", (0.5, 1.0)), ("end", (0.3, 2.0)), ("any", (None, 5.0))],
)
def test_a_band_is_the_stage_s_own_where_it_has_one(stage, expected):
    assert limits(catalog.reader("trl", "kto").band("rewards/margins", stage=stage)) == expected


def test_a_band_that_is_not_known_to_hold_is_not_given():
    kto, unknown = catalog.reader("trl", "kto"), catalog.reader("trl")
    assert kto.band("kl") is None  # defined for an estimate that is not clamped at 0
    assert kto.band("learning_rate") is None  # the model size is unknown
    assert kto.band("learning_rate", parameters=1e5) is None
    assert limits(kto.band("learning_rate", parameters=7e9)) == (None, 1e-6)
    assert unknown.band("rewards/margins") is None  # defined for KTO
    assert kto.band("eval_rewards/margins") is None  # defined for training


def test_a_number_that_is_counted_otherwise_has_no_band():
    checked = 0
    for metric in catalog.metrics():
        for alias in metric.names:
            if metric.bands and alias.caveat is not None and "{" not in alias.name:
                reader = catalog.reader(alias.framework)
                if reader.meaning(alias.name).alias == alias:
                    checked += 1
                    assert reader.band(alias.name) is None
    assert checked > 10


def test_an_algorithm_s_band_holds_for_the_estimator_it_uses():
    meaning = catalog.reader("trl", "kto").meaning("rewards/margins")
    assert meaning.caveat.kind == "estimator"
    assert catalog.reader("trl", "kto").band("rewards/margins") is not None


def test_a_band_that_is_only_quoted_is_listed_and_never_chosen():
    quoted = [(metric, band) for metric in catalog.metrics() for band in metric.bands if not band.is_typical]
    assert quoted
    for metric, band in quoted:
        assert band in catalog.explain(metric.id).bands
        chosen = catalog.reader(None, band.algorithm).band(metric.id, stage=band.stage, parameters=1e12)
        assert chosen is None or chosen.is_typical
