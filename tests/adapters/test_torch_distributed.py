"""Four real processes of one gloo group, compared with one process that sees every sample."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from rlvitals.adapters.torch_distributed import reduce
from rlvitals.values import Value

WORLD = 4

RANK = """
    import json, sys
    import numpy as np, torch
    import torch.distributed as dist
    from rlvitals import values
    from rlvitals.adapters.torch_distributed import reduce

    def ratio(total, residual):
        return 1 - residual.number / total.number

    rank, folder = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=4)
    collectives = []

    def counted(function):
        def call(*arguments):
            collectives.append(function.__name__)
            return function(*arguments)
        return call

    dist.all_reduce, dist.all_gather_object = counted(dist.all_reduce), counted(dist.all_gather_object)
    seen = []

    def step(metrics, group=None):
        del collectives[:]
        merged = reduce(metrics, group)
        seen.append({
            "collectives": list(collectives),
            "metrics": {name: v.to_list() if isinstance(v, values.Value) else str(v) for name, v in merged.items()},
            "numbers": {name: repr(v.number) for name, v in merged.items() if not isinstance(v, str)},
        })

    def all_kinds(samples, kinds=("mean", "sum", "min", "max", "std", "sample_std", "var", "count")):
        return {kind: values.of(samples, kind) for kind in kinds}

    def drawn(rank, centre=3.0, scale=2.0):
        return np.random.default_rng(rank).normal(centre, scale, size=(5, 1, 3, 0)[rank]).tolist()

    step(all_kinds(drawn(rank)) if rank != 3 else {})                       # 0: uneven, and a rank with nothing
    step(all_kinds(drawn(rank)))                                            # 1: the same, the names known
    step({} if rank == 2 else {f"only/{rank}": float(rank), "shared": 1.0}) # 2: other names on every rank
    step(all_kinds(drawn(rank, 1e9, 1e-3)))                                 # 3: a spread far below the mean
    nonfinite = [float("nan"), float("inf"), 1.0, 2.0][rank]
    step({"broken": nonfinite, "whole": 1.0 + rank, "least": values.smallest([nonfinite])})     # 4
    step({"plain": rank, "flag": rank == 0, "numpy": np.float32(rank), "torch": torch.tensor(float(rank)),
          "nested": {"loss": rank}, "text": f"rank {rank}", "several": torch.ones(3)})                         # 5
    step({"lr": values.last(float(rank), order=[7, 9, 9, 8][rank]),
          "nan": values.last([1.0, float("nan")][rank % 2], order=5)})                                         # 6
    step({"mixed": values.mean([1.0]) if rank else values.total([5.0])})    # 7: ranks that do not agree what it is
    pair = dist.new_group([0, 1])
    if rank < 2:
        step({"loss": float(rank)}, pair)                                   # 8: a smaller group
    else:
        seen.append(None)
    truth, guess = drawn(rank), drawn(rank, 2.0, 1.0)                       # 9: a number that is no mean of its parts
    missed = [t - g for t, g in zip(truth, guess)]
    explained = values.Derived((values.of(truth, "var"), values.of(missed, "var")), ratio)
    own_formula = values.Derived((values.mean([1.0 + rank]),), lambda part: -part.mean)
    step(({"explained": explained} if truth else {}) | ({"secret": own_formula} if rank == 1 else {}))
    step({"half": values.Derived((values.mean([1.0]), values.mean([])), ratio)})   # 10: a part of nothing
    with open(f"{folder}/rank-{rank}.json", "w") as file:
        json.dump(seen, file)
    dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """The values that each of the four ranks received, step by step, and its standard error."""
    folder = tmp_path_factory.mktemp("ranks")
    children = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(RANK), str(rank), str(folder)], stderr=subprocess.PIPE, text=True
        )
        for rank in range(WORLD)
    ]
    try:
        errors = [child.communicate(timeout=200)[1] for child in children]
    finally:
        for child in children:
            child.kill()
    assert [child.returncode for child in children] == [0] * WORLD, errors
    return [(json.loads((folder / f"rank-{rank}.json").read_text()), errors[rank]) for rank in range(WORLD)]


def samples(centre=3.0, scale=2.0):
    """The samples of all ranks, drawn as the ranks draw them."""
    sizes = (5, 1, 3, 0)
    return np.concatenate([np.random.default_rng(rank).normal(centre, scale, size) for rank, size in enumerate(sizes)])


def expected(data):
    return {
        "mean": data.mean(), "sum": data.sum(), "min": data.min(), "max": data.max(), "std": data.std(),
        "sample_std": data.std(ddof=1), "var": data.var(), "count": len(data),
    }  # fmt: skip


def numbers(ranks, step, rank=0):
    return {name: float(text) for name, text in ranks[rank][0][step]["numbers"].items()}


pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("gloo")]  # start the four processes only once


def test_uneven_batches_and_a_rank_with_nothing_give_the_numbers_of_the_whole(ranks):
    for step in (0, 1):
        assert numbers(ranks, step) == pytest.approx(expected(samples()), rel=1e-13)


def test_every_rank_gets_the_same_values(ranks):
    for step in (0, 1, 2, 3, 4, 6, 7):
        assert len({json.dumps(seen[step]["metrics"]) for seen, _ in ranks}) == 1


def test_a_call_is_one_maximum_and_one_sum(ranks):
    assert all(seen[1]["collectives"] == ["all_reduce"] * 2 for seen, _ in ranks)


def test_new_names_cost_one_exchange_and_a_second_maximum(ranks):
    for step in (0, 2):
        assert all(
            seen[step]["collectives"] == ["all_reduce", "all_gather_object", "all_reduce", "all_reduce"]
            for seen, _ in ranks
        )


def test_ranks_with_other_names_block_nobody_and_old_names_are_not_repeated(ranks):
    assert numbers(ranks, 2) == {"only/0": 0.0, "only/1": 1.0, "only/3": 3.0, "shared": 1.0}
    assert ranks[2][0][2]["metrics"]["shared"] == [3.0, 1.0, 0.0, 1.0, 1.0]


def test_a_spread_far_below_the_mean_is_kept(ranks):
    # At 1e9 adjacent float64 values differ by 1e-7: a plain sum of squares has an error larger than the variance.
    assert numbers(ranks, 3) == pytest.approx(expected(samples(1e9, 1e-3)), rel=1e-6)


def test_a_nan_is_of_its_own_metric_alone_and_never_lost(ranks):
    found = numbers(ranks, 4)
    assert math.isnan(found["broken"])
    assert math.isnan(found["least"])
    assert found["whole"] == 2.5


def test_plain_numbers_count_as_one_sample_each_and_texts_stay(ranks):
    for rank in range(WORLD):
        found = numbers(ranks, 5, rank)
        assert found == {"plain": 1.5, "flag": 0.25, "numpy": 1.5, "torch": 1.5, "nested/loss": 1.5}
        assert ranks[rank][0][5]["metrics"]["text"] == f"rank {rank}"
        assert "'several' is dropped" in ranks[rank][1]


def test_of_equally_new_values_the_greatest_stays_as_in_a_merge_on_one_process(ranks):
    found = numbers(ranks, 6)
    assert found["lr"] == 2.0
    assert math.isnan(found["nan"])


def test_ranks_that_disagree_on_a_kind_keep_the_first_and_say_so(ranks):
    assert numbers(ranks, 7) == {"mixed": 5.0}
    assert "'mixed' is a mean on some ranks and not on others" in ranks[1][1]


def test_a_smaller_group_reduces_among_its_own(ranks):
    assert numbers(ranks, 8, rank=1) == {"loss": 0.5}


def test_a_derived_number_is_computed_from_merged_parts_on_ranks_without_it_too(ranks):
    truth, guess = samples(), samples(2.0, 1.0)
    for rank in range(WORLD):
        assert numbers(ranks, 9, rank)["explained"] == pytest.approx(
            1 - np.var(truth - guess) / np.var(truth), rel=1e-12
        )
    assert [numbers(ranks, 9, rank).get("secret") for rank in range(WORLD)] == [None, -2.0, None, None]


def test_a_derived_number_with_a_part_of_nothing_is_not_there(ranks):
    assert numbers(ranks, 10) == {}


NCCL = """
    import sys, torch
    import torch.distributed as dist
    from rlvitals import values
    from rlvitals.adapters.torch_distributed import reduce

    torch.cuda.set_device(0)
    dist.init_process_group("nccl", init_method=f"file://{sys.argv[1]}/meeting", rank=0, world_size=1)
    metrics = {"loss": torch.tensor(0.5, device="cuda"), "kl": values.mean([1.0, 3.0]), "lr": values.last(0.1, 3)}
    for _ in range(2):
        print({name: value.number for name, value in reduce(metrics).items()})
    dist.destroy_process_group()
"""


def test_nccl_reduces_on_the_device(tmp_path):
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    command = [sys.executable, "-c", textwrap.dedent(NCCL), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [str({"loss": 0.5, "kl": 2.0, "lr": 0.1})] * 2


def test_without_a_group_the_values_are_this_process_s_own():
    merged = reduce({"loss": 2.0, "nothing": Value(0.0, 0.0, 0.0, math.inf, -math.inf), "text": "warm-up"})
    assert merged == {"loss": Value(1.0, 2.0, 0.0, 2.0, 2.0), "text": "warm-up"}


LOST = """
    import sys
    from datetime import timedelta
    import torch.distributed as dist
    from rlvitals.adapters.torch_distributed import reduce
    from rlvitals.errors import RanksOutOfStep

    rank, folder, fault = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=3, timeout=timedelta(seconds=4))
    said = "nothing"
    try:
        for step in range(10, 15):
            if rank == 1 and step == 12 and fault == "skips":
                continue
            if rank == 1 and step == 12 and fault == "never comes":
                import time; time.sleep(8)
                break
            told = {} if fault == "does not tell" and rank == 1 else {"step": step}
            merged = reduce({"loss": float(step)}, **told)
            assert merged["loss"].mean == step
    except RanksOutOfStep as error:
        said = str(error)
    except RuntimeError as error:
        said = f"{type(error).__name__} with a note: {' '.join(error.__notes__)}"
    with open(f"{folder}/said-{rank}", "w") as file:
        file.write(said)
"""


def messages_of_ranks(tmp_path, fault):
    """The text that each of three ranks writes. With "skips", the last rank runs in a fresh interpreter."""
    words = [sys.executable, "-c", textwrap.dedent(LOST)]
    children = [
        subprocess.Popen([*words, str(rank), str(tmp_path), fault], executable=sys.executable if is_new else None)
        for rank, is_new in enumerate((False, False, fault == "skips"))
    ]
    try:
        for child in children:
            child.wait(timeout=120)
    finally:
        for child in children:
            child.kill()
    return [(tmp_path / f"said-{rank}").read_text() for rank in range(3)]


@pytest.mark.slow
def test_a_rank_that_skips_a_call_is_named_on_every_rank(tmp_path):
    messages = messages_of_ranks(tmp_path, "skips")
    assert len(set(messages)) == 1
    assert messages[0].startswith("rank 1 calls reduce at step 13 while rank 0 is at step 12 (call 3 of each).")


@pytest.mark.slow
def test_a_rank_that_does_not_pass_its_step_is_not_compared(tmp_path):
    assert messages_of_ranks(tmp_path, "does not tell") == ["nothing"] * 3


@pytest.mark.slow
def test_a_rank_that_never_calls_is_the_backends_to_notice_with_a_note_of_ours(tmp_path):
    messages = messages_of_ranks(tmp_path, "never comes")
    for rank in (0, 2):
        assert f"This was call 3 of rlvitals' reduce on rank {rank} of 3." in messages[rank]
