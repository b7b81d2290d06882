"""Console output of any loop: names and numbers in every style, blocks below a step, drawn tables. Prose is no log."""

from __future__ import annotations

import math
import time

import pytest

from rlvitals.importers import LogTail, NotALog, read_log
from rlvitals.importers.grids import Grid, cells_in
from rlvitals.importers.pairs import MAX_LINE, rank_of, read_pairs, without_prefix

STEPS = range(1, 6)


def read(tmp_path, text):
    path = tmp_path / "train.log"
    path.write_bytes(text.encode())
    return read_log(path)


def lines(template, steps=STEPS):
    return "".join(template.format(n=n) + "\n" for n in steps)


def series(log, name):
    return [(row["step"], row[name]) for row in log.rows if name in row]


ONE_TO_FIVE = [(n, pytest.approx(n / 10)) for n in STEPS]


@pytest.mark.parametrize(
    "template",
    [
        "step={n} | reward 0.{n} | kl 0.01",
        "Step {n}: reward=0.{n} kl=0.01",
        "[step {n}] loss 0.5 reward 0.{n}",
        "iter {n}/500 - reward 0.{n} - avg_return 12.3",
        "update: {n}, reward: 0.{n}, fps: 1,234",
        "Iteration {n:03d}  reward = 0.{n}  lr = 1e-6",
        "global_step {n} -> reward 0.{n}",
        "round {n}; reward: 0.{n}; time 3.2s",
        "episode {n} finished with reward 0.{n} after 200 steps",
        "batch {n}/100 reward=0.{n} (avg 0.2)",
        "{n}/100 [====>.....] - ETA: 1:23 - reward: 0.{n} - loss: 0.5",
        "*** Step #{n} *** reward: 0.{n}",
        'step "{n}" reward "0.{n}"',
    ],
)
def test_names_and_numbers_are_found_whatever_stands_between_them(tmp_path, template):
    assert series(read(tmp_path, lines(template)), "reward") == ONE_TO_FIVE


@pytest.mark.parametrize(
    "prefix",
    [
        "2025-06-23 18:39:58,825 - training.grpo_trainer - INFO - ",
        "2025-01-01 12:00:00,123 - INFO - ",
        "INFO:root:2025-01-01 12:00:00 ",
        "[2025-01-01 12:00:00] [INFO] [trainer.py:123] ",
        "2025-01-01T12:00:00.123Z INFO ",
        "2025-01-01 12:00:00.123 | INFO     | package.module:function:123 - ",
        "12:00:00    INFO ",
        "[01/01/25 12:00:00] INFO     ",
        "I0101 12:00:00.000000 1234 trainer.py:12] ",
        "20250101-12:00:00.000 StatsLogger INFO: ",
        "[rank0]: ",
        "[rank0]:[2025-01-01 12:00:00,123][WARNING] ",
        "(TaskRunner pid=1234) ",
        "(pid=12, ip=10.0.0.1) ",
        "\x1b[36m(Worker pid=7, ip=10.0.0.1)\x1b[0m \x1b[32mINFO\x1b[0m ",
        "Jan 01 12:00:00 ",
        "DEBUG:trainer: ",
        "[train] ",
    ],
)
def test_what_loggers_put_in_front_is_skipped(tmp_path, prefix):
    log = read(tmp_path, lines(prefix + "step {n} reward 0.{n} kl: 0.1"))
    assert series(log, "reward") == ONE_TO_FIVE
    assert {name for row in log.rows for name in row} == {"step", "reward", "kl"}


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("奖励: 0.{n}, 损失: 0.5, 步数: {n}", "奖励"),
        ("第 {n} 步 奖励 0.{n}", "奖励"),
        ("шаг {n}: награда 0.{n}", "награда"),
        ("ステップ {n}： 報酬 0.{n}", "報酬"),  # noqa: RUF001
        ("스텝 {n}: 보상 0.{n}", "보상"),
    ],
)
def test_labels_in_other_scripts(tmp_path, template, name):
    assert series(read(tmp_path, lines(template)), name) == ONE_TO_FIVE


@pytest.mark.parametrize(
    ("text", "number"),
    [("43.2%", 0.432), ("1.2k tok/s", 1200), ("3M", 3e6), ("1,234,567", 1234567), ("3min", 180), ("250ms", 0.25),
     ("3.2s", 3.2), ("1e-06", 1e-06), ("-.5", -0.5), ("12.3 GiB", 12.3), ("7/32", 7), ("+0.5", 0.5)],
)  # fmt: skip
def test_numbers_with_units_and_separators(text, number):
    reading = read_pairs(f"step 3 value: {text}, loss: 0.5")
    assert reading.numbers == {"value": pytest.approx(number), "loss": 0.5}


def test_a_number_without_a_name_is_a_count_at_the_beginning_alone():
    assert read_pairs("10: loss 0.5").counts == {"": (10, None)}
    assert read_pairs("loss 0.5 (7) kl 0.1 (3/4)").counts == {}


def test_nan_and_infinity_are_numbers():
    numbers = read_pairs("step 3 | loss nan | kl -inf | reward: NaN").numbers
    assert [math.isnan(numbers["loss"]), numbers["kl"], math.isnan(numbers["reward"])] == [True, -math.inf, True]


@pytest.mark.parametrize("text", ["2025-01-01", "12:00:00", "0:01:23", "v1.2.3", "gpt-4", "a1", "10.0.0.1", "cuda:0x"])
def test_dates_versions_and_addresses_are_no_numbers(text):
    assert read_pairs(f"step 3 loss 0.5 took {text}").numbers == {"loss": 0.5}


def test_minimind_counts_steps_in_each_epoch(tmp_path):
    template = "Epoch:[{e}/2]({n}/60), loss: 0.{n}, dpo_loss: 0.66, lr: 4e-08, epoch_Time:3min\n"
    text = "".join(template.format(e=e, n=n) for e in (1, 2) for n in (20, 40, 60))
    log = read(tmp_path, text)
    assert [row["step"] for row in log.rows] == [20, 40, 60, 80, 100, 120]
    assert log.rows[0] == {"step": 20, "epoch": 1, "loss": 0.2, "dpo_loss": 0.66, "lr": 4e-08, "epoch_Time": 180.0}
    assert log.config == {"max_steps": 120}


def test_a_step_that_starts_again_each_epoch_is_counted_on(tmp_path):
    text = "".join(f"epoch={e} step={n} loss=0.5 reward=0.{n}\n" for e in range(3) for n in range(4))
    log = read(tmp_path, text)
    assert [row["step"] for row in log.rows] == list(range(12))


def test_of_several_counts_the_one_that_grows_is_the_step(tmp_path):
    text = "".join(f"Episode {n} | Steps {n * 37 % 50} | Reward {n}.5\n" for n in range(1, 20))
    assert series(read(tmp_path, text), "Steps")[:3] == [(1, 37), (2, 24), (3, 11)]


def test_epochs_are_steps_where_nothing_else_counts(tmp_path):
    log = read(tmp_path, lines("Epoch {n}/5: train_loss 0.{n} val_loss 0.3 acc: 43.2%"))
    assert series(log, "train_loss") == ONE_TO_FIVE
    assert log.rows[0]["acc"] == 0.432
    assert log.notes == ["5 numbers in percent are now shares"]


def test_lines_without_a_step_are_numbered(tmp_path):
    log = read(tmp_path, lines("reward: 0.{n} loss: 0.5"))
    assert series(log, "reward") == ONE_TO_FIVE
    assert log.notes == ["no row says its step: rows are numbered from 1"]


@pytest.mark.parametrize(
    "template",
    [
        "loss in epoch 1 iteration {n}: 0.{n}",
        "loss at step {n}: 0.{n}",
        "loss after epoch {n} = 0.{n}",
        "loss 0.{n} | {n}/ 2001 batches",
        "[run_7B]   {n}/100 | loss=0.{n} | done=true",
        "ok=true loss=0.{n} name=run step={n}",
        "step {n}, loss tensor(0.{n}, device='cuda:0', grad_fn=<NegBackward0>) kl np.float64(0.1)",
        "episode {n}: average loss over the last 100 episodes: 0.{n} loss: 0.{n} eta=0:12:30",
    ],
)
def test_names_before_the_step_and_counts_after_their_number(tmp_path, template):
    assert series(read(tmp_path, lines(template)), "loss") == ONE_TO_FIVE


def test_parts_in_brackets_have_the_name_before_them():
    numbers = read_pairs(
        "[Update 1/4] Loss=0.5 Adv(mean=0.0, std=1.0)KL=0.1 GradNorm(P=2.5, V=7) reward 0.3 (std 0.2)"
    ).numbers
    assert numbers == {
        "Loss": 0.5, "Adv/mean": 0.0, "Adv/std": 1.0, "KL": 0.1, "GradNorm/P": 2.5, "GradNorm/V": 7, "reward": 0.3,
        "reward/std": 0.2,
    }  # fmt: skip


def test_the_epoch_may_be_stated_in_a_line_before(tmp_path):
    text = "".join(
        f"##### epoch: {epoch} #####\n" + lines("[Update {n}/3] PolicyLoss=0.5", [1, 2, 3]) + f"valid loss 0.{epoch}\n"
        for epoch in range(4)
    )
    log = read(tmp_path, text)
    assert [step for step, _ in series(log, "PolicyLoss")] == list(range(1, 13))
    assert [step for step, _ in series(log, "valid loss")] == [3, 6, 9, 12]


def test_a_line_an_epoch_among_lines_a_step_belongs_to_the_step_before(tmp_path):
    text = "".join(
        "".join(f"Epoch {epoch}/2, Step {n}, Loss: 0.5\n" for n in range(0, 50, 10))
        + f"Epoch {epoch}/2 completed. Average Loss: 0.{epoch}\n"
        for epoch in (1, 2, 3)
    )
    assert [step for step, _ in series(read(tmp_path, text), "Average Loss")] == [40, 81, 122]


def test_settings_that_are_printed_say_no_step(tmp_path):
    log = read(tmp_path, "Epochs: 2\nNum steps: 500\nValidation Frequency (steps): 2\n" + lines("kl_div: 0.{n}"))
    assert [row["step"] for row in log.rows] == list(STEPS)


def test_a_line_that_looks_like_a_step_does_not_hold_all_that_follows(tmp_path):
    log = read(tmp_path, "Step 1\n" + lines("kl_div: 0.{n}", range(2000)))
    assert len(log.rows) == 2000


def test_text_that_a_shell_appended_in_another_encoding(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"begun\n" * 1000 + lines("Episode {n} | PG Loss: 0.{n} | Entropy: 1.1").encode("utf-16-le"))
    assert series(read_log(path), "PG Loss") == ONE_TO_FIVE


def test_an_evaluation_s_line_is_held_out(tmp_path):
    text = lines("step {n} loss 0.{n}\nEval step {n}: loss 0.7 accuracy 0.5")
    log = read(tmp_path, text)
    assert series(log, "loss") == ONE_TO_FIVE
    assert [value for _, value in series(log, "eval/loss")] == [0.7] * 5
    assert series(read(tmp_path, lines("step {n} loss 0.{n} val_loss 0.3")), "loss") == ONE_TO_FIVE


# Blocks: the step on one line, the numbers on the lines below.


@pytest.mark.parametrize("header", ["Step {n}", "=== Step {n}/100 ===", "## Iteration {n}:", "[INFO] step: {n} done"])
def test_numbers_below_the_line_that_says_the_step(tmp_path, header):
    log = read(tmp_path, lines(header + "\n  reward: 0.{n}\n  - policy loss = 0.5\n  * kl 0.1\n"))
    assert [sorted(row) for row in log.rows] == [["kl", "policy loss", "reward", "step"]] * 5
    assert series(log, "reward") == ONE_TO_FIVE


def test_numbers_below_a_line_that_has_some_too(tmp_path):
    log = read(tmp_path, lines("step {n}: loss 0.5\n    reward: 0.{n}\n    kl: 0.1"))
    assert series(log, "reward") == ONE_TO_FIVE
    assert [step for step, _ in series(log, "loss")] == list(STEPS)


NEMO = """
========================= Step {n}/100 =========================
▶ Preparing batch...
▶ Generating responses for batch of size 32...
Some sample: 17 apples. So the total is 4
### Step 1: reward: 5 is what I would say

📊 Training Results:
  • Loss: 0.0{n}
  • Generation KL Error: 0.0010
  • Avg Reward: 0.{n}

⏱️  Timing:
  • Total step time: 35.70s
  • policy_training: 10.97s (30.7%)

🔍 Performance Metrics:
  • Throughputs (per GPU):
    - E2E (Tokens/sec/gpu): 1073.59
"""


def test_nemo_rl_s_blocks(tmp_path):
    log = read(tmp_path, lines(NEMO))
    assert series(log, "Avg Reward") == ONE_TO_FIVE
    assert log.rows[0] == {
        "step": 1, "Loss": 0.01, "Generation KL Error": 0.001, "Avg Reward": 0.1, "Total step time": 35.7,
        "policy_training": 10.97, "E2E (Tokens/sec/gpu)": 1073.59,
    }  # fmt: skip
    assert log.config == {"max_steps": 100}


def test_prime_rl_s_lines(tmp_path):
    template = (
        "12:00:00 SUCCESS Step {n} | Time: 3.20s | Loss: 0.{n} | Mismatch KL: 0.0001 | Grad. Norm: 0.12 | LR: 1.00e-06 "
        "| Throughput: 1234 tokens/s | MFU: 30.1% | Peak Mem.: 23.4 GiB"
    )
    log = read(tmp_path, lines(template))
    assert series(log, "Loss") == ONE_TO_FIVE
    assert {"Mismatch KL", "Grad. Norm", "LR", "Throughput", "MFU"} <= log.rows[0].keys()


def test_what_comes_often_within_a_step_is_averaged(tmp_path):
    log = read(tmp_path, lines("step {n}\n  reward: 0.{n}\n  sample reward: 0.2\n  sample reward: 0.4"))
    assert series(log, "sample reward") == [(n, pytest.approx(0.3)) for n in STEPS]
    assert log.notes == ["5 numbers are the mean of several within a step"]


# Drawn tables.

SB3 = """---------------------------------
| rollout/           |          |
|    ep_rew_mean     | 0.{n}      |
| time/              |          |
|    fps             | 1,200    |
|    iterations      | {n}        |
|    total_timesteps | {n}048     |
---------------------------------
"""
RICH = """            Step {n}
┏━━━━━━━━━━━━━━┳━━━━━━━━┓
┃ Metric       ┃ Value  ┃
┡━━━━━━━━━━━━━━╇━━━━━━━━┩
│ reward/total │ 0.{n}00  │
│ kl           │ 0.1    │
└──────────────┴────────┘"""
AREAL = """20250101-12:00:00.000 StatsLogger INFO: Epoch 1/1 Step {n}/50 Train step {n}/50 done.
20250101-12:00:00.000 StatsLogger INFO: Stats (1/1):
┌────────────┬────────┬───────────────┬─────┬────┬──┐
│ actor/loss │ 2.3e+0 │ rollout/reward│ 0.{n} │ kl │ 1│
│ other      │ 1.0    │               │     │    │  │
└────────────┴────────┴───────────────┴─────┴────┴──┘"""
OPEN_INSTRUCT = """╭──────── Metrics ─────────╮
│  objective  kl: 1.2 | scores: 0.{n} │
│  other  episode: 64 | training_step: {n} │
╰──────────────────────────╯"""


@pytest.mark.parametrize(
    ("table", "name"),
    [(SB3, "rollout/ep_rew_mean"), (RICH, "reward/total"), (AREAL, "rollout/reward"), (OPEN_INSTRUCT, "scores")],
    ids=["stable-baselines3", "rich", "areal", "open-instruct"],
)
def test_a_table_of_names_and_values_is_a_row(tmp_path, table, name):
    log = read(tmp_path, "loading\n" + lines(table))
    assert series(log, name) == ONE_TO_FIVE


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("| step | reward | kl |\n|-----:|--------|----|", "| {n} | 0.{n} | 0.1 |"),
        ("┃ Step ┃ reward ┃ kl ┃\n┡━━━━━━╇━━━━━━━━╇━━━━┩", "│ {n} │ 0.{n} │ 0.1 │"),
        ("Step   reward   kl\n------------------", "{n}   0.{n}   0.1"),
        ("   step reward kl", "7  {n} 0.{n} 0.1"),  # pandas prints row numbers
        ("# step reward kl", "{n} 0.{n} 0.1"),
    ],
)
def test_a_table_with_a_header_has_a_row_a_line(tmp_path, header, row):
    log = read(tmp_path, f"some text\n{header}\n{lines(row)}")
    assert log.rows == [{"step": n, "reward": n / 10, "kl": 0.1} for n in STEPS]


def test_a_frame_of_pandas_in_several_blocks_is_no_table_of_rows(tmp_path):
    frame = "   step  loss  \\\n0     1   0.5   \n1     2   0.4   \n\n   reward  \n0     0.1  \n1     0.2  \n"
    with pytest.raises(NotALog):
        read(tmp_path, frame)


def test_a_table_with_a_column_for_the_evaluation(tmp_path):
    table = "Step {n}\n| metric | train | eval | best |\n|---|---|---|---|\n| loss | 0.{n} | 0.5 | 0.4 |\n"
    assert read(tmp_path, lines(table)).rows[0] == {"step": 1, "loss": 0.1, "eval/loss": 0.5, "loss/best": 0.4}


def test_a_table_of_texts_is_none():
    grid = Grid()
    for line in ("| prompt | completion |", "| what is 1? | it is 2 |", "|  | wrapped text |"):
        assert list(grid.take(cells_in(line))) == []
    assert list(grid.close()) == []


# Progress bars.


@pytest.mark.parametrize(
    ("before", "rest"),
    [("", ", loss=0.5, reward=0.{n}"), ("", ", loss: 0.5, reward: 0.{n}"), ("Epoch 1 loss: 0.5 reward: 0.{n}: ", ""),
     ("", ", 损失=0.5, 奖励=0.{n}")],
)  # fmt: skip
def test_what_hangs_on_progress_bars(tmp_path, before, rest):
    bar = "\r" + before + " {n}%|##  | {n}/100 [00:10<01:20, 1.2it/s" + rest + "]"
    log = read(tmp_path, "".join(bar.format(n=n) for n in STEPS) + "\n")
    assert series(log, "奖励" if "奖" in rest else "reward") == ONE_TO_FIVE


def test_evaluations_between_the_bars_of_trlx(tmp_path):
    bar = "[losses/total_loss: 0.{n} | losses/policy_loss: 0.1]: {n}%|█ | {n}/100 [00:10<01:20]\n"
    text = "".join(bar.format(n=n) + (f"   Evaluation #{n} reward/mean: 0.{n}\n" if n % 2 else "") for n in range(1, 8))
    log = read(tmp_path, text)
    assert series(log, "losses/total_loss") == [(n, n / 10) for n in range(1, 8)]
    assert series(log, "eval/reward/mean") == [(n, n / 10) for n in (1, 3, 5, 7)]


def test_a_summary_at_the_end_does_not_hide_the_rows(tmp_path):
    text = lines("step {n} loss 0.5 reward 0.3", range(100)) + "{'train_runtime': 12.0, 'train_loss': 0.5}\n"
    assert len(read(tmp_path, text).rows) == 100


# Prose.

THOUGHTS = """Let me think step by step.
Step 1: First we add 3 and 5. The reward: 5 points.
Step 2: so reward: 8, which is more than 3 by 5
The score is 7 and the loss = 2 because 9 - 7 = 2.
**Step 3:** Therefore the answer is 12.
loss: 3
"""


def test_prose_is_no_log(tmp_path):
    with pytest.raises(NotALog, match="no line holds a training step's numbers"):
        read(tmp_path, THOUGHTS)


@pytest.mark.parametrize("template", ["step={n} | reward 0.{n} | kl 0.01", "Step {n}/100\n  reward: 0.{n}\n  kl: 0.01"])
def test_samples_between_the_rows_change_nothing(tmp_path, template):
    thoughts = "".join(f"{line} {'abcdefg'[n]}\n" for n, line in enumerate(THOUGHTS.splitlines()))
    rows = read(tmp_path, lines(template)).rows
    mixed = read(tmp_path, f"{thoughts}\n".join(lines(template).splitlines(keepends=True))).rows
    assert series_of(mixed, "kl") == series_of(rows, "kl")
    assert [step for step, _ in series_of(mixed, "reward")] == list(STEPS)


def test_a_line_that_is_alone_must_be_like_the_others(tmp_path):
    rows = read(tmp_path, lines("step {n} reward 0.{n}")).rows
    for prose in ("Step 3: the reward: 5 is high", "reward: 9", "[setup] 50 steps LR=1e-5", "Step 4: LR=0.1"):
        assert read(tmp_path, lines("step {n} reward 0.{n}") + prose + "\n").rows == rows
    assert read(tmp_path, lines("step {n} reward 0.{n}\nreward: 9")).rows == rows


def series_of(rows, name):
    return [(row["step"], row[name]) for row in rows if name in row]


def test_names_nobody_knows_are_rows_where_their_step_grows(tmp_path):
    assert len(read(tmp_path, lines("iter {n} foo 0.{n} bar=2")).rows) == 5
    with pytest.raises(NotALog):
        read(tmp_path, "step 30 foo 0.5 bar=2\n" * 9)


def test_lines_of_a_server_are_no_rows(tmp_path):
    server = "INFO 01-01 12:00:00 metrics.py:345] Avg prompt throughput: 0.0 tokens/s, Running: 3 reqs, usage: 1.2%"
    with pytest.raises(NotALog, match="numbers named Avg prompt throughput, Running, usage, none of which"):
        read(tmp_path, f"{server}\n" * 20)
    log = read(tmp_path, lines(f"{server}\nstep {{n}} reward 0.{{n}} loss 0.5"))
    assert {name for row in log.rows for name in row} == {"step", "reward", "loss"}


# Time, and following.


@pytest.mark.slow
def test_a_line_of_20_megabytes_is_skipped(tmp_path):
    text = "step 5 loss 0.5 | a=1 " * 1_000_000
    assert len(read(tmp_path, f"x\n{text}\n" + lines("step {n} loss 0.{n}")).rows) == 5


def test_a_line_and_a_file_of_any_length_take_time_by_their_length(tmp_path):
    for text in (
        "step 5 loss 0.5 " * 150_000,
        "{'a': 1, " * 100_000,
        "12%|#| 1/2 [a=1] " * 100_000,
        "| a | 1 " * 300_000,
    ):
        assert len(read(tmp_path, f"x\n{text}\n" + lines("step {n} loss 0.{n}")).rows) == 5


@pytest.mark.parametrize(
    "unit", ["loss 0.5 ", "1,234", "| a | 1 ", "step 1: ", "a=1, ", "9", "nan ", "- ", "[", "│", "第", "x" * 50 + " "]
)
def test_a_long_line_takes_no_longer_than_its_length(tmp_path, unit):
    """Twice the length takes about twice the time: no part of the line is read repeatedly."""
    for size in (MAX_LINE, 2_000_000):
        start = time.thread_time()  # does not count while other threads run
        text = (unit * (size // len(unit)))[:size]
        read_pairs(text)
        cells_in(text)
        without_prefix(text)
        assert time.thread_time() - start < 2


def test_the_last_number_of_a_killed_process_is_not_trusted(tmp_path):
    log = read(tmp_path, lines("step {n} reward 0.{n} loss 0.5") + "step 6 reward 0.6 loss 0.1")
    assert log.rows[-1] == {"step": 6, "reward": 0.6}


def test_following_gives_rows_as_they_come(tmp_path):
    path = tmp_path / "log"
    path.write_text(lines("step {n} reward 0.{n} loss 0.5"))
    tail = LogTail(path)
    assert len(tail.poll().rows) == 5
    with path.open("a") as file:
        file.write("step 6 reward 0.6 loss 0.5\n")
    growth = tail.poll()
    assert (growth.rows, growth.before) == ([{"step": 6, "reward": 0.6, "loss": 0.5}], None)


@pytest.mark.parametrize(
    ("name", "rank"),
    [("step", 0), ("global_step", 0), ("Train step", 0), ("iteration", 0), ("total_timesteps", 0), ("步数", 0),
     ("rollout", 1), ("episode", 2), ("batch", 3), ("epoch", 5), ("Micro Step", None), ("steps per second", None),
     ("epoch_Time", None)],
)  # fmt: skip
def test_which_names_count_steps(name, rank):
    assert rank_of(name) == rank
