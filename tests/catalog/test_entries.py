"""The catalogue's own data: complete, consistent, compiled, and in the groups it promises."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import rlvitals
from rlvitals import catalog
from rlvitals.catalog import build, pages
from rlvitals.catalog.source import parse
from rlvitals.errors import CatalogError

METRICS = catalog.metrics()
FRAMEWORKS = {framework.id for framework in catalog.frameworks()}


def test_the_compiled_catalogue_is_what_the_yaml_files_say():
    assert build.COMPILED.read_text(encoding="utf-8") == build.compile_data()


def test_a_name_of_a_framework_that_is_nowhere_is_not_compiled(monkeypatch):
    metric = {"id": "a.b", "title": "B", "what": "What it is.", "unit": "ratio", "names": {"verll": "a/b"}}
    frameworks = {"frameworks": [{"id": "verl", "title": "verl"}]}
    monkeypatch.setattr(build, "read_data", lambda: [("a.yaml", {"metrics": [metric]}), ("f.yaml", frameworks)])
    with pytest.raises(CatalogError, match=r"a\.yaml: metric 'a\.b': .* has no 'verll'\. Did you mean 'verl'"):
        build.compile_data()


def test_the_docs_pages_are_what_the_yaml_files_say():
    folder = Path(__file__).parents[2] / "docs" / "metrics"
    wanted = pages.pages(pages.load())
    assert {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.md")} == wanted


def test_every_concept_of_the_reference_is_there(shared):
    ids = re.findall(r"^- id: (\S+)", (shared / "reference" / "metrics-catalogue.yaml").read_text(), re.MULTILINE)
    assert len(ids) == 197
    assert set(ids) <= {metric.id for metric in METRICS}


def lacks(metric):
    """The names of the fields that an entry lacks."""
    needs_more = metric.direction in ("up", "down") and metric.family not in ("time", "eval", "moe")
    is_there = {
        "a title": metric.title,
        "a sentence": len(metric.what) > 20 and metric.what.rstrip().endswith((".", "!", "?")),
        "an end to its TODO": "TODO" not in json.dumps(rlvitals.explain(metric.id).to_dict()),
        "a formula or a name": metric.formula or metric.names,
        "known frameworks": all(alias.framework in FRAMEWORKS for alias in metric.names),
        "sources of its bands": all(band.source for band in metric.bands),
        "what it shows": metric.tier != "core" or not needs_more
        or metric.symptoms or metric.bands or metric.notes or metric.names,
    }  # fmt: skip
    return [what for what, there in is_there.items() if not there]


def test_every_entry_is_complete():
    assert len(METRICS) > 500
    assert {metric.id: lacks(metric) for metric in METRICS if lacks(metric)} == {}


def test_frameworks_refer_to_frameworks():
    for framework in catalog.frameworks():
        assert {framework.parent, framework.like, *framework.inherits} - {""} <= FRAMEWORKS


def test_every_member_of_a_group_resolves():
    groups = {group.id: group for group in catalog.groups()}
    for group in groups.values():
        for name in group.metrics:
            assert rlvitals.explain(name).id
    assert set(groups["rlaif.reward"].metrics) == {
        "Epoch/AvgReward", "Epoch/RewardTrend", "Epoch/RewardVariance", "Train/RewardStd", "Train/RewardVariance",
    }  # fmt: skip
    assert {"rlaif.loss", "rlaif.performance", "rlaif.system"} <= set(groups)


def test_the_kto_guides_stage_table_is_in_the_bands():
    bands = rlvitals.explain("pref.reward.margin").bands
    margin = {(band.stage, band.low, band.high) for band in bands if band.algorithm == "kto"}
    assert {("start", -0.1, 0.1), ("early", 0.1, 0.5), ("mid", 0.5, 1.0), ("late", 1.0, 2.0)} <= margin


@pytest.mark.usefixtures("shipped_catalogue")
def test_an_own_metric_is_registered_from_yaml_and_found_by_its_names(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "family: mine\nmetrics:\n- id: mine.citations\n  title: Citations\n  what: Sources cited per answer.\n"
        "  unit: citations\n"
        "  direction: up\n  names: {trl: rewards/citations_mine}\n"
    )
    catalog.register(file)
    assert rlvitals.explain("rewards/citations_mine").id == "mine.citations"
    assert rlvitals.explain("mine.citations").direction == "up"


def entry(**changes):
    return {"metrics": [{"id": "x.y", "title": "X", "what": "A thing.", "unit": "1", **changes}]}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (entry(direction="upp"), "metric 'x.y': 'direction' is 'upp'; it must be one of up, down, band, none"),
        (entry(titel="X"), "unknown key 'titel'. Did you mean 'title'"),
        (entry(what=""), "'what' is missing"),
        (entry(bands=[{"low": 2, "high": 1}]), "low 2 is above its high 1"),
        (entry(bands=[{}]), "needs 'low' or 'high'"),
        (entry(names={"trl": {"nam": "x"}}), "expected a name or a mapping with 'name'"),
        (entry(names={"trl": {"name": "x", "caveat": {"kind": "scale"}}}), "needs a number as 'factor'"),
        (entry(names={"trl": {"name": "x", "caveat": {"kind": "weird"}}}), "'kind' is 'weird'"),
        (entry(symptoms=[{"when": "x"}]), "has exactly 'when', 'means' and 'do'"),
        ({"metrics": "x"}, "'metrics' must be a list of mappings"),
        ([1], "expected a mapping"),
    ],
)
def test_a_malformed_entry_is_an_error_that_points_at_it(document, message):
    with pytest.raises(CatalogError, match=re.escape(message)):
        parse(document, "mine.yaml")


def test_an_id_of_ours_cannot_be_taken():
    with pytest.raises(CatalogError, match="is taken by the family 'reward'"):
        catalog.register({**entry(id="reward.total.mean"), "family": "mine"})


def test_invalid_yaml_names_the_line(tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text("metrics:\n- id: x\n  title: [unclosed\n")
    with pytest.raises(CatalogError, match="line"):
        catalog.register(file)
