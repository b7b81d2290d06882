"""The peers that `doctor.py` compares with rlvitals: each is fed row by row through its live interface, with defaults.

    PEERS_VENV/bin/python benchmarks/doctor_peers.py TOOL < rows.jsonl > alerts.jsonl

Runs in a separate virtual environment. Input: a line {"run": …, "algorithm": …, "config": …} opens a run, and each
further line {"row": {…}} is a row of it. Output: a line {"tool": …, "version": …}, then one {"run", "index", "alert",
"severity"} per alert, where index is the row that raised it (an alert `trouble` outside a run reports what could not
be fed).

The framework's names that a tool knows come first in `NAMES`. Names that it does not know are added, as its
documentation asks users of other trainers to do by hand. No tool misses a series because of its name.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from importlib import metadata
from typing import ClassVar

PACKAGES = {"rldoctor": "rldoctor==0.2.0", "rlwatch": "rlwatch==0.5.1", "rlprobe": "rlprobe==0.1.0"}

# The kinds of rlvitals for each alert. Generous: every kind that the alert can reasonably mean.
KINDS = {
    "rldoctor": {
        "advantage_collapse": "zero_variance reward_floor saturated groups_filtered dead_gradient not_learning",
        "entropy_collapse": "entropy_collapse",
        "reward_hacking": "reward_hacking reward_composition overfit",
        "length_pathology": "length_explosion length_collapse truncation reward_hacking",
        "clip_saturation": "clip_saturation ratio_off staleness logprob_mismatch lr_too_high",
        "kl_drift": "kl_explosion kl_negative lr_too_high lr_too_low",
        "gradient_pathology": "nonfinite dead_gradient grad_explosion loss_divergence instability lr_too_high",
        "reward_composition": "reward_composition reward_hacking",
        "plateau": "plateau not_learning reward_collapse reward_floor lr_too_low saturated preference_signal_lost",
    },
    "rlwatch": {
        "entropy_collapse": "entropy_collapse",
        "kl_explosion": "kl_explosion lr_too_high",
        "reward_hacking": "reward_hacking reward_composition instability",
        "advantage_variance": "value_failure instability",
        "loss_nan": "nonfinite",
        "gradient_norm_spike": "grad_explosion instability lr_too_high loss_divergence",
        "reward_mean_drift": "reward_collapse reward_hacking",
    },
    "rlprobe": {
        "KL_BLOWUP": "kl_explosion lr_too_high",
        "ENTROPY_COLLAPSE": "entropy_collapse",
        "REWARD_HACK_LENGTH": "reward_hacking length_explosion",
        "FORMAT_GAMING": "reward_composition reward_hacking",
        "CLIP_SATURATION": "clip_saturation ratio_off staleness logprob_mismatch lr_too_high",
        "DEGENERATE_GROUPS": "zero_variance reward_floor saturated groups_filtered dead_gradient not_learning",
        "ADV_COLLAPSE": "zero_variance reward_floor saturated dead_gradient not_learning",
        "VALUE_DIVERGENCE": "value_failure",
        "GRAD_PATHOLOGY": "nonfinite grad_explosion loss_divergence instability lr_too_high",
        "TRUNCATION_STARVE": "truncation length_explosion",
        "REPETITION_SPIRAL": "agent_loop length_explosion",
        "REWARD_STD_DEATH": "zero_variance reward_floor saturated entropy_collapse not_learning",
        "REF_POLICY_DRIFT_ASYMMETRY": "logprob_mismatch kl_explosion",
        "THROUGHPUT_ROT": "throughput stall",
    },
}

# The names that trainers give to one quantity; the first one in a row counts.
NAMES = {
    "reward": "reward reward_mean rewards/mean env/reward_mean critic/score/mean critic/rewards/mean objective/scores "
    "objective/rlhf_reward rollout/reward_mean train/rollout/reward_mean reward/mean reward/avg_raw_reward "
    "train/reward train/avg_reward rollout/raw_reward Train/AvgReward ppo_actor/task_reward/avg "
    "training_dynamics/mean_reward train/math/all/solver/reward/mean",
    "reward_std": "reward_std rewards/std env/reward_std critic/score/std rollout/reward_std train/rollout/reward_std "
    "Train/RewardStd training_dynamics/std_reward",
    "entropy": "entropy policy_entropy approx_entropy actor/entropy policy/entropy policy/entropy_avg "
    "policy/policy_entropy train/entropy_loss train/approx_entropy ppo_actor/update/entropy/avg entropy/all/mean "
    "critic/entropy/mean objective/entropy",
    "kl": "kl kl_divergence kl_penalty approx_kl actor/kl_divergence training/kl_penalty actor/kl_loss "
    "actor/reward_kl_penalty objective/kl train/kl critic/kl policy/policy_kl train/kl_penalty train/kl_loss "
    "Train/KLPenalty training_dynamics/kl_div actor/ppo_kl train/ppo_kl ppo_actor/update/approx_kl/avg ppo_kl",
    "loss": "loss policy_loss training/policy_loss actor/pg_loss train/loss train/policy_loss train/pg_loss "
    "policy/policy_loss loss/policy_avg actor/total_loss Train/Loss training_dynamics/total_loss loss/mean "
    "ppo_actor/update/actor_loss/avg",
    "grad_norm": "grad_norm gradient_norm grads/norm actor/grad_norm training/grad_norm actor_grad_norm "
    "train/grad_norm train/actor_grad_norm policy/grad_norm actor_train/grad_norm optim/grad_norm "
    "ppo_actor/update/grad_norm gradients/total_grad_norm",
    "advantage_std": "advantage_std advantages_std critic/advantages/std",
    "clip": "clip_ratio/region_mean clip_ratio clip_fraction clipfrac policy/clip_fraction actor/pg_clipfrac "
    "policy/clipfrac_avg train/ppo_clip_ratio actor/ppo_ratio_clipfrac policy/loss_metrics/clip_ratio "
    "train/pg_clipfrac ppo_actor/update/clip_ratio/avg training_dynamics/fraction_clipped",
    "zero_variance": "frac_reward_zero_std",
    "length": "completions/mean_length response_length/mean completion_length train/rollout/response_length_mean "
    "tokens/response_length/mean generate/avg_num_tokens rollout/response_len/mean train/mean_gen_tokens_per_sample "
    "ppo_actor/seq_len/avg train/math/all/solver/num_output_tokens/mean",
    "length_max": "completions/max_length response_length/max tokens/response_length/max generate/max_num_tokens "
    "rollout/response_len/max",
    "truncation": "completions/clipped_ratio response_length/clip_ratio train/rollout/truncated_rate "
    "train/truncation_rate rollout/truncated_ratio ppo_actor/no_eos_ratios/avg train/math/all/solver/is_truncated/mean",
    "repetition": "rollout/repetition_frac",
    "value_loss": "loss/value_avg critic/vf_loss train/critic_loss",
    "explained_variance": "critic/vf_explained_var",
    "step_time": "step_time timing_s/step perf/time_per_step perf/step_time time/step timing/step "
    "train/timing/step_total timing/train/total_step_time epoch_time",
    "learning_rate": "learning_rate lr actor/lr train/actor_lr train/lr policy/policy_lr optim/lr",
}
NAMES = {quantity: names.split() for quantity, names in NAMES.items()}


def numbers(row):
    return {name: float(value) for name, value in row.items() if type(value) in (int, float)}


def quantities(row):
    """The values of a row by quantity. The sign of an entropy logged as a loss is inverted, as in rlwatch."""
    row = numbers(row)
    found = {}
    for quantity, names in NAMES.items():
        name = next((name for name in names if name in row), None)
        if name is not None:
            found[quantity] = -row[name] if name.endswith("entropy_loss") and row[name] < 0 else row[name]
    return found


class RlDoctor:
    """`LiveMonitor`: reads the whole history on every 25th row from the 60th on. It knows the names itself."""

    settings: ClassVar[dict[str, int]] = {}

    def open(self, head):
        from rl_doctor.live import LiveMonitor

        config = {**head["config"], **({"algorithm": head["algorithm"]} if head["algorithm"] else {})}
        self.monitor = LiveMonitor(config=config, on_finding=lambda finding: None, **self.settings)

    def take(self, row):
        return [(found.detector, found.severity.name.lower()) for found in self.monitor.log(row, step=row["step"])]


class EagerRlDoctor(RlDoctor):
    """The same on every 5th row from the 20th on: not its default, but detection time is what is compared."""

    settings: ClassVar[dict[str, int]] = {"check_every": 5, "min_steps": 20}


class RlWatch:
    """`log_step` on every row; alerts are those that pass its own cool-down."""

    fields: ClassVar[dict[str, str]] = {
        "entropy": "entropy",
        "kl": "kl_divergence",
        "reward": "reward_mean",
        "reward_std": "reward_std",
        "advantage_std": "advantage_std",
        "loss": "loss",
        "learning_rate": "learning_rate",
        "clip": "clip_fraction",
        "grad_norm": "grad_norm",
    }

    def open(self, head):
        from rlwatch.config import load_config
        from rlwatch.core import RLWatch

        self.folder = tempfile.TemporaryDirectory()
        self.monitor = RLWatch(load_config(storage={"log_dir": self.folder.name}))

    def take(self, row):
        known = quantities(row)
        metrics = {field: known[quantity] for quantity, field in self.fields.items() if quantity in known}
        if not metrics:
            return []
        return [(alert.detector, alert.severity) for alert in self.monitor.log_step(int(row["step"]), **metrics)]


class RlProbe:
    """What its `watch` does on each poll, without the intermediate files: all detectors over all rows so far.

    Its TRL adapter drops NaN values; here they are counted in the fields that its gradient check reads.
    """

    fields: ClassVar[dict[str, str]] = {
        "reward": "reward_mean",
        "reward_std": "reward_std",
        "zero_variance": "zero_variance_group_frac",
        "kl": "kl_mean",
        "entropy": "entropy_mean",
        "clip": "clip_fraction",
        "loss": "loss",
        "learning_rate": "lr",
        "grad_norm": "grad_norm",
        "length": "completion_len_mean",
        "length_max": "completion_len_max",
        "truncation": "truncation_rate",
        "step_time": "step_time_s",
        "advantage_std": "adv_std",
        "repetition": "repetition_rate",
        "value_loss": "value_loss",
        "explained_variance": "value_explained_variance",
    }

    def open(self, head):
        from rlprobe.schemas import RunManifest

        self.manifest = RunManifest(run_id=head["run"], created_at="", algorithm=head["algorithm"] or "unknown")
        self.records, self.reported = [], set()

    def take(self, row):
        from rlprobe.doctor.engine import diagnose_view
        from rlprobe.doctor.runview import RunView
        from rlprobe.schemas import StepRecord

        known = quantities(row)
        bad = [value for value in (known.get("loss"), known.get("grad_norm")) if value is not None]
        parts = {
            name.removeprefix("rewards/").removesuffix("/mean"): value
            for name, value in numbers(row).items()
            if name.startswith("rewards/") and name.endswith(("/mean", "_func")) and not math.isnan(value)
        }
        metrics = {self.fields[one]: value for one, value in known.items() if one in self.fields}
        metrics = {field: value for field, value in metrics.items() if not math.isnan(value)}
        nans, infinities = sum(map(math.isnan, bad)), sum(map(math.isinf, bad))
        step = int(row["step"])
        self.records.append(
            StepRecord(step=step, nan_count=nans, inf_count=infinities, reward_components=parts, **metrics)
        )
        if len(self.records) < 30:  # as its watcher and every detector require
            return []
        found = diagnose_view(RunView(self.manifest, self.records))
        new = [(one.signature_id, {"warn": "warning"}.get(one.severity, one.severity)) for one in found]
        new = [one for one in dict.fromkeys(new) if one not in self.reported]
        self.reported.update(new)
        return new


TOOLS = {"rldoctor": RlDoctor, "rldoctor-eager": EagerRlDoctor, "rlwatch": RlWatch, "rlprobe": RlProbe}


def package_of(tool):
    return tool.split("-")[0]


def main(name):
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # hides what a tool prints itself

    def answer(**fields):
        answers.write(json.dumps(fields) + "\n")

    answer(tool=name, version=metadata.version(package_of(name)))
    tool, run, index, troubles = None, None, -1, {}
    for line in sys.stdin:
        message = json.loads(line)
        if "run" in message:
            tool, run, index = TOOLS[name](), message["run"], -1
            tool.open(message)
            continue
        index += 1
        try:
            alerts = tool.take(message["row"])
        except Exception as error:  # noqa: BLE001 - one tool's trouble with one row is a result, not an end
            troubles.setdefault(f"{type(error).__name__}: {error}"[:200], [run, 0])[1] += 1
            continue
        for alert, severity in alerts:
            answer(run=run, index=index, alert=alert, severity=severity)
    for text, (first, times) in troubles.items():
        answer(trouble=text, first=first, times=times)


if __name__ == "__main__":
    main(sys.argv[1])
