"""BERTScore against the bert-score package on small encoders, and safe loading of encoders."""

from __future__ import annotations

import os
import random
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from rlvitals.errors import BadText, ConfigError, MissingDependency
from rlvitals.textscore import bertscore
from rlvitals.textscore.encoder import OFFLINE, OFFLINE_FILES, OFFLINE_MODULE, _chosen_layer, load_encoder
from rlvitals.textscore.layers import tuned_layer

pytestmark = pytest.mark.slow

WORDS = ["the", "a", "cat", "sat", "running", "nation's", "U.S.", "3.5", "naïve", "studies,", "river", "doctor", "day"]
SMALL = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 64}


def some_pairs(count: int = 24, longest: int = 50) -> tuple[list[str], list[str]]:
    draw = random.Random(3)
    made = [" ".join(draw.choices(WORDS, k=draw.randint(1, longest))) for _ in range(2 * count)]
    return made[:count], made[count:]


@pytest.fixture(autouse=True)
def _fresh_encoders():
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine several threads would wait for each other
    load_encoder.cache_clear()
    yield
    load_encoder.cache_clear()
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def packaged() -> Path:
    return Path(find_spec(OFFLINE_MODULE).origin).parent / "model"


def small_model(kind: str):
    import torch
    import transformers as hf

    torch.manual_seed(0)
    words = 30522
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    return {
        "bert": lambda: hf.BertModel(hf.BertConfig(**SMALL)),
        "albert": lambda: hf.AlbertModel(hf.AlbertConfig(vocab_size=words, embedding_size=16, **SMALL)),
        "distilbert": lambda: hf.DistilBertModel(hf.DistilBertConfig(dim=32, n_layers=4, n_heads=2, hidden_dim=64)),
        "t5": lambda: hf.T5Model(hf.T5Config(vocab_size=words, d_model=32, d_kv=16, d_ff=64, num_layers=4)),
        "bart": lambda: hf.BartModel(
            hf.BartConfig(
                vocab_size=words, d_model=32, encoder_layers=4, decoder_layers=3, pad_token_id=0, **heads
            )
        ),
        "roberta": lambda: hf.RobertaModel(hf.RobertaConfig(vocab_size=words, max_position_embeddings=514, **SMALL)),
    }[kind]()  # fmt: skip


@pytest.fixture
def make_encoder(tmp_path, packaged):
    """A folder with a small encoder of random weights and the vocabulary of the packaged one."""

    def make(kind: str) -> str:
        folder = tmp_path / kind
        small_model(kind).save_pretrained(folder)
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
            shutil.copy(packaged / name, folder)
        return str(folder)

    return make


def by_bert_score(predictions, references, folder: str, layer: int):
    import bert_score

    return [
        values.tolist() for values in bert_score.score(predictions, references, model_type=folder, num_layers=layer)
    ]


def assert_agrees(predictions, references, folder: str, layer: int) -> None:
    ours = bertscore(predictions, references, model=folder, layer=layer)
    precision, recall, f1 = by_bert_score(predictions, references, folder, layer)
    assert [score.score for score in ours.scores] == pytest.approx(f1, abs=1e-6)
    assert [score.parts["precision"] for score in ours.scores] == pytest.approx(precision, abs=1e-6)
    assert [score.parts["recall"] for score in ours.scores] == pytest.approx(recall, abs=1e-6)


@pytest.mark.parametrize("kind", ["bert", "albert", "distilbert", "t5", "bart", "roberta"])
def test_scores_are_those_of_bert_score_at_every_kind_of_encoder(kind, make_encoder):
    folder = make_encoder(kind)
    for layer in (2, 4):
        assert_agrees(*some_pairs(), folder, layer)


def test_scores_are_those_of_bert_score_with_real_weights(packaged):
    assert_agrees(*some_pairs(16), str(packaged), 6)
    assert_agrees(["word " * 700, "the end"], ["word " * 900, "an end"], str(packaged), 5)


def test_a_byte_level_tokenizer_sees_a_space_before_the_first_word(tmp_path):
    import transformers as hf
    from tokenizers import ByteLevelBPETokenizer

    predictions, references = some_pairs()
    trained = ByteLevelBPETokenizer()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained.train_from_iterator(predictions + references, vocab_size=400, special_tokens=specials)
    trained.save_model(str(tmp_path))
    hf.RobertaModel(hf.RobertaConfig(vocab_size=trained.get_vocab_size(), **SMALL)).save_pretrained(tmp_path)

    def save(prefix: bool) -> None:
        files = {"vocab": str(tmp_path / "vocab.json"), "merges": str(tmp_path / "merges.txt")}
        hf.RobertaTokenizer(**files, add_prefix_space=prefix, model_max_length=512).save_pretrained(tmp_path)
        load_encoder.cache_clear()

    save(prefix=False)
    ours = bertscore(predictions, references, model=str(tmp_path), layer=2)
    save(prefix=True)  # bert-score sets this on the tokenizer, but transformers 5 ignores it
    f1 = by_bert_score(predictions, references, str(tmp_path), 2)[2]
    assert [score.score for score in ours.scores] == pytest.approx(f1, abs=1e-6)


def test_the_score_is_that_of_the_definition():
    """Cosines from the hidden states, computed with numpy only."""
    import numpy as np

    encoder = load_encoder(OFFLINE, None, "cpu")
    prediction, reference = "the doctor took the medicine", "a physician swallowed his pills"
    one, other = (np.asarray(encoder.encode([text], 1)[text].vectors) for text in (prediction, reference))
    closeness = one @ other.T
    precision, recall = closeness.max(1)[1:-1].mean(), closeness.max(0)[1:-1].mean()
    expected = 2 * precision * recall / (precision + recall)
    assert bertscore(prediction, reference).score == pytest.approx(expected, abs=1e-6)


def test_meaning_counts_more_than_words():
    same = bertscore("The doctor prescribed medicine.", "The physician gave the patient drugs.").score
    other = bertscore("The doctor prescribed medicine.", "Stock prices fell sharply on Monday.").score
    assert same > other + 0.2


def test_a_score_does_not_depend_on_the_batch_it_was_in():
    predictions, references = some_pairs()
    together = [score.score for score in bertscore(predictions, references).scores]
    apart = [bertscore(*pair).score for pair in zip(predictions, references, strict=True)]
    assert together == pytest.approx(apart, abs=1e-6)


@pytest.mark.parametrize(("prediction", "reference"), [("", ""), ("", "a cat"), ("a cat", " \n"), ("\x00", "a")])
def test_empty_texts_score_zero(prediction, reference):
    assert bertscore(prediction, reference).score == 0.0


def test_odd_characters_and_a_megabyte_are_scored():
    assert bertscore("half a surrogate \ud800 here", "half a surrogate \ud800 here").score == pytest.approx(1.0)
    long = "cat " * 250_000
    score = bertscore([long, "a"], [long, "a"])
    assert score.scores[0].score == pytest.approx(1.0)
    assert "only its beginning was compared" in score.scores[0].note
    assert "1 of 2 pairs: longer" in score.note


def test_a_text_that_just_fits_is_not_called_cut():
    fits = " ".join(["cat"] * 510)
    assert "beginning" not in bertscore(fits, fits).note
    assert "beginning" in bertscore(f"{fits} cat", fits).note


def test_the_packaged_encoder_says_that_its_values_do_not_compare():
    assert "not comparable with published" in bertscore("a", "a", model=OFFLINE).note
    assert "not comparable with published" in bertscore(["a"], ["a"]).note


def test_progress_is_reported_after_each_chunk():
    reported: list[int] = []
    bertscore(["a"] * 600, ["b"] * 600, progress=reported.append)
    assert reported == [512, 600]


def test_the_layer_is_the_tuned_one_for_known_encoders_and_the_last_for_others(make_encoder, tmp_path):
    assert (tuned_layer("roberta-large"), tuned_layer("microsoft/deberta-xlarge-mnli")) == (17, 40)
    assert (tuned_layer("amazon/bort"), tuned_layer("my/own")) == (0, None)
    assert (_chosen_layer("FacebookAI/roberta-large", None, 24), _chosen_layer("my/own", None, 24)) == (17, 24)
    folder = make_encoder("bert")
    assert "layer 4" in bertscore("a", "a", model=folder).note
    with pytest.raises(ConfigError, match="layers 0 to 4; layer 9"):
        bertscore("a", "a", model=folder, layer=9)
    renamed = Path(folder).rename(tmp_path / "roberta-base")  # tuned to layer 10; this one has 4
    assert load_encoder(str(renamed), None, "cpu").layer == 4


def test_the_table_of_layers_is_that_of_bert_score():
    from bert_score.utils import model2layers

    assert {name: tuned_layer(name) for name in model2layers} == model2layers


class MakesAFolder:
    """Unpickling it calls a function."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def test_weights_that_are_a_program_are_not_run(make_encoder, tmp_path):
    import torch

    folder = Path(make_encoder("bert"))
    (folder / "model.safetensors").unlink()
    trap = tmp_path / "trap"
    torch.save({"embeddings": MakesAFolder(trap)}, folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        bertscore("a", "a", model=str(folder))
    assert not trap.exists()


def test_code_that_comes_with_a_model_is_not_run(make_encoder, tmp_path):
    folder = Path(make_encoder("bert"))
    trap = tmp_path / "trap"
    config = (folder / "config.json").read_text().replace('"model_type": "bert"', '"model_type": "own"')
    config = config.replace("{", '{"auto_map": {"AutoConfig": "own.Config", "AutoModel": "own.Model"},', 1)
    (folder / "config.json").write_text(config)
    (folder / "own.py").write_text(f"import os\nos.mkdir({str(trap)!r})\n")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        bertscore("a", "a", model=str(folder))
    assert not trap.exists()


@pytest.fixture
def altered(packaged, tmp_path, monkeypatch):
    """The packaged encoder, with one file changed."""
    folder = tmp_path / OFFLINE_MODULE / "model"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise SystemExit('its code must not be run')")
    for name in OFFLINE_FILES:
        (folder / name).symlink_to(packaged / name)
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def test_the_packaged_encoder_loads_without_running_its_code(altered):
    assert bertscore("a", "a", model=OFFLINE).score == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_an_altered_file_of_the_packaged_encoder_is_refused(altered, packaged, name):
    data = (packaged / name).read_bytes()
    (altered / name).unlink()
    (altered / name).write_bytes(data[:-2] + b"\n" + data[-1:])
    with pytest.raises(ConfigError, match=f"{name} has SHA-256 .* Nothing was loaded"):
        bertscore("a", "a", model=OFFLINE)
    (altered / name).unlink()
    with pytest.raises(ConfigError, match="incomplete"):
        bertscore("a", "a", model=OFFLINE)


def test_without_an_encoder_both_ways_to_one_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, OFFLINE_MODULE, None)
    with pytest.raises(ConfigError, match=r"roberta-large(?s:.*)pip install 'rlvitals\[bertscore-offline\]'"):
        bertscore("a", "b")
    with pytest.raises(MissingDependency, match="bertscore-offline"):
        bertscore("a", "b", model=OFFLINE)


def test_without_transformers_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependency, match=r"pip install 'rlvitals\[bertscore\]'"):
        bertscore("a", "b")


def test_damaged_weights_are_an_error_that_names_the_encoder(make_encoder):
    folder = Path(make_encoder("bert"))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ConfigError, match="cannot be loaded"):
        bertscore("a", "b", model=str(folder))


@pytest.mark.parametrize("device", ["cuda", "toaster"])
def test_a_device_that_is_not_there_is_named(device):
    import torch

    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is one here")
    with pytest.raises(ConfigError, match=f"cannot run on '{device}'"):
        bertscore("a", "b", model=OFFLINE, device=device)


def test_a_folder_that_is_no_model_is_named(tmp_path):
    with pytest.raises(ConfigError, match="cannot be loaded"):
        bertscore("a", "b", model=str(tmp_path))
    for mistyped in (str(tmp_path / "bert"), "./bert", "~/bert", "my/models/bert", "models\\bert"):
        with pytest.raises(ConfigError, match="no such folder"):
            bertscore("a", "b", model=mistyped)


def test_a_bad_pair_is_found_before_anything_is_loaded(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(BadText, match="the reference of pair 1"):
        bertscore(["a"], [None])
