"""Frames of the data plane: what goes in comes out, however the bytes are cut, and hostile bytes raise `WireError`."""

from __future__ import annotations

import contextlib
from array import array
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import InvalidRequest, KvistBug, NoReplica, PromptTooLong, ReplicaDied, ReplicaGone, WireError
from router.limits import MAX_DATA_DELTA_BYTES, MAX_DATA_ERROR_CHARS, MAX_DATA_OPEN_BYTES
from workers import data_frames as frames
from workers.engine import Generation, Sampling, Structured, TokenDelta, TokenLogprob, joined

EVERY_KIND = {**frames.FROM_STRANGER, **frames.FROM_INGRESS, **frames.FROM_REPLICA}

words = st.text(max_size=20)
tokens = st.lists(st.integers(0, 2**32 - 1), max_size=20).map(lambda ids: array("I", ids).tobytes())
numbers = st.floats(allow_nan=False)
pairs = st.lists(st.tuples(st.integers(0, 2**31), numbers), max_size=4).map(tuple)
FIELDS: dict[type[msgspec.Struct], dict[str, st.SearchStrategy[Any]]] = {}


def built(struct: type[msgspec.Struct], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    FIELDS[struct] = fields
    return st.builds(struct, **fields)


kinds = st.sampled_from(["json", "choice", "regex", "grammar", "structural_tag"])
samplings = built(
    Sampling,
    max_tokens=st.integers(1, 2**31),
    temperature=numbers,
    top_p=numbers,
    top_k=st.integers(0, 2**31),
    min_p=numbers,
    presence_penalty=numbers,
    frequency_penalty=numbers,
    repetition_penalty=numbers,
    logit_bias=pairs,
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    ignore_eos=st.booleans(),
    logprobs=st.none() | st.integers(0, 20),
    structured=st.none() | built(Structured, kind=kinds, spec=words),
)
generations = built(
    Generation,
    request_id=words,
    tokens=tokens,
    sampling=samplings,
    cache_salt=words,
    session_id=words,
    expected_cached_tokens=st.integers(0, 2**31),
    resumed_tokens=st.integers(0, 20),
).map(lambda one: msgspec.structs.replace(one, resumed_tokens=min(one.resumed_tokens, len(one.tokens) // 4)))
scores = built(TokenLogprob, token=st.integers(0, 2**31), logprob=numbers, top=pairs)
deltas = built(
    TokenDelta,
    tokens=tokens,
    cached_tokens=st.none() | st.integers(0, 2**31),
    finish_reason=st.none() | st.sampled_from(["stop", "length", "abort", "error"]),
    logprobs=st.lists(scores, max_size=3).map(tuple),
)


def body_of(frame: bytes) -> bytes:
    (message,) = frames.FrameReader(EVERY_KIND).feed(frame)
    return message.body


@given(generations)
def test_a_generation_arrives_as_it_was_sent(generation: Generation) -> None:
    """Every field, the tokens as they are."""
    assert frames.decode_open(body_of(frames.encode_open(7, generation))) == generation


@given(deltas)
def test_a_delta_arrives_as_it_was_sent(delta: TokenDelta) -> None:
    """Every field, log probabilities too."""
    assert frames.decode_delta(body_of(frames.encode_delta(7, delta))) == delta


def test_every_field_of_the_engines_structs_is_tried_above() -> None:
    """A new one must be added to the strategies, or it might not survive."""
    assert set(FIELDS) == {Generation, Sampling, Structured, TokenDelta, TokenLogprob}
    for struct, fields in FIELDS.items():
        assert set(fields) == set(struct.__struct_fields__)


@given(st.lists(deltas, min_size=1, max_size=6), st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_frames_are_the_same_however_their_bytes_are_cut(said: list[TokenDelta], cuts: list[int]) -> None:
    """One byte at a time, or several frames at once."""
    stream = b"".join(frames.encode_delta(number, delta) for number, delta in enumerate(said))
    reader, messages, at, turn = frames.FrameReader(frames.FROM_REPLICA), [], 0, 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        messages += reader.feed(stream[at : at + size])
        at, turn = at + size, turn + 1
    assert [(m.stream, frames.decode_delta(m.body)) for m in messages] == list(enumerate(said))


@given(st.lists(deltas, min_size=1, max_size=5))
def test_joined_deltas_say_what_each_said(said: list[TokenDelta]) -> None:
    """All tokens and scores in order, the last count that is known, and how it ended."""
    one = joined(said)
    assert one.tokens == b"".join(delta.tokens for delta in said)
    assert one.logprobs == tuple(score for delta in said for score in delta.logprobs)
    assert one.finish_reason == said[-1].finish_reason
    assert one.cached_tokens == next((d.cached_tokens for d in reversed(said) if d.cached_tokens is not None), None)


@given(st.binary(max_size=200))
def test_only_wire_errors_leave_the_decoders(data: bytes) -> None:
    """Whatever the bytes are."""
    for decode in (frames.decode_open, frames.decode_delta, frames.decode_error):
        with contextlib.suppress(WireError):
            decode(data)
    with contextlib.suppress(WireError):
        frames.FrameReader(EVERY_KIND).feed(data)


@pytest.mark.parametrize(
    ("kind", "longest"),
    [
        (frames.OPEN, MAX_DATA_OPEN_BYTES),
        (frames.DELTA, MAX_DATA_DELTA_BYTES),
        (frames.ERROR, 8 * MAX_DATA_ERROR_CHARS),
        (frames.CANCEL, 0),
        (frames.HELLO, 64),
    ],
)
def test_a_frame_over_its_limit_is_refused_before_its_body_is_waited_for(kind: int, longest: int) -> None:
    """MAX_DATA_OPEN_BYTES, MAX_DATA_DELTA_BYTES and their like stop a peer from filling memory with one frame."""
    header = (longest + 1).to_bytes(4, "little") + bytes([kind]) + bytes(4)
    with pytest.raises(WireError, match="is not allowed here"):
        frames.FrameReader(EVERY_KIND).feed(header)
    allowed = longest.to_bytes(4, "little") + bytes([kind]) + bytes(4)
    assert len(frames.FrameReader(EVERY_KIND).feed(allowed)) == (longest == 0)


@pytest.mark.parametrize("resumed_tokens", [-1, 4])
def test_more_resumed_tokens_than_a_prompt_has_are_refused(resumed_tokens: int) -> None:
    asked = Generation(request_id="r", tokens=bytes(12), sampling=Sampling(max_tokens=1), resumed_tokens=resumed_tokens)
    with pytest.raises(WireError, match="more of the prompt"):
        frames.decode_open(body_of(frames.encode_open(1, asked)))


def test_a_kind_that_does_not_belong_here_is_refused() -> None:
    """A stranger may say hello and nothing else; nobody knows kind 99."""
    for allowed, kind in ((frames.FROM_STRANGER, frames.OPEN), (frames.FROM_INGRESS, frames.DELTA), (EVERY_KIND, 99)):
        with pytest.raises(WireError):
            frames.FrameReader(allowed).feed(frames.encode_frame(kind))


def test_our_own_encoders_refuse_what_a_decoder_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_DATA_OPEN_BYTES and MAX_DATA_DELTA_BYTES stop our own side first."""
    monkeypatch.setattr(frames, "MAX_DATA_OPEN_BYTES", 300)
    monkeypatch.setattr(frames, "MAX_DATA_DELTA_BYTES", 300)
    with pytest.raises(KvistBug, match="MAX_DATA_OPEN_BYTES"):
        frames.encode_open(1, Generation(request_id="r", tokens=bytes(300), sampling=Sampling(max_tokens=1)))
    with pytest.raises(KvistBug, match="MAX_DATA_DELTA_BYTES"):
        frames.encode_delta(1, TokenDelta(tokens=bytes(300)))


@pytest.mark.parametrize(
    ("fault", "arrives"),
    [
        (InvalidRequest("the form cannot be followed"), InvalidRequest("the form cannot be followed")),
        (PromptTooLong(9, 8), InvalidRequest("prompt is too long: 9 tokens > 8 maximum")),
        (ReplicaDied("the engine is gone"), ReplicaDied("the engine is gone")),
        (ReplicaGone("the engine is gone"), ReplicaGone("the engine is gone")),
        (NoReplica("full"), ReplicaDied(frames.UNEXPECTED)),
        (RuntimeError("a traceback with secrets"), ReplicaDied(frames.UNEXPECTED)),
        (InvalidRequest("\ud800"), InvalidRequest("?")),
    ],
)
def test_errors_travel_as_a_kind_and_a_text(fault: Exception, arrives: Exception) -> None:
    """Only those whose texts are ours to tell; others become a replica's failure without a word of theirs."""
    found = frames.decode_error(body_of(frames.encode_error(3, fault)))
    assert (type(found), str(found)) == (type(arrives), str(arrives))


def test_an_errors_text_is_cut() -> None:
    """MAX_DATA_ERROR_CHARS stops a text without end, and its bytes fit a frame whatever its letters are."""
    found = frames.decode_error(body_of(frames.encode_error(3, InvalidRequest("😀" * (MAX_DATA_ERROR_CHARS + 5)))))
    assert str(found) == "😀" * MAX_DATA_ERROR_CHARS


def altered(value: Any, **changes: Any) -> bytes:
    return msgspec.msgpack.encode(msgspec.to_builtins(value, builtin_types=(bytes,)) | changes)


@pytest.mark.parametrize("change", [{"tokens": b"abc"}, {"cached_tokens": -1}, {"finish_reason": "bored"}])
def test_a_delta_that_no_engine_says_is_refused(change: dict[str, Any]) -> None:
    """Torn tokens, a count below zero, an unknown ending."""
    with pytest.raises(WireError):
        frames.decode_delta(altered(TokenDelta(), **change))


def test_a_generation_whose_parts_do_not_fit_is_refused() -> None:
    """A control part that is longer than the frame, and half a token behind it."""
    body = body_of(frames.encode_open(1, Generation(request_id="r", tokens=bytes(8), sampling=Sampling(max_tokens=1))))
    for torn in (b"", body[:3], b"\xff\xff\xff\x7f" + body[4:], body[:-1]):
        with pytest.raises(WireError):
            frames.decode_open(torn)
