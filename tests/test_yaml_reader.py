"""Files that are small on disk and huge in memory are refused with a message, for settings and rules alike."""

from __future__ import annotations

import pytest

import rlvitals
from rlvitals.cli.main import main
from rlvitals.config import MOST_REFERRED, interpolate
from rlvitals.errors import ConfigError, RuleError
from rlvitals.yaml_reader import parse_yaml, read_yaml, read_yaml_with_lines

LEVELS = 12
NINE = range(9)
BOMBS = {
    "lists": "a0: &a0 [x]\n"
    + "".join(f"a{n}: &a{n} [{', '.join(f'*a{n - 1}' for _ in NINE)}]\n" for n in range(1, LEVELS)),
    "mappings": "a0: &a0 {x: 1}\n"
    + "".join(f"a{n}: &a{n} {{{', '.join(f'k{i}: *a{n - 1}' for i in NINE)}}}\n" for n in range(1, LEVELS)),
    "merges": "a0: &a0 {x: 1}\n"
    + "".join(f"a{n}: &a{n} {{<<: [{', '.join(f'*a{n - 1}' for _ in NINE)}]}}\n" for n in range(1, LEVELS)),
    "a circle": "a: &a [1, *a]\n",
    "a circle of two": "a: &a {b: &b [*a]}\n",
    "brackets": "a: " + "[" * 100_000,
    "braces": "{a: " * 100_000,
    "dashes": "- " * 5_000 + "x",
    "no date": "a: 2020-99-99\n",
    "digits": "a: " + "9" * 10_000 + "\n",
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_bomb_is_refused_with_its_place(tmp_path, kind):
    path = tmp_path / "file.yaml"
    path.write_text(BOMBS[kind])
    with pytest.raises(ConfigError, match=r"file\.yaml"):
        read_yaml(path, ConfigError)
    with pytest.raises(ConfigError, match=r"file\.yaml"):
        rlvitals.start(tmp_path / "run", config=path)
    assert not (tmp_path / "run").exists()
    with pytest.raises(RuleError):
        rlvitals.start(tmp_path / "run", rules=str(path))


def test_check_refuses_a_bomb_of_rules(tmp_path, capsys):
    (tmp_path / "log.jsonl").write_text('{"step": 1, "loss": 1.0}\n{"step": 2, "loss": 0.5}\n')
    (tmp_path / "rules.yaml").write_text(BOMBS["lists"])
    assert main(["check", str(tmp_path / "log.jsonl"), "--rules", str(tmp_path / "rules.yaml")]) == 64
    assert "aliases (*name) stand for more than 100,000 values" in capsys.readouterr().err


def test_aliases_and_merges_as_people_write_them_are_read(tmp_path):
    path = tmp_path / "file.yaml"
    path.write_text("base: &base {lr: 5e-7, seed: 1}\nrun:\n  <<: *base\n  seed: 2\nlist: [*base, *base]\n")
    data, lines = read_yaml_with_lines(path, ConfigError)
    assert data["run"] == {"lr": 5e-7, "seed": 2}
    assert data["list"] == [data["base"]] * 2
    assert lines[("run", "seed")] == 4
    path.write_text("many: [" + "1, " * 2000 + "]\n")
    assert len(read_yaml(path, ConfigError)["many"]) == 2000
    path.write_text("")
    assert read_yaml(path, ConfigError) is None
    assert parse_yaml("5e-7") == 5e-7


def test_a_message_does_not_repeat_the_line_that_is_wrong(tmp_path, monkeypatch):
    import yaml

    from rlvitals import yaml_reader

    monkeypatch.delattr(yaml, "CSafeLoader")  # Python's own parser quotes the line
    yaml_reader._loader.cache_clear()
    try:
        (tmp_path / "file.yaml").write_text('api_key: "hunter2secret\nx: 1\n')
        with pytest.raises(ConfigError, match="line ") as caught:
            read_yaml(tmp_path / "file.yaml", ConfigError)
    finally:
        yaml_reader._loader.cache_clear()
    assert "hunter2secret" not in str(caught.value)


REFERENCES = {
    "texts": {"a0": "x" * 10, **{f"a{n}": f"${{a{n - 1}}}" * 10 for n in range(1, 30)}},
    "lists": {"a0": ["x"] * 10, **{f"a{n}": [f"${{a{n - 1}}}"] * 10 for n in range(1, 30)}},
    "mappings": {"a0": {"x": 1}, **{f"a{n}": {f"k{i}": f"${{a{n - 1}}}" for i in NINE} for n in range(1, 30)}},
    "one long text": {"a": "x" * 100_000, "b": "${a}" * 1000},
}


@pytest.mark.parametrize("kind", REFERENCES)
def test_references_that_grow_beyond_memory_are_refused(kind):
    with pytest.raises(ConfigError, match=f"write out more than {MOST_REFERRED:,}"):
        interpolate(REFERENCES[kind])


def test_a_long_configuration_without_references_is_none():
    assert len(interpolate({"a": list(range(1_100_000)), "b": "${c}", "c": 1})["a"]) == 1_100_000


def test_a_configuration_that_holds_itself_is_refused():
    tree: dict[str, object] = {}
    tree["x"] = tree
    with pytest.raises(ConfigError, match="holds itself"):
        interpolate(tree)
