"""Tests that need a CUDA device: the kernels compared with float64, no synchronisation, CUDA graphs.

They are skipped without a device. On a machine with one, run
`PYTHONPATH=src:tests python -m pytest tests/compute/test_gpu.py`.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch

from compute import step_data, token_data
from rlvitals.compute import tokens
from rlvitals.compute.step import StepStatistics

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

WAITS = ("Synchronize", "cudaMemcpy", "cudaFree", "cuCtxSynchronize", "cudaHostAlloc")
"""CUDA calls in which the host waits for the device; the asynchronous copy is named cudaMemcpyAsync."""


def on_device(data, dtype=None):
    tensors = {name: torch.from_numpy(array).cuda() for name, array in data.items()}
    return {name: t.to(dtype) if dtype and t.is_floating_point() else t for name, t in tensors.items()}


def statistics():
    return StepStatistics(clip_low=0.2, clip_high=0.28, dual_clip=1.2)


def worst_error(values, data):
    want = step_data.reference(data)
    got = {name: value.number for name, value in values.items() if value.number is not None}
    errors = {name: step_data.error(number, name, want) for name, number in got.items()}
    assert len(errors) >= 70
    return max(errors.items(), key=lambda item: item[1])


def waits_in(work):
    """The CUDA calls of `work` in which the host waits."""
    from torch.profiler import ProfilerActivity, profile, record_function

    for _ in range(3):  # the first calls compile kernels and allocate memory
        work()
    torch.cuda.synchronize()
    watched = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=watched, acc_events=True) as seen, record_function("the work"):
        work()
    events = list(seen.events())
    span = next(event.time_range for event in events if event.name == "the work")
    inside = [event.name for event in events if span.start <= event.time_range.start <= span.end]
    calls = [name for name in inside if name.startswith("cu")]
    assert calls, "the profiler saw no CUDA call"
    return [name for name in calls if any(wait in name for wait in WAITS) and "Async" not in name]


@pytest.mark.parametrize(("rows", "length"), [(512, 4096), (12, 150), (3, 9000), (1, 20000), (700, 3)])
def test_step_statistics_are_those_of_float64(rows, length):
    data = step_data.make_step(rows, length, seed=rows)
    name, error = worst_error(statistics()(**on_device(data)).values(), data)
    assert error < 5e-6, name


def test_step_statistics_take_half_precision_and_one_advantage_per_sequence():
    data = step_data.make_step(40, 300)
    data["advantages"] = np.broadcast_to((data["rewards"] - 0.3)[:, None], data["mask"].shape).astype(np.float32)
    tensors = on_device(data, torch.bfloat16)
    rounded = {
        name: t.float().cpu().numpy() if t.is_floating_point() else t.cpu().numpy() for name, t in tensors.items()
    }
    tensors["advantages"] = tensors["advantages"][:, 0].contiguous()
    name, error = worst_error(statistics()(**tensors).values(), rounded)
    assert error < 5e-6, name


def test_the_kernels_and_plain_torch_agree_on_what_is_broken_or_empty():
    data = step_data.make_step(9, 500)
    data["ref_logprobs"][0, 3] = data["advantages"][0, 5] = np.nan
    for change in ({}, {"mask": np.zeros_like(data["mask"])}):
        tensors = on_device(data | change)
        kernels = statistics()(**tensors).values()
        plain = StepStatistics(clip_high=0.28, dual_clip=1.2, use_kernels=False)(**tensors).values()
        assert kernels.keys() == plain.keys()
        wanted = {name: value.number for name, value in plain.items()}
        for name in plain:
            got, want = kernels[name].number, plain[name].number
            assert (got is None) == (want is None), name
            if want is not None:
                assert math.isnan(got) == math.isnan(want), name
                assert math.isnan(want) or step_data.error(got, name, wanted) < 5e-6, name
        if not change:
            assert kernels["train.tokens.nonfinite"].number == pytest.approx(2)


def test_queueing_step_statistics_never_waits():
    tensors = on_device(step_data.make_step(64, 512))
    made = statistics()
    made(**tensors).values()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        arrival = made(**tensors)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert arrival.values()
    assert waits_in(lambda: made(**tensors)) == []
    plain = StepStatistics(use_kernels=False)
    assert waits_in(lambda: plain(**tensors)) == []


def test_the_count_of_waits_sees_one():
    number = torch.ones(3, device="cuda")
    assert waits_in(lambda: number.sum().item())


def test_numbers_arrive_behind_the_work_before_them():
    data = step_data.make_step(64, 512)
    tensors, made = on_device(data), statistics()
    made(**tensors).values()
    big = torch.randn(8192, 8192, device="cuda")
    for _ in range(20):
        big = torch.mm(big, big).clamp(-1, 1)
    first, second = made(**tensors), made(**tensors)
    assert not second.ready()
    assert worst_error(second.values(), data)[1] < 5e-6
    assert first.ready()
    assert first.values() == second.values()


def test_numbers_that_nobody_reads_do_no_harm_to_those_that_are_read():
    """Dropped while the device is still busy or kept while others arrive, on two streams, by two objects."""
    made, beside = statistics(), statistics()
    datas = [step_data.make_step(64, 512, seed=seed) for seed in range(4)]
    tensors = [on_device(data) for data in datas]
    kept = made(**tensors[0])
    big = torch.randn(4096, 4096, device="cuda")
    other_stream = torch.cuda.Stream()
    other_stream.wait_stream(torch.cuda.current_stream())
    for turn in range(50):
        big = torch.mm(big, big).clamp(-1, 1)
        made(**tensors[1])
        with torch.cuda.stream(other_stream):
            on_other = beside(**tensors[2])
        last = made(**tensors[3])
        if turn % 10 == 0:
            assert worst_error(last.values(), datas[3])[1] < 5e-6
            assert worst_error(on_other.values(), datas[2])[1] < 5e-6
    assert worst_error(kept.values(), datas[0])[1] < 5e-6


def test_tensors_that_are_not_contiguous_are_taken():
    data = step_data.make_step(64, 512)
    tensors, made = on_device(data), statistics()
    turned = {name: t.T.contiguous().T if t.ndim == 2 else t for name, t in tensors.items()}
    for _ in range(3):
        assert worst_error(made(**turned).values(), data)[1] < 5e-6


def test_another_triton_that_wants_other_arguments_is_no_obstacle(monkeypatch):
    data = step_data.make_step(64, 512)
    tensors, made = on_device(data), statistics()
    made(**tensors).values()
    (call,) = made._calls.values()
    _, merge = call.start._built

    class Refuses:
        function = packed_metadata = None

        def run(self, *_):
            raise TypeError("function takes exactly 99 arguments")

    monkeypatch.setattr(call.start, "_built", (Refuses(), merge))
    for _ in range(2):
        assert worst_error(made(**tensors).values(), data)[1] < 5e-6


def test_step_statistics_in_a_cuda_graph_follow_their_inputs():
    data, other = step_data.make_step(64, 512, seed=1), step_data.make_step(64, 512, seed=2)
    tensors, made = on_device(data), statistics()
    made(**tensors).values()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made.enqueue(**tensors)
    for each in (data, other):
        for name, array in each.items():
            tensors[name].copy_(torch.from_numpy(array))
        graph.replay()
        assert worst_error(made.arrival().values(), each)[1] < 5e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_token_numbers_are_those_of_float64(dtype):
    for vocabulary, temperature in ((1, 1.0), (100, 1.3), (1003, 0.7), (4096, 1.0), (50257, 0.6), (151936, 1.0)):
        token_data.check_numbers("cuda", dtype, vocabulary, temperature)


def test_token_gradients_are_those_of_float64():
    for vocabulary in (300, 5000):
        for seed in range(20):
            token_data.check_gradients(
                "cuda", torch.float32, overwrite=bool(seed % 2), vocabulary=vocabulary, seed=seed
            )
    token_data.check_gradients("cuda", torch.bfloat16, overwrite=False, tolerance=1e-2)


def test_hidden_states_give_what_their_logits_give():
    token_data.check_hidden("cuda", torch.float32, tolerance=2e-3)  # matrix products may use tf32


def test_rows_that_have_no_distribution_are_reported():
    token_data.check_broken_rows("cuda")


def test_masked_rows_are_not_read():
    logits, ids = token_data.make_logits(4, 64, 9000, torch.bfloat16, "cuda")
    mask = torch.rand(4, 64, device="cuda") > 0.5
    want = tokens.stats(logits, ids)
    logits[~mask] = math.nan
    found = tokens.stats(logits, ids, mask=mask)
    assert torch.equal(found.logprobs, want.logprobs * mask)
    assert torch.equal(found.entropy, want.entropy * mask)


def test_token_numbers_never_wait():
    logits, ids = token_data.make_logits(4, 64, 9000, torch.bfloat16, "cuda")
    assert waits_in(lambda: tokens.stats(logits, ids, top1=True, other_logits=logits)) == []
    given = logits.clone().requires_grad_()
    assert waits_in(lambda: tokens.stats(given, ids).logprobs.sum().backward()) == []
