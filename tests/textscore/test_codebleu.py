"""CodeBLEU by hand, against the codebleu package where that is right, and each case where it is wrong."""

from __future__ import annotations

import bisect
import heapq
import inspect
import json.decoder
import json.encoder
import logging
import math
import os
import random
import statistics
import subprocess
import sys
import textwrap
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvitals.errors import BadText, ConfigError, MissingDependency
from rlvitals.textscore import codebleu
from rlvitals.textscore import languages as languages_module

pytest.importorskip("tree_sitter_python")

PARTS = {
    "ngram": "ngram_match_score",
    "weighted_ngram": "weighted_ngram_match_score",
    "syntax": "syntax_match_score",
    "dataflow": "dataflow_match_score",
}


class OrderedSet(dict):
    """A set that keeps its order: the order of the package's sets depends on the hash seed."""

    def __init__(self, items=()):
        super().__init__(dict.fromkeys(items))

    def add(self, item):
        self[item] = None


@pytest.fixture
def theirs(monkeypatch):
    """The package's parts for one pair or for a corpus, with its sets in a fixed order."""
    dataflow_match = pytest.importorskip("codebleu.dataflow_match")
    from codebleu.parser import DFG

    monkeypatch.setattr(dataflow_match, "set", OrderedSet, raising=False)
    monkeypatch.setattr(DFG, "set", OrderedSet, raising=False)
    monkeypatch.setattr(logging, "warning", lambda *_: None)
    return their_parts


def their_parts(prediction, reference, lang="python"):
    from codebleu import calc_codebleu

    lists = [[text] if isinstance(text, str) else text for text in (prediction, reference)]
    return calc_codebleu(lists[1], lists[0], lang)


def with_penalty(value, prediction, reference):
    """The package's weighted part with the brevity penalty it lacks."""
    length, wanted = len(prediction.split()), len(reference.split())
    return value * (1 if length >= wanted else math.exp(1 - wanted / length))


def functions_of(*modules):
    found = []
    for module in modules:
        for _, one in inspect.getmembers(module, inspect.isfunction):
            if one.__module__ == module.__name__:
                found.append(textwrap.dedent(inspect.getsource(one)))
    return [code for code in found if code.isascii()]


LIBRARY = functions_of(bisect, heapq, json.decoder, json.encoder, statistics, textwrap)


def generated_program(seed):
    """A function made of assignments, loops and branches over a few names."""
    dice = random.Random(seed)
    names = ["a", "b", "count", "item", "total"]

    def value():
        return dice.choice(
            [
                lambda: dice.choice(names),
                lambda: f"{dice.choice(names)} + {dice.choice(names)}",
                lambda: f"max({dice.choice(names)}, {dice.randint(0, 3)})",
                lambda: f"[{names[0]} for {names[0]} in {dice.choice(names)} if {names[0]}]",
                lambda: f"{dice.choice(names)}[{dice.randint(0, 2)}]",
                lambda: '"text"',
            ]
        )()

    def block(depth):
        pad = "    " * depth
        lines = []
        for _ in range(dice.randint(1, 3)):
            kind = dice.choice(["set", "set", "set", "add", "if", "for", "while", "swap"]) if depth < 4 else "set"
            name = dice.choice(names)
            if kind == "set":
                lines.append(f"{pad}{name} = {value()}")
            elif kind == "add":
                lines.append(f"{pad}{name} += {value()}")
            elif kind == "swap":
                lines.append(f"{pad}{name}, {dice.choice(names)} = {value()}, {value()}")
            elif kind == "if":
                lines += [f"{pad}if {value()}:", *block(depth + 1)]
                if dice.random() < 0.5:
                    lines += [f"{pad}elif {value()}:", *block(depth + 1)]
                if dice.random() < 0.5:
                    lines += [f"{pad}else:", *block(depth + 1)]
            elif kind == "for":
                lines += [f"{pad}for {name} in {value()}:", *block(depth + 1)]
            else:
                lines += [f"{pad}while {value()}:", *block(depth + 1)]
        return lines

    return "\n".join(["def run(a, b=1):", *block(1), f"    return {value()}"])


GENERATED = [generated_program(seed) for seed in range(60)]


def pairs_of(programs, count, seed):
    dice = random.Random(seed)
    return [(dice.choice(programs), dice.choice(programs)) for _ in range(count)] + [(one, one) for one in programs[:5]]


# By hand


def test_the_parts_of_a_small_pair_by_hand():
    score = codebleu("return a - b", "return a + b")
    # Words: 3 of 4, 1 of 3, 0 of 2 and 0 of 1 n-grams match; a length without a match counts 0.1.
    assert score.parts["ngram"] == pytest.approx((3 / 4 * 1 / 3 * 0.1 / 2 * 0.1 / 1) ** 0.25)
    # `return` weighs 1 and the others 0.2: 1.4 of 1.6.
    assert score.parts["weighted_ngram"] == pytest.approx((1.4 / 1.6 * 1 / 3 * 0.1 / 2 * 0.1) ** 0.25)
    assert score.parts["syntax"] == 1  # operators have no name in the grammar
    assert score.parts["dataflow"] == 0  # nothing is assigned, so there is no data flow
    assert score.score == pytest.approx(sum(score.parts.values()) / 4)
    assert score.note == "the reference has no data flow, so that part is 0"


def test_a_short_prediction_pays_in_both_ngram_parts():
    score = codebleu("a = b", "a = b + c + d")
    penalty = math.exp(1 - 7 / 3)
    assert score.parts["ngram"] == pytest.approx(penalty * (3 / 3 * 2 / 2 * 1 / 1 * 0.1 / 1) ** 0.25)
    assert score.parts["weighted_ngram"] == pytest.approx(penalty * (0.6 / 1.4 * 2 / 6 * 1 / 5 * 0.1 / 4) ** 0.25)


def test_syntax_is_the_share_of_the_references_subtrees_by_hand():
    # Reference: module, expression_statement, assignment and a call with its argument_list. The statement with the
    # assignment of a name to a name has other shapes, from the assignment up to the module.
    assert codebleu("x = y", "x = f(y)").parts["syntax"] == 0
    assert codebleu("g(f(y))", "x = f(y)").parts["syntax"] == pytest.approx(2 / 5)  # the call and its arguments


def test_dataflow_is_the_share_of_the_references_items_by_hand():
    # Reference: y (read, used), x from y, z from x, x from x; the prediction has no third statement.
    reference, prediction = "x = y\nz = x", "x = y"
    assert codebleu(prediction, reference).parts["dataflow"] == pytest.approx(2 / 4)
    assert codebleu(reference, prediction).parts["dataflow"] == 1


def test_weights_choose_the_parts():
    pair = ("x = y\nz = f(x)", "x = y\nz = g(x, x)")
    parts = codebleu(*pair).parts
    assert codebleu(*pair, weights=(0, 0, 0, 1)).score == parts["dataflow"]
    assert codebleu(*pair, weights=(0.1, 0.1, 0.4, 0.4)).score == pytest.approx(
        0.1 * parts["ngram"] + 0.1 * parts["weighted_ngram"] + 0.4 * parts["syntax"] + 0.4 * parts["dataflow"]
    )


@pytest.mark.parametrize("weights", [(1, 0, 0), (0.5, 0.5, 0.5, 0.5), (-1, 1, 0.5, 0.5), (float("nan"),) * 4, 3])
def test_weights_that_make_no_score_are_refused(weights):
    with pytest.raises(ConfigError, match="add up to 1"):
        codebleu("a", "a", weights=weights)


# The package, where it is right


@pytest.mark.slow
@pytest.mark.parametrize("programs", [LIBRARY, GENERATED], ids=["library", "generated"])
def test_every_part_of_every_pair_agrees_with_the_package(theirs, programs):
    compared = 0
    for prediction, reference in pairs_of(programs, 120, seed=5):
        ours, package_scores = codebleu(prediction, reference), theirs(prediction, reference)
        for part, name in PARTS.items():
            wanted = package_scores[name]
            if part == "weighted_ngram":
                wanted = with_penalty(wanted, prediction, reference)
            assert ours.parts[part] == pytest.approx(wanted, abs=1e-6), (part, prediction, reference)
        compared += 1
        assert ours.score == pytest.approx(sum(ours.parts.values()) / 4, abs=1e-9)
    assert compared > 100


@pytest.mark.slow
def test_the_corpus_value_agrees_with_the_package(theirs):
    pairs = pairs_of(GENERATED, 40, seed=1)
    predictions, references = zip(*pairs, strict=True)
    ours, package_scores = codebleu(list(predictions), list(references)), theirs(list(predictions), list(references))
    for part in ("ngram", "syntax", "dataflow"):
        assert ours.parts[part] == pytest.approx(package_scores[PARTS[part]], abs=1e-6)
    assert ours.scores[3] == codebleu(*pairs[3])
    assert ours.score != pytest.approx(sum(float(score) for score in ours.scores) / len(pairs), abs=1e-6)
    assert "pooled" in ours.name


def test_java_agrees_with_the_package(theirs):
    pytest.importorskip("tree_sitter_java")
    one = "class A { int f(int a) { int x = a; for (int i = 0; i < a; i++) { x += i; } return x; } }"
    other = "class A { int f(int b) { int y = 1; while (y < b) { y = y + b; } if (y > b) { y--; } return y; } }"
    for pair in ((one, other), (other, one), (one, one)):
        ours, package_scores = codebleu(*pair, lang="java"), theirs(*pair, lang="java")
        for part in ("ngram", "syntax", "dataflow"):
            assert ours.parts[part] == pytest.approx(package_scores[PARTS[part]], abs=1e-6), part


# The package, where it is wrong: its value and ours


def test_deviation_1_the_package_forgets_the_brevity_penalty_of_the_weighted_part(theirs):
    prediction, reference = "def f ( x ) :", "def f ( x ) :\n    y = x + 1\n    return y"
    package_score = theirs(prediction, reference)["weighted_ngram_match_score"]
    assert codebleu(prediction, reference).parts["weighted_ngram"] == pytest.approx(
        package_score * math.exp(1 - 13 / 6), abs=1e-9
    )


def test_deviation_2_the_package_counts_a_data_flow_of_0_as_1(theirs):
    prediction, reference = "print(1)", "x = y\nz = x"
    package_scores = theirs(prediction, reference)
    assert package_scores["dataflow_match_score"] == 0
    assert package_scores["codebleu"] == pytest.approx(
        0.25 * (sum(package_scores[name] for name in PARTS.values()) + 1)
    )
    assert codebleu(prediction, reference).score == pytest.approx(
        sum(codebleu(prediction, reference).parts.values()) / 4
    )


def test_deviation_3_the_package_cuts_non_ascii_code_in_the_wrong_places(theirs):
    reference = "grüße = a\nx = grüße; y = grüße; z = x"
    plain = reference.replace("grüße", "gruesse")
    prediction = "g = a\nx = g; y = g; z = x"
    assert theirs(prediction, plain)["dataflow_match_score"] == 1
    assert theirs(prediction, reference)["dataflow_match_score"] < 1
    assert codebleu(prediction, reference).parts["dataflow"] == 1


@pytest.mark.slow
def test_deviation_4_the_package_gives_another_value_in_another_process():
    pytest.importorskip("codebleu")
    prediction = "for i in r:\n    x = alpha + beta\n    y = beta + alpha\n    z = alpha + beta + x + y"
    reference = "for j in s:\n    k = one + two\n    l = two + one\n    m = one + two + k + l"
    values = {"codebleu": set(), "rlvitals": set()}
    code = (
        "import sys, logging; logging.disable(50)\nfrom codebleu import calc_codebleu\n"
        "from rlvitals.textscore import codebleu\np, r = sys.argv[1:]\n"
        "print(calc_codebleu([r], [p], 'python')['dataflow_match_score'], codebleu(p, r).parts['dataflow'])"
    )
    for seed in range(5):
        run = subprocess.run(
            [sys.executable, "-c", code, prediction, reference],
            env={**os.environ, "PYTHONHASHSEED": str(seed)}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        for name, value in zip(values, run.stdout.split(), strict=True):
            values[name].add(float(value))
    assert len(values["codebleu"]) > 1
    assert values["rlvitals"] == {1.0}


def test_deviation_5_the_package_loses_the_body_of_a_for_with_else(theirs):
    reference = "for x in y:\n    a = x\n    b = a\nelse:\n    c = y"
    prediction = "for x in y:\n    pass\nelse:\n    c = y"
    assert theirs(prediction, reference)["dataflow_match_score"] == 1
    assert codebleu(prediction, reference).parts["dataflow"] < 1


def test_deviation_6_a_string_given_to_an_attribute_ends_the_packages_data_flow(theirs):
    program = 'x = y\nself.name = "a"\nz = x'
    assert theirs(program, program)["dataflow_match_score"] == 0
    assert codebleu(program, program).parts["dataflow"] == 1


def test_deviation_7_the_package_takes_strings_out_of_expressions_and_breaks_tabs(theirs):
    program = 'x = y\n", ".join(x)'
    without = "x = y\n.join(x)"
    assert theirs(without, program)["syntax_match_score"] == 1
    assert codebleu(without, program).parts["syntax"] < 1
    tabs = "def f(a):\n\tx = a\n\treturn x"
    spaces = tabs.replace("\t", "    ")
    assert theirs(spaces, tabs)["syntax_match_score"] < 1
    assert codebleu(spaces, tabs).parts["syntax"] == 1


def test_deviation_7_comments_go_where_the_tokenizer_gives_up_too(theirs):
    broken = "x = (y  # why\nz = x"
    assert codebleu(broken, broken.replace("  # why", "")).parts["syntax"] == 1
    assert theirs(broken, broken.replace("  # why", ""))["syntax_match_score"] < 1


def test_deviation_8_the_package_takes_a_variable_called_identifier_for_punctuation(theirs):
    reference, prediction = "identifier = y\nz = identifier", "x = y\nz = x"
    assert theirs(prediction, reference)["dataflow_match_score"] < 1
    assert codebleu(prediction, reference).parts["dataflow"] == 1


def test_deviation_9_nested_loops_take_no_longer_than_they_are_long():
    deep = "".join(f"{' ' * level}for x in y:\n" for level in range(60)) + " " * 60 + "z = x"
    assert codebleu(deep, deep).parts["dataflow"] == 1  # the package would walk it 2 ** 60 times


def test_deviation_10_javascript_assignments_set_names(theirs):
    pytest.importorskip("tree_sitter_javascript")
    reference, prediction = "x = a; x = b; y = x;", "x = a; x = a; y = x;"
    assert theirs(prediction, reference, lang="javascript")["dataflow_match_score"] == 1
    assert 0 < codebleu(prediction, reference, lang="javascript").parts["dataflow"] < 1


# Other languages


@pytest.mark.parametrize(
    ("lang", "code"),
    [
        ("javascript", "function f(a) { let x = a; for (const y of a) { x += y; } return x; }"),
        ("typescript", "function f(a: number) { let x: number = a; for (const y of z) { x += y; } return x; }"),
        ("java", "class A { int f(int a) { int x = a; for (int y : a) { x += y; } return x; } }"),
        ("go", "func f(a []int) int { x := 0\n for _, y := range a { x = x + y }\n return x }"),
        ("c", "int f(int a) { int x = a; for (int y = 0; y < a; y++) { x += y; } return x; }"),
        ("cpp", "int f(int a) { int x = a; for (int y : a) { x += y; } return x; }"),
        ("rust", "fn f(a: i32) -> i32 { let mut x = a; for y in 0..a { x += y; } x }"),
    ],
)
def test_a_language_sees_where_values_come_from(lang, code):
    pytest.importorskip(f"tree_sitter_{lang}")
    assert codebleu(code, code, lang=lang).score == pytest.approx(1)
    renamed = code.replace("x", "total")
    assert codebleu(renamed, code, lang=lang).parts["dataflow"] == 1
    other = code.replace("x += y", "x += a").replace("x = x + y", "x = x + a")
    assert other != code
    assert codebleu(other, code, lang=lang).parts["dataflow"] < 1
    assert not codebleu(code, code, lang=lang).note


def test_an_unknown_language_names_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean 'python'"):
        codebleu("a", "a", lang="pyhton")


def test_a_language_without_its_grammar_says_the_pip_command(monkeypatch):
    missing = languages_module.Language("cobol", frozenset(), languages_module.LANGUAGES["c"].flow)
    monkeypatch.setitem(languages_module.LANGUAGES, "cobol", missing)
    with pytest.raises(MissingDependency, match="pip install tree-sitter-cobol"):
        codebleu("a", "a", lang="cobol")


# Bad input


@pytest.mark.parametrize(("prediction", "reference"), [("", "x = y"), ("x = y", ""), (" \n\t", "x = y")])
def test_an_empty_program_scores_0_against_another(prediction, reference):
    assert codebleu(prediction, reference).score == 0


def test_two_empty_programs_are_reported_as_empty():
    score = codebleu("", "")
    assert score.parts == {"ngram": 0, "weighted_ngram": 0, "syntax": 1, "dataflow": 0}
    assert "both programs are empty" in score.note


def test_code_that_does_not_parse_has_a_score_and_a_note():
    score = codebleu("def f(:\n  return )", "def f(x):\n    y = x\n    return y")
    assert 0 <= score.score < 1
    assert score.note == "the prediction does not parse"


def test_line_endings_do_not_matter():
    code = "def f(a):\n    x = a\n    return x\n"
    assert codebleu(code.replace("\n", "\r\n"), code).score == pytest.approx(1)


@pytest.mark.parametrize("strange", ["\ud800 = 1", "x = '\x00\x1b'", "\ufeffx = y", "变量 = 值\n结果 = 变量 + 值"])
def test_strange_characters_survive(strange):
    assert 0 < codebleu(strange, strange).score <= 1


def test_what_is_no_program_is_refused_by_name():
    with pytest.raises(BadText, match="pair 2"):
        codebleu(["a", None], ["a", "b"])
    with pytest.raises(BadText, match="2 predictions and 1 references"):
        codebleu(["a", "b"], ["a"])
    with pytest.raises(BadText, match="no pairs"):
        codebleu([], [])


def test_a_program_that_is_too_large_is_refused():
    with pytest.raises(BadText, match="too large"):
        codebleu("x = 1\n" * 200_000, "x = 1")


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    ["(" * 50_000, "x = " + " + ".join(["a"] * 15_000), "\n".join(f"if a{i}:\n    x = b" for i in range(4_000))],
    ids=["brackets", "one long sum", "many branches"],
)
def test_huge_and_deep_programs_come_to_an_end(program):
    start = time.process_time()  # processor time: wall time also counts other processes
    assert codebleu(program, program).parts["syntax"] == 1
    assert time.process_time() - start < 30


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([*LIBRARY[:20], *GENERATED]), st.text(alphabet="ab=+ ()\n:#'\té", max_size=60))
def test_every_score_is_between_0_and_1_and_a_program_is_like_itself(program, noise):
    mixed = program[: len(program) // 2] + noise + program[len(program) // 2 :]
    score = codebleu(mixed, program)
    assert 0 <= score.score <= 1
    assert all(0 <= value <= 1 for value in score.parts.values())
    if len(mixed.split()) >= 8:
        same = codebleu(mixed, mixed).parts
        assert same["ngram"] == same["weighted_ngram"] == pytest.approx(1)
        assert same["syntax"] == 1
        assert same["dataflow"] in (0, 1)
