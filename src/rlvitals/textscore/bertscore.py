"""BERTScore: matches each token with the closest token of the other text, by the cosine of contextual vectors.

The score is the F1 of greedy matching as Zhang et al. define it, without inverse document frequencies and without
baseline rescaling. `parts` holds precision and recall, `note` the encoder and the layer. Values of different encoders
or layers cannot be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlvitals.textscore.encoder import CUT, Encoded, load_encoder
from rlvitals.textscore.score import Corpus, Score, checked_pairs, mean_of, text_of

PAIRS_AT_ONCE = 512
"""Pairs whose token vectors are held in memory together."""


def bertscore(
    prediction: str | Sequence[str],
    reference: str | Sequence[str],
    *,
    model: str | None = None,
    layer: int | None = None,
    device: str | None = None,
    batch_size: int = 64,
    progress: Callable[[int], None] | None = None,
) -> Score | Corpus:
    """BERTScore F1 of a pair; of lists, the mean over the pairs.

    `model` is a folder, a model's name on the hub, or "offline-minilm", the default if it is installed. `layer` 0 is
    the embeddings and 1 the first layer; the default is the layer that bert-score recommends, else the last one.
    `progress` is called with the number of pairs done.
    """
    alone = isinstance(prediction, str)
    pairs = (
        [(prediction, text_of(reference, "reference"))]
        if isinstance(prediction, str)
        else checked_pairs(prediction, reference)
    )
    encoder = load_encoder(model, layer, device)
    scores: list[Score] = []
    for start in range(0, len(pairs), PAIRS_AT_ONCE):
        chunk = pairs[start : start + PAIRS_AT_ONCE]
        encoded = encoder.encode([text for pair in chunk for text in pair], batch_size)
        scores += _match_all([(encoded[one], encoded[other]) for one, other in chunk], encoder.note)
        if progress is not None:
            progress(len(scores))
    if alone:
        return scores[0]
    cut = sum(CUT in score.note for score in scores)
    note = f"{encoder.note}; {cut} of {len(scores)} pairs: {CUT}" if cut else encoder.note
    return mean_of(scores, f"mean of BERTScore F1 ({encoder.name}, layer {encoder.layer})", note)


def _match_all(pairs: list[tuple[Encoded, Encoded]], note: str) -> list[Score]:
    import torch

    with torch.inference_mode():
        # One copy from the device for the pairs of a chunk.
        found = torch.stack([_match(prediction, reference) for prediction, reference in pairs]).tolist()
    return [
        _score(precision, recall, f"{note}; {CUT}" if prediction.cut or reference.cut else note)
        for (precision, recall), (prediction, reference) in zip(found, pairs, strict=True)
    ]


def _match(prediction: Encoded, reference: Encoded) -> Any:
    """Precision and recall: the mean over a text's tokens of the best cosine in the other text, at least 0."""
    import torch

    if prediction.is_empty or reference.is_empty:
        return torch.zeros(2, device=prediction.vectors.device)
    closeness = prediction.vectors @ reference.vectors.T
    return torch.stack(
        [
            (closeness.amax(dim=1).clamp(min=0) * prediction.weights).sum() / prediction.weights.sum(),
            (closeness.amax(dim=0).clamp(min=0) * reference.weights).sum() / reference.weights.sum(),
        ]
    )


def _score(precision: float, recall: float, note: str) -> Score:
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return Score(f1, {"precision": precision, "recall": recall}, note=note)
