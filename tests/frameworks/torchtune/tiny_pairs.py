"""Components that the configuration of a tiny recipe names, so that no file has to be downloaded."""

from __future__ import annotations

from torch.utils.data import Dataset


class Tokenizer:
    """The recipe uses only the padding id."""

    pad_id = 0


class Pairs(Dataset):
    """Good answers count up, bad ones count down."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def __len__(self):
        return 64

    def __getitem__(self, index):
        prompt = [1 + index % 5, 7]
        good, bad = [10, 11, 12], [12, 11, 10]
        return {
            "chosen_input_ids": prompt + good, "chosen_labels": [-100, -100, *good],
            "rejected_input_ids": prompt + bad, "rejected_labels": [-100, -100, *bad],
        }  # fmt: skip
