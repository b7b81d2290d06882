"""The examples on the pages of the rules: their rules exist, required ones are there, and the findings are current."""

from __future__ import annotations

import sys

import pytest

from conftest import REPO
from rlvitals.errors import RuleError
from rlvitals.health import pages, rulebook
from rlvitals.health.build import DATA
from rlvitals.yaml_reader import read_yaml

WITH_EXAMPLES = ("engine", "exploration", "experts", "distillation", "judging", "texts", "tokens")
"""The files in which every rule has an example."""

ALSO = ("lost_to_failures", "slice_collapse")


def test_examples_are_of_rules_that_exist():
    known = set(rulebook.load(*rulebook.presets()).rules)
    assert set(pages.examples()) <= known
    assert len(pages.examples()) > len(known) / 2


@pytest.mark.parametrize("family", WITH_EXAMPLES)
def test_every_rule_of_these_files_has_an_example(family):
    rules = [entry["rule"] for entry in read_yaml(DATA / "rules" / f"{family}.yaml", RuleError)]
    assert rules
    assert [rule for rule in (*rules, *ALSO) if rule not in pages.examples()] == []


def test_an_example_is_on_the_page_with_its_title_evidence_and_chart():
    example = pages.examples()["experts_idle"]
    section = pages.pages()["experts.md"].split("## experts_idle\n")[1].split("\n## ")[0]
    for part in (
        f"{example['severity']} at step {example['step']}",
        example["title"],
        example["evidence"],
        *example["chart"],
    ):
        assert part in section
    assert len(example["chart"]) > 4


@pytest.mark.parametrize("family", sorted({example["family"] for example in pages.examples().values()} - {"tokens"}))
def test_the_doctor_reports_what_the_examples_show(family, monkeypatch):
    """Those of `tokens` take half as long as all others together."""
    monkeypatch.setattr(sys, "path", [str(REPO / "benchmarks"), *sys.path])
    import rule_examples

    waiting = {rule: example for rule, example in pages.examples().items() if example["family"] == family}
    runs = {example["run"] for example in waiting.values()}
    seeds = {1} if family in rule_examples.LONG else {int(run.rpartition("-")[2]) for run in runs}
    every = (played for seed in sorted(seeds) for played in rule_examples.FAMILIES[family](seed))
    while waiting and (played := next(every, None)):
        if played.name in runs:
            for rule, _, example in rule_examples.examples_of(played, family):
                if waiting.get(rule) == example:
                    del waiting[rule]
    assert not waiting
