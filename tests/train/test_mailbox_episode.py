"""Episodes: what ends them, what the rubric holds, and that a model cannot reach beyond its inbox."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rlvitals.compute.credit import OUTCOMES
from rlvitals.train.mailbox.episode import MAX_CALLS, Episode
from rlvitals.train.mailbox.graders import Grade
from rlvitals.train.mailbox.mail import Email, Question
from rlvitals.train.mailbox.reward import PARTS
from rlvitals.train.mailbox.store import Mailbox
from rlvitals.train.mailbox.tools import (
    MAX_BODY,
    MAX_TEXT,
    NAMES,
    TOOLS,
    BadArguments,
    Toolbox,
    UnreadableCall,
    check_arguments,
    read_calls,
    read_text,
    write_call,
)

ME, OTHER = "me@acme.test", "other@acme.test"
SECRET = "swordfish"
BOX = Mailbox.build([
    Email("m1", "falcon lead", OTHER, "2025-01-01 09:00:00", "The lead of falcon is Ann.", to=(ME,), cc=("c@x.test",)),
    Email("m2", "ann phone", OTHER, "2025-01-02 09:00:00", "The phone of Ann is 555-0142.", to=(ME,)),
    Email("m3", "falcon noise", OTHER, "2025-01-03 09:00:00", "Nothing about that.", to=(ME,)),
    Email("x1", f"falcon {SECRET}", OTHER, "2025-01-04 09:00:00", f"{SECRET} falcon ann", to=("third@acme.test",)),
])  # fmt: skip
ONE = Question("q1", "Who leads falcon?", "Ann", ("m1",), ME)
TWO = Question("q2", "What is the phone of the lead of falcon?", "555-0142", ("m1", "m2"), ME, "2025-02-01")


def call(name, arguments, number="1"):
    return {"role": "assistant", "tool_calls": [{"id": number, "function": {"name": name, "arguments": arguments}}]}


def search(*keywords, **more):
    return call("search_emails", {"keywords": list(keywords), **more})


def read(message_id):
    return call("read_email", json.dumps({"message_id": message_id}))


def answer(text, *sources):
    return call("return_final_answer", {"answer": text, "source_message_ids": list(sources)})


def outcomes(episode):
    return [turn.outcome for turn in episode.turns]


def play(question, *messages, **settings):
    episode = Episode(question, BOX, **settings)
    for message in messages:
        episode.step(message)
    return episode


# The tools


def test_the_schemas_name_every_argument_a_tool_takes():
    for tool in TOOLS:
        parameters = tool["function"]["parameters"]
        name = tool["function"]["name"]
        least = {"keywords": ["a"], "message_id": "m1", "answer": "x"}
        given = {key: least[key] for key in parameters["required"]}
        assert set(check_arguments(name, given)) == set(parameters["properties"])
        for key in parameters["required"]:
            with pytest.raises(BadArguments, match=f"needs {key}"):
                check_arguments(name, {other: value for other, value in given.items() if other != key})
    assert NAMES == ("search_emails", "read_email", "return_final_answer")
    assert not any("inbox" in json.dumps(tool) for tool in TOOLS)


def test_a_read_message_has_all_its_recipients():
    shown = Toolbox(BOX, ME).call("read_email", {"message_id": "m1"}).content
    assert (shown["from"], shown["to"], shown["cc"], shown["bcc"]) == (OTHER, [ME], ["c@x.test"], [])


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("search_emails", {"keywords": []}, "0 entries"),
        ("search_emails", {"keywords": "falcon"}, "str, not a list"),
        ("search_emails", {"keywords": [1]}, "int, not a text"),
        ("search_emails", {"keywords": ["x"] * 21}, "21 entries"),
        ("search_emails", {"keywords": ["x" * 501]}, "more than 500"),
        ("search_emails", {"keywords": ["x"], "max_results": 11}, "1 to 10"),
        ("search_emails", {"keywords": ["x"], "max_results": True}, "1 to 10"),
        ("search_emails", {"keywords": ["x"], "max_results": 0}, "1 to 10"),
        ("search_emails", {"keywords": ["x"], "sent_after": "yesterday"}, "YYYY-MM-DD"),
        ("search_emails", {"keywords": ["x"], "sent_before": 7}, "YYYY-MM-DD"),
        ("search_emails", {"keywords": ["x"], "inbox": OTHER}, "takes no inbox"),
        ("read_email", {"message_id": ["m1"]}, "list, not a text"),
        ("read_email", "[1]", "list, not an object"),
        ("read_email", "{", "not JSON"),
        ("read_email", "[" * 100_000, "not JSON"),
        ("read_email", "x" * 100_001, "more than 100000"),
        ("read_email", None, "NoneType, not an object"),
        ("return_final_answer", {"answer": None}, "needs answer"),
        ("return_final_answer", {"answer": "x", "source_message_ids": "m1"}, "not a list"),
    ],
)
def test_arguments_that_a_tool_does_not_take_are_named(name, arguments, message):
    with pytest.raises(BadArguments, match=message):
        check_arguments(name, arguments)


# How episodes end


def test_a_perfect_episode():
    episode = play(ONE, search("falcon", "lead"), read("m1"), answer("It is Ann.", "m1"))
    rubric = episode.rubric
    assert episode.outcome == "answered"
    assert (rubric.answer_correct, rubric.sources_correct, rubric.attempted_answer) == (True, True, True)
    assert (rubric.ever_found_right_email, rubric.ever_read_right_email) == (True, True)
    assert (rubric.num_turns, rubric.num_sources, rubric.num_total_searches) == (3, 1, 1)
    assert outcomes(episode) == ["search_hit", "read_hit", "answer_correct"]
    assert sum(episode.reward().values()) == 2.0
    assert episode.reward("plain") == {"correct": 1.0}


@pytest.mark.parametrize("text", ["I don't know", "i don\u2019t know.", " I DONT KNOW! ", "I do not know"])
def test_not_knowing_is_no_attempt_in_every_spelling(text):
    episode = play(ONE, search("soup"), answer(text))
    assert episode.outcome == "idk"
    assert episode.rubric.returned_i_dont_know
    assert not episode.rubric.attempted_answer
    assert episode.rubric.gave_up_too_early
    assert outcomes(episode) == ["search_empty", "answer_wrong"]


def test_not_knowing_on_the_last_turn_is_no_running_out_and_not_too_early():
    episode = play(ONE, search("a"), search("b"), answer("I don't know"), max_turns=3)
    assert episode.outcome == "idk"
    assert not episode.rubric.ran_out_of_turns
    assert not episode.rubric.gave_up_too_early


def test_an_episode_without_an_answer_runs_out_at_the_limit_and_no_later():
    episode = play(ONE, search("falcon"), read("m3"), search("falcon", "lead"), search("x"), max_turns=3)
    assert episode.outcome == "out_of_turns"
    assert episode.rubric.num_turns == 3
    assert episode.rubric.ran_out_of_turns
    assert episode.rubric.num_total_searches == 2  # calls after the end were not carried out


def test_an_answer_on_the_last_turn_is_an_answer():
    episode = play(ONE, search("falcon"), answer("Ann"), max_turns=2)
    assert (episode.outcome, episode.rubric.ran_out_of_turns) == ("answered", False)


@pytest.mark.parametrize("message", ["", "Ann leads it.", {"content": None}, {"content": "Ann", "tool_calls": []}, {},
                                     {"tool_calls": "x"}, {"tool_calls": [3]}, {"tool_calls": [{"function": {}}]}, 7,
                                     "<tool_call>{</tool_call>", "<search>open", "x" * (MAX_TEXT + 1)])  # fmt: skip
def test_a_message_without_a_readable_call_ends_as_a_parse_error(message):
    episode = play(ONE, message)
    assert episode.outcome == "parse_error"
    assert episode.rubric.cant_parse_tool_call
    assert episode.reason


def test_unknown_tools_and_bad_arguments_end_it_with_their_own_outcome():
    episode = play(ONE, search("falcon"), call("delete_email", {}))
    assert (episode.outcome, outcomes(episode)[-1]) == ("bad_tool_name", "unknown_tool")
    assert episode.rubric.bad_tool_call_name
    episode = play(ONE, call("read_email", '{"message_id"'))
    assert (episode.outcome, outcomes(episode)) == ("bad_tool_args", ["bad_arguments"])
    assert episode.rubric.bad_tool_call_args
    assert play(ONE, "<delete>m1</delete>").outcome == "bad_tool_name"


def test_an_episode_can_be_cut_off_from_outside_once():
    episode = play(ONE, search("falcon"))
    episode.cut_off("no context left")
    assert (episode.outcome, episode.reason) == ("cut_off", "no context left")
    assert episode.step(answer("Ann")) == []
    episode.cut_off("again")
    assert episode.reason == "no context left"


# The rubric


def test_searches_are_compared_in_all_arguments_but_not_in_order_and_case():
    episode = play(
        ONE,
        search("falcon", "Lead"),
        search("LEAD", "falcon"),  # the same
        search("falcon", "lead", max_results=10),  # the same: 10 is the default
        search("falcon", "lead", sent_after="2025-01-01"),  # another
        search("falcon", "lead", from_addr=OTHER),  # another
    )
    rubric = episode.rubric
    assert (rubric.num_total_searches, rubric.num_unique_searches, rubric.num_repeated_searches) == (5, 3, 2)
    assert not rubric.repeated_zero_result_search


def test_searches_that_found_nothing_their_repetitions_and_what_is_tried_after_them():
    episode = play(ONE, search("falcon"), search("soup"), search("soup"), search("lead"), search("falcon"))
    rubric = episode.rubric
    assert rubric.num_zero_result_searches == 2
    assert rubric.repeated_zero_result_search
    assert rubric.num_repeated_searches == 2
    assert rubric.num_retry_after_zero == 1  # "lead"; the others are repetitions
    assert play(ONE, search("soup"), search("lead"), search("ann")).rubric.num_retry_after_zero == 2
    assert play(ONE, search("lead"), search("soup")).rubric.num_retry_after_zero == 0


def test_a_question_of_two_look_ups_is_found_and_read_when_both_messages_are():
    episode = play(TWO, search("falcon", "lead"), read("m1"))
    assert (episode.rubric.ever_found_right_email, episode.rubric.ever_read_right_email) == (False, False)
    episode.step(search("ann", "phone"))
    assert (episode.rubric.ever_found_right_email, episode.rubric.ever_read_right_email) == (True, False)
    episode.step(read("m2"))
    assert episode.rubric.ever_read_right_email
    episode.step(answer("555-0142", "m2"))
    assert (episode.rubric.answer_correct, episode.rubric.sources_correct) == (True, False)
    assert outcomes(episode) == ["search_hit", "read_hit", "search_hit", "read_hit", "answer_correct"]


def test_reading_what_is_not_there_or_not_ones_own_is_noticed_and_goes_on():
    for message_id in ("m99", "x1"):
        episode = play(ONE, read(message_id))
        assert episode.outcome is None
        assert episode.rubric.ever_tried_to_read_invalid_email
        assert outcomes(episode) == ["read_miss"]
    assert not play(ONE, read("m3")).rubric.ever_tried_to_read_invalid_email


def test_a_message_is_found_wherever_it_is_in_the_list():
    episode = play(ONE, search("falcon"))  # lists m3 before m1
    assert outcomes(episode) == ["search_hit"]
    assert episode.rubric.ever_found_right_email


def test_several_calls_in_one_message_are_one_turn_and_each_gets_its_own_result():
    episode = Episode(ONE, BOX)
    two = {"tool_calls": [*search("falcon", "noise")["tool_calls"], *read("m1")["tool_calls"]]}
    two["tool_calls"][1]["id"] = "2"
    first, second = episode.step(two)
    assert (first.call_id, second.call_id) == ("1", "2")
    assert json.loads(first.content)[0]["message_id"] == "m3"
    assert json.loads(second.content)["message_id"] == "m1"
    assert episode.rubric.num_turns == 1
    assert episode.rubric.ever_read_right_email
    assert outcomes(episode) == ["search_miss"]  # depends on its own result, not on that of the other call
    assert second.message() == {"role": "tool", "name": "read_email", "content": second.content, "tool_call_id": "2"}


def test_a_flood_of_calls_is_not_carried_out():
    episode = Episode(ONE, BOX)
    flood = {"tool_calls": [search(f"word{place}")["tool_calls"][0] for place in range(100)]}
    assert len(episode.step(flood)) == 100
    assert episode.rubric.num_total_searches == MAX_CALLS


def test_calls_after_the_answer_are_not_carried_out():
    both = {"tool_calls": [*answer("Bob")["tool_calls"], *answer("Ann", "m1")["tool_calls"]]}
    episode = play(ONE, both)
    assert (episode.answer, episode.rubric.answer_correct) == ("Bob", False)


def test_tokens_and_different_sources_are_counted():
    episode = Episode(ONE, BOX)
    episode.step(search("falcon"), prompt_tokens=10, completion_tokens=3)
    episode.step(answer("Ann", "m1", "m1", "m2"), prompt_tokens=20, completion_tokens=4)
    assert (episode.rubric.prompt_tokens, episode.rubric.completion_tokens) == (30, 7)
    assert episode.rubric.num_sources == 2


def test_the_grader_decides():
    seen = []

    def strict(question, text, sources):
        seen.append((question.id, text, sources))
        return Grade(False, 0.0, "no")

    episode = play(ONE, answer("Ann", "m1"), grader=strict)
    assert seen == [("q1", "Ann", ("m1",))]
    assert (episode.rubric.answer_correct, episode.reason, outcomes(episode)) == (False, "no", ["answer_wrong"])


# Texts


def test_the_three_forms_of_a_call_say_the_same():
    wanted = ("search_emails", {"keywords": ["falcon", "lead"]})
    texts = [
        "<search>falcon lead</search>",
        '<think>hm <b>x</b></think><tool_call>\n{"name": "search_emails", '
        '"arguments": {"keywords": ["falcon", "lead"]}}\n</tool_call>',
    ]
    assert [read_text(text)[0][:2] for text in texts] == [wanted, wanted]
    assert read_calls(search("falcon", "lead"))[0][:2] == wanted
    assert read_calls({"content": texts[0]})[0][:2] == wanted


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("search_emails", {"keywords": ["falcon", "lead"]}), ("read_email", {"message_id": "m7"}),
     ("return_final_answer", {"answer": "blue room", "source_message_ids": ["m1", "m2"]}),
     ("return_final_answer", {"answer": "blue", "source_message_ids": []})],
)  # fmt: skip
def test_a_call_written_as_tags_is_read_as_it_was(name, arguments):
    assert read_text(write_call(name, arguments))[0][:2] == (name, arguments)


def test_a_message_without_calls_says_what_is_missing():
    with pytest.raises(UnreadableCall, match="no tool call"):
        read_text("Ann")


@pytest.mark.parametrize("tag", ["<a>", "<search>", "<", "</search>", "<search><read>"])
def test_a_text_of_nothing_but_open_tags_is_read_at_once(tag):
    began = time.process_time()
    assert play(ONE, tag * (MAX_TEXT // len(tag))).is_over
    assert time.process_time() - began < 1.0


def test_what_stands_in_a_tag_is_not_read_twice_and_what_follows_an_open_one_is():
    assert [call.name for call in read_text("<a><think><search>x</search></think><read>m1</read>")] == ["read_email"]
    inside = read_text("<answer>see <read>m1</read></answer>")
    assert [call.name for call in inside] == ["return_final_answer"]


def test_a_very_long_message_is_shown_in_part():
    long = Mailbox.build([Email("m1", "s", ME, "2025-01-01 00:00:00", "x" * (MAX_BODY + 7))])
    body = Toolbox(long, ME).call("read_email", {"message_id": "m1"}).content["body"]
    assert body == "x" * MAX_BODY + "\n[7 more characters]"


def test_a_tiny_model_sees_as_little_as_can_be():
    episode = Episode(ONE, BOX, style="tags")
    assert episode.messages() == [{"role": "user", "content": ONE.question}]
    assert episode.step("<search>soup</search>")[0].content == "nothing"
    assert episode.step("<read>m1</read>")[0].content == "The lead of falcon is Ann."
    assert episode.step("<read>m9</read>")[0].content == "no such email"


def test_a_chat_models_prompt_names_whose_mail_it_is_and_how_many_turns_it_has():
    system, user = Episode(TWO, BOX, max_turns=7).messages()
    assert ME in system["content"]
    assert "2025-02-01" in system["content"]
    assert "7 of them" in system["content"]
    assert user["content"] == TWO.question


# Hostile messages

HOSTILE = st.one_of(
    st.text(st.characters(exclude_categories=[]), max_size=60),
    st.sampled_from(['" OR 1=1 --', "falcon* NEAR(x)", "x'; DROP TABLE emails; --", "\0", "\ud800\udfff", "\ud800",
                     SECRET, "third@acme.test", "subject:falcon", "x1", "' UNION SELECT body FROM emails --", "..", "%",
                     "9" * 5000]),
)  # fmt: skip
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), HOSTILE),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(HOSTILE, inner, max_size=4),
    max_leaves=8,
)
ARGUMENTS = st.one_of(
    ANYTHING,
    st.fixed_dictionaries(
        {"keywords": st.lists(HOSTILE, max_size=4)},
        optional={"from_addr": HOSTILE, "to_addr": HOSTILE, "sent_after": HOSTILE, "sent_before": st.dates().map(str),
                  "max_results": st.integers(-3, 12)},
    ),
    st.fixed_dictionaries({"message_id": HOSTILE}),
    st.fixed_dictionaries({"answer": HOSTILE}, optional={"source_message_ids": st.lists(HOSTILE, max_size=3)}),
)  # fmt: skip
NAMED = st.one_of(st.sampled_from(NAMES), HOSTILE)
CALLS = st.builds(call, NAMED, ARGUMENTS)
AS_JSON = st.builds(
    lambda name, arguments: call(name, json.dumps(arguments, default=str)), st.sampled_from(NAMES), ARGUMENTS
)
TAGGED = st.builds(lambda tag, inside: f"<{tag}>{inside}</{tag}>",
                   st.sampled_from(["search", "read", "answer", "tool_call", "rm"]), HOSTILE)  # fmt: skip
MESSAGES = st.one_of(CALLS, AS_JSON, TAGGED, HOSTILE, ANYTHING)


@given(st.lists(MESSAGES, min_size=1, max_size=6), st.sampled_from(["chat", "tags"]))
@example([call("search_emails", {"keywords": ["falcon"] * 20})], "chat")
@example([call("read_email", '{"message_id": ' + "9" * 5000 + "}")], "chat")
@example([call("search_emails", '{"keywords": ["a", ' + "[" * 50_000)], "tags")
def test_nothing_a_model_writes_crashes_an_episode_or_leaves_its_inbox(messages, style):
    episode = Episode(ONE, BOX, max_turns=5, style=style)
    shown = []
    for message in messages:
        shown += [seen.content for seen in episode.step(message)]
        for seen in shown:
            seen.encode("utf-8", "surrogatepass")
    if len(messages) >= 5:
        assert episode.is_over
    text = "\n".join(shown)
    assert SECRET not in text
    assert '"x1"' not in text
    rubric = episode.rubric
    assert rubric.num_total_searches == rubric.num_unique_searches + rubric.num_repeated_searches
    assert rubric.num_turns == len(outcomes(episode)) <= 5
    assert set(outcomes(episode)) <= set(OUTCOMES)
    endings = (rubric.attempted_answer, rubric.returned_i_dont_know, rubric.ran_out_of_turns,
               rubric.cant_parse_tool_call, rubric.bad_tool_call_name, rubric.bad_tool_call_args)  # fmt: skip
    assert sum(endings) == (1 if episode.is_over else 0)
    for system in PARTS:
        assert all(isinstance(part, float) for part in episode.reward(system).values())
    assert len(BOX) == 4
