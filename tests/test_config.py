"""Settings: our own are checked, the trainer's are kept, and secrets are masked."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass

import numpy as np
import pytest

from rlvitals.codec import to_json
from rlvitals.config import OUR_KEYS, Settings, flatten, interpolate, resolve, resolved
from rlvitals.errors import ConfigError
from rlvitals.masking import MASK, mask_text, masked


def test_nothing_given_is_the_defaults():
    assert resolve(None, {}) == Settings()
    assert resolve({}, dict.fromkeys(OUR_KEYS)) == Settings()


def test_keyword_arguments_win_over_the_section_and_the_section_over_the_top_level():
    config = {"exp_name": "top", "track_with": "a", "rlvitals": {"name": "section", "algorithm": "kto"}}
    assert resolve(config, {}).name == "section"
    settings = resolve(config, {"name": "argument", "total_steps": 7})
    assert (settings.name, settings.algorithm, settings.total_steps) == ("argument", "kto", 7)
    assert settings.track_with == ("a",)
    assert resolve({"exp_name": "top"}, {}).name == "top"


def test_false_and_zero_given_as_arguments_win_too():
    settings = resolve({"rlvitals": {"strict": True, "rank": 3}}, {"strict": False, "rank": 0})
    assert settings.strict is False
    assert settings.rank == 0


def test_a_yaml_file_is_read_and_its_other_settings_are_kept(tmp_path):
    path = tmp_path / "kto.yaml"
    path.write_text(
        "exp_name: kto-é\nlr: 5.0e-7\nmodel:\n  layers: [1, 2]\ntrack_with: [wandb]\nrlvitals:\n  fsync: 2\n",
        encoding="utf-8",
    )
    for given in (path, str(path)):
        settings = resolve(given, {})
        assert (settings.name, settings.track_with, settings.fsync) == ("kto-é", ("wandb",), 2.0)
        assert settings.config == {
            "exp_name": "kto-é",
            "lr": 5e-7,
            "model": {"layers": [1, 2]},
            "track_with": ["wandb"],
        }


def test_an_empty_yaml_file_is_no_settings(tmp_path):
    path = tmp_path / "empty.yaml"
    path.write_text("# nothing\n", encoding="utf-8")
    assert resolve(path, {}) == Settings()


@pytest.mark.parametrize("text", ["a: [1", "- 1\n- 2\n", "just a text", "a: !!python/object:os.system 1"])
def test_a_file_that_holds_no_mapping_of_settings_is_named(tmp_path, text):
    path = tmp_path / "bad.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"bad\.yaml"):
        resolve(path, {})


def test_bytes_that_are_no_text_are_named(tmp_path):
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"a: \xff\xfe")
    with pytest.raises(ConfigError, match=r"binary\.yaml"):
        resolve(path, {})


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"no-such\.yaml.*No such file"):
        resolve(tmp_path / "no-such.yaml", {})


def test_objects_with_attributes_are_configurations_too():
    @dataclass
    class Arguments:
        lr: float = 1e-6
        exp_name: str = "from-dataclass"

    assert resolve(argparse.Namespace(lr=0.1, exp_name="cli"), {}).name == "cli"
    settings = resolve(Arguments(), {})
    assert settings.name == "from-dataclass"
    assert settings.config["lr"] == 1e-6
    with pytest.raises(ConfigError, match="int"):
        resolve(5, {})  # type: ignore[arg-type]


def test_the_callers_configuration_is_not_changed():
    config = {"rlvitals": {"name": "x"}, "lr": "${model.lr}", "model": {"lr": 1}}
    before = json.dumps(config)
    resolve(config, {})
    assert json.dumps(config) == before


def test_an_unknown_argument_is_refused_with_the_nearest_one():
    with pytest.raises(ConfigError, match="Did you mean 'total_steps'"):
        resolve(None, {"totel_steps": 5})


def test_an_unknown_setting_of_the_section_is_refused_with_the_nearest_one():
    with pytest.raises(ConfigError, match=r"rlvitals\.algoritm.*Did you mean 'algorithm'"):
        resolve({"rlvitals": {"algoritm": "kto"}}, {})


def test_a_misspelt_key_of_ours_at_the_top_level_is_refused():
    with pytest.raises(ConfigError, match="Did you mean 'track_with'"):
        resolve({"trackwith": "wandb"}, {})


def test_the_trainers_own_keys_are_none_of_our_business():
    config = {"learning_rate": 1, "experiment": 2, "name": "trainer's", "strict": "yes", "tracker": 3, 5: "five"}
    settings = resolve(config, {})
    assert settings.config == config
    assert settings.name is None
    assert settings.strict is False


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": ""}, "name must be a text"),
        ({"name": 5}, "name must be a text"),
        ({"algorithm": ["kto"]}, "algorithm must be a text"),
        ({"total_steps": 0}, "total_steps must be a whole number"),
        ({"total_steps": 2.5}, "total_steps must be a whole number"),
        ({"total_steps": True}, "total_steps must be a whole number"),
        ({"total_steps": "5"}, "total_steps must be a whole number"),
        ({"rank": -1}, "rank must be a whole number"),
        ({"actions": "panic"}, "actions must be"),
        ({"actions": ["act"]}, "actions must be"),
        ({"fsync": "sometimes"}, "fsync must be"),
        ({"fsync": 0}, "fsync must be"),
        ({"fsync": -1.0}, "fsync must be"),
        ({"fsync": True}, "fsync must be"),
        ({"fsync": math.nan}, "fsync must be"),
        ({"fsync": ["always"]}, "fsync must be"),
        ({"track_with": [1]}, "track_with must be"),
        ({"track_with": 5}, "track_with must be"),
        ({"tracker_kwargs": "project=x"}, "tracker_kwargs must be a mapping"),
        ({"strict": "false"}, "strict must be"),
        ({"strict": 2}, "strict must be"),
    ],
)
def test_a_wrong_value_is_refused_wherever_it_was_set(given, words):
    with pytest.raises(ConfigError, match=words):
        resolve(None, given)
    with pytest.raises(ConfigError, match=words):
        resolve({"rlvitals": given}, {})


def test_a_section_that_is_no_mapping_is_refused():
    with pytest.raises(ConfigError, match="must be a mapping"):
        resolve({"rlvitals": ["strict"]}, {})
    assert resolve({"rlvitals": None}, {}) == Settings()


@pytest.mark.parametrize(
    ("given", "names"), [(None, ()), ("wandb", ("wandb",)), (["a", "b"], ("a", "b")), (("a",), ("a",)), ([], ())]
)
def test_trackers_are_one_name_or_several(given, names):
    assert resolve({"track_with": given}, {}).track_with == names


@pytest.mark.parametrize(("given", "kept"), [("never", "never"), ("finish", "finish"), ("always", "always"), (3, 3.0)])
def test_fsync_is_a_word_or_a_number_of_seconds(given, kept):
    assert resolve(None, {"fsync": given}).fsync == kept


def test_a_reference_takes_the_value_with_its_type():
    tree = {"a": {"lr": 1e-6, "list": [10, {"x": True}]}, "b": "${a.lr}", "c": "${a.list.1.x}", "d": "${ a.list }"}
    found = interpolate(tree)
    assert found["b"] == 1e-6
    assert found["c"] is True
    assert found["d"] == [10, {"x": True}]


def test_references_inside_a_text_are_written_out():
    assert interpolate({"n": "kto", "k": 3, "dir": "out/${n}/${k}/x"})["dir"] == "out/kto/3/x"


def test_references_are_found_in_lists_and_in_values_they_lead_to():
    assert interpolate({"a": "${b}", "b": ["${c}", "x${c}"], "c": 1})["a"] == [1, "x1"]


def test_a_reference_may_go_through_another_one():
    """As in OmegaConf: `actor: ${base}` and then `${actor.lr}`."""
    assert interpolate({"base": {"lr": 0.1}, "actor": "${base}", "lr": "${actor.lr}"})["lr"] == 0.1


def test_an_escaped_reference_stays_as_it_was():
    assert interpolate({"a": "\\${not.there}", "b": "x \\${a} y"}) == {"a": "${not.there}", "b": "x ${a} y"}


def test_a_reference_to_nothing_is_refused_with_the_nearest_key():
    with pytest.raises(ConfigError, match=r"\$\{model.lrr\}.*Did you mean 'lr'"):
        interpolate({"model": {"lr": 1}, "a": "${model.lrr}"})
    with pytest.raises(ConfigError, match="not there"):
        interpolate({"model": 5, "a": "${model.lr}"})
    with pytest.raises(ConfigError, match="not there"):
        interpolate({"list": [1], "a": "${list.1}"})


@pytest.mark.parametrize("tree", [{"a": "${a}"}, {"a": "${b}", "b": "x${a}"}, {"a": {"b": ["${a}"]}}])
def test_a_configuration_that_refers_to_itself_is_refused(tree):
    with pytest.raises(ConfigError, match="refers to itself"):
        interpolate(tree)


def test_the_environment_can_be_referred_to(monkeypatch):
    monkeypatch.setenv("RLVITALS_TEST_THERE", "7")
    monkeypatch.delenv("RLVITALS_TEST_ABSENT", raising=False)
    found = interpolate(
        {
            "a": "${oc.env:RLVITALS_TEST_THERE}",
            "b": "x-${oc.env:RLVITALS_TEST_ABSENT, none, really}",
            "c": "${oc.env:RLVITALS_TEST_ABSENT,}",
        }
    )
    assert found == {"a": "7", "b": "x-none, really", "c": ""}
    with pytest.raises(ConfigError, match="RLVITALS_TEST_ABSENT"):
        interpolate({"a": "${oc.env:RLVITALS_TEST_ABSENT}"})


def test_references_reach_our_own_settings_too():
    assert resolve({"n": "kto", "exp_name": "run-${n}", "rlvitals": {"total_steps": "${k}"}, "k": 9}, {}) == Settings(
        name="run-kto", total_steps=9, config={"n": "kto", "exp_name": "run-kto", "k": 9}
    )


@pytest.mark.parametrize(
    "key",
    [
        "api_key",
        "apikey",
        "API-KEY",
        "WANDB_API_KEY",
        "openai.api_key",
        "aws_secret_access_key",
        "private_key",
        "client_secret",
        "secret",
        "password",
        "db_password",
        "passphrase",
        "credentials",
        "Authorization",
        "token",
        "hf_token",
        "HF_TOKEN",
        "hub_token",
        "auth_token",
        "access_token",
        "github_token",
    ],
)
def test_what_a_key_calls_a_secret_is_masked(key):
    assert masked({"deep": [{key: "0123456789"}]}) == {"deep": [{key: MASK}]}
    assert masked({key: 12345}) == {key: MASK}
    assert masked({key: ["a", "b"]}) == {key: [MASK, MASK]}


def test_everything_under_a_key_that_names_secrets_is_masked():
    assert "hunter2" not in json.dumps(masked({"credentials": {"user": "me", "pass": "hunter2"}}))


@pytest.mark.parametrize(
    "key",
    [
        "max_tokens",
        "pad_token",
        "eos_token",
        "token_count",
        "tokenizer",
        "secretary",
        "keys",
        "n_keys",
        "num_token",
        "key",
    ],
)
def test_words_that_only_look_like_secrets_are_kept(key):
    assert masked({key: "value"}) == {key: "value"}


def test_an_empty_or_switched_secret_is_kept_because_it_tells_nothing():
    assert masked({"api_key": None, "token": "", "password": True}) == {"api_key": None, "token": "", "password": True}


@pytest.mark.parametrize(
    "secret",
    [
        "hf_" + "a1B2" * 8,
        "sk-" + "a1B2" * 8,
        "sk-proj-" + "a1_2" * 8,
        "ghp_" + "a1B2" * 8,
        "github_pat_" + "a1B2_" * 8,
    ],
)
def test_the_well_known_shapes_of_keys_are_masked_anywhere_in_a_text(secret):
    assert masked({"command": f"train --key {secret} --lr 1"}) == {"command": f"train --key {MASK} --lr 1"}
    assert secret not in mask_text(f"HTTPError: 401 for key={secret}")


def test_logins_in_addresses_are_masked():
    assert (
        mask_text("see https://me:pw@host/x and s3://key@bucket") == f"see https://{MASK}@host/x and s3://{MASK}@bucket"
    )
    assert mask_text("https://host/a@b mail me@host") == "https://host/a@b mail me@host"


def test_the_resolved_settings_hold_the_trainers_and_ours_masked():
    settings = resolve(
        {"lr": 1, "hf_token": "hf_secret", "tracker_kwargs": {"wandb": {"api_key": "abc"}}},
        {"name": "run", "fsync": "always"},
    )
    kept = resolved(settings)
    assert kept["lr"] == 1
    assert kept["hf_token"] == MASK
    assert kept["rlvitals"]["name"] == "run"
    assert kept["rlvitals"]["fsync"] == "always"
    assert kept["rlvitals"]["tracker_kwargs"] == {"wandb": {"api_key": MASK}}
    assert "algorithm" not in kept["rlvitals"]
    assert "abc" not in to_json(kept).decode()
    assert settings.tracker_kwargs == {"wandb": {"api_key": "abc"}}, "the trackers themselves need the key"


def test_a_configuration_may_hold_arrays_and_other_objects():
    settings = resolve({"betas": np.array([0.9, 0.99]), "device": object, "lr": np.float32(0.5)}, {})
    assert "0.99" in to_json(resolved(settings)).decode()


def test_flat_keys_tell_two_configurations_apart():
    assert flatten({"a": {"b": {"c": 1}, "d": [1, 2]}, "e": None}) == {"a.b.c": 1, "a.d": [1, 2], "e": None}
