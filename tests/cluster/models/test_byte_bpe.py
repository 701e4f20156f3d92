"""The fast encoder: equal to the model's own tokenizer, or not used."""

from __future__ import annotations

import json
import unicodedata
from array import array
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from cluster.models.byte_bpe import ByteBpe, byte_bpe
from cluster.models.tokenizer import byte_alphabet

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TRAINING = [
    "def f(x):\n    return x + 1  # naïve café, 漢字 12345\n",
    "The Twig's twigs, they'll be 2026-11-30.\n",
] * 20
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = rf"{_WORDS}|\p{{N}}|{_REST}"
LLAMA3 = rf"{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
TEXTS = st.text(max_size=60) | st.text(alphabet="ab 1²\n\t'sl漢é\u0301\u00a0🙂", max_size=60)


def trained(pre_tokenizer: Any, normaliser: Any = None) -> Tokenizer:
    """A byte-level BPE of 600 tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoders.ByteLevel()
    if normaliser is not None:
        tokenizer.normalizer = normaliser
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TRAINING, trainer)
    return tokenizer


def level(*, regex: bool = True, space: bool = False) -> Any:
    """The byte level, with its own pattern or without, with a space before the text or without."""
    return pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=regex)


def behind(pattern: str) -> Any:
    """A pattern of the model's own before the byte level."""
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), level(regex=False)])


def own(tokenizer: Tokenizer) -> Callable[[Sequence[str]], list[bytes]]:
    """What the tokenizer itself says."""
    return lambda texts: [
        array("I", one.ids).tobytes() for one in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    ]


def fast(tokenizer: Tokenizer, **changes: Any) -> ByteBpe | None:
    """The fast encoder of a tokenizer, whose description may have been changed."""
    spec = json.loads(tokenizer.to_str())
    spec["model"] |= changes
    return byte_bpe(spec, byte_alphabet(), own(tokenizer))


FAMILIES: dict[str, Tokenizer] = {
    "gpt2": trained(level()),
    "digits": trained(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level()])),
    "qwen2": trained(behind(QWEN2), normalizers.NFC()),
    "llama3": trained(behind(LLAMA3)),
}
ENCODERS = {name: (fast(tokenizer), own(tokenizer)) for name, tokenizer in FAMILIES.items()}


@pytest.mark.parametrize("family", FAMILIES)
@given(text=TEXTS)
def test_any_text_encodes_as_the_tokenizer_itself_does(family: str, text: str) -> None:
    """Token for token, for the patterns that models use."""
    encoder, reference = ENCODERS[family]
    assert encoder is not None
    assert encoder.encode(text) == reference([text])[0]


@pytest.mark.parametrize(
    "tokenizer",
    [
        pytest.param(trained(level(space=True)), id="a space before the text"),
        pytest.param(trained(level(), normalizers.Lowercase()), id="a normaliser of its own"),
        pytest.param(trained(behind(r"\p{L}+")), id="a pattern that leaves text out"),
        pytest.param(trained(pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), level()])), id="another split"),
    ],
)
def test_a_tokenizer_that_cannot_be_matched_has_no_fast_encoder(tokenizer: Tokenizer) -> None:
    """Its own is used then."""
    assert fast(tokenizer) is None


@pytest.mark.parametrize("changes", [{"dropout": 0.1}, {"byte_fallback": True}, {"type": "WordPiece"}])
def test_a_model_that_merges_in_another_way_has_no_fast_encoder(changes: dict[str, Any]) -> None:
    """What modifies merging is not ours to imitate."""
    assert fast(FAMILIES["gpt2"], **changes) is None


def test_merges_that_disagree_with_the_tokenizer_are_noticed_when_the_model_loads() -> None:
    """Their order decides which come first: reversed, the vocabulary alone shows it."""
    merges = json.loads(FAMILIES["gpt2"].to_str())["model"]["merges"]
    assert fast(FAMILIES["gpt2"], merges=merges[::-1]) is None


def test_metaspace_bpe_and_unigram_keep_their_own_encoder() -> None:
    """Their tokens are not bytes."""
    metaspace = Tokenizer(models.BPE(unk_token="?"))
    unigram = Tokenizer(models.Unigram())
    for tokenizer, trainer in (
        (metaspace, trainers.BpeTrainer(vocab_size=300, special_tokens=["?"], show_progress=False)),
        (unigram, trainers.UnigramTrainer(vocab_size=100, special_tokens=["?"], unk_token="?", show_progress=False)),
    ):
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.train_from_iterator(TRAINING, trainer)
        assert fast(tokenizer) is None


def test_bytes_that_a_vocabulary_lacks_are_left_to_the_tokenizer_itself() -> None:
    """Their tokens do not exist; other texts are encoded as ever."""
    spec = json.loads(FAMILIES["gpt2"].to_str())
    lead = next(char for char, byte in byte_alphabet().items() if byte == 0xF4)  # of the last planes only
    del spec["model"]["vocab"][lead]
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    encoder = byte_bpe(spec, byte_alphabet(), own(tokenizer))
    assert encoder is not None
    assert encoder.encode("\U0010ffff") is None
    assert encoder.encode("abc") == own(tokenizer)(["abc"])[0]


def test_white_space_without_end_is_left_to_the_tokenizer_itself() -> None:
    """The pattern looks ahead and gives up; it must neither raise nor guess."""
    encoder, _ = ENCODERS["gpt2"]
    assert encoder is not None
    assert encoder.encode(" " * 1_000_000) is None


def test_composed_characters_are_normalised_where_the_tokenizer_does() -> None:
    """NFC, before anything else."""
    encoder, reference = ENCODERS["qwen2"]
    assert encoder is not None
    decomposed = unicodedata.normalize("NFD", "café")
    assert encoder.encode(decomposed) == encoder.encode("café") == reference([decomposed])[0]
