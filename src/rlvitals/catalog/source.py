"""Turns catalogue documents into entries, with errors that name the entry.

The shipped YAML files, those of plug-ins and those of users have the same form. Nothing here needs a YAML parser:
`build` parses the shipped YAML files and writes `catalog.json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from rlvitals.catalog.entries import (
    CAVEATS,
    CONVERTIBLE,
    DIRECTIONS,
    KINDS,
    REDUCTIONS,
    STAGES,
    TIERS,
    Algorithm,
    Alias,
    Band,
    Caveat,
    Family,
    Framework,
    Metric,
    MetricGroup,
    Symptom,
)
from rlvitals.catalog.recognition import LEVELS, LOOKS, NameForm
from rlvitals.catalog.slices import PLACEHOLDER, label_key
from rlvitals.errors import CatalogError, did_you_mean

Entry = TypeVar("Entry", Framework, MetricGroup, Algorithm)

_SECTIONS = ("metrics", "frameworks", "groups", "algorithms", "words", "forms", "neutral", "ignorable")


@dataclass(frozen=True, slots=True)
class CatalogData:
    """The entries of one source."""

    families: tuple[Family, ...] = ()
    metrics: tuple[Metric, ...] = ()
    frameworks: tuple[Framework, ...] = ()
    groups: tuple[MetricGroup, ...] = ()
    algorithms: tuple[Algorithm, ...] = ()
    words: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The words of unregistered names, by role."""
    forms: tuple[NameForm, ...] = ()
    neutral: tuple[str, ...] = ()
    ignorable: tuple[str, ...] = ()


def parse(document: Any, where: str) -> CatalogData:
    """Turn one document (a mapping with `family` and `metrics`, or with `frameworks`, `groups`, `algorithms`, `words`
    or `forms`) into entries. `where` names the file or plug-in in errors.
    """
    if not isinstance(document, Mapping):
        raise CatalogError(
            f"{where}: expected a mapping with 'metrics', 'frameworks', 'groups', 'algorithms', 'words' or 'forms', "
            f"found {type(document).__name__}"
        )
    _known(document, {"family", "title", "about", *_SECTIONS}, where)
    family = str(document.get("family", "user"))
    raw_metrics = _items(document, "metrics", where)
    return CatalogData(
        families=(Family(family, str(document.get("title", family)), str(document.get("about", ""))),)
        if raw_metrics
        else (),
        metrics=tuple(_metric(raw, family, where) for raw in raw_metrics),
        frameworks=tuple(_entry(Framework, raw, where) for raw in _items(document, "frameworks", where)),
        groups=tuple(_entry(MetricGroup, raw, where, "metrics") for raw in _items(document, "groups", where)),
        algorithms=tuple(_entry(Algorithm, raw, where) for raw in _items(document, "algorithms", where)),
        words={
            role: _texts(words, f"{where}: the words of {role!r}") for role, words in _pairs(document, "words", where)
        },
        forms=tuple(_form(concept, raw, where) for concept, raw in _pairs(document, "forms", where)),
        neutral=_texts(document.get("neutral") or [], f"{where}: 'neutral'"),
        ignorable=_texts(document.get("ignorable") or [], f"{where}: 'ignorable'"),
    )


def _pairs(document: Mapping[str, Any], key: str, where: str) -> Iterable[tuple[str, Any]]:
    pairs = document.get(key) or {}
    if not isinstance(pairs, Mapping) or not all(isinstance(name, str) for name in pairs):
        raise CatalogError(f"{where}: {key!r} must be a mapping")
    return pairs.items()


def _texts(given: Any, at: str) -> tuple[str, ...]:
    if not isinstance(given, list | tuple) or not all(isinstance(text, str) and text.strip() for text in given):
        raise CatalogError(f"{at} must be a list of texts, not {given!r}")
    return tuple(given)


def _form(concept: str, raw: Any, where: str) -> NameForm:
    at = f"{where}: the form of {concept!r}"
    if not isinstance(raw, Mapping):
        raise CatalogError(f"{at} must be a mapping with 'said'")
    _known(raw, {entry.name for entry in fields(NameForm)} - {"concept"}, at)
    if raw.get("values"):
        _one_of(raw["values"], tuple(LOOKS), "values", at)
    return NameForm(
        concept,
        _texts(raw.get("said") or [], f"{at}: 'said'"),
        values=str(raw.get("values", "")),
        sureness=_one_of(raw.get("sureness", "high"), LEVELS[2:], "sureness", at),
        guess=bool(raw.get("guess", False)),
        held_out=bool(raw.get("held_out", False)),
    )


def _items(document: Mapping[str, Any], key: str, where: str) -> list[Mapping[str, Any]]:
    items = document.get(key) or []
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        raise CatalogError(f"{where}: {key!r} must be a list of mappings")
    return items


def _metric(raw: Mapping[str, Any], family: str, where: str) -> Metric:
    at = f"{where}: metric {raw.get('id', '(no id)')!r}"
    _known(raw, {field.name for field in fields(Metric)} - {"family"}, at)
    for key in ("id", "title", "what", "unit"):
        if not isinstance(raw.get(key), str) or not raw[key].strip():
            raise CatalogError(f"{at}: {key!r} is missing; it must be a text")
    names = raw.get("names") or {}
    if not isinstance(names, Mapping):
        raise CatalogError(f"{at}: 'names' must map a framework to its name or names")
    return Metric(
        id=raw["id"],
        family=family,
        title=raw["title"],
        unit=raw["unit"],
        direction=_one_of(raw.get("direction", "none"), DIRECTIONS, "direction", at),
        reduce=_one_of(raw.get("reduce", "mean"), REDUCTIONS, "reduce", at),
        tier=_one_of(raw.get("tier", "extended"), TIERS, "tier", at),
        quantity=str(raw.get("quantity", "")) or raw["id"],
        bands=tuple(_band(band, at) for band in raw.get("bands") or []),
        symptoms=tuple(_symptom(symptom, at) for symptom in raw.get("symptoms") or []),
        names=tuple(alias for framework, given in names.items() for alias in _aliases(framework, given, at)),
        is_collective=bool(raw.get("is_collective", False)),
        **{key: str(raw.get(key, "")).strip() for key in ("what", "formula", "estimator", "notes")},
    )


def _aliases(framework: str, given: Any, at: str) -> Iterable[Alias]:
    for item in given if isinstance(given, list) else [given]:
        raw = {"name": item} if isinstance(item, str) else item
        here = f"{at}, name of {framework}"
        if not isinstance(raw, Mapping) or not isinstance(raw.get("name"), str):
            raise CatalogError(f"{here}: expected a name or a mapping with 'name', found {item!r}")
        _known(raw, {"name", "when", "caveat", "definition", "trap"}, here)
        texts = {key: str(raw.get(key, "")).strip() for key in ("name", "when", "definition", "trap")}
        labels = [key for word in PLACEHOLDER.findall(texts["name"]) if (key := label_key(word))]
        if len(labels) > len(set(labels)):
            raise CatalogError(f"{here}: {texts['name']!r} has two places for one label; a label has one")
        caveat = _caveat(raw["caveat"], here) if raw.get("caveat") else None
        if caveat is None and "{statistic}" in texts["name"]:
            caveat = Caveat("statistic", "the last part of the name says which")
        yield Alias(framework, caveat=caveat, **texts)


def _caveat(raw: Any, at: str) -> Caveat:
    if not isinstance(raw, Mapping):
        raise CatalogError(f"{at}: 'caveat' must be a mapping with 'kind' and 'note'")
    _known(raw, {"kind", "note", "factor"}, f"{at}, caveat")
    kind = _one_of(raw.get("kind"), CAVEATS, "kind", f"{at}, caveat")
    factor = raw.get("factor")
    if kind in CONVERTIBLE - {"complement"} and not isinstance(factor, int | float):
        raise CatalogError(f"{at}, caveat: kind {kind!r} needs a number as 'factor' (concept = factor * logged value)")
    return Caveat(kind=kind, note=str(raw.get("note", "")), factor=None if factor is None else float(factor))


def _band(raw: Any, at: str) -> Band:
    if not isinstance(raw, Mapping):
        raise CatalogError(f"{at}: a band must be a mapping with 'low' and 'high'")
    _known(raw, {field.name for field in fields(Band)}, f"{at}, band")
    low, high = raw.get("low"), raw.get("high")
    if low is None and high is None:
        raise CatalogError(f"{at}: a band needs 'low' or 'high'")
    if low is not None and high is not None and low > high:
        raise CatalogError(f"{at}: a band's low {low} is above its high {high}")
    _one_of(raw.get("stage", "any"), STAGES, "stage", f"{at}, band")
    numbers = {key: None if raw.get(key) is None else float(raw[key]) for key in ("low", "high", "min_parameters")}
    return Band(**{**raw, **numbers})


def _symptom(raw: Any, at: str) -> Symptom:
    if not isinstance(raw, Mapping) or set(raw) != {"when", "means", "do"}:
        raise CatalogError(f"{at}: each item of 'symptoms' has exactly 'when', 'means' and 'do'")
    return Symptom(when=str(raw["when"]), means=str(raw["means"]), do=str(raw["do"]))


def _entry(kind: type[Entry], raw: Mapping[str, Any], where: str, *needed: str) -> Entry:
    """Make a framework, group or algorithm from a mapping: the keys are its fields, and lists become tuples."""
    at = f"{where}: {kind.__name__.lower()} {raw.get('id', '(no id)')!r}"
    _known(raw, {field.name for field in fields(kind)}, at)
    if missing := [key for key in ("id", "title", *needed) if not raw.get(key)]:
        raise CatalogError(f"{at}: {missing[0]!r} is missing")
    if kind is Algorithm and not raw.get("parent"):
        _one_of(raw.get("kind"), KINDS, "kind", at)
    if kind is Framework:
        _check_slices(raw.get("slices") or {}, at)
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()}
    return kind(**values)


def _check_slices(forms: Any, at: str) -> None:
    if not isinstance(forms, Mapping):
        raise CatalogError(f"{at}: 'slices' must map a form of names to what it stands for: 'env/{{env}}/*: env/all/*'")
    for form, plain in forms.items():
        labels = [word for word in PLACEHOLDER.findall(str(form)) if label_key(word)]
        if len(labels) != 1 or str(form).count("*") != 1 or str(plain).count("*") != 1:
            raise CatalogError(
                f"{at}: {form!r}: {plain!r} under 'slices': the form has one label and both have one '*'"
            )


def _known(raw: Mapping[str, Any], known: set[str], at: str) -> None:
    for key in raw:
        if key not in known:
            raise CatalogError(
                f"{at}: unknown key {key!r}.{did_you_mean(str(key), known)} Known keys: {', '.join(sorted(known))}"
            )


def _one_of(value: Any, allowed: tuple[str, ...], key: str, at: str) -> Any:
    if value not in allowed:
        raise CatalogError(f"{at}: {key!r} is {value!r}; it must be one of {', '.join(allowed)}")
    return value
