"""Settings: the recipe, the user's file, the command line."""

from __future__ import annotations

from dataclasses import dataclass, fields
from importlib import import_module
from typing import Literal

import pytest
import yaml

from rlvitals.cli.train import TRAINERS
from rlvitals.errors import ConfigError
from rlvitals.train import recipe
from rlvitals.train.kto import Settings


def written(tmp_path, text):
    path = tmp_path / "my.yaml"
    path.write_text(text)
    return str(path)


def test_the_recipe_alone_gives_every_setting():
    settings = recipe.load("kto", Settings)
    assert settings.beta == 0.1
    assert settings.track_with == ()
    assert settings.learning_rate is None


@pytest.mark.parametrize("name", [name for name in TRAINERS if (recipe.RECIPES / f"{name}.yaml").exists()])
def test_every_setting_of_a_recipe_is_explained_and_is_what_yaml_reads(name):
    explained = recipe.explained(name)
    assert all(setting.comment for setting in explained)
    plain = yaml.safe_load(recipe.text(name))
    assert [setting.name for setting in explained] == list(plain)


@pytest.mark.parametrize("name", ["grpo", "kto", "ppo", "rlaif"])
def test_a_recipe_and_its_settings_have_the_same_names(name):
    kind = import_module(f"rlvitals.train.{name}").Settings
    assert sorted(setting.name for setting in recipe.explained(name)) == sorted(field.name for field in fields(kind))


def test_a_file_wins_over_the_recipe_and_the_command_line_over_both(tmp_path):
    file = written(tmp_path, "beta: 0.3\nmax_steps: 7\n")
    settings = recipe.load("kto", Settings, file, {"max_steps": "9"})
    assert (settings.beta, settings.max_steps) == (0.3, 9)


def test_a_number_as_people_write_it_is_a_number(tmp_path):
    assert recipe.load("kto", Settings, written(tmp_path, "learning_rate: 5e-7\n")).learning_rate == 5e-7
    assert recipe.load("kto", Settings, None, {"learning_rate": "5e-7"}).learning_rate == 5e-7


def test_references_see_the_final_values(tmp_path):
    file = written(tmp_path, "output_dir: out/${model_size}-${seed}\nmodel_size: tiny\n")
    assert recipe.load("kto", Settings, file, {"seed": "3"}).output_dir == "out/tiny-3"


@pytest.mark.parametrize("section", ["data", "DataConfig"])
def test_the_documents_output_path_is_the_output_folder(tmp_path, section):
    file = written(tmp_path, f"{section}:\n  output_path: ./my_custom_output\n")
    assert recipe.load("kto", Settings, file).output_dir == "./my_custom_output"
    assert recipe.load("kto", Settings, file, {"output_dir": "elsewhere"}).output_dir == "elsewhere"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("lerning_rate: 1\n", "unknown setting 'lerning_rate'. Did you mean 'learning_rate'"),
        ("max_steps: many\n", "max_steps must be a whole number or null, not 'many'"),
        ("max_steps: true\n", "max_steps must be a whole number or null, not True"),
        ("max_steps: 1.5\n", "max_steps must be a whole number"),
        ("beta: [1]\n", "beta must be a number"),
        ("lora: 1\n", "lora must be true or false"),
        ("loss_type: kta\n", "loss_type must be 'kto' or 'apo_zero_unpaired', not 'kta'.* Did you mean 'kto'"),
        ("track_with: [1]\n", "track_with must be a list of texts"),
        ("data: {path: x}\n", "may hold output_path"),
        ("output_dir: a\ndata: {output_path: b}\n", "two output folders"),
        ("output_dir: ${nothing}\n", "refers to"),
        ("- 1\n", "must hold a mapping"),
        ("a: [\n", "not valid YAML"),
    ],
)
def test_what_is_wrong_with_a_file_is_reported(tmp_path, text, complaint):
    with pytest.raises(ConfigError, match=complaint):
        recipe.load("kto", Settings, written(tmp_path, text))


def test_a_file_that_is_not_there_is_an_error():
    with pytest.raises(ConfigError, match="cannot read"):
        recipe.load("kto", Settings, "no-such.yaml")


def test_an_unknown_recipe_names_the_known_ones():
    with pytest.raises(ConfigError, match="Did you mean 'kto'"):
        recipe.load("kta", Settings)


def test_the_printed_recipe_is_a_settings_file_that_gives_the_same_settings(tmp_path):
    settings = recipe.load(
        "kto", Settings, None, {"learning_rate": "5e-7", "track_with": "tensorboard,wandb", "output_dir": "a b: # c"}
    )
    printed = recipe.text("kto", settings)
    assert recipe.load("kto", Settings, written(tmp_path, printed)) == settings
    assert yaml.safe_load(printed)["learning_rate"] == 5e-7  # any parser reads a number
    assert printed.count("#") >= recipe.text("kto").count("#")


def test_a_value_with_a_hash_in_quotes_and_a_comment_that_goes_on_are_read(tmp_path, monkeypatch):
    @dataclass(frozen=True)
    class Small:
        title: str
        kind: Literal["a", "b"]
        empty: str | None

    (tmp_path / "small.yaml").write_text('# heading\ntitle: "x # y"  # what\n   # it is\nkind: a\nempty: null # none\n')
    monkeypatch.setattr(recipe, "RECIPES", tmp_path)
    assert recipe.explained("small")[0] == ("title", "x # y", "what it is")
    assert recipe.load("small", Small) == Small("x # y", "a", None)
    assert "# heading" in recipe.text("small", Small("z", "b", "e"))
