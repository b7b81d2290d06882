"""A trainer's settings: the packaged recipe, overridden by the user's YAML file, overridden by the command line.

`recipes/NAME.yaml` is the only place where a setting has its default and its explanation; `--help` and `--print-config`
are read from it. `recipes/NAME/VARIANT.yaml` holds a set of settings in the form of a user's file; its name can be used
in place of such a file. A recipe has one line for each field of the trainer's `Settings`,

    learning_rate: 1e-3     # the explanation of a setting is beside it
                            # and may continue below

and lines that begin with `#` are headings. `null` is a value that the trainer derives (its comment says how).
"""

from __future__ import annotations

import re
import types
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from rlvitals.config import interpolate
from rlvitals.errors import ConfigError, did_you_mean
from rlvitals.values import is_number
from rlvitals.yaml_reader import parse_yaml, read_yaml

S = TypeVar("S")

RECIPES = Path(__file__).parent / "recipes"

OUTPUT_SECTIONS = ("data", "DataConfig")
"""Sections of a user's file whose `output_path` can also set the run's folder."""

COMMENT_COLUMN = 38

_LINE = re.compile(r"""^(?P<key>\w+):[ ]*(?P<value>"[^"]*"|'[^']*'|[^#]*?)[ ]*(?:#[ ]?(?P<comment>.*))?$""")
_MORE = re.compile(r"^[ ]+#[ ]?(?P<comment>.*)$")


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    """How a training run ended."""

    where: str
    """The run's folder."""
    steps: int
    """The last step it reached."""
    status: Literal["finished", "stopped", "failed"]
    """stopped: ended before its last step, by a request from the doctor or by early stopping."""
    verdict: str
    """One sentence that describes the result."""


class Setting(NamedTuple):
    """One line of a recipe."""

    name: str
    default: Any
    comment: str


def load(name: str, settings: type[S], file: str | None = None, given: Mapping[str, Any] | None = None) -> S:
    """The settings of trainer `name`: its recipe, then the user's file or a variant of the recipe, then `given` (by
    field name; text from a command line is parsed as the field's type). `${other}` refers to another setting's final
    value.
    """
    tree: dict[str, Any] = {setting.name: setting.default for setting in explained(name)}
    sections: dict[str, Any] = {}
    if file is not None:
        own, sections = _user_file(str(variants(name).get(file, file)), settings)
        tree.update(own)
    kinds = get_type_hints(settings)
    for key, value in (given or {}).items():
        if key not in kinds:
            raise ConfigError(f"{name} has no setting {key!r}.{did_you_mean(key, kinds)}")
        tree[key] = from_text(value, kinds[key], key) if isinstance(value, str) else value
    resolved = interpolate({**sections, **tree})
    return settings(**{key: _checked(resolved[key], kind, key, file) for key, kind in kinds.items()})


def explained(name: str) -> list[Setting]:
    """Every setting of a recipe with its default and the comment beside it, in the recipe's order."""
    found: list[Setting] = []
    for line in _source(name).splitlines():
        if match := _LINE.match(line):
            found.append(Setting(match["key"], parse_yaml(match["value"]), (match["comment"] or "").strip()))
        elif found and (more := _MORE.match(line)):
            found[-1] = found[-1]._replace(comment=f"{found[-1].comment} {more['comment'].strip()}".strip())
    return found


def variants(name: str) -> dict[str, Path]:
    """The recipe's variants: their names and files."""
    return {path.stem: path for path in sorted((RECIPES / name).glob("*.yaml"))}


def text(name: str, settings: Any = None) -> str:
    """The recipe with its comments; with `settings`, their values replace the defaults."""
    if settings is None:
        return _source(name)
    lines = []
    for line in _source(name).splitlines():
        if match := _LINE.match(line):
            value = f"{match['key']}: {written(getattr(settings, match['key']))}"
            comment = match["comment"]
            lines.append(f"{value:<{COMMENT_COLUMN}}# {comment}" if comment is not None else value)
        elif more := _MORE.match(line):
            lines.append(f"{'':<{COMMENT_COLUMN}}# {more['comment']}")
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def from_text(text: str, kind: Any, name: str) -> Any:
    """Parse a value that was typed on a command line as the type of its setting.

    >>> from_text("5e-7", float | None, "learning_rate"), from_text("none", float | None, "learning_rate")
    (5e-07, None)
    >>> from_text("tensorboard,wandb", tuple[str, ...], "track_with")
    ('tensorboard', 'wandb')
    """
    options = _options(kind)
    if type(None) in options and text.lower() in ("none", "null", ""):
        return None
    if any(get_origin(option) is tuple for option in options):
        return tuple(word.strip() for word in text.split(",") if word.strip())
    if str in options or any(get_origin(option) is Literal for option in options) or "${" in text:
        return text
    try:
        return parse_yaml(text)
    except ConfigError as error:
        raise ConfigError(f"--{name.replace('_', '-')}: cannot read {text!r}") from error


def _source(name: str) -> str:
    path = RECIPES / f"{name}.yaml"
    if not path.is_file():
        names = sorted(item.stem for item in RECIPES.glob("*.yaml"))
        raise ConfigError(f"there is no recipe {name!r}.{did_you_mean(name, names)} Recipes: {', '.join(names)}")
    return path.read_text(encoding="utf-8")


def _user_file(file: str, settings: type) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of a user's file, and its sections (which `${data.output_path}` may refer to)."""
    loaded = read_yaml(file, ConfigError)
    if loaded is None:
        return {}, {}
    if not isinstance(loaded, dict):
        raise ConfigError(f"{file!r} must hold a mapping of settings, not {type(loaded).__name__}")
    names = [field.name for field in fields(settings)]
    own = {key: value for key, value in loaded.items() if key not in OUTPUT_SECTIONS}
    sections = {key: value for key, value in loaded.items() if key in OUTPUT_SECTIONS}
    for key in own:
        if key not in names:
            raise ConfigError(f"{file!r} has an unknown setting {key!r}.{did_you_mean(str(key), names)}")
    for section, content in sections.items():
        if not isinstance(content, Mapping) or set(content) != {"output_path"}:
            raise ConfigError(f"{file!r}: {section!r} may hold output_path (the run's folder) and nothing else")
        if "output_dir" in own and own["output_dir"] != content["output_path"]:
            raise ConfigError(
                f"{file!r} gives two output folders: output_dir {own['output_dir']!r} and "
                f"{section}.output_path {content['output_path']!r}"
            )
        own["output_dir"] = content["output_path"]
    return own, sections


def _checked(value: Any, kind: Any, name: str, file: str | None) -> Any:
    """The value as the field's type, or an error that names the setting and says what it must be."""
    for option in _options(kind):
        if option is type(None):
            if value is None:
                return None
        elif get_origin(option) is Literal:
            if value in get_args(option):
                return value
        elif get_origin(option) is tuple:
            words = (value,) if isinstance(value, str) else () if value is None else value
            if isinstance(words, list | tuple) and all(isinstance(word, str) for word in words):
                return tuple(words)
        elif option is float and is_number(value):
            return float(value)
        elif type(value) is option:  # not isinstance, which accepts a boolean as an int
            return value
    where = f" (in {file!r}, the recipe or on the command line)" if file else ""
    near = did_you_mean(str(value), _words(kind)) if isinstance(value, str) else ""
    raise ConfigError(f"{name} must be {_described(kind)}, not {value!r}{where}.{near}")


def _options(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _words(kind: Any) -> list[Any]:
    return [word for option in _options(kind) if get_origin(option) is Literal for word in get_args(option)]


def _described(kind: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "null"}
    plain = [names.get(option, "a list of texts") for option in _options(kind) if get_origin(option) is not Literal]
    return " or ".join([*map(repr, _words(kind)), *plain])


def written(value: Any) -> str:
    """A value as YAML that every parser reads with the right type (`5.0e-07`: some parsers read `5e-07` as a text)."""
    import yaml

    plain = list(value) if isinstance(value, tuple) else value
    written: str = yaml.safe_dump(plain, default_flow_style=True, width=1000, allow_unicode=True)
    return written.removesuffix("...\n").strip()
