"""The cost of verl's own dump of rollouts, compared with a row of our back end and with reading the dump. Runs in
verl's environment (`.venv-frameworks/verl/bin/python benchmarks/verl_dump.py`, after `make frameworks NAMES=verl`).

The functions are verl's: the driver decodes prompts and answers (`batch_decode`), a thread writes the file
(`PPOTrainer._write_generations`). All times are processor times of the thread that does the work.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from rlvitals.adapters.verl import VitalsBackend
from rlvitals.importers.rollouts import read_rollouts
from rlvitals.train import tiny

WORDS = [f"word{number}" for number in range(2000)]
ROW = {f"actor/metric_{number}": 0.5 + number for number in range(60)}
"""The number of values in a row of verl's GRPO."""


def seconds(work, times):
    taken = []
    for number in range(times):
        began = time.thread_time()
        work(number)
        taken.append(time.thread_time() - began)
    return statistics.median(taken)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=64)
    parser.add_argument("--length", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--times", type=int, default=50)
    given = parser.parse_args()
    tokenizer = tiny.build_tokenizer([" ".join(WORDS)], context=given.length + 32)
    answer = tokenizer(" ".join(WORDS[: given.length // 2]))["input_ids"][: given.length]
    answers = [answer] * given.rollouts
    texts = tokenizer.batch_decode(answers)
    extra = {"acc": [1.0] * given.rollouts, "uid": list(map(str, range(given.rollouts)))}
    with tempfile.TemporaryDirectory() as place:
        dump = Path(place) / "rollouts"

        def write(step):
            PPOTrainer._write_generations(texts, texts, texts, [0.5] * given.rollouts, extra, str(dump), step)

        backend = VitalsBackend("project", "experiment", {}, output_dir=Path(place) / "run")
        decoded = seconds(lambda _: [tokenizer.batch_decode(answers) for _ in ("prompts", "answers")], given.times)
        written = seconds(write, given.times)
        logged = seconds(lambda step: backend.log(ROW, step), given.times)
        backend.finish()
        read = seconds(lambda _: read_rollouts(dump), 3) / given.times
    print(f"{given.rollouts} rollouts of {given.length} tokens a step, processor's time, medians")
    print(f"verl decodes them, in the driver     {1e3 * decoded:6.2f} ms")
    print(f"verl writes them, in a thread        {1e3 * written:6.2f} ms")
    print(f"our back end logs a row of {len(ROW)} numbers {1e3 * logged:5.2f} ms")
    print(f"rlvitals reads a step of the dump    {1e3 * read:6.2f} ms")


if __name__ == "__main__":
    main()
