"""Console output: the format of each trainer, wrapped, cut, coloured or behind progress bars, and printed settings."""

from __future__ import annotations

import math
import time

import pytest

from rlvitals.importers import NotALog, read_log
from rlvitals.importers.literals import Incomplete, Malformed, parse_mapping


def read(tmp_path, text):
    path = tmp_path / "output.log"
    path.write_bytes(text.encode())
    return read_log(path)


def bar(done, total, what="", rest="00:10<08:15, 10.12s/it"):
    return f"\r{what}{done * 100 // total:3d}%|█▊      | {done}/{total} [{rest}]"


def test_rows_behind_progress_bars_have_the_bars_step(tmp_path):
    text = "".join(f"{bar(n, 100)}\r{' ' * 80}\r{{'loss': 0.{n}, 'epoch': 0.1}}\n" for n in (10, 20, 30))
    log = read(tmp_path, text)
    assert [(row["step"], row["loss"]) for row in log.rows] == [(10, 0.1), (20, 0.2), (30, 0.3)]
    assert (log.format, log.config, log.notes) == ("console", {"max_steps": 100}, [])


def test_the_bar_of_an_evaluation_does_not_move_the_step(tmp_path):
    text = f"{bar(10, 50)}\n{{'loss': 0.5, 'epoch': 0.2}}\n{bar(63, 63)}\n{{'eval_loss': 0.6, 'epoch': 0.2}}\n"
    text += f"{bar(20, 50)}\n{{'loss': 0.4, 'epoch': 0.4}}\n"
    log = read(tmp_path, text)
    assert [row["step"] for row in log.rows] == [10, 10, 20]


def test_values_quoted_as_texts_are_numbers(tmp_path):
    (row,) = read(tmp_path, "{'loss': '0.6931', 'grad_norm': 'nan', 'num_tokens': '1.412e+04', 'epoch': '0.01'}\n").rows
    assert (row["loss"], row["num_tokens"]) == (0.6931, 14120.0)
    assert math.isnan(row["grad_norm"])


def test_python_literals_with_bare_nan_and_wrappers(tmp_path):
    text = (
        "{'loss': nan, 'kl': -inf, 'reward': np.float64(0.5), 'entropy': tensor(1.5, device='cuda:0'), 'none': None}\n"
    )
    (row,) = read(tmp_path, text).rows
    assert repr(row) == "{'step': 1, 'loss': nan, 'kl': -inf, 'reward': 0.5, 'entropy': 1.5}"


def test_colours_and_ray_prefixes_are_stripped(tmp_path):
    prefix = "\x1b[36m(TaskRunner pid=3521, ip=10.0.0.4)\x1b[0m"
    log = read(tmp_path, f"{prefix} step:3 - actor/entropy:0.2 - actor/pg_loss:np.float64(-0.01)\n")
    assert (log.format, log.rows) == ("verl", [{"step": 3, "actor/entropy": 0.2, "actor/pg_loss": -0.01}])


@pytest.mark.parametrize("width", [30, 47])
def test_a_row_a_terminal_wrapped_is_whole(tmp_path, width):
    line = "{'loss': 0.123456, 'grad_norm': 1.5, 'rewards/margins': 0.25, 'learning_rate': 5e-07, 'epoch': 1.5}"
    wrapped = "\n".join(line[start : start + width] for start in range(0, len(line), width))
    (row,) = read(tmp_path, f"begin\n{wrapped}\nend\n").rows
    assert row == {
        "step": 1,
        "loss": 0.123456,
        "grad_norm": 1.5,
        "rewards/margins": 0.25,
        "learning_rate": 5e-07,
        "epoch": 1.5,
    }


def test_a_pretty_printed_row_is_one_row(tmp_path):
    text = "{'losses/total_loss': 0.5,\n 'policy/kl': 0.01,\n 'policy': {'sqrt_kl': 0.1}}\n"
    (row,) = read(tmp_path, text).rows
    assert row == {"step": 1, "losses/total_loss": 0.5, "policy/kl": 0.01, "policy/sqrt_kl": 0.1}


def test_an_opening_that_never_closes_swallows_nothing(tmp_path):
    text = "sample: {'unclosed: text\nmore\n{'loss': 0.5, 'epoch': 1}\n" + f"{bar(5, 9)}\n{{'loss': 0.4, 'epoch': 2}}\n"
    assert [row["loss"] for row in read(tmp_path, text).rows] == [0.5, 0.4]


def test_openrlhf_says_the_step_before_the_mapping(tmp_path):
    log = read(tmp_path, "✨ Global step 7: {'policy_loss': 0.01, 'kl': 0.002, 'generated': True}\n")
    assert log.rows[0]["step"] == 7


def test_openrlhf_progress_bars_carry_rows(tmp_path):
    text = ""
    for episode in range(2):
        for n in range(4):
            rest = f"00:10<00:20, 2.3s/it, policy_loss=0.{episode}{n}, kl=0.5, reward=1.5" if n else "00:00<?, ?it/s"
            text += bar(n, 3, "Train epoch [1/1]: ", rest)
    log = read(tmp_path, text + "\n")
    assert [(row["step"], row["policy_loss"]) for row in log.rows] == [
        (1, 0.01), (2, 0.02), (3, 0.03), (4, 0.11), (5, 0.12), (6, 0.13),
    ]  # fmt: skip


def test_trlx_hangs_its_losses_before_the_bar(tmp_path):
    text = "".join(
        bar(n, 3200, f"[losses/total_loss: 0.{n} | losses/policy_loss: -0.01 | losses/value_loss: nan]: ")
        for n in (1, 2, 3)
    )
    log = read(tmp_path, text + "\n")
    assert [(row["step"], row["losses/total_loss"]) for row in log.rows] == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert math.isnan(log.rows[0]["losses/value_loss"])


def test_bars_of_other_work_are_no_training(tmp_path):
    text = bar(99, 100, "Map: ") + bar(2, 2, "Loading checkpoint shards: ") + "\n{'loss': 0.5}\n{'loss': 0.4}\n"
    log = read(tmp_path, text)
    assert [row["step"] for row in log.rows] == [1, 2]
    assert log.notes == ["2 rows say no step and were counted on"]


def test_the_most_telling_kind_of_row_counts(tmp_path):
    text = "step 1: loss=0.9, kl=0.1\nstep:1 - actor/pg_loss:0.5 - actor/grad_norm:1.0\n{'loss': 0.7}\n"
    log = read(tmp_path, text)
    assert log.rows == [{"step": 1, "actor/pg_loss": 0.5, "actor/grad_norm": 1.0}]


def test_a_second_training_in_one_log_starts_again(tmp_path):
    one = (
        "".join(f"{{'loss': 0.5, 'grad_norm': 1.0, 'epoch': {n / 4}}}\n" for n in range(1, 5))
        + "{'train_runtime': 5.0, 'epoch': 1.0}\n"
    )
    log = read(tmp_path, one + one)
    assert [row["step"] for row in log.rows] == [1, 2, 3, 4, 4] * 2
    assert "steps start again at row 6: a restart inside the file" in log.notes


def test_settings_come_from_arguments_banners_and_printed_configurations(tmp_path):
    text = (
        "python train.py --num-generations 4 \\\n  --learning-rate=5e-6 --beta 0.04\n"
        "***** Running training *****\n  Total optimization steps = 1,200\n"
        "{'actor_rollout_ref': {'rollout': {'n': 8, 'name': 'vllm'},\n"
        "                       'actor': {'optim': {'lr': 1e-06}}},\n"
        " 'data': {'max_response_length': 4096, 'train_files': ['a']}}\n"
        "step:1 - actor/pg_loss:0.5\n"
    )
    assert read(tmp_path, text).config == {
        "num_generations": 8, "learning_rate": 1e-06, "beta": 0.04, "max_steps": 1200, "max_completion_length": 4096,
    }  # fmt: skip


def test_settings_and_samples_are_no_rows(tmp_path):
    text = (
        "{'eos_token_id': 151645, 'pad_token_id': 151643, 'global_steps': 10}\n"
        "{'output_dir': 'out', 'learning_rate': 5e-06, 'num_train_epochs': 3}\n"
        "{'question': 'what is 2+2?', 'answer': '4', 'reward_model': 'rule'}\n"
        "$\\{1^1,2^2\\}$ and {x}\n{'loss': 0.5, 'reward': 1.0}\n"
    )
    log = read(tmp_path, text)
    assert log.rows == [{"step": 1, "loss": 0.5, "reward": 1.0}]
    assert log.config == {"learning_rate": 5e-06, "num_train_epochs": 3}


def test_a_line_cut_in_a_number_loses_that_pair_alone(tmp_path):
    line = "step:5 - a/loss:0.25 - " + " - ".join(f"metric/{n:04d}:0.123456789" for n in range(400))
    log = read(tmp_path, f"{line[:4096]}\nstep:6 - a/loss:0.5 - b:nope - c:1\n")
    last = line[:4096].rpartition(" - ")[2].partition(":")[0]
    assert last not in log.rows[0]
    assert len(log.rows[0]) == line[:4096].count(" - ")  # the step and all pairs except the last
    assert log.notes == [
        "1 line was cut at 4096 characters: what followed is missing",
        "1 value is not a number and was left out",
    ]


def test_a_mapping_cut_at_the_end_of_its_line_gives_its_whole_pairs(tmp_path):
    line = "{'loss': 0.25, " + ", ".join(f"'metric/{n:04d}': 0.123456789" for n in range(400)) + "}"
    log = read(tmp_path, f"{line[:4096]}\n{{'loss': 0.125, 'metric/0000': 1.0}}\n")
    assert [row["loss"] for row in log.rows] == [0.25, 0.125]
    assert len(log.rows[0]) == line[:4096].count(", ") + 1  # the step and all pairs except the cut one
    assert "1 line was cut at 4096 characters: what followed is missing" in log.notes


def test_the_last_pair_of_a_killed_process_is_not_trusted(tmp_path):
    log = read(tmp_path, "step:1 - actor/pg_loss:0.25 - perf/mfu:0.5\nstep:2 - actor/pg_loss:0.125 - perf/mfu:0.4")
    assert log.rows == [{"step": 1, "actor/pg_loss": 0.25, "perf/mfu": 0.5}, {"step": 2, "actor/pg_loss": 0.125}]


def test_code_in_samples_holds_up_no_rows(tmp_path):
    code = 'int main() {\n  if (x) {\n    char *s[] = {"a",\n  }\n'
    text = "".join(f"{code}{{'loss': 0.5, 'reward': {n}}}\n" for n in range(5))
    assert [row["reward"] for row in read(tmp_path, text).rows] == [0, 1, 2, 3, 4]


def test_a_text_full_of_openings_is_read_in_good_time(tmp_path):
    start = time.thread_time()
    log = read(tmp_path, "{'loss': 0.5, 'epoch': 1}\n" + " {'a\n" * 20_000 + "{'loss': 0.25, 'epoch': 2}\n")
    assert [row["loss"] for row in log.rows] == [0.5, 0.25]
    assert time.thread_time() - start < 20


@pytest.mark.parametrize(
    ("line", "settings"),
    [
        ("GRPOConfig(beta=0.04, max_steps=-1, num_generations=8, learning_rate=1e-06)",
         {"beta": 0.04, "num_generations": 8, "learning_rate": 1e-06}),
        ("AdamW(beta=0.9, lr=1e-6)", {}),
        ("trainer.total_training_steps=100 actor_rollout_ref.rollout.n=16", {"max_steps": 100, "num_generations": 16}),
        ("actor_rollout_ref.actor.kl_loss_coef=0.001", {}),
        ("We expect `num_generations` of 4", {}),
    ],
)  # fmt: skip
def test_a_setting_is_taken_where_it_is_certain(tmp_path, line, settings):
    assert read(tmp_path, f"{line}\nstep:1 - actor/pg_loss:0.5\n").config == settings


def test_a_samples_code_is_no_setting(tmp_path):
    text = "{'loss': 0.5}\nmodel.fit(learning_rate=0.1, max_steps=3)\n{'loss': 0.4}\n"
    assert read(tmp_path, text).config == {}


def test_output_without_a_number_is_no_log(tmp_path):
    with pytest.raises(NotALog, match="no line holds a training step's numbers"):
        read(tmp_path, "Hello\nworld: {'a': 'b'}\n")


@pytest.mark.parametrize(
    ("text", "mapping"),
    [
        ("{}", {}),
        ("{'a': {'b': [1, 2, (3,)]}, 4: 5}", {"a": {"b": [1, 2, [3]]}, 4: 5}),
        ('{"a": true, "b": null, "c": "x\\"y"}', {"a": True, "b": None, "c": 'x"y'}),
        ("{'a': <Enum.B: 'b'>, 'p': PosixPath('x,y'), 'n': 1}", {"a": None, "p": None, "n": 1}),
        ("{'t': 'one ' \"two\", 'arr': array([1., 2.])}", {"t": "one two", "arr": None}),
        ("{'a': -1.5e-3, 'b': .5, 'c': 1_0}", {"a": -0.0015, "b": 0.5, "c": None}),
    ],
)
def test_printed_mappings_are_parsed_without_being_run(text, mapping):
    found, end = parse_mapping(text)
    assert (found, end) == (mapping, len(text))


@pytest.mark.parametrize("text", ["{'a': 1", "{'a", "{", "{'a': f(1", "{'a': [1,"])
def test_what_ends_too_early_is_incomplete(text):
    with pytest.raises(Incomplete):
        parse_mapping(text)


@pytest.mark.parametrize("text", ["{1, 2}", "{'a' 1}", "[1]", "{" * 100 + "}" * 100, "{'a': }", "{'a':: 1}"])
def test_what_is_no_mapping_is_refused(text):
    with pytest.raises(Malformed):
        parse_mapping(text)


@pytest.mark.parametrize("unit", ['{"a":', "{'a': 1, ", "{'a': [1, ", "{'a': " * 24 + "!", "{'a': 1, 'b': x "])
def test_a_line_of_openings_is_read_a_few_times_and_not_once_from_each(tmp_path, monkeypatch, unit):
    from rlvitals.importers import literals

    looks = 0
    peek = literals._Scanner._peek

    def counting(self):
        nonlocal looks
        looks += 1
        return peek(self)

    monkeypatch.setattr(literals._Scanner, "_peek", counting)
    text = unit * (30_000 // len(unit))
    with pytest.raises(NotALog):
        read(tmp_path, f"x\n{text}\n")
    assert looks < 4 * len(text)


def test_the_whole_pairs_of_a_torn_mapping_are_kept(tmp_path):
    text = (
        "{'loss': 1.0, 'step': 1}\n{'loss': 0.5, 'step': 2, 'parts': {'a': 1, 'b': 2}, 'kl': 0.25, 'list': [1, 2, "
        + "3, " * 5000
    )
    rows = read(tmp_path, text).rows
    assert rows[-1] == {"step": 2, "loss": 0.5, "parts/a": 1, "parts/b": 2, "kl": 0.25}
