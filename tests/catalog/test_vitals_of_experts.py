"""A mixture of experts and a distillation show their own vital signs."""

from __future__ import annotations

from rlvitals import catalog
from rlvitals.catalog.reader import EXPERT_SIGNS, MOST_SIGNS

GRPO = [
    "reward", "loss", "kl", "entropy", "grad_norm", "learning_rate", "completions/mean_length",
    "completions/clipped_ratio", "frac_reward_zero_std", "clip_ratio/region_mean", "num_tokens", "step_time",
]  # fmt: skip
ROUTER = ["moe.routing_mismatch", "moe.max_violation", "moe.idle_fraction", "moe.aux_loss"]


def test_three_signs_of_a_router_stand_among_those_of_its_algorithm() -> None:
    reader = catalog.reader("trl", "grpo")
    dense, sparse = reader.vital_signs(GRPO), reader.vital_signs([*GRPO, *ROUTER])
    assert not set(dense) & set(ROUTER)
    assert [name for name in sparse if name in ROUTER][:EXPERT_SIGNS] == ROUTER[:EXPERT_SIGNS]
    assert sparse[0] == dense[0] == "reward"
    assert len(sparse) <= MOST_SIGNS
    assert sparse.index(ROUTER[0]) < MOST_SIGNS


def test_a_distillation_begins_with_its_teacher() -> None:
    reader = catalog.reader("verl", "opd")
    names = [
        "actor/grad_norm",
        "actor/distillation/overlap_ratio",
        "actor/token_kl/mean",
        "actor/distillation/student_mass",
    ]
    assert reader.vital_signs(names)[:3] == [names[2], names[3], names[1]]
