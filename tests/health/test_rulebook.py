"""The rulebook: what users may change, how files are merged, and errors that point at the line."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvitals.errors import RuleError
from rlvitals.health import build, entries, rulebook
from rlvitals.health.binding import check
from rlvitals.health.monitor import Monitor
from rlvitals.health.rules import FUNCTIONS
from rlvitals.records import KINDS

FILE = """\
# Ours.
- rule: kl_explosion
  warm_up: 20
  hold: 4 of 5
- rule: entropy_collapse
  title: "entropy is {value:.2f}"
  numbers:
    NUMBER: 0.5
- rule: mail_errors
  kind: tool_errors
  when: mail/errors > 0.2
  severity: critical
"""


def number_of(rule: str) -> str:
    return next(iter(rulebook.shipped().rules[rule].numbers))


@pytest.fixture
def rule_file(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "rules.yaml"
        path.write_text(text.replace("NUMBER", number_of("entropy_collapse")), encoding="utf-8")
        return str(path)

    return write


def error_of(*sources: object) -> str:
    with pytest.raises(RuleError) as caught:
        rulebook.load(*sources)  # type: ignore[arg-type]
    return str(caught.value)


def test_the_compiled_rules_are_what_the_yaml_files_say():
    assert build.TARGET.read_bytes() == build.compiled()


@pytest.mark.parametrize("folder", ["rules", "presets"])
def test_a_wrong_shipped_entry_is_named_by_file_and_line_and_is_not_compiled(folder, tmp_path, monkeypatch):
    data = shutil.copytree(build.DATA, tmp_path / "data")
    monkeypatch.setattr(build, "DATA", data)
    monkeypatch.setattr(build, "TARGET", data / "rules.json")
    (data / folder / "zz.yaml").write_text("# New.\n- {rule: zz, kind: data, title: zz}\n")
    with pytest.raises(RuleError, match=r"zz\.yaml, line 2 \(zz\): no rule function is called 'zz'"):
        build.main([])
    assert build.TARGET.read_bytes() == (Path(rulebook.__file__).parent / "data" / "rules.json").read_bytes()


def test_every_shipped_rule_agrees_with_its_function():
    book = rulebook.shipped()
    for rule in book.rules.values():
        check(rule, book)
        assert rule.kind in KINDS
        assert rule.words.title


def test_every_function_is_used_by_a_rule_or_a_preset():
    used = {rule.function for rule in rulebook.load(*rulebook.presets()).rules.values()}
    of_users = {"declared_text"}  # for scanners that users write
    assert used - {""} | of_users == set(FUNCTIONS)


def test_a_rule_file_changes_only_what_it_names(rule_file):
    before, after = rulebook.load(), rulebook.load(rule_file(FILE))
    old, new = before.rules["kl_explosion"], after.rules["kl_explosion"]
    assert (new.warm_up, new.hold) == (20, (4, 5))
    assert (new.kind, new.numbers, new.words, new.action_critical) == (
        old.kind, old.numbers, old.words, old.action_critical,
    )  # fmt: skip
    old, new = before.rules["entropy_collapse"], after.rules["entropy_collapse"]
    name = number_of("entropy_collapse")
    assert new.numbers == old.numbers | {name: 0.5}
    assert new.words.title == "entropy is {value:.2f}"
    assert new.words.advice == old.words.advice
    assert after.rules.keys() - before.rules.keys() == {"mail_errors"}
    assert all(after.rules[name] == rule for name, rule in before.rules.items() if name not in FILE)


def test_the_last_word_counts(rule_file):
    book = rulebook.load(rule_file(FILE), [{"rule": "kl_explosion", "warm_up": 30}])
    assert (book.rules["kl_explosion"].warm_up, book.rules["kl_explosion"].hold) == (30, (4, 5))


def test_a_file_may_have_its_list_under_rules(rule_file):
    text = "rules:\n" + "".join(f"  {line}\n" for line in FILE.splitlines())
    assert rulebook.load(rule_file(text)).rules["kl_explosion"].hold == (4, 5)
    assert "line 4 (kl_explosion)" in error_of(rule_file(text.replace("20", "-1")))


def test_a_file_of_json_is_read_too(tmp_path):
    path = tmp_path / "rules.json"
    path.write_text(json.dumps([{"rule": "kl_explosion", "enabled": False}, "kl > 3: info"]))
    book = rulebook.load(path)
    assert not book.rules["kl_explosion"].enabled
    assert book.rules["kl > 3: info"].severity == "info"


def test_loading_changes_nothing_for_the_next_one(rule_file):
    rulebook.load(rule_file(FILE), "kto_guide")
    assert rulebook.load().rules == rulebook.shipped().rules


MISTAKES = {
    "bad kind": (
        "kind: tool_errors",
        "kind: tool_error",
        10,
        "'tool_error' is not a kind. Did you mean 'tool_errors'?",
    ),
    "unknown key": ("warm_up: 20", "warmup: 20", 3, "unknown key 'warmup'. Did you mean 'warm_up'?"),
    "unknown number": ("NUMBER: 0.5", "nonsense: 0.5", 8, "no number 'nonsense'"),
    "text for a number": ("NUMBER: 0.5", "NUMBER: much", 8, "must be a number, not 'much'"),
    "truth for a number": ("NUMBER: 0.5", "NUMBER: yes", 8, "must be a number, not True"),
    "bad hold": ("hold: 4 of 5", "hold: 4 out of 5", 4, "hold is written '3 of 5'"),
    "impossible hold": ("hold: 4 of 5", "hold: 6 of 5", 4, "hold is written '3 of 5'"),
    "endless hold": ("hold: 4 of 5", "hold: 4 of 500", 4, "at most 60"),
    "bad severity": ("severity: critical", "severity: fatal", 12, "severity is one of info, warning, critical"),
    "bad warm-up": ("warm_up: 20", "warm_up: soon", 3, "warm_up is a number of points, not 'soon'"),
    "bad action": ("warm_up: 20", "action: panic", 3, "action is one of none, warn"),
    "bad enabled": ("warm_up: 20", "enabled: maybe", 3, "enabled is true or false"),
    "bad confidence": ("warm_up: 20", "confidence: 80", 3, "confidence is between 0 and 1"),
    "bad families": ("warm_up: 20", "families: [ppo]", 3, "families is a list of policy, preference, other"),
    "unknown function": ("when: mail/errors > 0.2", "function: mail", 11, "no rule function is called 'mail'"),
    "bad condition": ("when: mail/errors > 0.2", "when: mail/errors above 0.2", 11, "is not a condition"),
    "no name": ("- rule: mail_errors", "- name: mail_errors", 9, "a rule is a mapping with 'rule: NAME'"),
    "unknown rule": ("- rule: kl_explosion", "- rule: kl_explosions", 2, "Did you mean 'kl_explosion'?"),
    "bad words": ('title: "entropy is {value:.2f}"', "advice: all of it", 6, "advice is a list of texts"),
    "bad variants": ('title: "entropy is {value:.2f}"', "variants: {a: {titel: x}}", 6, "Did you mean 'title'?"),
    "unknown pattern": ("- rule: kl_explosion", '- rule: "zzz*"', 2, "no rule fits this pattern"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_rule_file_is_an_error_that_points_at_the_line(mistake, rule_file):
    right, wrong, line, expected = MISTAKES[mistake]
    assert right in FILE
    text = FILE.replace(right, wrong)
    if mistake == "unknown pattern":
        text = text.replace("  warm_up: 20\n", "  enabled: false\n")
    path = rule_file(text)
    message = error_of(path)
    assert message.startswith(f"{path}, line {line}"), message
    assert expected in message


def test_a_bad_one_line_form_in_a_file_points_at_the_line(rule_file):
    path = rule_file("- rule: plateau\n  enabled: false\n- 'kl > 0.5 for 5 warning'\n")
    assert f"{path}, line 3: 'kl > 0.5 for 5 warning' is not a rule" in error_of(path)
    path = rule_file("- rule: plateau\n  enabled: false\n- 'kl.fsat > 0.5: warning'\n")
    assert f"{path}, line 3: 'fsat' is not a statistic" in error_of(path)


def test_a_line_in_a_file_needs_no_quotes(rule_file):
    book = rulebook.load(rule_file("- kl > 0.5 for 5: warning\n- 'kl > 0.9: critical'\n"))
    assert book.rules["kl > 0.5 for 5: warning"].hold == (5, 5)
    assert book.rules["kl > 0.9: critical"].severity == "critical"
    path = rule_file("- kl > 0.5 for 5: warning\n- kl > 0.5 for 5: fatal\n")
    assert f"{path}, line 2: 'kl > 0.5 for 5: fatal' is not a rule" in error_of(path)


def test_a_file_that_is_no_yaml_points_at_the_line(rule_file):
    assert "line 3" in error_of(rule_file("- rule: plateau\n  enabled: false\n  numbers: {a: 1\n"))


@pytest.mark.parametrize("text", ["", "just words", "rules: 3", "a: 1"])
def test_a_file_without_a_list_of_rules_is_an_error(rule_file, text):
    assert "a rule file" in error_of(rule_file(text))


def test_a_list_without_a_file_counts_its_rules():
    assert error_of([{"rule": "plateau"}, {"rule": "plateau", "hold": 3}]).startswith("rules, rule 2 (plateau): hold")


def test_a_new_rule_needs_a_kind_or_a_condition():
    assert "a new one needs a 'when' or a 'function'" in error_of([{"rule": "mine", "warm_up": 3}])
    assert "needs a 'kind'" in error_of([{"rule": "mine", "function": "guide_nonfinite"}])


def test_a_new_rule_needs_all_numbers_of_its_function():
    message = error_of([{"rule": "mine", "kind": "kl_explosion", "function": "guide_kl_high"}])
    assert "the numbers level are missing" in message


def test_a_name_that_is_nothing_says_what_there_is():
    message = error_of("kto_giude")
    assert "Did you mean 'kto_guide'?" in message
    assert "early_stopping" in message


def test_a_condition_takes_the_place_of_a_function():
    book = rulebook.load([{"rule": "plateau", "when": "reward.top_age > 50", "severity": "info"}])
    rule = book.rules["plateau"]
    assert (rule.function, rule.numbers, rule.kind) == ("", {}, "plateau")
    assert rulebook.load([{"rule": "plateau", "algorithms": ["GRPO"]}]).rules["plateau"].algorithms == ("grpo",)


@pytest.mark.parametrize(
    "entry",
    [{"reads": {1: "x"}}, {"numbers": {"age": float("nan")}}, {"numbers": {1: 2}}, {"numbers": {"age": 10**400}}],
)
def test_what_no_function_could_use_is_refused(entry):
    assert error_of([{"rule": "plateau"} | entry]).startswith("rules, rule 1 (plateau): ")


# Patterns.


def test_a_pattern_switches_off_every_rule_it_fits():
    assert not any(rule.enabled for rule in rulebook.load([{"rule": "*", "enabled": False}]).rules.values())
    book = rulebook.load([{"rule": "entropy_*", "enabled": False}])
    assert {name for name, rule in book.rules.items() if not rule.enabled} == {
        name for name in book.rules if name.startswith("entropy_")
    }


def test_a_pattern_can_be_limited_to_kinds():
    book = rulebook.load([{"rule": "*", "kinds": ["kl_explosion", "memory"], "enabled": False}])
    assert {rule.kind for rule in book.rules.values() if not rule.enabled} == {"kl_explosion", "memory"}
    assert all(rule.enabled for rule in book.rules.values() if rule.kind not in ("kl_explosion", "memory"))


def test_only_the_rules_named_after_the_pattern_stay_on():
    book = rulebook.load([{"rule": "*", "enabled": False}, {"rule": "plateau", "enabled": True}, "kl > 1: warning"])
    assert {name for name, rule in book.rules.items() if rule.enabled} == {"plateau", "kl > 1: warning"}


@pytest.mark.parametrize("key", ["numbers", "title", "kind", "when"])
def test_a_pattern_changes_nothing_that_belongs_to_one_rule(key):
    assert f"unknown key '{key}' for many rules at once" in error_of([{"rule": "*", key: {}}])


def test_a_pattern_with_a_wrong_kind_points_at_it(rule_file):
    path = rule_file("- rule: '*'\n  kinds:\n  - memory\n  - memroy\n  enabled: false\n")
    assert f"{path}, line 4 (*): 'memroy' is not a kind. Did you mean 'memory'?" in error_of(path)


# The one-line form.


def test_the_one_line_form_says_condition_points_and_severity():
    rule = rulebook.parse_line("  kl.fast   > 0.5 for 5 : critical ")
    assert (rule.when, rule.hold, rule.severity) == ("kl.fast > 0.5", (5, 5), "critical")
    assert rulebook.parse_line("kl > 0.5: info").hold == (1, 1)


@pytest.mark.parametrize(
    "text",
    [
        "kl > 0.5",
        "kl > 0.5: fatal",
        "kl > 0.5 for: warning",
        "kl > 0.5 for 0: info",
        "kl > 0.5 for 61: info",
        "kl 3: info",
    ],
)
def test_a_line_that_is_no_rule_is_an_error(text):
    assert "the rule: " in error_of(text)


def test_two_lines_about_one_metric_are_two_rules():
    book = rulebook.load("kl > 0.5 for 5: warning", "kl > 0.5 for 20: critical")
    assert {"kl > 0.5 for 5: warning", "kl > 0.5 for 20: critical"} <= book.rules.keys()


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("kl > 0.5: warning", "kl_explosion"),
        ("kl < 0: warning", "kl_negative"),
        ("kl_ref.k3 > 0.5: warning", "kl_explosion"),
        ("rewards/margins < -0.2 for 3: critical", "margin_inversion"),
        ("entropy < 0.1: warning", "entropy_collapse"),
        ("entropy > 9: warning", "entropy_explosion"),
        ("reward.drop > 0.2: warning", "reward_collapse"),
        ("reward.top_age > 50: info", "plateau"),
        ("completions/mean_length < 10: warning", "length_collapse"),
        ("my/own/number > 3: warning", "data"),
    ],
)
def test_the_kind_of_a_line_is_that_of_the_signal_its_metric_feeds(line, kind):
    assert rulebook.load(line).rules[line].kind == kind


def test_the_kinds_of_lines_are_real_kinds_of_real_signals():
    assert entries.KIND_OF_SIGNAL.keys() <= rulebook.shipped().signal_names
    assert {kind for pair in entries.KIND_OF_SIGNAL.values() for kind in pair} <= set(KINDS)


# In a monitor.


def reported_by(rules: object, rows: list[dict[str, float]], **facts: object) -> list[tuple[str, str, int]]:
    monitor = Monitor(rules=rules, **facts)  # type: ignore[arg-type]
    found = [finding for row in rows for finding in monitor.update(row)]
    assert monitor.problems == {}
    return [(finding.rule, finding.severity, finding.step) for finding in found]


ALONE = {"rule": "*", "enabled": False}


def test_a_line_about_a_logged_name_works_where_the_name_feeds_another_signal():
    line = "rewards/margins < -0.2 for 3: critical"
    rows = [{"step": step, "rewards/margins": 0.1 if step < 10 else -0.3} for step in range(1, 20)]
    assert reported_by([line], rows, algorithm="kto")[0] == (line, "critical", 12)
    monitor = Monitor(rules=[line])
    monitor.update(rows[0])
    assert {"margin", "rewards/margins"} <= monitor.case.signals.keys()
    assert monitor.case.signals["margin"].n == 1


def test_a_line_about_a_concept_works_under_any_name_of_it():
    line = "kl_ref.k3 > 0.5: warning"
    for name, framework in (("kl", "trl_grpo"), ("actor/kl_loss", "verl")):
        rows = [{"step": step, name: 0.1 if step < 6 else 0.9} for step in range(1, 9)]
        assert (line, "warning", 6) in reported_by([line], rows, framework=framework)


def test_a_line_about_an_unknown_name_works():
    line = "mail/opened < 1 for 2: warning"
    rows = [{"step": step, "mail/opened": 3.0 if step < 6 else 0.0} for step in range(1, 10)]
    assert reported_by([line], rows) == [(line, "warning", 7)]


def test_a_line_gives_the_value_it_saw():
    monitor = Monitor(rules=["mail/opened < 1 for 2: warning"])
    found = [finding for step in range(1, 5) for finding in monitor.update({"step": step, "mail/opened": 0.25})]
    assert found[0].title == "mail/opened < 1 for 2 points (now 0.25)"
    assert found[0].metrics == ("mail/opened",)
    assert found[0].action == "warn"


def test_a_metric_a_rule_asks_for_and_nobody_logs_is_named():
    monitor = Monitor(rules=["mail/opened < 1: warning"])
    monitor.update({"step": 1, "loss": 0.5})
    assert ("mail/opened < 1: warning", ("mail/opened",)) in [(gap.rule, gap.metrics) for gap in monitor.cannot_judge]


def test_a_function_can_read_another_metric_than_its_own():
    entry = {
        "rule": "my_plateau", "kind": "plateau", "function": "guide_without_rise", "hold": "3 of 3",
        "numbers": {"target": 100}, "reads": {"series": "mail/opened"}, "title": "{metric} stays at {best:.0f}",
    }  # fmt: skip
    monitor = Monitor(rules=[ALONE, entry])
    rows = [{"step": step, "mail/opened": float(min(step, 4))} for step in range(1, 10)]
    found = [finding for row in rows for finding in monitor.update(row)]
    assert [(finding.title, finding.step) for finding in found] == [("mail/opened stays at 4", 7)]


def test_a_function_without_a_series_to_read_is_an_error(rule_file):
    text = "- rule: mine\n  kind: plateau\n  function: guide_without_rise\n  numbers: {target: 1}\n"
    assert "say what guide_without_rise reads as series" in error_of(rule_file(text))
    path = rule_file(f"{text}  reads:\n    serie: mail/opened\n")
    assert f"{path}, line 6 (mine): guide_without_rise reads no 'serie'. Did you mean 'series'?" in error_of(path)


def test_a_rule_switched_off_reports_nothing():
    rows = [{"step": step, "loss": 0.5 + step % 3, "grad_norm": 0.0} for step in range(1, 30)]
    assert reported_by(None, rows)
    assert reported_by([ALONE], rows) == []


def test_a_monitor_takes_rules_in_the_order_given():
    rows = [{"step": step, "mail/opened": 0.0} for step in range(1, 4)]
    line = "mail/opened < 1: warning"
    assert reported_by([ALONE, line], rows) == [(line, "warning", 1)]
    assert reported_by([line, ALONE], rows) == []


def test_a_part_of_the_reward_that_a_rule_asks_for_stays_a_part():
    monitor = Monitor(rules=["rewards/format_reward < 0.1: info"])
    monitor.update({"step": 1, "reward": 0.5, "rewards/format_reward": 0.5, "rewards/style_reward": 0.4})
    assert monitor.case.parts.keys() == {"format_reward", "style_reward"}
    assert monitor.case.signals["rewards/format_reward"].n == 1


# Plug-ins.


@pytest.fixture
def plugin(monkeypatch, tmp_path):
    """Register an object under `rlvitals.rules`, as an installed package would."""
    module = tmp_path / "mail_rules_plugin.py"
    monkeypatch.syspath_prepend(str(tmp_path))
    real = importlib.metadata.entry_points

    def install(code: str) -> None:
        module.write_text(code)
        entry = importlib.metadata.EntryPoint("mail", "mail_rules_plugin:RULES", "rlvitals.rules")
        monkeypatch.setattr(
            importlib.metadata, "entry_points", lambda *, group: [entry] if group == entry.group else real(group=group)
        )
        rulebook._plugins.cache_clear()

    yield install
    rulebook._plugins.cache_clear()
    importlib.sys.modules.pop("mail_rules_plugin", None)  # type: ignore[attr-defined]


def test_rules_of_another_package_are_loaded_before_the_users(plugin):
    plugin("RULES = ['mail/errors > 0.2 for 3: warning', {'rule': 'plateau', 'warm_up': 777}]")
    book = rulebook.load([{"rule": "plateau", "hold": "9 of 9"}])
    assert "mail/errors > 0.2 for 3: warning" in book.rules
    assert (book.rules["plateau"].warm_up, book.rules["plateau"].hold) == (777, (9, 9))
    rows = [{"step": step, "mail/errors": 0.5} for step in range(1, 5)]
    assert reported_by(None, rows) == [("mail/errors > 0.2 for 3: warning", "warning", 3)]


def test_a_rule_file_of_another_package_is_read(plugin, tmp_path):
    path = tmp_path / "mail.yaml"
    path.write_text("rules:\n- 'mail/errors > 0.2: info'\n- {rule: plateau, hold: never}\n")
    plugin(f"RULES = {str(path)!r}")
    assert f"{path}, line 3 (plateau): hold is written" in error_of()
    path.write_text("rules:\n- 'mail/errors > 0.2: info'\n")
    rulebook._plugins.cache_clear()
    assert "mail/errors > 0.2: info" in rulebook.load().rules


def test_a_wrong_rule_of_another_package_names_the_package(plugin):
    plugin("RULES = [{'rule': 'plateau', 'hold': 3}]")
    assert error_of().startswith("mail_rules_plugin:RULES (plug-in 'mail'), rule 1 (plateau): hold")


# Random input.

ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["plateau", "*", "kl"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.dictionaries(st.sampled_from([*entries._KEYS, "kinds", "zzz", 3]), ANYTHING, max_size=4),
    st.sampled_from(["plateau", "mine", "*", "kl > 1", ""]),
)
def test_an_entry_is_taken_or_refused_with_a_rule_error(entry, name):
    try:
        book = rulebook.load([{"rule": name} | entry])
    except RuleError as error:
        assert str(error).startswith("rules, rule 1")  # noqa: PT017 - both ends are right
    else:
        assert book.rules


@given(st.text(max_size=30) | st.from_regex(r"[a-z./ ]{1,9}( and | outside |[<>=]{1,2})[-0-9.e]{1,5}(: ?warning)?"))
def test_a_line_is_taken_or_refused_with_a_rule_error(text):
    try:
        rule = rulebook.parse_line(text)
    except RuleError as error:
        assert str(error).startswith("the rule: ")  # noqa: PT017 - both ends are right
    else:
        assert rule.when
