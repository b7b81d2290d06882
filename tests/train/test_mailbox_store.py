"""The mailbox: what a search finds, what an inbox contains, which parts of a message are kept."""

from __future__ import annotations

import sqlite3
import threading

import pytest

from rlvitals.errors import ConfigError
from rlvitals.train.mailbox.mail import Email
from rlvitals.train.mailbox.store import Mailbox

ME, BOSS, OTHER = "me@acme.test", "boss@acme.test", "other@acme.test"

EMAILS = [
    Email("<1>", "Falcon budget", BOSS, "2025-01-01 10:00:00", "The falcon budget is $48,300.", to=(ME,)),
    Email("<2>", "Lunch", ME, "2025-02-01 10:00:00", "Falcons do not eat soup.", to=(BOSS,), cc=(OTHER,)),
    Email("<3>", "Secret", BOSS, "2025-03-01 10:00:00", "The falcon code is 7731.", to=(OTHER,), bcc=(ME,)),
    Email("<4>", "Private falcon", BOSS, "2025-04-01 10:00:00", "Not for everybody: falcon 99.", to=(OTHER,)),
    Email("<5>", "List", "list@x.test", "2025-05-01 10:00:00", "The falcon list.", to=("all@x.test",), delivered=(ME,)),
]


@pytest.fixture
def mailbox():
    box = Mailbox.build(EMAILS)
    yield box
    box.close()


def ids(hits):
    return [hit.message_id for hit in hits]


def test_a_search_finds_all_keywords_in_subject_or_body_newest_first(mailbox):
    assert ids(mailbox.search(ME, ["falcon"])) == ["<5>", "<3>", "<1>"]
    assert ids(mailbox.search(ME, ["FALCON", "budget"])) == ["<1>"]
    assert ids(mailbox.search(ME, ["falcon budget"])) == ["<1>"]
    assert ids(mailbox.search(ME, ["budget falcon"])) == []  # a phrase: the word order counts
    assert ids(mailbox.search(ME, ["falcon", "soup"])) == []
    assert ids(mailbox.search(ME, ["falcon"], limit=2)) == ["<5>", "<3>"]


def test_a_search_shows_a_piece_of_the_text_around_the_words(mailbox):
    (hit,) = mailbox.search(ME, ["7731"])
    assert hit.snippet == "The falcon code is 7731."
    short = Mailbox.build(EMAILS, snippet_words=0)
    assert short.search(ME, ["7731"])[0].snippet == "Secret"


def test_searches_are_limited_by_sender_recipient_and_day(mailbox):
    assert ids(mailbox.search(ME, ["falcon"], sender="BOSS@acme.test")) == ["<3>", "<1>"]
    assert ids(mailbox.search(ME, ["falcon"], recipient=OTHER)) == ["<3>"]
    assert ids(mailbox.search(ME, ["falcon"], recipient=ME)) == ["<3>", "<1>"]  # bcc counts, delivery does not
    assert ids(mailbox.search(ME, ["falcon"], sent_after="2025-03-01")) == ["<5>", "<3>"]
    assert ids(mailbox.search(ME, ["falcon"], sent_before="2025-03-01")) == ["<1>"]
    assert ids(mailbox.search(ME, ["falcon"], sent_after="2025-01-01", sent_before="2025-01-02")) == ["<1>"]


def test_an_inbox_sees_what_it_sent_received_or_had_delivered_and_nothing_else(mailbox):
    assert [mailbox.read(ME, f"<{number}>") is not None for number in range(1, 6)] == [True, True, True, False, True]
    assert [mailbox.read(OTHER, f"<{number}>") is not None for number in range(1, 6)] == [
        False, True, True, True, False,
    ]  # fmt: skip
    assert "<4>" not in ids(mailbox.search(ME, ["private"]))
    assert mailbox.search("nobody@acme.test", ["falcon"]) == []


def test_a_message_keeps_all_its_recipients(mailbox):
    read = mailbox.read(ME, "<3>")
    assert (read.to, read.cc, read.bcc) == ((OTHER,), (), (ME,))
    assert mailbox.read(ME, "<2>").cc == (OTHER,)
    assert mailbox.read(ME, "<1>") == EMAILS[0]


@pytest.mark.parametrize(
    "word",
    ['"', 'a" OR "b', "falcon*", "subject:falcon", "NEAR(a b)", "^falcon", "-falcon", "(", "{a b}", "\0", "fal\0con",
     "'; DROP TABLE emails; --", "\ud800", "%", "_", "AND", "OR NOT", "falcon\" AND \"x", "x" * 400, "\u200b"],
)  # fmt: skip
def test_query_syntax_in_a_keyword_is_only_text(mailbox, word):
    found = mailbox.search(ME, [word])
    assert "<4>" not in ids(found)
    assert mailbox.read(ME, word) is None
    assert mailbox.search(ME, ["falcon"], sender=word, recipient=word) == []
    assert len(mailbox) == 5


def test_a_quotation_mark_cannot_end_the_phrase_it_is_in(mailbox):
    assert mailbox.search(ME, ['soup" OR "falcon']) == []
    assert mailbox.search(ME, ['fal"con']) == []
    assert ids(mailbox.search(ME, ['"falcon" budget'])) == ["<1>"]


def test_signs_without_letters_do_not_narrow_a_search(mailbox):
    assert ids(mailbox.search(ME, ["falcon", "!!"])) == ["<5>", "<3>", "<1>"]
    assert mailbox.search(ME, ["!!"]) == []


def test_a_mailbox_cannot_be_written_once_it_is_built(mailbox, tmp_path):
    with pytest.raises(sqlite3.OperationalError, match=r"readonly|read-only"):
        mailbox._connection.execute("DELETE FROM emails")
    in_a_file = Mailbox.build(EMAILS, tmp_path / "box.sqlite")
    with pytest.raises(sqlite3.OperationalError, match=r"readonly|read-only"):
        in_a_file._connection.execute("DELETE FROM emails")


def test_a_message_that_comes_twice_is_kept_once():
    again = Email("<1>", "Other", OTHER, "2025-01-02 00:00:00", "another text", to=(OTHER,))
    box = Mailbox.build([EMAILS[0], again])
    assert len(box) == 1
    assert box.read(OTHER, "<1>") is None
    assert box.read(ME, "<1>") == box.read(BOSS, "<1>") == EMAILS[0]


def test_a_mailbox_in_a_file_is_the_same_mailbox(tmp_path):
    path = tmp_path / "deep" / "box #1?.sqlite"
    Mailbox.build(EMAILS, path, snippet_words=0).close()
    box = Mailbox.open(path)
    assert ids(box.search(ME, ["falcon"])) == ["<5>", "<3>", "<1>"]
    assert box.snippet_words == 0
    assert [child.name for child in path.parent.iterdir()] == [path.name]


def test_a_mailbox_that_could_not_be_finished_is_not_there(tmp_path):
    def broken():
        yield EMAILS[0]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Mailbox.build(broken(), tmp_path / "box.sqlite")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"no database at all, but long enough to look at" * 20])
def test_what_is_no_mailbox_is_reported_plainly(tmp_path, content):
    path = tmp_path / "box.sqlite"
    with pytest.raises(ConfigError, match="there is no mailbox"):
        Mailbox.open(path)
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="not a mailbox of rlvitals"):
        Mailbox.open(path)


def test_texts_that_a_database_cannot_hold_are_kept_as_far_as_they_can_be():
    box = Mailbox.build([Email("<\ud800>", "a\0b", ME, "", "half \udc00 of it", to=("X@Y.Z",))])
    (found,) = box.search(ME, ["half"])
    assert box.read(ME, found.message_id).body == "half ? of it"
    assert box.read("x@y.z", found.message_id).subject == "a b"


def test_threads_may_search_at_once(mailbox):
    found, threads = [], []
    for _ in range(8):
        threads.append(threading.Thread(target=lambda: found.extend(mailbox.search(ME, ["falcon"]) for _ in range(20))))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert len(found) == 160
    assert all(ids(hits) == ["<5>", "<3>", "<1>"] for hits in found)
