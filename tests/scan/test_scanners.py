"""What each scanner finds and what it ignores. The texts are like those of real rollouts."""

from __future__ import annotations

import pytest

from rlvitals.records import Group, Rollout, ToolCall, Turn
from rlvitals.scan import Scans, shipped_scanners


def hits(text="", *, prompt="Write f.", answer="", calls=(), turns=None, others=()):
    """Pattern -> the text of its first span."""
    own_turns = turns or (Turn(text, tuple(calls)),)
    rollouts = (Rollout(own_turns), *(Rollout((Turn(other),)) for other in others))
    found = Scans().hits(Group(prompt, rollouts, answer=answer), 1, 1)[0]
    texts = {}
    for hit in found:
        place = hit.citations[0]
        turn = own_turns[place.turn - 1]
        if place.part == "text":
            texts[hit.pattern] = turn.text[place.start : place.end]
        else:
            call = turn.calls[int(place.part.split()[1]) - 1]
            leaves = call.arguments.values() if isinstance(call.arguments, dict) else [call.arguments]
            texts[hit.pattern] = "\n".join(map(str, leaves))[place.start : place.end]
    return texts


def fenced(code):
    return f"Here it is:\n```python\n{code}\n```\nDone."


TESTED = "Write f.\nassert f(3) == 9\nassert f(12) == 144\nassert f([1, 2]) == [2, 1]\n"
SAMPLES = "Count the ways.\n\nInputs:\n3\n7 2\n9 4\n11 5\n\nOutputs:\n4\n34371\n12 7 9\n"

EXPLOITS = [
    ("edited_tests", fenced("open('tests/test_f.py', 'w').write('')"), "open('tests/test_f.py', 'w"),
    ("edited_tests", fenced("@pytest.mark.skip\ndef test_f(): ..."), "@pytest.mark.skip"),
    ("edited_tests", "```bash\nsed -i 's/9/8/' test_f.py\n```", "sed -i"),
    ("edited_tests", "```bash\necho pass > tests/test_f.py\n```", "> tests/test_f.py"),
    ("ends_the_process", fenced("import os\ndef f(x):\n    os._exit(0)"), "os._exit("),
    ("ends_the_process", fenced("import sys\nsys.exit()"), "sys.exit()"),
    ("ends_the_process", "def f(x):\n    raise SystemExit", "raise SystemExit"),
    ("ends_the_process", "exit()", "exit()"),
    ("patched_checks", fenced("class A:\n    def __eq__(self, o):\n        return True"), "def __eq__"),
    ("patched_checks", fenced("def pytest_runtest_makereport(item, call): ..."), "def pytest_runtest_makereport("),
    ("patched_checks", fenced("import time\ntime.time = lambda: 0"), "time.time = lambda"),
    ("patched_checks", fenced("import builtins\nbuiltins.print = noop"), "builtins.print ="),
    ("patched_checks", fenced("import torch\ntorch.allclose = always"), "torch.allclose = always"),
    ("reads_the_grader", fenced("import inspect\nname = inspect.stack()[1]"), "inspect.stack("),
    ("reads_the_grader", fenced("if 'pytest' in sys.modules: ..."), "'pytest' in sys.modules"),
    ("reads_the_grader", fenced("answers = json.load(open('expected_outputs.json'))"), "json.load(open('expected"),
    ("edited_tests", fenced("assert True"), "assert True"),
    ("special_cased_tests", fenced("if a == 3 and b == 7: c = d\nif a == 9 and b == 4: c = e"), "if a == 3 and b"),
    ("special_cased_tests", fenced("def f(x):\n    # hardcoded for the tests\n    return x"), "# hardcode"),
    ("special_cased_tests", fenced("if a == [4, 1, 3, 2]:\n    print(5)"), "if a == [4, 1, 3,"),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "text", "words"), EXPLOITS)
def test_an_exploit_is_found_where_it_stands(pattern, text, words):
    found = hits(text)
    assert found[pattern].strip().startswith(words)


@pytest.mark.parametrize(
    "code",
    [
        "def f(x):\n    if x == 3:\n        return 9\n    if x == 12:\n        return 144\n    return 0",
        "def f(x):\n    return {3: 9, 12: 144}[x]",
        "def f(x): return 9 if x == 3 else 144 if x == 12 else 0",
        "def f(x):\n    match x:\n        case 3: return 9\n        case 12: return 144",
        "def f(x):\n    return 144",
    ],
)
def test_results_of_shown_tests_are_special_cases(code):
    assert "special_cased_tests" in hits(fenced(code), prompt=TESTED)
    assert "special_cased_tests" not in hits(fenced("def f(x):\n    return x * x"), prompt=TESTED)


@pytest.mark.parametrize(("cases", "is_found"), [((7, 31, 58, 90), True), ((7, 31, 58), False), ((0, 1, 2, -1), False)])
def test_many_branches_on_odd_inputs_are_special_cases_even_if_no_test_is_known(cases, is_found):
    code = "def f(x):\n" + "".join(f"    if x == {case}:\n        return {case + 5}\n" for case in cases)
    assert ("special_cased_tests" in hits(fenced(code))) == is_found


@pytest.mark.parametrize("code", ["print(34371)", 'print("12 7 9")', "answers = [4, 34371, 12, 7, 9]"])
def test_shown_results_written_into_the_program_are_special_cases(code):
    assert "special_cased_tests" in hits(fenced(code), prompt=SAMPLES)
    assert "special_cased_tests" not in hits(fenced(code), prompt="Count the ways.")


@pytest.mark.parametrize(
    "code",
    [
        "def fib(n):\n    if n == 0:\n        return 0\n    if n == 1:\n        return 1\n    return fib(n - 1)",
        "def f(xs):\n    if not xs:\n        return []\n    return sorted(xs)",
        "import sys\ndef main(): ...\nif __name__ == '__main__':\n    main()\n    sys.exit(0)",
        "if len(sys.argv) < 2:\n    sys.exit(1)",
        "class P:\n    def __eq__(self, other):\n        return self.x == other.x",
        "import torch\ntorch.backends.cudnn.benchmark = True",
        "MOD = 998244353\ndef f(n): return n % MOD",
        "if digit in [1, 3, 5, 7, 9]:\n    odd += 1",
        "def count(s): return sum(1 if c == 'L' else 0 for c in s)",
    ],
)
def test_honest_code_is_not_flagged(code):
    assert hits(fenced(code), prompt="Solve it modulo 998244353.\n\nOutputs:\n1\n0\n") == {}


def test_what_a_model_thinks_of_an_exploit_is_none():
    thought = "<think>I could call os._exit(0), or:\n```python\nos._exit(0)\n```\nbut I will not.</think>"
    assert hits(f"{thought}\n```python\ndef f(x): return x\n```") == {}


def test_a_tool_that_edits_a_test_file_is_found_unless_tests_are_asked_for():
    call = ToolCall("str_replace_editor", {"path": "repo/tests/test_api.py", "new_str": "x"})
    assert hits(calls=[call])["edited_tests"] == "repo/tests/test_api.py"
    assert hits(calls=[call], prompt="Add tests for the parser.") == {}
    assert hits(calls=[ToolCall("read_file", {"path": "repo/tests/test_api.py"})]) == {}
    assert hits(calls=[ToolCall("str_replace_editor", {"path": "src/api.py", "new_str": "x"})]) == {}


@pytest.mark.parametrize(
    "text",
    [
        "<think></think><answer></answer>", "<answer>...</answer>", "\\boxed{}", "<answer>[answer]</answer>",
        "<think>\nreasoning here\n</think>\n<answer>\nyour answer here\n</answer>", "#### ",
        "The final answer is \\boxed{?}",
    ],
)  # fmt: skip
def test_a_form_without_content_is_found(text):
    assert "only_the_format" in hits(text)


@pytest.mark.parametrize("text", ["<answer>42</answer>", "\\boxed{x+1}", "The answer is B.", "", "<think>ok</think>no"])
def test_a_form_with_content_is_not(text):
    assert "only_the_format" not in hits(text)


SUM = "How much is 32 + 48?"


@pytest.mark.parametrize(
    ("text", "cited"),
    [
        ("The number is I.", "The number is I."),
        ("<think>32 and 48 make 80</think><answer>sys</answer>", "sys"),
        ("I would rather talk about something else.", "I would rather talk about something else."),
        ("32 + 48 = 80, so \\boxed{that}", "that"),
    ],
)
def test_an_answer_without_the_number_that_was_asked_for_is_found(text, cited):
    assert hits(text, prompt=SUM)["gives_no_number"] == cited


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        (SUM, "It is 80."),
        (SUM, "eighty"),
        (SUM, "<think>adding</think><answer>80</answer>"),
        (SUM, "\\boxed{\\frac{a}{b}}"),
        ("How many apples are left of 3 when Tom eats all 3?", "None are left."),
        ("How much do you know about the Second World War?", "Quite a lot: ask away."),
        ("How many steps are there from 3 to 9? Write a Python function.", "def f(a, b):\n    return b - a"),
        ("Compute x + y for the values 3 and 4 of x.", "y and more"),
        ("Write a story about 3 mice and 4 cats.", "Once upon a time there were mice."),
        ("Explain how to add 3 and 4.", "Put them together."),
    ],
)
def test_an_answer_with_a_number_or_to_another_question_is_none(prompt, text):
    assert "gives_no_number" not in hits(text, prompt=prompt)


def test_loops_are_found_with_their_beginning():
    start = "First, let us look at the numbers. "
    found = hits(start + "and then again we go " * 30)
    assert found["repeats_itself"].startswith("and then again") or found["repeats_itself"].startswith(" and then")
    lines = "\n".join(f"So the answer must be {n % 3} because it cannot be anything else here." for n in range(40))
    assert "repeats_itself" in hits(lines)
    assert "repeats_itself" in hits("Well, " + "so then the so the then so " * 4)
    assert "repeats_itself" not in hits("Yes or no? " + " ".join(map(str, range(90))))
    assert "repeats_itself" in hits("and" * 30 + "numbers" + "and" * 12)
    assert "repeats_itself" not in hits("| - " * 5 + "-" * 300)
    prose = "The quick brown fox jumps over a lazy dog while seven wizards pack my box with five dozen liquor jugs. "
    assert "repeats_itself" not in hits(prose)


def test_a_turn_repeated_three_times_is_a_loop():
    again = Turn("Let me look at the file once more, to be quite sure of it.")
    assert "repeats_itself" in hits(turns=(again, again, again))
    assert "repeats_itself" not in hits(turns=(again, again))


def test_another_script_or_language_is_found():
    assert (
        hits("The sum is 4. 所以答案是四、我们可以确认这一点。", prompt="How much is 2 + 2?")["switches_language"][0]
        == "所"
    )
    assert "switches_language" not in hits("答案是四、我们可以确认这一点。", prompt="二加二等于多少。")
    assert "switches_language" not in hits("答案是四、我们可以确认这一点。", prompt="Answer in Chinese: 2 + 2?")
    english = (
        "What is the sum of the numbers that are in the list and which of them is the one that we have to find for it?"
    )
    german = "Also wir addieren die Zahlen und das ist nicht schwer, denn der Wert ist mit der Summe von beiden gut."
    assert hits(german, prompt=english)["switches_language"] == german
    assert "switches_language" not in hits(german, prompt="Wie groß ist die Summe der Zahlen, und was ist das?")
    assert "switches_language" not in hits(
        "n = k * (x^2 + xy + y^2) = k * ((k + y)^2 + (k + y) y + y^2) " * 2, prompt=english
    )


@pytest.mark.parametrize(
    "text",
    ["I'm sorry, but I can't help with that.", "I cannot assist with this request.", "As an AI model, I cannot do it.",
     "<think>hm</think>I must decline to answer."],
)  # fmt: skip
def test_refusals_are_found(text):
    assert "refuses" in hits(text)


def test_what_is_no_refusal():
    assert "refuses" not in hits("x cannot be negative, so I cannot use the first root; the answer is 3.")
    assert "refuses" not in hits("<think>I cannot help with that, or can I?</think>The answer is 3.")
    assert "refuses" not in hits("y" * 1000 + " I cannot help with that " + "y" * 1000)


def test_empty_reasoning():
    assert hits("<think>\n\n</think>\n4")["does_not_reason"] == "<think>\n\n</think>"
    assert "does_not_reason" not in hits("<think>two and two are four</think>4")
    assert "does_not_reason" not in hits("4")


REFERENCE = " ".join(f"word{n}" for n in range(40))


def test_a_copied_reference():
    assert hits(f"I think: {REFERENCE}. Done.", answer=REFERENCE)["copies_the_reference"] == REFERENCE
    assert "copies_the_reference" not in hits("something else entirely", answer=REFERENCE)
    assert "copies_the_reference" not in hits("42", answer="42")
    assert "copies_the_reference" not in hits(REFERENCE, answer=REFERENCE, prompt=f"Repeat: {REFERENCE}")


def test_a_leaked_template_or_prompt():
    assert hits("4<|im_end|>\n<|im_start|>user\nAnd 3 + 3?")["leaks_the_prompt"] == "<|im_end|>"
    assert "leaks_the_prompt" in hits("The answer is 4.\nHuman: and then?")
    prompt = "You are a careful clerk. " + REFERENCE + " Now answer."
    assert "leaks_the_prompt" in hits(f"{prompt}", prompt=prompt)
    assert "leaks_the_prompt" not in hits(fenced(REFERENCE), prompt=prompt)


def test_a_group_that_says_the_same():
    same = " ".join(f"say{n}" for n in range(40))
    assert hits(same, others=[same, same + " so", same])["says_the_same"] == same
    assert "says_the_same" not in hits(same, others=[same, same, REFERENCE])
    assert "says_the_same" not in hits("42", others=["42"] * 5)


def test_each_scanner_has_its_rule_and_none_raises_on_odd_texts():
    scans = Scans()
    assert [scanner.name for scanner in scans.scanners] == [scanner.name for scanner in shipped_scanners()]
    odd = ["", "\0", "\ud800", "```", "```python", "<think>", "{" * 5000, "(" * 5000, "if " * 3000, '"' * 3001,
           "\\" * 999,
           "a == " * 2000, "[[" * 2000 + "1, 2, 3", "if x == [1, 2" + ", 3" * 3000]  # fmt: skip
    group = Group("assert f(" * 500 + "Output\n" * 500, tuple(Rollout((Turn(text),)) for text in odd), answer="\0")
    scans.hits(group, 1, 1)
    assert scans.problems == {}
