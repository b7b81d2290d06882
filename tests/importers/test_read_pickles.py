"""Files of slime and miles: data that `torch.save` wrote is read, and no code in it is run."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from pathlib import Path

import pytest

from rlvitals.errors import NotALog
from rlvitals.importers.dumps.pickles import Archive, Foreign, NotPlain, Tensor
from rlvitals.importers.rollouts import read_rollouts


def archive(path, data, packing=zipfile.ZIP_STORED, **storages):
    """The layout that `torch.save` gives a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", packing) as file:
        file.writestr("archive/data.pkl", data)
        file.writestr("archive/byteorder", "little")
        for name, numbers in storages.items():
            file.writestr(f"archive/data/{name[1:]}", numbers)
    return path


def value_of(path):
    with Archive(path) as opened:
        return opened.value()


def slime_sample(index, **more):
    """A sample as returned by slime's `Sample.to_dict`."""
    return {
        "group_index": index // 2, "index": index, "prompt": [{"role": "user", "content": f"p{index // 2}"}],
        "tokens": [1, 2, 300, 70_000], "response": f"r{index}", "response_length": 2, "label": "4", "reward": index / 2,
        "loss_mask": [1, 0], "weight_versions": ["7", "8"], "rollout_log_probs": [-0.5, -0.25], "status": "truncated",
        "metadata": {"level": 3, "nested": {"x": 1}}, "spec_info": {"completion_token_num": 0}, **more,
    }  # fmt: skip


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_plain_data_comes_out_as_it_went_in(tmp_path, protocol):
    saved = {
        "whole": [0, 255, 256, 65_535, 65_536, -1, -(2**31), 2**40, -(2**70)], "real": [0.1, float("inf")],
        "text": "aé\n☃", "flags": (True, False, None), "bytes": b"\x00\xff", "empty": [[], (), {}],
        "long": "x" * 70_000, "four": (1, 2, 3, 4),
    }  # fmt: skip
    saved["twice"] = saved["whole"]
    path = archive(tmp_path / "a.pt", pickle.dumps(saved, protocol))
    assert value_of(path) == saved


def test_torchs_own_tensors_are_read_by_type_and_place(tmp_path):
    torch = pytest.importorskip("torch")
    base = torch.arange(12, dtype=torch.float32)
    kinds = [
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int8,
        torch.uint8,
        torch.bool,
    ]
    saved = {
        "view": base[4:7], "matrix": base.reshape(3, 4), "turned": base.reshape(3, 4).T, "single": torch.tensor(2.5),
        "kinds": [torch.tensor([0, 1, 1]).to(kind) for kind in kinds], "none": torch.zeros(0),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }  # fmt: skip
    torch.save(saved, tmp_path / "a.pt")
    with Archive(tmp_path / "a.pt") as opened:
        read = opened.value()
        assert read["view"].tolist() == [4.0, 5.0, 6.0]
        assert read["matrix"].tolist() == saved["matrix"].tolist()
        assert read["turned"].tolist() is None  # not stored row by row
        assert read["single"].tolist() == 2.5
        assert [tensor.tolist() for tensor in read["kinds"]] == [[0, 1, 1]] * len(kinds)
        assert read["none"].tolist() == []
        assert read["kinds"][2].dtype == "bfloat16"
        assert isinstance(read["parameter"], Foreign)


def test_slimes_samples_are_joined_with_what_the_trainer_dumped(tmp_path):
    torch = pytest.importorskip("torch")
    (tmp_path / "rollout_data").mkdir()
    (tmp_path / "train_data").mkdir()
    samples = [slime_sample(0), slime_sample(1, loss_mask=torch.tensor([1, 1]), reward={"score": 0.25, "length": -1.0})]
    torch.save({"rollout_id": 12, "samples": samples}, tmp_path / "rollout_data" / "12.pt")
    torch.save({"rollout_id": 12, "samples": [slime_sample(0, response="e")]}, tmp_path / "rollout_data" / "eval_12.pt")
    trained = [
        {"rollout_position": place, "log_probs": torch.tensor([-1.0, -2.0]) - place, "advantages": torch.ones(2)}
        for place in (1, 0)
    ]
    torch.save({"format_version": 2, "rollout_id": 12, "samples": trained}, tmp_path / "train_data" / "12.pt")
    dump = read_rollouts(tmp_path, "train")
    (group,) = dump.groups
    assert (dump.format, group.step, group.prompt, group.answer, dump.notes) == ("slime", 12, "p0", "4", [])
    first, second = group.rollouts
    assert (first.turns[0].text, first.reward, first.stop, first.policy_version) == ("r0", 0.0, "length", 7)
    assert (first.trace.ids, first.trace.trained) == ((300, 70_000), (True, False))
    assert (first.trace.engine_logprobs, first.trace.logprobs) == ((-0.5, -0.25), (-1.0, -2.0))
    assert first.trace.advantages == (1.0, 1.0)
    assert (first.tokens, first.trainable_tokens, first.meta) == (4, 1, {"level": 3})
    assert second.trace.logprobs == (-2.0, -3.0)
    assert (second.reward, second.reward_parts) == (0.25, {"score": 0.25, "length": -1.0})
    assert second.trace.trained == (True, True)
    assert read_rollouts(tmp_path, "validation").groups[0].rollouts[0].turns[0].text == "e"


def test_miles_trainer_is_joined_by_the_samples_numbers(tmp_path):
    torch = pytest.importorskip("torch")
    (tmp_path / "rollout_data").mkdir()
    (tmp_path / "train_data").mkdir()
    saved = {"rollout_id": 3, "metadata": {}, "samples": [slime_sample(40), slime_sample(41)]}
    torch.save(saved, tmp_path / "rollout_data" / "3.pt")
    for rank, index in enumerate((41, 40)):
        columns = {"sample_indices": [index], "log_probs": [torch.full((2,), -float(index))], "total_lengths": [4]}
        shard = {"rollout_id": 3, "rank": rank, "rollout_data": columns, "cp_rank": 0, "cp_size": 1}
        torch.save(shard, tmp_path / "train_data" / f"3_{rank}.pt")
    (group,) = read_rollouts(tmp_path).groups
    assert [rollout.trace.logprobs for rollout in group.rollouts] == [(-40.0, -40.0), (-41.0, -41.0)]


def test_miles_conversations_are_turns(tmp_path):
    archive(tmp_path / "rollout_data" / "3.pt", pickle.dumps({"rollout_id": 3, "samples": [slime_sample(40)]}, 2))
    messages = [{"role": "user", "content": "p20"}, {"role": "assistant", "content": "a"},
                {"role": "tool", "content": "t"}, {"role": "assistant", "content": "b"}]  # fmt: skip
    row = {
        "sample_index": 40,
        "group_index": 20,
        "status": "truncated",
        "reward": 0.5,
        "prompt": "",
        "messages": messages,
    }
    (tmp_path / "trajectory").mkdir()
    (tmp_path / "trajectory" / "3.jsonl").write_text(json.dumps(row) + "\n")
    (rollout,) = read_rollouts(tmp_path).groups[0].rollouts
    assert [(turn.text, turn.observation) for turn in rollout.turns] == [("a", "t"), ("b", "")]


def test_the_trainers_files_are_not_followed_out_of_the_dump(tmp_path):
    torch = pytest.importorskip("torch")
    archive(
        tmp_path / "dump" / "rollout_data" / "3.pt", pickle.dumps({"rollout_id": 3, "samples": [slime_sample(0)]}, 2)
    )
    (tmp_path / "elsewhere").mkdir()
    trained = {"samples": [{"rollout_position": 0, "log_probs": torch.ones(2)}]}
    torch.save(trained, tmp_path / "elsewhere" / "3.pt")
    (tmp_path / "dump" / "train_data").symlink_to(tmp_path / "elsewhere")
    assert read_rollouts(tmp_path / "dump").groups[0].rollouts[0].trace.logprobs == ()
    (tmp_path / "dump" / "train_data").unlink()
    (tmp_path / "elsewhere").rename(tmp_path / "dump" / "train_data")
    assert read_rollouts(tmp_path / "dump").groups[0].rollouts[0].trace.logprobs == (1.0, 1.0)


class Touch:
    """An object that an attacker could put into a file: unpickling it calls a function of the attacker's choice."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_nothing_in_a_hostile_file_is_run(tmp_path):
    mark = tmp_path / "was-run"
    sample = slime_sample(0, metadata=Touch(mark), multimodal_inputs=[Touch(mark)])
    data = pickle.dumps({"rollout_id": 1, "samples": [sample, Touch(mark)]}, 2)
    archive(tmp_path / "dump" / "1.pt", data)
    dump = read_rollouts(tmp_path / "dump")
    assert [rollout.turns[0].text for rollout in dump.groups[0].rollouts] == ["r0"]
    assert dump.notes == ["1 row holds no rollout and was skipped"]
    assert not mark.exists()
    pickle.loads(data)  # real unpickling of the same bytes runs it
    assert mark.exists()


def test_classes_are_names_and_calls_are_not_made(tmp_path):
    data = b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00exit\x85R."
    read = value_of(archive(tmp_path / "a.pt", data))
    assert (type(read), read.name, read.arguments) == (Foreign, "os system", ("exit",))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x80\x02X\xff\xff\xff\x7fabc.", "ends too early"),
        (b"\x80\x02K", "ends too early"),
        (b"\x80\x02(K\x01", "ends too early"),
        (b"\x80\x02e.", "damaged"),
        (b"\x80\x02h\x05.", "damaged"),
        (b"\x80\x02K\x01K\x02a.", "not a list"),
        (b"\x80\x02K\x01K\x02K\x03s.", "not a dictionary"),
        (b"\x80\x02K\x01)R.", "not a class"),
        (b"\x80\x02P0\n.", "not read"),
        (b"\x80\x02i os\nsystem\n.", "not read"),
        (b"\x80\x02\x82\x01.", "not read"),
        (b"\x80\x02\x8b" + struct.pack("<i", 2**30) + b".", "ends too early"),
        (b"\x80\x02\x8b" + struct.pack("<i", 2000) + b"\x01" * 2000 + b".", "2,000 bytes"),
        (b"\x80\x02\x8b" + struct.pack("<i", -5) + b".", "ends too early"),
        (b"\x80\x02]q\x00h\x00a.", "holds itself"),
        (b"\x80\x02" + b"(" * 3 + b"K\x01" * 200 + b"tt1.", "damaged"),
        (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(K\x01K\x02K\x03t\x85R.", "damaged"),
        (b"", "ends too early"),
    ],
)  # fmt: skip
def test_a_damaged_or_hostile_pickle_is_refused(tmp_path, data, why):
    with pytest.raises(NotPlain, match=why):
        value_of(archive(tmp_path / "a.pt", data))


def test_a_value_that_would_grow_without_end_is_refused(tmp_path):
    """Each list holds the previous one ten times: a few hundred bytes expand to ten to the power of forty values."""
    data = b"\x80\x02]q\x00" + b"".join(b"0](" + b"h%c" % n * 10 + b"eq%c" % (n + 1) for n in range(40)) + b"."
    with pytest.raises(NotPlain, match="too often"):
        value_of(archive(tmp_path / "a.pt", data))


def test_a_packed_or_torn_archive_is_refused(tmp_path):
    bomb = archive(tmp_path / "a.pt", b"\x80\x02X" + b"\x00" * 2**20, zipfile.ZIP_DEFLATED)
    with pytest.raises(NotPlain, match="packed"):
        value_of(bomb)
    whole = archive(tmp_path / "b.pt", pickle.dumps({"samples": []}, 2)).read_bytes()
    (tmp_path / "b.pt").write_bytes(whole[:60])
    with pytest.raises(NotALog, match="not be finished yet"):
        read_rollouts(tmp_path / "b.pt")


def test_a_tensor_beyond_its_storage_has_no_numbers(tmp_path):
    storage = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02tQ"
    data = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x01(K\x09t(K\x01tt" + b"R."
    path = archive(tmp_path / "a.pt", data, _0=struct.pack("<2f", 1.0, 2.0))
    with Archive(path) as opened:
        read = opened.value()
        assert isinstance(read, Tensor)
        assert read.tolist() is None
