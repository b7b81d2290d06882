"""Scanners written by users: a line of YAML, a function, and the errors for wrong ones."""

from __future__ import annotations

import pytest

from rlvitals.errors import ConfigError
from rlvitals.records import Group, Rollout, ToolCall, Turn
from rlvitals.scan import Span, load_scanners, scan


def groups(*texts, calls=()):
    rollouts = tuple(Rollout((Turn(text, tuple(calls)),), reward=0.5) for text in texts)
    return [Group("Say.", rollouts, step=1)]


def written(tmp_path, text, name="scanners.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_one_line_of_yaml_is_a_scanner(tmp_path):
    path = written(tmp_path, 'scanners: [{name: says_trust_me, match: "trust me", severity: warning}]\n')
    found = scan(groups("Trust me.", "no", "yes, TRUST ME", "trust me"), scanners=load_scanners(path)).findings
    assert [(each.rule, each.severity, each.kind) for each in found] == [("says_trust_me", "warning", "reward_hacking")]
    assert [(each.rollout, each.start, each.end) for each in found[0].cited] == [(1, 0, 8), (3, 5, 13), (4, 0, 8)]
    assert "75%" in found[0].title


def test_a_list_without_a_heading_and_every_key(tmp_path):
    path = written(
        tmp_path,
        "- {name: shouts, match: '[A-Z]{5}', ignore_case: false, where: answer, severity: critical,\n"
        "   kind: instability, share: 0.5, title: 'it shouts in {share:.0%}', advice: 'calm it'}\n",
    )
    assert scan(groups("HELLO", "hello", "hello"), scanners=load_scanners(path)).findings == []
    found = scan(groups("HELLO", "HELLO you", "HELLO!"), scanners=load_scanners(path)).findings
    assert (found[0].severity, found[0].kind, found[0].title) == ("critical", "instability", "it shouts in 100%")
    assert found[0].advice == ("calm it",)


@pytest.mark.parametrize(("where", "hits"), [("all", 3), ("text", 0), ("calls", 3), ("answer", 0)])
def test_where_says_what_is_read(where, hits):
    scanners = load_scanners({"name": "secret", "match": "hidden", "where": where})
    found = scan(groups("a", "b", "c", calls=[ToolCall("run", {"code": "hidden"})]), scanners=scanners)
    assert found.scans.tallies["secret"].hits == hits


def test_a_function_is_a_scanner_and_says_where():
    def says_maybe(rollout, group):
        start = rollout.turns[0].text.find("maybe")
        return [Span(1, "text", start, start + 5)] if start >= 0 else []

    def words(rollout, group):
        return ["perhaps"] if "perhaps" in rollout.turns[0].text else None

    def is_long(rollout, group):
        return len(rollout.turns[0].text) > 20

    tried = groups("well maybe", "perhaps not at all, no no", "maybe perhaps", "maybe", "perhaps")
    tallies = scan(tried, scanners=load_scanners(says_maybe, words, is_long)).scans.tallies
    assert {name: tallies[name].hits for name in ("says_maybe", "words", "is_long")} == {
        "says_maybe": 3, "words": 3, "is_long": 1,
    }  # fmt: skip
    assert tallies["words"].cited[1].start == 6


def test_a_file_of_python_gives_its_functions(tmp_path):
    path = written(
        tmp_path,
        "import re\nfrom rlvitals.scan import Span\ndef _helper(): ...\n"
        "def hums(rollout, group):\n    return re.findall('hum+', rollout.turns[-1].text)\n"
        "hums.scanner = {'severity': 'info', 'kind': 'agent_loop'}\n",
        "mine.py",
    )
    found = scan(groups("hum", "hummm", "hum"), scanners=load_scanners(path)).findings
    assert [(each.rule, each.severity, each.kind) for each in found] == [("hums", "info", "agent_loop")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scanners:\n- {name: a, match: x}\n- {name: b, match: '('}\n", "line 3: '(' is not a regular expression"),
        ("- name: a\n  match: x\n  severty: warning\n", "line 3: unknown key 'severty'. Did you mean 'severity'?"),
        ("- {name: a, match: x, severity: bad}\n", "line 1: severity is one of info, warning, critical, not 'bad'"),
        ("- {name: a, match: x, kind: reward_hack}\n", "Did you mean 'reward_hacking'?"),
        ("- {name: a}\n", "line 1: the scanner 'a' needs 'match'"),
        ("- {match: x}\n", "line 1: a scanner has at least 'name' and 'match'"),
        ("- {name: a, match: 'x*'}\n", "fits every text"),
        ("- {name: a, match: x, share: 7}\n", "share is between 0 and 1, not 7"),
        ("- {name: a, match: x, where: prompt}\n", "where is one of all, text, calls, answer"),
        ("- {name: 'a b', match: x}\n", "a name has letters, digits and _"),
        ("patterns:\n- {name: a, match: x}\n", "line 2: unknown key 'patterns'"),
        ("just a text\n", "a file of scanners is a list"),
        ("- {name: refuses, match: x}\n", "has the name of another one"),
    ],
)
def test_what_is_wrong_is_reported_with_its_line(tmp_path, text, message):
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        load_scanners(path)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ndef f(:\n", "mine.py, line 2: it cannot be run"),
        ("x = 1\ny = nothing\n", "mine.py, line 2: it cannot be run: NameError"),
        ("x = 1\n", "it has no scanner"),
    ],
)
def test_a_wrong_file_of_python_is_reported_with_its_line(tmp_path, text, message):
    with pytest.raises(ConfigError) as error:
        load_scanners(written(tmp_path, text, "mine.py"))
    assert message in str(error.value)
    with pytest.raises(ConfigError, match="there is no such file"):
        load_scanners(tmp_path / "nowhere.py")
