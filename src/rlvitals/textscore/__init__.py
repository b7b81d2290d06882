"""Scores that compare a generated text or program with a reference: BLEU, ROUGE-L, CodeBLEU, RUBY, BERTScore.

    from rlvitals.textscore import bleu, rouge_l
    bleu("the cat sat", "the cat sat down").score        # one pair: a Score
    rouge_l(["a b", "c"], ["a", "c"]).scores             # lists: a Corpus

The scores are pure functions of texts: nothing here reads a run. The packages that a score needs are imported on first
use. The catalogue explains the scores (`rlvitals explain bleu`). docs/text-scores.md lists the differences from other
implementations.
"""

from __future__ import annotations

# Imported eagerly: a module and its function share a name, and importing only the module would hide the function.
from rlvitals.textscore.bertscore import bertscore
from rlvitals.textscore.bleu import bleu, corpus_bleu
from rlvitals.textscore.codebleu import codebleu
from rlvitals.textscore.rouge import rouge_l
from rlvitals.textscore.ruby import ruby
from rlvitals.textscore.score import Corpus, Score

__all__ = ["Corpus", "Score", "bertscore", "bleu", "codebleu", "corpus_bleu", "rouge_l", "ruby"]
