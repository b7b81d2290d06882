"""The calls that the processes of a slime or miles job make on their logging functions."""

from __future__ import annotations

import ray


def samples(kind):
    status = kind.Status
    made = []
    for index in range(4):
        made.append(
            kind(
                group_index=index // 2,
                index=index,
                prompt=f"{index // 2} + 1?",
                response="2 .",
                response_length=2,
                tokens=[5, 6, 7, 8],
                label="2",
                reward=float(index % 2),
                loss_mask=[1, 0],
                rollout_log_probs=[-0.5, -0.25],
                status=status.TRUNCATED if index == 3 else status.COMPLETED,
            )
        )
    return made


@ray.remote(num_cpus=0)
class Manager:
    """Logs samples as slime's rollout manager does, in a separate process."""

    def log(self, framework, rollout_id, args):
        if framework == "slime":
            from slime.observability.rollout_metrics import log_eval_rollout_data, log_rollout_data
            from slime.utils.types import Sample
        else:
            from miles.ray.rollout.metrics import log_eval_rollout_data, log_rollout_data
            from miles.utils.types import Sample
        log_rollout_data(rollout_id, args, samples(Sample), {"rollout/zero_std/count_1.0": 0.5}, 2.0)
        log_eval_rollout_data(rollout_id, args, {"gsm8k": {"rewards": [1.0, 0.0]}})

    def dispose(self, framework, args):
        if framework == "slime":
            from slime.observability.logging_utils import finish_tracking

            finish_tracking(args)
        else:
            from miles.utils.tracking_utils.tracking import finish_tracking

            finish_tracking()


@ray.remote(num_cpus=0)
class Trainer:
    """Logs as the trainer's logging rank does after each update."""

    def log(self, framework, step, args):
        if framework == "slime":
            from slime.observability import logging_utils as log
        else:
            from miles.utils.tracking_utils import tracking as log
        log.log(args, {"train/loss": 1 / (step + 1), "train/grad_norm": 0.5, "train/step": step}, step_key="train/step")

    def flush(self):
        from rlvitals.adapters import slime

        return all(client.flush() for client in slime._client.values())
