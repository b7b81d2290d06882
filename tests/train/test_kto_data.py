"""KTO's data: made, read, checked, split, weighed."""

from __future__ import annotations

import json

import pytest

from rlvitals.errors import ConfigError
from rlvitals.train import functions
from rlvitals.train.kto import data as preferences
from rlvitals.train.kto.data import LabelledAnswer

GOOD = {"prompt": "p", "completion": "c", "label": True}
CHAT = {"prompt": [{"role": "user", "content": "p"}], "completion": [{"role": "assistant", "content": "c"}], "label": 1}


def file_of(tmp_path, *lines):
    path = tmp_path / "data.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def test_the_data_made_is_honest():
    data = preferences.make(400, seed=3, held_out_share=0.1)
    assert (len(data.train), len(data.held_out)) == (360, 40)
    by_prompt = {task.prompt: task for split in ("train", "held_out") for task in every(split)}
    for example in data.train + data.held_out:
        namespace = {}
        exec(example.completion, namespace)
        task = by_prompt[example.prompt]
        passed = all(outcome_of(call, namespace) == eval(expected) for call, expected in task.tests)
        assert passed == example.label


def every(split):
    return functions.tasks(2000, seed=0, split=split)


def outcome_of(call, namespace):
    try:
        return eval(call, namespace)
    except Exception as error:
        return error


def test_no_prompt_is_both_trained_and_held_out():
    data = preferences.make(1000, seed=0, held_out_share=0.2)
    assert not {example.prompt for example in data.train} & {example.prompt for example in data.held_out}
    assert {example.label for example in data.train} == {example.label for example in data.held_out} == {True, False}


def test_the_same_seed_makes_the_same_data():
    assert preferences.make(50, seed=1, held_out_share=0.1) == preferences.make(50, seed=1, held_out_share=0.1)
    assert preferences.make(50, seed=1, held_out_share=0.1) != preferences.make(50, seed=2, held_out_share=0.1)


def test_a_file_is_read_in_its_order_with_true_false_one_and_zero(tmp_path):
    path = file_of(tmp_path, GOOD, "", GOOD | {"label": 0}, GOOD | {"label": 1, "note": "more"})
    assert preferences.read(path) == [
        LabelledAnswer("p", "c", True),
        LabelledAnswer("p", "c", False),
        LabelledAnswer("p", "c", True),
    ]


def test_chats_are_read(tmp_path):
    (example,) = preferences.read(file_of(tmp_path, CHAT))
    assert example.prompt == CHAT["prompt"]
    assert preferences.texts([example]) == ["p", "c"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (GOOD | {"label": "yes"}, r"line 2: label must be true or false \(or 1 or 0\), not 'yes'"),
        (GOOD | {"label": "true"}, "line 2: label must be"),
        (GOOD | {"label": 2}, "line 2: label must be"),
        (GOOD | {"label": 0.5}, "line 2: label must be"),
        (GOOD | {"label": None}, "line 2: label must be"),
        ({"prompt": "p", "completion": "c"}, "line 2 has no 'label'; it has prompt, completion"),
        ({"prompt": "p", "completions": "c", "label": True}, "has no 'completion'.*Did you mean 'completions'"),
        ({"prompt": "p", "chosen": "a", "rejected": "b"}, "becomes two lines"),
        (GOOD | {"completion": "  "}, "line 2: completion is empty"),
        (GOOD | {"completion": 5}, "line 2: completion must be a text"),
        (GOOD | {"prompt": []}, "line 2: prompt must be a text or a list of messages"),
        (GOOD | {"prompt": CHAT["prompt"]}, "line 2: prompt and completion must both"),
        (CHAT | {"prompt": [{"role": "user"}]}, "line 2: each message of prompt"),
        (CHAT, "mixes chats"),
        ("{not json", "line 2 is not JSON"),
        ("[1, 2]", "line 2 must be a JSON object"),
        ('{"prompt": NaN}', "line 2 is not JSON"),
    ],
)
def test_a_line_that_is_no_example_is_named(tmp_path, line, complaint):
    with pytest.raises(ConfigError, match=complaint):
        preferences.read(file_of(tmp_path, GOOD, line))


def test_a_missing_and_an_empty_file_are_errors(tmp_path):
    with pytest.raises(ConfigError, match="cannot read the dataset"):
        preferences.read(str(tmp_path / "nothing.jsonl"))
    with pytest.raises(ConfigError, match="is empty"):
        preferences.read(file_of(tmp_path, "", " "))


def test_one_class_alone_and_fewer_than_a_batch_are_errors():
    with pytest.raises(ConfigError, match=r"has 4 examples for training and none is bad \(label false\)"):
        preferences.check([LabelledAnswer("p", "c", True)] * 4, 2, "d.jsonl")
    with pytest.raises(ConfigError, match="none is good"):
        preferences.check([LabelledAnswer("p", "c", False)] * 4, 2, "d.jsonl")
    with pytest.raises(ConfigError, match="none is good"):
        preferences.check([], 2, "d.jsonl")
    with pytest.raises(ConfigError, match="fewer than one batch"):
        preferences.check([LabelledAnswer("p", "c", True), LabelledAnswer("p", "c", False)], 4, "d.jsonl")


def test_a_split_holds_out_prompts_with_all_of_their_answers():
    examples = [LabelledAnswer(f"p{n % 20}", f"c{n}", bool(n % 2)) for n in range(200)]
    data = preferences.split(examples, held_out_share=0.25, seed=0)
    assert len({example.prompt for example in data.held_out}) == 5
    assert not {example.prompt for example in data.train} & {example.prompt for example in data.held_out}
    assert sorted(map(repr, data.train + data.held_out)) == sorted(map(repr, examples))


def test_class_weights_make_both_classes_weigh_the_same():
    data = [LabelledAnswer("p", "c", True)] * 10 + [LabelledAnswer("p", "c", False)] * 40
    weights = preferences.class_weights(data, None, None)
    assert weights == (4.0, 1.0)
    assert preferences.class_weights(data, None, 2.0) == (8.0, 2.0)
    assert preferences.class_weights(data, 3.0, 0.5) == (3.0, 0.5)
