"""The catalogue compared with the names that frameworks emit: `benchmarks/framework_names.tsv`, from their code."""

from __future__ import annotations

import re
import sys
from collections import Counter

import pytest

from conftest import REPO
from rlvitals import catalog

pytestmark = pytest.mark.usefixtures("shipped_catalogue")


@pytest.fixture(scope="module")
def collector():
    sys.path.insert(0, str(REPO / "benchmarks"))
    try:
        import framework_names
    finally:
        sys.path.pop(0)
    return framework_names


@pytest.fixture(scope="module")
def names(collector):
    return collector.listed()


def test_every_framework_has_at_least_95_percent_of_its_names_explained(collector, names):
    emitted = Counter(name.framework for name in names)
    known = Counter(name.framework for name in names if collector.meaning(name))
    assert set(emitted) == {recipe["id"] for recipe in collector.recipes()}
    assert len(emitted) >= 12
    shares = {framework: known[framework] / count for framework, count in emitted.items()}
    assert not {framework: share for framework, share in shares.items() if share < collector.LEAST_SHARE}


def test_every_name_still_means_what_was_reviewed(collector, names):
    changed = [(name.trainer, name.example, name.concept, collector.meaning(name)) for name in names]
    assert not [row for row in changed if row[2] != row[3]]


def test_the_page_is_what_the_list_says(collector, names):
    assert collector.PAGE.read_text(encoding="utf-8") == collector.page(names)


def test_the_names_are_real_names_with_a_source(names):
    for name in names:
        assert re.fullmatch(r"[\w./-]+\.py:\d+", name.source), name
        assert "{" not in name.example, name
        assert re.fullmatch(re.sub(r"\\\{[^{}]*\\\}", ".*", re.escape(name.pattern)), name.example), name


WHATEVER_USERS_RETURN = {"train/{extra_log_key}", "train/{metric}"}
"""OpenRLHF logs the values of a reward function beside the trainer's own names. ART logs the values that a user adds to
the metrics of a trajectory.
"""


def test_no_pattern_explains_just_any_name(names):
    """A pattern that matches any name would make the coverage figures worthless."""
    nonsense = (
        *("zqx", "actor/zqx", "critic/zqx", "train/zqx", "rollout/zqx", "perf/zqx", "zqx/qqj", "actor/zqx/qqj/max"),
        *("ppo_actor/update/entropy/zqx", "fully_async/processing_time/zqx", "perf/request/e2e_latency/zqx"),
    )
    for framework in {name.trainer for name in names}:
        for name in nonsense:
            own = [match.alias.name for match in catalog.reader(framework).matches(name) if match.in_framework]
            assert set(own) <= WHATEVER_USERS_RETURN, (framework, name, own)


def test_a_name_of_the_framework_itself_is_not_explained_as_one_of_its_users(names):
    """`env/all/{key}` is for values that an environment returns; a name written out in the code has its own entry."""
    open_end = re.compile(r"(?!timing_per_token_ms)[^{}]*/\{(?!statistic)[^{}]+\}")
    explained = [
        (name.trainer, name.pattern, match.alias.name)
        for name in names
        if "{" not in name.pattern
        for match in catalog.reader(name.trainer).matches(name.example)[:1]
        if match.alias and open_end.fullmatch(match.alias.name)
    ]
    assert not explained


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('metrics["actor/kl"] = 1', {("actor/kl", "metrics")}),
        ('self._metrics[mode]["reward"].append(1)', {("reward", "self._metrics")}),
        ('self._rates["latency"][0] += 1', {("latency", "self._rates")}),
        ('metrics.update({f"{prefix}/max": 1})', {("{prefix}/max", "metrics")}),
        ('for name in ("a", "b"):\n    out[f"x/{name}"] = 1', {("x/a", "out"), ("x/b", "out")}),
        ('def f():\n    return {"loss": 1}', {("loss", "return of f")}),
        ("tracker.stat(entropy=1)", {("entropy", "call to tracker.stat keywords")}),
        ('m[f"mtp_{i + 1}_loss"] = 1', {("mtp_{i}_loss", "m")}),
        ('KEYS = ["a"]\nout = {f"p/{k}": 0 for k in KEYS}', {("a", "list KEYS"), ("p/a", "out")}),
        ("class Times:\n    setup: float = 0", {("setup", "field of Times")}),
    ],
)
def test_keys_are_found_where_code_writes_them(collector, code, found):
    keys = collector.framework_keys.keys(code)
    assert {(key.name, key.container) for key in keys} == found
