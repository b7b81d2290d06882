"""Generated and loaded mail: questions can be answered, splits do not overlap, and any mail can be read."""

from __future__ import annotations

import csv
import json
import mailbox as standard_mailbox
import re
from collections import Counter
from dataclasses import asdict
from email.message import EmailMessage

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvitals.errors import ConfigError
from rlvitals.train.mailbox import mail, worlds
from rlvitals.train.mailbox.episode import Episode
from rlvitals.train.mailbox.graders import exact, token_recall
from rlvitals.train.mailbox.mail import Question
from rlvitals.train.mailbox.reward import reward_parts
from rlvitals.train.mailbox.store import Mailbox
from rlvitals.train.tiny import PIECE


def call(name, **arguments):
    return {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": name, "arguments": arguments}}]}


def follow(question, box):
    """The episode of an agent that searches for the words of the question, reads the result and answers."""
    episode = Episode(question, box)
    for keywords, message_id in zip(question.searches, question.message_ids, strict=True):
        episode.step(call("search_emails", keywords=list(keywords)))
        episode.step(call("read_email", message_id=message_id))
    episode.step(call("return_final_answer", answer=question.answer, source_message_ids=list(question.message_ids)))
    return episode


# The mailbox of any size


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_question_can_be_answered_from_its_inbox(seed):
    box, questions = worlds.generate(600, seed=seed)
    assert len(box) == 600
    assert len({question.id for question in questions}) == len(questions)
    for question in questions:
        rubric = follow(question, box).rubric
        assert rubric.answer_correct
        assert rubric.ever_found_right_email
        assert rubric.ever_read_right_email
        perfect = 2.0 if len(question.message_ids) == 1 else 1 + 0.3 + 0.1 / 2 + 0.1 * (1 - 5 / 10)
        assert sum(reward_parts(rubric, 10).values()) == pytest.approx(perfect)
        assert question.answer in box.read(question.inbox, question.message_ids[-1]).body


@pytest.mark.parametrize("style", ["chat", "tags"])
def test_the_solution_shown_to_a_model_answers_the_question_in_both_forms(style):
    box, questions = worlds.generate(60, seed=3)
    assert questions
    for question in questions:
        episode = Episode(question, box)
        for text in worlds.solution(question, style=style)[:-1]:
            episode.step(text)
        assert episode.rubric.ever_found_right_email or style == "tags"  # tags split a name into its words
        assert episode.rubric.ever_read_right_email
        episode.step(worlds.solution(question, style=style, sources=False)[-1])
        assert (episode.rubric.answer_correct, episode.rubric.num_sources) == (True, 0)


def test_there_are_six_questions_of_one_look_up_and_two_of_two_for_each_project():
    questions = worlds.questions(600)
    hops = Counter((question.family, len(question.message_ids)) for question in questions)
    assert len(hops) == 8
    assert sum(count for (_, hop), count in hops.items() if hop == 2) * 3 == sum(
        count for (_, hop), count in hops.items() if hop == 1
    )


def test_the_answer_is_not_that_of_another_question_of_the_family():
    for family in ("lead", "supplier", "code", "phone_of_lead"):
        asked = [question for question in worlds.questions(600) if question.family == family]
        wrong = [
            (one.answer, other.answer)
            for one in asked
            for other in asked
            if one is not other and token_recall(one, other.answer, ()).is_correct
        ]
        assert not wrong


def test_a_moved_deadline_is_answered_from_the_newer_message():
    box, questions = worlds.generate(300)
    for question in (question for question in questions if question.family == "deadline"):
        name = question.searches[0][0]
        newer, older = box.search(question.inbox, [f"deadline of {name}"])
        assert newer.message_id == question.message_ids[0]
        old_day = re.search(r"is (\d+ \w+)\.", box.read(question.inbox, older.message_id).body)[1]
        assert not token_recall(question, old_day, ()).is_correct


def test_projects_stay_in_their_own_inbox():
    box, questions = worlds.generate(400)
    owners = {question.inbox for question in questions}
    assert len(owners) == worlds.INBOXES
    for question in questions:
        for owner in owners - {question.inbox}:
            assert box.read(owner, question.message_ids[0]) is None
            assert box.search(owner, question.searches[0]) == []


def test_recipients_of_all_kinds_reach_the_owner():
    found = Counter()
    for email in worlds.emails(2000):
        owner = [email.sender.startswith("owner")]
        owner += [any(each.startswith("owner") for each in group) for group in (email.to, email.cc, email.bcc)]
        found.update(name for name, is_there in zip(("from", "to", "cc", "bcc"), owner, strict=True) if is_there)
        assert any(owner)
    assert set(found) == {"from", "to", "cc", "bcc"}


def test_a_seed_gives_the_same_mailbox_and_another_seed_another():
    assert list(worlds.emails(150, seed=4)) == list(worlds.emails(150, seed=4))
    assert worlds.questions(150, seed=4) == worlds.questions(150, seed=4)
    first, second = ({email.body for email in worlds.emails(150, seed=seed)} for seed in (4, 5))
    assert len(first & second) < 10
    asked = {question.question for question in worlds.questions(150, seed=4)}
    assert not asked & {question.question for question in worlds.questions(150, seed=5)}


def test_the_splits_share_no_project():
    train, held_out = (worlds.questions(1000, split=split) for split in ("train", "held_out"))
    projects = [{question.id.split("-")[2] for question in part} for part in (train, held_out)]
    assert projects[0]
    assert projects[1]
    assert not projects[0] & projects[1]
    assert len(train) + len(held_out) == len(worlds.questions(1000))


@pytest.mark.parametrize("size", [1, 5, 9, 25, 1000])
def test_a_mailbox_has_exactly_the_size_asked_for(size):
    made = list(worlds.emails(size))
    assert len({email.message_id for email in made}) == len(made) == size
    assert all(set(question.message_ids) <= {email.message_id for email in made} for question in worlds.questions(size))


def test_names_of_a_big_mailbox_do_not_run_out():
    names = [question.question for question in worlds.questions(20_000, inboxes=1) if question.family == "lead"]
    assert len(names) > 28 * 28
    assert len(set(names)) == len(names)


def test_a_mailbox_file_is_used_again_and_never_taken_for_another(tmp_path):
    path = tmp_path / "box.sqlite"
    _, questions = worlds.generate(60, seed=1, path=path)
    written = path.stat().st_mtime_ns
    box, again = worlds.generate(60, seed=1, path=path)
    assert again == questions
    assert len(box) == 60
    assert path.stat().st_mtime_ns == written
    for size, seed in ((60, 2), (61, 1)):
        with pytest.raises(ConfigError, match="another mailbox"):
            worlds.generate(size, seed=seed, path=path)


@pytest.mark.parametrize(("messages", "inboxes"), [(0, 4), (10, 0)])
def test_a_mailbox_of_nothing_is_refused(messages, inboxes):
    with pytest.raises(ConfigError, match="at least one"):
        worlds.questions(messages, inboxes=inboxes)


# The mini mailbox


def test_a_mini_mailbox_has_forty_messages_and_every_question_has_a_way():
    families = Counter()
    for seed in range(10):
        world = worlds.mini(seed)
        assert len(world.mailbox) == 40
        for question in world.questions:
            episode = Episode(question, world.mailbox, style="tags", grader=exact)
            for text in worlds.solution(question):
                episode.step(text)
            assert episode.rubric.answer_correct
            assert episode.rubric.sources_correct
            assert episode.rubric.num_turns == 2 * len(question.message_ids) + 1
            families[question.family] += 1
        world.mailbox.close()
    assert set(families) == {"lead", "room", "day", "phone", "room_of_lead", "phone_of_lead"}


def test_everything_a_tiny_model_reads_and_writes_is_in_the_vocabulary():
    pieces = {piece for text in worlds.corpus() for piece in re.findall(PIECE, text)}
    for seed in range(20):
        world = worlds.mini(seed, split="held_out")
        for question in world.questions[:12]:
            episode = Episode(question, world.mailbox, style="tags")
            texts = [message["content"] for message in episode.messages()]
            for text in [*worlds.solution(question)[:-1], "<read>m41</read>", "<search>ann falcon</search>"]:
                texts += [text, *(seen.content for seen in episode.step(text))]
            texts += [*worlds.solution(question), question.answer]
            assert not {piece for text in texts for piece in re.findall(PIECE, text)} - pieces - {"m41"}


def test_no_fact_can_be_learnt_by_heart():
    answers = {}
    for seed in range(40):
        for question in worlds.mini(seed, families=("room",)).questions:
            answers.setdefault(question.question, Counter())[question.answer] += 1
    assert len(answers) == 12
    assert all(len(counts) > 8 for counts in answers.values())


def test_nobody_in_a_mini_mailbox_leads_two_projects():
    for seed in range(5):
        leaders = [question.answer for question in worlds.mini(seed, families=("lead",)).questions]
        assert len(set(leaders)) == len(leaders) == 12


def test_mini_mailboxes_of_the_splits_differ_and_families_can_be_chosen():
    train, held_out = (worlds.mini(3, split=split) for split in ("train", "held_out"))
    assert {question.id for question in train.questions}.isdisjoint(question.id for question in held_out.questions)
    assert [q.answer for q in train.questions] != [q.answer for q in held_out.questions]
    chosen = worlds.mini(3, families=("room_of_lead",)).questions
    assert {question.family for question in chosen} == {"room_of_lead"}
    assert worlds.mini(3).questions == train.questions


# A user's mail


def raw_message(**headers):
    message = EmailMessage()
    for name, value in headers.items():
        message[name.replace("_", "-")] = value
    message.set_content("The falcon budget is 48,300 €.\n")
    return message


def test_an_mbox_is_read_with_all_its_recipients(tmp_path):
    path = tmp_path / "mail.mbox"
    box = standard_mailbox.mbox(path)
    box.add(raw_message(
        Message_ID="<a@x>", Subject="Grüße", From='"Boss, The" <Boss@Acme.test>', To="me@acme.test, A <a@b.c>",
        Cc="c@b.c", Bcc="d@b.c", Date="Tue, 04 Mar 2025 10:00:00 +0200", Delivered_To="lists@acme.test",
    ))  # fmt: skip
    html = EmailMessage()
    html["From"] = "x@y.z"
    html.set_content("<style>p {}</style><p>Only &amp; <b>markup</b></p>", subtype="html")
    box.add(html)
    box.close()
    first, second = mail.read_mbox(path)
    assert (first.message_id, first.subject, first.sender) == ("<a@x>", "Grüße", "boss@acme.test")
    assert (first.to, first.cc, first.bcc) == (("me@acme.test", "a@b.c"), ("c@b.c",), ("d@b.c",))
    assert first.delivered == ("lists@acme.test",)
    assert first.date == "2025-03-04 08:00:00"
    assert first.body == "The falcon budget is 48,300 €."
    assert second.body.split() == ["Only", "&", "markup"]
    assert second.date == ""
    assert re.fullmatch(r"<[0-9a-f]{24}@no-id>", second.message_id)
    stored = Mailbox.build([first, second])
    assert stored.read("lists@acme.test", "<a@x>").bcc == ("d@b.c",)


def test_the_enron_layout_is_read(tmp_path):
    path = tmp_path / "emails.csv"
    text = (
        "Message-ID: <18782981.1075855378110.JavaMail.evans@thyme>\nDate: Mon, 14 May 2001 16:39:00 -0700 (PDT)\n"
        "From: phillip.allen@enron.com\nTo: tim.belden@enron.com, \n\tjohn.doe@enron.com\nSubject: \n"
        "Mime-Version: 1.0\nContent-Type: text/plain; charset=us-ascii\nX-From: P Allen\n\nHere is our forecast\n"
    )
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "message"])
        writer.writerow(["allen-p/_sent_mail/1.", text])
        writer.writerow(["allen-p/_sent_mail/2.", text.replace("18782981", "2") + "x" * 200_000])
    before = csv.field_size_limit()
    first, second = mail.read_enron_csv(path)
    assert csv.field_size_limit() == before
    assert first.message_id == "<18782981.1075855378110.JavaMail.evans@thyme>"
    assert first.date == "2001-05-14 23:39:00"
    assert (first.to, first.body) == (("tim.belden@enron.com", "john.doe@enron.com"), "Here is our forecast")
    assert len(second.body) > 200_000


@pytest.mark.parametrize(
    "header", ["", "Content-Type: text/plain; charset=us-ascii\n", "Content-Type: text/html; charset=iso-8859-1\n"]
)
def test_letters_of_a_csv_are_kept_whatever_charset_a_message_declares(header):
    """The CSV has been decoded already, so the charset no longer applies, except to encoded bodies."""
    assert mail.parse(f"Subject: Grüße\n{header}\nGrüße für 5 €").body == "Grüße für 5 €"
    encoded = f"{header or 'Content-Type: text/plain; charset=iso-8859-1'}".strip()
    assert mail.parse(f"{encoded}\nContent-Transfer-Encoding: quoted-printable\n\n5 =45uro").body == "5 Euro"


@pytest.mark.parametrize("charset", ["utf-8", "iso-8859-1"])
def test_bytes_are_read_in_the_charset_that_a_message_declares(charset):
    raw = f"Content-Type: text/plain; charset={charset}\n\nGrüße".encode(charset)
    assert mail.parse(raw).body == "Grüße"
    assert mail.parse("Subject: no charset\n\nGrüße".encode()).body == "Grüße"


@pytest.mark.parametrize("content", ["", "path,text\na,b\n"])
def test_a_csv_without_messages_is_reported_plainly(tmp_path, content):
    path = tmp_path / "emails.csv"
    with pytest.raises(ConfigError, match="cannot read"):
        list(mail.read_enron_csv(path))
    path.write_text(content)
    with pytest.raises(ConfigError, match="no column 'message'"):
        list(mail.read_enron_csv(path))
    with pytest.raises(ConfigError, match="no mbox file"):
        list(mail.read_mbox(tmp_path / "nothing.mbox"))


HEADERS = st.sampled_from(["From", "To", "Cc", "Bcc", "Date", "Subject", "Message-ID", "Content-Type",
                           "Content-Transfer-Encoding", "Content-Disposition", "MIME-Version"])  # fmt: skip
VALUES = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["multipart/mixed; boundary=x", "text/plain; charset=klingon", "base64", "=?utf-8?b?!!?=",
                     "=?x?q?=00?=", "Mon, 99 Foo 99999 25:61:61 +9999", "attachment; filename*=x''%", "<<>>,;:@",
                     "text/html"]),
)  # fmt: skip


@given(st.lists(st.tuples(HEADERS, VALUES), max_size=8), st.text(max_size=80), st.booleans())
def test_no_message_is_too_broken_to_be_loaded(headers, body, as_bytes):
    text = "\n".join([*(f"{name}: {value}" for name, value in headers), "", body])
    email = mail.parse(text.encode("utf-8", "surrogatepass") if as_bytes else text)
    assert email.message_id
    assert re.fullmatch(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)?", email.date)
    assert len(Mailbox.build([email])) == 1


def test_questions_of_ones_own_are_read_from_lines(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text(
        '{"id": 7, "question": "When?", "answer": "Now", "message_ids": ["<a>"], "inbox_address": "ME@x.y", '
        '"how_realistic": 0.9, "query_date": "2001-05-14"}\n\n'
    )
    (question,) = mail.read_questions(path)
    assert question == Question("7", "When?", "Now", ("<a>",), "me@x.y", "2001-05-14")
    path.write_text(json.dumps(asdict(question)))
    assert mail.read_questions(path) == [question]


@pytest.mark.parametrize(
    ("line", "message"),
    [("{", "line 1 is not JSON"), ("[]", "JSON object"), ('{"id": 1}', "line 1 has no 'question'"),
     ('{"id": 1, "question": 2, "answer": "a", "message_ids": [], "inbox": "x"}', "question must be a text"),
     ('{"id": 1, "question": "q", "answer": "a", "message_ids": 3, "inbox": "x"}', "message_ids must be a list"),
     ('{"id": 1, "question": "q", "answer": "a", "message_ids": "m1", "inbox": "x"}', "message_ids must be a list"),
     ('{"id": 1, "question": "q", "answer": "a", "message_ids": []}', "line 1: a question needs the field 'inbox'"),
     ('{"id": 1, "question": "q", "answer": "a", "message_ids": [], "inbox": "x", "searches": 1}', "wrong kind")],
)  # fmt: skip
def test_a_question_that_is_none_names_its_line(tmp_path, line, message):
    path = tmp_path / "questions.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ConfigError, match=message):
        mail.read_questions(path)
