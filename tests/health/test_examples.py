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


@pytest.mark.parametrize("rule", ["experts_idle", "judge_unreadable", "refuses", "process_gone", "prompt_ignored"])
def test_the_doctor_reports_what_the_example_shows(rule, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(REPO / "benchmarks"), *sys.path])
    import rule_examples

    stored = pages.examples()[rule]
    seed = int(stored["run"].rpartition("-")[2])
    played = next(run for run in rule_examples.FAMILIES[stored["family"]](seed) if run.name == stored["run"])
    fresh = [example for name, _, example in rule_examples.examples_of(played, stored["family"]) if name == rule]
    assert stored in fresh
