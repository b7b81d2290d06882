"""Slices: names that hold one metric of one environment, data source or agent, as frameworks log them."""

from __future__ import annotations

import pytest

from rlvitals import catalog
from rlvitals.catalog import slices
from rlvitals.catalog.lookup import Catalog
from rlvitals.catalog.source import parse
from rlvitals.errors import CatalogError

SOLVER = {"env": "math", "agent": "solver"}

LOGGED = [
    # framework, a name as it logs it, concept, labels, stem
    ("verl", "val-core/gsm8k/acc/mean@8", "eval.score.mean", {"source": "gsm8k"}, "val-core/{source}/acc/mean@8"),
    ("verl", "val-core/openai/gsm8k/reward/mean@1", "eval.score.mean", {"source": "openai/gsm8k"},
     "val-core/{source}/reward/mean@1"),
    ("verl", "val-core/gsm8k/acc/best@8/mean", "eval.pass_at_k", {"source": "gsm8k"},
     "val-core/{source}/acc/best@8/mean"),
    ("easyr1", "val-core/gsm8k/acc/mean@8", "eval.score.mean", {"source": "gsm8k"}, "val-core/{source}/acc/mean@8"),
    ("prime_rl", "train/math/all/solver/reward/mean", "reward.total.mean", SOLVER,
     "train/{env}/all/{agent}/reward/mean"),
    ("prime_rl", "train/agg/all/solver/reward/mean", "reward.total.mean", {"agent": "solver"},
     "train/agg/all/{agent}/reward/mean"),
    ("prime_rl", "eval/aime/effective/solver/pass@8", "eval.pass_at_k", {"env": "aime", "agent": "solver"},
     "eval/{env}/effective/{agent}/pass@8"),
    ("skyrl", "eval/gsm8k/avg_score", "eval.score.mean", {"source": "gsm8k"}, "eval/{source}/avg_score"),
    ("skyrl", "eval/all/avg_score", "eval.score.mean", {}, ""),
    ("skyrl", "eval/gsm8k/pass_at_8", "eval.pass_at_k", {"source": "gsm8k"}, "eval/{source}/pass_at_8"),
    ("skyrl", "eval/all/pass_at_8", "eval.pass_at_k", {}, ""),
    ("skyrl", "eval/reward/mean/gsm8k", "eval.score.mean", {"source": "gsm8k"}, "eval/reward/mean/{source}"),
    ("nemo_rl", "train/math_agent/reward/mean", "reward.total.mean", {"agent": "math_agent"},
     "train/{agent}/reward/mean"),
    ("open_instruct", "objective/gsm8k_reward", "reward.component.mean", {"source": "gsm8k"},
     "objective/{source}_reward"),
    ("open_instruct", "scores", "reward.total.mean", {}, ""),
    ("open_instruct", "objective/verifiable_reward", "reward.component.mean", {}, ""),
    ("tinker", "env/math/reward/total", "reward.total.mean", {"env": "math"}, "env/{env}/reward/total"),
    ("tinker", "env/math/by_group/frac_mixed", "group.mixed_fraction", {"env": "math"},
     "env/{env}/by_group/frac_mixed"),
    ("tinker", "env/all/reward/total", "reward.total.mean", {}, ""),
    ("roll", "math/critic/score/mean", "reward.total.mean", {"source": "math"}, "{source}/critic/score/mean"),
    ("roll", "critic/score/mean", "reward.total.mean", {}, ""),
    ("roll", "val_correct/gsm8k/mean", "eval.score.mean", {"source": "gsm8k"}, "val_correct/{source}/mean"),
    ("slime", "eval/aime", "eval.score.mean", {"source": "aime"}, "eval/{source}"),
    ("openrlhf", "eval/eval_gsm8k_pass1", "eval.score.mean", {"source": "gsm8k"}, "eval/eval_{source}_pass1"),
    # A component of the reward is not a slice.
    ("trl_grpo", "rewards/format/mean", "reward.component.mean", {}, ""),
    # rlvitals' own notation, appended to any name.
    ("trl_grpo", "reward/env=math", "reward.total.mean", {"env": "math"}, "reward/{env}"),
    ("verl", "critic/score/mean/agent=solver/env=math", "reward.total.mean", SOLVER,
     "critic/score/mean/{env}/{agent}"),
    ("tinker", "env/math/reward/total/agent=solver", "reward.total.mean", SOLVER, "env/{env}/reward/total/{agent}"),
    ("trl_grpo", "eval_reward/env=math", "eval.score.mean", {"env": "math"}, "eval_reward/{env}"),
]  # fmt: skip


@pytest.mark.parametrize(("framework", "name", "concept", "labels", "stem"), LOGGED, ids=str)
def test_a_frameworks_name_is_a_concept_with_a_label(framework, name, concept, labels, stem):
    found = catalog.reader(framework).meaning(name)
    assert (found.metric.id, dict(found.labels), found.stem, found.in_framework) == (concept, labels, stem, True)


def test_a_set_of_names_counts_in_its_own_framework_alone():
    assert catalog.reader("trl_grpo").meaning("math/rollout/score/mean") is None
    assert catalog.reader("roll").meaning("math/rollout/score/mean").labels == {"source": "math"}
    assert catalog.reader("roll").meaning("math/what/nobody/knows") is None


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("reward/env=math", {"env": "math"}),
        ("reward/env=math,agent=a", {"env": "math", "agent": "a"}),
        ("reward/env=math/agent=a", {"env": "math", "agent": "a"}),
        ("reward/source=a, b and c", {"source": "a, b and c"}),
        ("reward/source=openai/gsm8k", {"source": "openai/gsm8k"}),
        ("reward/env=a=b", {"env": "a=b"}),
        ("reward/task=<b>x</b>", {"task": "<b>x</b>"}),
        ("mine/tool=python", {"tool": "python"}),
    ],
)
def test_any_metric_can_be_labelled(name, labels):
    assert catalog.reader().cut(name).labels == labels


@pytest.mark.parametrize(
    "name",
    [
        "env=math", "reward", "reward/env", "reward/env=", "reward/env= ", "reward/lr=0.1", "reward/env=a/env=b",
        f"reward/env={'x' * (slices.LONGEST_LABEL + 1)}", "a=b/c",
    ],
)  # fmt: skip
def test_what_is_no_label_is_left_in_the_name(name):
    assert slices.cut(name) is None


def test_a_framework_is_recognised_by_names_that_carry_labels():
    names = ["critic/score/mean/env=math", "actor/pg_loss", "actor/ppo_kl", "response_length/mean/env=math"]
    assert catalog.recognise(names).framework == "verl"


def test_the_slices_of_a_run_with_what_is_over_all_of_them():
    names = ["loss", "reward/env=math", "reward", "reward/env=code", "mine/tool=python", "eval_reward/env=math"]
    found = {group.stem: group for group in catalog.reader("trl_grpo").slices(names)}
    assert set(found) == {"reward/{env}", "mine/{tool}", "eval_reward/{env}"}
    assert found["reward/{env}"].names == {"env=math": "reward/env=math", "env=code": "reward/env=code"}
    assert (found["reward/{env}"].concept, found["reward/{env}"].whole) == ("reward.total.mean", "reward")
    assert (found["mine/{tool}"].concept, found["mine/{tool}"].whole) == (None, None)
    assert found["eval_reward/{env}"].whole is None  # the training reward is not the evaluation's
    assert found["mine/{tool}"].keys == ("tool",)


def test_a_framework_has_its_own_word_for_all_slices():
    names = [f"train/{env}/{subset}/solver/reward/mean" for subset in ("all", "effective") for env in ("agg", "a", "b")]
    found = {group.stem: group for group in catalog.reader("prime_rl").slices(names)}
    for subset in ("all", "effective"):
        group = found[f"train/{{env}}/{subset}/{{agent}}/reward/mean"]
        assert group.whole == f"train/agg/{subset}/solver/reward/mean"
        assert list(group.names) == ["env=a,agent=solver", "env=b,agent=solver"]


def test_the_whole_stands_for_its_concept_before_any_slice():
    names = ["reward/env=math", "env/math/reward/total", "reward", "loss"]
    assert catalog.reader("trl_grpo", "grpo").vital_signs(names)[:2] == ["reward", "loss"]
    assert "reward/env=math" in catalog.reader("trl_grpo", "grpo").vital_signs(["reward/env=math", "loss"])


def test_two_slices_compare_with_care():
    math, code = (catalog.reader("trl_grpo").meaning(f"reward/env={env}") for env in ("math", "code"))
    other = catalog.reader("tinker").meaning("env/math/reward/total")
    assert catalog.compare(math, other).verdict == "same"
    comparison = catalog.compare(math, code)
    assert (comparison.verdict, comparison.reason) == ("caution", "env=math and env=code are different slices")


def test_many_sources_are_looked_up_once_each():
    names = [f"val-core/set-{number}/acc/mean@1" for number in range(500)]
    [group] = catalog.reader("verl").slices(names)
    assert len(group.names) == 500


def metric(name):
    return {"id": "x.y", "title": "X", "what": "X", "unit": "1", "names": {"mine": name}}


def test_a_name_has_one_place_for_a_label():
    with pytest.raises(CatalogError, match="two places for one label"):
        parse({"metrics": [metric("{ds}/{source}/x")]}, "here")


@pytest.mark.parametrize(
    "forms", [{"env/*": "*"}, {"{env}/{source}/*": "*"}, {"{env}/x": "*"}, {"{env}/*": "x"}, ["a"]]
)
def test_a_wrong_form_of_slices_is_refused(forms):
    with pytest.raises(CatalogError, match="slices"):
        parse({"frameworks": [{"id": "mine", "title": "Mine", "slices": forms}]}, "here")


def test_a_catalogue_of_ones_own_may_have_labels():
    own = Catalog()
    own.add(
        parse({"metrics": [metric("got/{agent|all}/{what}")], "frameworks": [{"id": "mine", "title": "M"}]}, "here")
    )
    [found] = own.find("got/bob/points")
    assert (found.labels, found.stem) == ({"agent": "bob"}, "got/{agent}/points")
    assert own.find("got/all/points")[0].labels == {}
