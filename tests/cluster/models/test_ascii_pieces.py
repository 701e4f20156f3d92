"""ASCII text encoded by its pieces: the same tokens as by the whole, from a memory that is bounded."""

from __future__ import annotations

import pytest

from cluster.models.ascii_pieces import AsciiPieces, ascii_pattern
from cluster.models.byte_bpe import ByteBpe
from router.limits import MAX_PIECE_CHARS, MAX_PIECEWISE_CHARS, REMEMBERED_PIECES
from tests.cluster.models.test_byte_bpe import ENCODERS, LLAMA3, QWEN2


def pieces(pattern: str = r" ?\p{L}+|\s+") -> tuple[AsciiPieces, list[str]]:
    """Pieces that encode to themselves, and those that were asked for."""
    asked: list[str] = []

    def encode(piece: str) -> bytes:
        asked.append(piece)
        return piece.encode()

    found = ascii_pattern(pattern)
    assert found is not None
    return AsciiPieces(found, encode), asked


def test_a_piece_is_encoded_once() -> None:
    """Whatever text it comes in."""
    encoder, asked = pieces()
    assert encoder.encode("a b a b") == b"a b a b"
    assert encoder.encode(" b") == b" b"
    assert asked == ["a", " b", " a"]


def test_remembered_pieces_are_at_most_remembered_pieces() -> None:
    """REMEMBERED_PIECES of them, then memory begins anew; what was forgotten is encoded again."""
    encoder, asked = pieces(r"\S+|\s")
    assert encoder.encode(" ".join(map(str, range(REMEMBERED_PIECES + 9)))) is not None
    assert 0 < len(encoder) <= REMEMBERED_PIECES
    assert encoder.encode("0") == b"0"
    assert asked.count("0") == 2


def test_a_piece_of_more_than_max_piece_chars_is_not_remembered() -> None:
    """MAX_PIECE_CHARS bounds what one takes; text without spaces would be kept whole."""
    encoder, _ = pieces()
    assert encoder.encode("x" * (MAX_PIECE_CHARS + 1)) is not None
    assert len(encoder) == 0
    assert encoder.encode("x" * MAX_PIECE_CHARS) is not None
    assert len(encoder) == 1


def test_a_text_of_more_than_max_piecewise_chars_is_encoded_as_a_whole() -> None:
    """MAX_PIECEWISE_CHARS bounds how long the interpreter lock is held; tokens are the same."""
    encoder, reference = ENCODERS["gpt2"]
    assert isinstance(encoder, ByteBpe)
    assert encoder._pieces is not None
    for size in (MAX_PIECEWISE_CHARS, MAX_PIECEWISE_CHARS + 1):
        text = f"unseen{chr(65 + size % 26)} {'a ' * size}"[:size]
        before = len(encoder._pieces)
        assert encoder.encode(text) == reference([text])[0]
        assert (len(encoder._pieces) > before) == (size <= MAX_PIECEWISE_CHARS)


def test_a_piece_that_alone_would_be_cut_otherwise_is_left_to_the_whole() -> None:
    """Such patterns look at what surrounds a piece."""
    found = ascii_pattern(r"a(?=b)|b")
    assert found is not None
    assert AsciiPieces(found, str.encode).encode("ab") is None


def test_a_piece_without_tokens_is_left_to_the_whole() -> None:
    """It is not guessed, and not remembered."""
    found = ascii_pattern(r"\S+|\s+")
    assert found is not None
    encoder = AsciiPieces(found, lambda piece: None if piece == "?" else piece.encode())
    assert encoder.encode("a ?") is None
    assert encoder.encode("a b") == b"a b"


@pytest.mark.parametrize(
    "pattern", [r"\p{Greek}+", r"\p{Lm}", r"\b\w+", r"[a[b]]", r"(a)|b", r"a{2,1}", r"\x41"], ids=str
)
def test_a_pattern_whose_meaning_is_not_plain_is_not_used(pattern: str) -> None:
    """Classes of other scripts alone, borders, sets of sets, groups."""
    assert ascii_pattern(pattern) is None


@pytest.mark.parametrize("pattern", [QWEN2, LLAMA3])
def test_patterns_of_models_have_an_ascii_form(pattern: str) -> None:
    """Letters and digits are those of ASCII."""
    found = ascii_pattern(pattern)
    assert found is not None
    assert found.findall("I'm  x1\n\n  def_2")[:3] == ["I", "'m", " "]
