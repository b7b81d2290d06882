"""Finding what a name means: every documented name, every framework, ambiguity, near misses."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

import rlvitals
from rlvitals import catalog
from rlvitals.catalog import lookup
from rlvitals.compute import rollout
from rlvitals.errors import ConfigError, UnknownMetric

DOCUMENTED = list(
    csv.DictReader((Path(__file__).parent / "document_metrics.tsv").read_text().splitlines(), delimiter="\t")
)


def test_there_are_184_documented_names():
    assert len(DOCUMENTED) == 184


@pytest.mark.parametrize("row", DOCUMENTED, ids=lambda row: f"{row['framework']}:{row['name']}")
def test_a_documented_name_resolves_to_its_concept_with_its_documents_definition(row):
    plain = rlvitals.explain(row["name"])
    assert row["concept"] in {plain.id, *(other["id"] for other in plain.other_meanings)}
    explained = rlvitals.explain(row["name"], framework=row["framework"])
    assert explained.id == row["concept"]
    own = [source for source in explained.sources if source["framework"] == row["framework"]]
    assert own[0]["definition"]


def test_our_copy_of_the_list_is_the_whole_list(shared):
    documents = {"000": "rlhf_tracker", "001": "rlaif", "002": "kto_guide", "003": "grpo_agent", "004": "roll"}
    with (shared / "reference" / "document-metrics.tsv").open() as file:
        theirs = {(documents[row["document"]], row["name"]) for row in csv.DictReader(file, delimiter="\t")}
    assert theirs == {(row["framework"], row["name"]) for row in DOCUMENTED}


ODD_REFERENCE_ALIASES = {"(not logged)", "eval accuracy"}
"""Not names: a remark, and a description of a JSON field that is listed under its own name."""


CORRECTED_ALIASES = {
    ("slime", "train/ois"),
    ("skyrl", "vllm/train/{metric}"),
    ("roll", "actor/cispo_clipped_ratio_mean"),
}
"""Aliases for which the framework's code contradicts the reference. slime's is the ratio of new to old policy, not of
trainer to engine. SkyRL's stands for many engine statistics, each under its own name. ROLL's is a mean ratio, not a
share."""


def test_every_framework_alias_of_the_reference_finds_its_concept(shared):
    import yaml

    reference = yaml.load((shared / "reference" / "metrics-catalogue.yaml").read_text(), Loader=yaml.CSafeLoader)
    lost, checked = [], 0
    for metric in reference["metrics"]:
        for framework, names in metric["aliases"].items():
            for name in names if isinstance(names, list) else [names]:
                if name in ODD_REFERENCE_ALIASES or (framework, name) in CORRECTED_ALIASES:
                    continue
                checked += 1
                scope = None if framework == "documents" else framework
                if metric["id"] not in {match.metric.id for match in catalog.find(name, scope)}:
                    lost.append((framework, name, metric["id"]))
    assert not lost
    assert checked > 740


@pytest.mark.parametrize(
    ("name", "framework", "concept"),
    [
        ("kl", "trl_grpo", "kl_ref.k3"),
        ("kl", "trl_rloo", "kl_ref.k1"),
        ("kl", "trl_kto", "kl_ref.kto"),
        ("kl", "trl_async_grpo", "policy.kl_old.k3"),
        ("critic/rewards/mean", "verl", "reward.shaped.mean"),
        ("response_length/clip_ratio", "verl", "length.truncated_fraction"),
        ("clip_ratio/region_mean", "trl", "policy.clip_fraction"),
        ("val/clipfrac_avg", "trl_ppo", "value.clip_fraction"),
        ("rewards/accuracy_reward/mean", "trl_grpo", "reward.component.mean"),
        ("time/actor_train/train_step/total", "roll", "time.phase.total"),
        (
            "memory/actor_infer/generate/end/onload/max_allocated_frac/0",
            "roll",
            "mem.phase.end_onload.max_allocated_frac",
        ),
        ("val-core/gsm8k/acc/mean@8", "verl", "eval.score.mean"),
        ("ppl", "axolotl", "sft.perplexity"),
        ("tokens/trainable", "axolotl", "progress.tokens_total"),
        ("tokens/train_per_sec_per_gpu", "axolotl", "perf.tokens_per_s_per_gpu"),
        ("train/math/effective/solver/reward/mean", "prime_rl", "reward.total.mean"),
        ("reward", "unsloth", "reward.total.mean"),
        ("critic/score/mean", "easyr1", "reward.total.mean"),
        ("rollout/raw_reward", "miles", "reward.total.mean"),
        ("actor/ratio_max@max", "roll", "policy.ratio.max"),
        ("train/kl (estimator=k2)", "openrlhf", "kl_ref.k2"),
    ],
)
def test_a_name_means_what_its_framework_means_by_it(name, framework, concept):
    assert rlvitals.explain(name, framework=framework).id == concept


def test_a_name_with_several_meanings_says_so_without_a_framework():
    explained = rlvitals.explain("kl")
    assert explained.is_ambiguous
    assert {explained.id, *(other["id"] for other in explained.other_meanings)} >= {
        "kl_ref.k1",
        "kl_ref.k3",
        "kl_ref.kto",
    }
    assert not rlvitals.explain("kl", framework="trl_kto").is_ambiguous


def test_a_loggers_prefix_is_looked_behind():
    explained = rlvitals.explain("train/rewards/margins")
    assert (explained.id, explained.matched) == ("pref.reward.margin", "prefix")
    assert rlvitals.explain("eval_rewards/margins").id == "pref.reward.margin"


def test_a_pattern_does_not_swallow_names_of_other_frameworks():
    with pytest.raises(UnknownMetric):
        rlvitals.explain("train/no_such_thing_at_all")
    assert rlvitals.explain("rewards/chosen", framework="trl_dpo").id == "pref.reward.chosen"


def test_an_unknown_name_names_its_nearest():
    with pytest.raises(UnknownMetric, match="rewards/margins") as caught:
        rlvitals.explain("rewards/marginss")
    assert "rewards/margins" in caught.value.nearest


def test_an_unknown_framework_is_an_error_with_a_suggestion():
    with pytest.raises(ConfigError, match="Did you mean 'verl'"):
        rlvitals.explain("actor/ppo_kl", framework="verll")


@pytest.mark.parametrize(
    ("names", "framework", "algorithm"),
    [
        (
            ["loss", "kl", "rewards/chosen", "rewards/rejected", "rewards/margins", "logps/chosen", "grad_norm"],
            "trl_kto",
            "kto",
        ),
        (["loss", "rewards/chosen", "rewards/margins", "rewards/accuracies", "logps/chosen"], "trl_dpo", "dpo"),
        (["loss", "reward", "reward_std", "frac_reward_zero_std", "kl", "completions/mean_length"], "trl_grpo", "grpo"),
        (["objective/kl", "objective/scores", "policy/approxkl_avg", "val/ratio", "loss/value_avg"], "trl_ppo", "ppo"),
        (["actor/pg_loss", "actor/ppo_kl", "critic/score/mean", "response_length/mean", "timing_s/gen"], "verl", None),
        (["Train/Loss", "Train/AvgReward", "Epoch/AvgReward", "System/CPU_Percent"], "rlaif", "rlaif"),
        (["loss", "rewards/margins"], "trl", None),
        (["alpha", "beta_of_mine", "gamma"], None, None),
        ([], None, None),
    ],
)
def test_the_framework_is_recognised_from_the_names(names, framework, algorithm):
    assert catalog.recognise(names) == (framework, algorithm)


def test_real_logs_are_recognised(shared):
    with (shared / "logs" / "dpo_zephyr_reference_114.csv").open() as file:
        assert catalog.recognise(next(csv.reader(file))).framework == "trl_dpo"
    with (shared / "logs" / "grpo_gptoss2048_432.csv").open() as file:
        assert catalog.recognise(next(csv.reader(file))).algorithm == "grpo"


@pytest.mark.parametrize(
    ("name", "concept", "how"),
    [
        ("eval.pass_at_k/8", "eval.pass_at_k", "id"),
        ("eval.pass_at_k/16/low", "eval.pass_at_k", "id"),
        ("eval.pass_at_k/1/high", "eval.pass_at_k", "id"),
        ("eval.pass_hat_k/4", "eval.pass_hat_k", "id"),
        ("train/eval.pass_at_k/8", "eval.pass_at_k", "prefix"),
        ("pass@8", "eval.pass_at_k", "pattern"),
        ("pass^4", "eval.pass_hat_k", "pattern"),
        ("maj@16", "eval.maj_at_k", "pattern"),
        ("worst@4", "eval.worst_at_k", "pattern"),
        ("eval/pass@8", "eval.pass_at_k", "prefix"),
    ],
)
def test_a_name_with_its_k_is_found(name, concept, how):
    match = catalog.find(name)[0]
    assert (match.metric.id, match.how) == (concept, how)


def test_every_name_rollout_statistics_give_is_explained():
    given = rollout.stats(success=[True, False, True, True], group_ids=[0, 0, 1, 1], pass_k=(1, 2))
    named = [name for name in given if "_k/" in name]
    assert len(named) >= 6
    found = {catalog.explain(name).id for name in named}
    assert found == {"eval.pass_at_k", "eval.pass_hat_k", "eval.pass_gap_at_k"}


@pytest.mark.parametrize("name", ["eval.pass_at_k/", "eval.pass_at_k/eight", "eval.score/8", "nonsense@8", "pass@"])
def test_what_only_looks_like_it_is_unknown(name):
    assert catalog.reader().matches(name) == []


@pytest.mark.usefixtures("shipped_catalogue")
def test_a_name_asked_for_before_it_was_registered_is_found_after():
    assert catalog.reader().matches("mail/unread") == []
    entry = {"id": "mail.unread", "title": "Unread", "what": "Mails nobody opened.", "unit": "mails"}
    catalog.register({"metrics": [entry | {"names": {"verl": "mail/unread"}}]})
    assert [match.metric.id for match in catalog.reader().matches("mail/unread")] == ["mail.unread"]


@pytest.mark.usefixtures("shipped_catalogue")
def test_a_framework_registered_later_is_recognised_and_its_own_meaning_comes_first():
    names = ["mail/unread", "mail/opened", "critic/rewards/mean"]
    assert catalog.recognise(names) == (None, None)
    assert catalog.reader("easyr1").meaning("critic/rewards/mean").metric.id == "reward.shaped.mean"
    entry = {"title": "Mail", "what": "Mails.", "unit": "mails"}
    catalog.register({
        "frameworks": [{"id": "mailer", "title": "Mailer"}],
        "metrics": [
            entry | {"id": "mail.unread", "names": {"mailer": "mail/unread"}},
            entry | {"id": "mail.opened", "names": {"mailer": "mail/opened"}},
            entry | {"id": "mail.score", "names": {"mailer": "critic/rewards/mean", "easyr1": "critic/rewards/mean"}},
        ],
    })  # fmt: skip
    assert catalog.recognise(names).framework == "mailer"
    assert catalog.reader("easyr1").meaning("critic/rewards/mean").metric.id == "mail.score"
    assert catalog.reader("verl").meaning("critic/rewards/mean").metric.id == "reward.shaped.mean"


def test_the_first_rows_of_a_run_show_its_framework_and_samples_of_the_machine_show_none():
    rows = [["loss", "reward"], ["rewards/chosen"], ["rewards/margins", "rewards/accuracies", "logps/chosen"]]
    samples = [f"System/{name}" for name in ("CPU_Percent", "Memory_Percent", "GPU_Utilization")]
    reading = catalog.recogniser()
    assert [reading.take([*row, *samples]).framework for row in rows] == [None, None, "trl_dpo"]
    late = catalog.recogniser()
    assert [late.take(row).framework for row in (samples, ["mine"], ["mine"], *rows)] == [None] * 6


@pytest.mark.usefixtures("shipped_catalogue")
def test_a_pattern_registered_later_is_looked_at_too():
    assert catalog.reader().matches("mailbox/inbox/size") == []
    entry = {"id": "mail.size", "title": "Size", "what": "Mails of a folder.", "unit": "mails"}
    catalog.register({"metrics": [entry | {"names": {"verl": "mailbox/{folder}/size"}}]})
    assert [match.how for match in catalog.reader().matches("mailbox/inbox/size")] == ["pattern"]


def test_what_is_done_to_an_answer_does_not_reach_the_next_one():
    first = catalog.reader("verl").matches("actor/ppo_kl")
    assert first
    first.clear()
    assert catalog.reader("verl").matches("actor/ppo_kl")


def test_the_answers_kept_do_not_grow_without_end(monkeypatch):
    monkeypatch.setattr(lookup, "MOST_REMEMBERED", 100)
    own = catalog.Catalog()
    for number in range(1000):
        own.matches(f"custom/{number}")
    assert len(own._answers) <= 100


def test_every_pattern_is_found_by_a_name_made_from_it():
    """Patterns are indexed by their beginning; the lookup must reach each of them."""
    for metric in catalog.metrics():
        for alias in metric.names:
            if "{" not in alias.name:
                continue
            name = re.sub(r"\{[^{}]+\}", "thing7", alias.name.replace("{statistic}", "max"))
            fitting = {match.metric.id for match in catalog.reader(alias.framework).matches(name)}
            assert fitting, (alias.framework, name)
