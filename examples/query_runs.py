"""One question about a thousand runs: which learning rate ends with the best reward? With DuckDB and with Ray Data.

    pip install 'rlvitals[parquet]' duckdb 'ray[data]'
    python examples/query_runs.py [FOLDER] [NUMBER_OF_RUNS]

The runs are generated (a reward that grows to a plateau set by the learning rate, with noise), so the answer is known:
1e-6. They are recorded like any others, exported as `rlvitals export FOLDER --to parquet --output lake` does, and
queried in place.
"""

from __future__ import annotations

import json
import logging
import math
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import rlvitals
from rlvitals.views.dataset import export_runs

LEARNING_RATES = (1e-7, 3e-7, 1e-6, 3e-6, 1e-5)
STEPS = 20


def record(folder: Path, number: int) -> None:
    """One tiny run."""
    chance = random.Random(number)
    rate = LEARNING_RATES[number % len(LEARNING_RATES)]
    plateau = 0.9 - 0.3 * abs(math.log10(rate / 1e-6))
    config = {"learning_rate": rate, "seed": number}
    with rlvitals.start(
        folder / f"run-{number:04d}", algorithm="grpo", config=config, monitor=False, display="none", overwrite=True
    ) as run:
        for step in range(STEPS):
            reward = plateau * (1 - math.exp(-step / 5)) + chance.gauss(0, 0.05)
            run.log({"reward": reward, "kl": 0.001 * step * rate / 1e-6}, step=step)


def ask_duckdb(lake: Path) -> list[Any]:
    """The mean reward over each run's last five steps, by learning rate."""
    import duckdb

    return (
        duckdb.connect()
        .execute(
            f"""select (run_config->>'$.learning_rate')::double as learning_rate,
                   count(distinct run) as runs, avg(reward) as final_reward
            from read_parquet('{lake}/*/*.parquet', hive_partitioning = true, union_by_name = true)
            where step >= {STEPS - 5} group by learning_rate order by final_reward desc"""
        )
        .fetchall()
    )


def ask_ray_data(lake: Path) -> list[Any]:
    """The same with Ray Data, which reads the files on all of its nodes."""
    import pyarrow
    import pyarrow.parquet
    import ray
    from ray.data.expressions import col

    ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.default_hash_shuffle_parallelism = len(LEARNING_RATES)  # the default of 200 is for more groups
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    schema = pyarrow.parquet.read_schema(lake / "_common_metadata").append(pyarrow.field("run", pyarrow.string()))

    def with_rate(rows: pyarrow.Table) -> pyarrow.Table:
        rates = [json.loads(config)["learning_rate"] for config in rows["run_config"].to_pylist()]
        return rows.append_column("learning_rate", pyarrow.array(rates))

    rows = ray.data.read_parquet(str(lake), schema=schema, file_extensions=["parquet"])
    rows = rows.select_columns(["run", "run_config", "step", "reward"]).filter(expr=col("step") >= STEPS - 5)
    last = rows.map_batches(with_rate, batch_format="pyarrow")
    means = last.groupby("learning_rate").mean("reward").take_all()
    ray.shutdown()
    found = [(row["learning_rate"], row["mean(reward)"]) for row in means]
    return sorted(found, key=lambda pair: -pair[1])


def timed(what: str, function: Any, *arguments: Any) -> Any:
    began = time.perf_counter()
    result = function(*arguments)
    print(f"{what}: {time.perf_counter() - began:.1f} s")
    return result


def main() -> None:
    given = sys.argv[1:]
    folder = Path(given[0] if given else tempfile.mkdtemp(prefix="rlvitals-runs-"))
    count = int(given[1]) if len(given) > 1 else 1000
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")

    def record_all() -> None:
        for number in range(count):
            record(folder / "runs", number)

    timed(f"{count} runs recorded in {folder}", record_all)
    lake = timed("exported", export_runs, folder / "runs", folder / "lake")
    print(f"  {lake.runs} runs, {lake.rows} rows, {lake.bytes:,} bytes")
    for rate, runs, reward in timed("DuckDB", ask_duckdb, folder / "lake"):
        print(f"  learning rate {rate:.0e}: {runs} runs, final reward {reward:.3f}")
    for rate, reward in timed("Ray Data, with its start", ask_ray_data, folder / "lake"):
        print(f"  learning rate {rate:.0e}: final reward {reward:.3f}")


if __name__ == "__main__":
    main()
