"""The calls that the explorer and the trainer of Trinity-RFT make on their monitor, each in a separate process."""

from __future__ import annotations

import pandas
import ray
from trinity.common.config import Config
from trinity.utils.metrics import aggregate_eval_metrics, aggregate_metrics, calculate_task_level_metrics
from trinity.utils.monitor import MONITOR

PATH = "rlvitals.adapters.trinity_rft.VitalsMonitor"


@ray.remote(num_cpus=0)
def role(name, folder, steps):
    """Call the monitor as an explorer or a trainer does."""
    config = Config(project="sums", name="tiny", checkpoint_root_dir=folder)
    config.checkpoint_job_dir = folder
    config.monitor.monitor_type, config.monitor.monitor_args = PATH, {"hardware": False}
    monitor = MONITOR.get(PATH)(project="sums", group="", name="tiny", role=name, config=config)
    for step in range(1, steps + 1):
        if name == config.trainer.name:
            monitor.log({"actor/pg_loss": 1 / step, "actor/grad_norm": 0.5}, step)
            table = [{"prompt": "1 + 1?", "response": text, "reward": float(text == "2")} for text in ("2", "3")]
            monitor.log_table("rollout_examples", pandas.DataFrame(table), step)
        else:
            runs = [{"reward": step / 10, "time/run_execution": 0.5}] * 4
            tasks = [calculate_task_level_metrics(runs, is_eval=is_eval) for is_eval in (False, True)]
            monitor.log(aggregate_metrics(tasks[:1], "rollout"), step)
            monitor.log(aggregate_eval_metrics(tasks[1:], "eval/sums"), step)
    monitor.close()
