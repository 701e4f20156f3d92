"""One ingress's view of a deployment: who is routable, who is believed, where a prompt goes and what that reserves."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router import limits
from router.errors import KvistBug, NoReplica
from router.fleet import Action, Fleet, PromptBlocks, ReplicaInfo
from router.limits import INDEX_MARGIN_BLOCKS, LEASE_S, RESERVATION_TTL_S, SNAPSHOT_BACKOFF_MAX_S, SUSPECT_S
from router.policy import RoundRobin
from router.wire import (
    Cleared,
    Frame,
    Load,
    Op,
    Removed,
    SnapshotChunk,
    Stored,
    decode_snapshot_request,
    encode_chunk,
    encode_frame,
)

IDLE = Load(0, 0, 0, 100, 100)
PROMPT = list(range(1, 101))  # 100 blocks of 16 tokens


def info(
    name: str, *, block_size: int = 16, incarnation: str = "i", pool_blocks: int = 1_000, optimistic: bool = False
) -> ReplicaInfo:
    return ReplicaInfo(
        replica=name,
        incarnation=incarnation,
        model="m",
        block_size=block_size,
        pool_blocks=pool_blocks,
        max_model_len=32_768,
        events="tcp://127.0.0.1:1",
        snapshots="tcp://127.0.0.1:2",
        optimistic=optimistic,
    )


def frame(name: str, seq: int, *ops: Op, load: Load = IDLE, incarnation: str = "i", block_size: int = 16) -> bytes:
    return encode_frame(Frame(name, incarnation, seq, 1.0, ops, load, block_size))


def snapshot(name: str, seq: int, *hashes: int, request: bytes, medium: str = "gpu", block_size: int = 16) -> bytes:
    runs = (Stored(medium, hashes),) if hashes else ()
    chunk = SnapshotChunk(name, "i", seq, 0, 1, block_size, runs)
    return encode_chunk(chunk, nonce=decode_snapshot_request(request))


def joined(fleet: Fleet, name: str, *hashes: int, now: float = 0.0, block_size: int = 16, medium: str = "gpu") -> None:
    """A replica that is live, holding `hashes`."""
    [action] = fleet.join(info(name, block_size=block_size), now)
    assert action.replica == name
    answer = snapshot(name, 0, *hashes, request=action.request, medium=medium, block_size=block_size)
    assert fleet.on_chunk(name, answer, now) == []
    assert fleet.on_frame(name, frame(name, 0, block_size=block_size), now) == []


def prompt(tokens: int = 1_608, hashes: list[int] | None = None) -> PromptBlocks:
    return PromptBlocks(tokens, {16: PROMPT if hashes is None else hashes})


@pytest.fixture
def fleet() -> Fleet:
    """Two live replicas, of which `warm` holds the prompt."""
    made = Fleet(model="m")
    joined(made, "cold")
    joined(made, "warm", *PROMPT)
    return made


def test_a_prompt_goes_where_its_blocks_are_and_says_what_it_expects(fleet: Fleet) -> None:
    """Every routable replica is a candidate, best first."""
    decision = fleet.choose(prompt(), 0.1)
    assert decision.candidates == ("warm", "cold")
    assert decision.predicted_cached_tokens == 1_600
    assert [score.replica for score in decision.scores] == ["warm", "cold"]
    assert fleet.open_reservations == 1
    fleet.check_integrity()


def test_the_last_token_floor_holds_for_a_prompt_of_whole_blocks(fleet: Fleet) -> None:
    """The engine always computes the last token."""
    assert fleet.choose(prompt(1_600), 0.1).predicted_cached_tokens == 1_584


def test_select_and_reserve_are_one_step_so_cold_prompts_do_not_herd() -> None:
    """Eight different cold prompts at one instant spread over four idle replicas."""
    fleet = Fleet()
    for name in "abcd":
        joined(fleet, name)
    chosen = [
        fleet.choose(prompt(hashes=list(range(at * 1_000, at * 1_000 + 100))), 0.1).candidates[0] for at in range(8)
    ]
    assert sorted(chosen) == sorted("abcd" * 2)


def test_siblings_meet_where_the_first_of_them_went_before_any_event_says_so() -> None:
    """A prefix in flight counts at once; it ends with its request."""
    fleet = Fleet()
    for name in "abcd":
        joined(fleet, name)
    shared = list(range(1, 901))
    first = fleet.choose(prompt(16_008, [*shared, *range(901, 1_001)]), 0.1)
    fork = prompt(16_008, [*shared, *range(5_000, 5_100)])
    second = fleet.choose(fork, 0.1)
    assert second.candidates[0] == first.candidates[0]
    assert second.predicted_cached_tokens == 900 * 16
    fleet.finish(first.reservation, 0.2)
    fleet.finish(second.reservation, 0.2)
    assert fleet.choose(fork, 0.3).predicted_cached_tokens == 0
    fleet.check_integrity()


def test_a_fenced_replica_gets_no_credit_but_stays_routable(fleet: Fleet) -> None:
    """Neither for what it showed nor for what is on its way."""
    coming = prompt(hashes=list(range(2_001, 2_101)))
    assert fleet.choose(coming, 0.1, exclude=frozenset({"cold"})).candidates == ("warm",)
    requests = fleet.on_frame("warm", frame("warm", 5, Stored("gpu", (7,))), 0.1)
    assert [action.replica for action in requests] == ["warm"]
    assert fleet.fenced("warm")
    for one in (prompt(), coming):
        decision = fleet.choose(one, 0.1)
        fleet.finish(decision.reservation, 0.1)
        assert set(decision.candidates) == {"warm", "cold"}
        assert [score.cached_tokens for score in decision.scores] == [0, 0]


def test_an_expired_lease_is_not_routable_and_without_replicas_there_is_no_choice(fleet: Fleet) -> None:
    """`NoReplica` is the only way out then."""
    assert fleet.routable == ("cold", "warm")
    fleet.on_frame("cold", frame("cold", 0), LEASE_S)
    fleet.tick(LEASE_S + 0.1)
    assert "warm" not in fleet.routable
    assert fleet.choose(prompt(), LEASE_S + 0.1).candidates == ("cold",)
    with pytest.raises(NoReplica):
        fleet.choose(prompt(), LEASE_S + 0.1, exclude=frozenset({"cold"}))
    with pytest.raises(NoReplica):
        Fleet().choose(prompt(), 0.0)


def test_excluded_replicas_are_not_candidates(fleet: Fleet) -> None:
    """A retry goes elsewhere."""
    assert fleet.choose(prompt(), 0.1, exclude=frozenset({"warm"})).candidates == ("cold",)


def test_suspect_s_stops_a_replica_that_failed_from_being_chosen_before_its_lease_has_ended(fleet: Fleet) -> None:
    """Where others are there; a choice that names it on its own account still has it when it is the only one."""
    first = fleet.choose(prompt(), 1.0).candidates
    assert len(first) > 1
    fleet.suspect(first[0], 1.0)
    assert set(fleet.choose(prompt(), 1.0).candidates) == set(first[1:])
    assert fleet.choose(prompt(), 1.0, exclude=frozenset(first[1:])).candidates == first[:1]
    assert first[0] in fleet.choose(prompt(), 1.0 + SUSPECT_S).candidates
    for name in first:
        fleet.suspect(name, 1.0)
    assert set(fleet.choose(prompt(), 1.0).candidates) == set(first)


def test_silent_are_the_replicas_whose_lease_has_ended(fleet: Fleet) -> None:
    """A suspect that still speaks is not."""
    names = set(fleet.routable)
    fleet.suspect(min(names), 0.0)
    assert fleet.silent == frozenset()
    fleet.tick(LEASE_S + 1.0)
    assert fleet.silent == names


def test_finish_is_safe_to_repeat_and_reservations_sum_to_zero_at_rest(fleet: Fleet) -> None:
    """Whatever the order of first token and end."""
    decisions = [fleet.choose(prompt(), 0.1) for _ in range(5)]
    fleet.first_token(decisions[0].reservation, 1_600, 0.2)
    for decision in decisions:
        fleet.finish(decision.reservation, 0.3)
        fleet.finish(decision.reservation, 0.3)
        fleet.first_token(decision.reservation, 1_600, 0.4)
        fleet.moved(decision.reservation, "cold", 0.4)
    assert fleet.open_reservations == 0
    assert [status.backlog_tokens for status in fleet.status(0.5)] == [0, 0]
    fleet.check_integrity()


def test_reservation_ttl_stops_a_leak_of_lost_requests(fleet: Fleet) -> None:
    """The tick sweeps what nobody finished."""
    fleet.choose(prompt(), 0.1)
    fleet.tick(RESERVATION_TTL_S + 1)
    assert fleet.open_reservations == 0


def test_a_request_that_went_elsewhere_takes_its_load_and_its_coming_blocks_along(fleet: Fleet) -> None:
    """Serve may pick another candidate than the first."""
    decision = fleet.choose(prompt(), 0.1)
    fleet.moved(decision.reservation, "warm", 0.1)
    fleet.moved(decision.reservation, "stranger", 0.1)
    fleet.moved(decision.reservation, "cold", 0.1)
    loads = {status.replica: (status.open_reservations, status.backlog_tokens) for status in fleet.status(0.1)}
    assert loads == {"cold": (1, 1_608), "warm": (0, 0)}
    fleet.first_token(decision.reservation, 0, 0.2)
    fleet.moved(decision.reservation, "warm", 0.2)
    fleet.check_integrity()
    fleet.finish(decision.reservation, 0.3)
    assert fleet.open_reservations == 0
    fleet.check_integrity()


def test_a_request_may_move_to_a_replica_of_another_block_size(fleet: Fleet) -> None:
    """Its hashes say nothing there, its tokens do."""
    joined(fleet, "other", block_size=32)
    decision = fleet.choose(prompt(), 0.1)
    fleet.moved(decision.reservation, "other", 0.1)
    status = {one.replica: one for one in fleet.status(0.1)}["other"]
    assert status.backlog_tokens == 1_608
    fleet.check_integrity()


def test_block_sizes_follow_the_replicas_and_each_is_matched_with_its_own_hashes() -> None:
    """A prompt is hashed once per size present."""
    fleet = Fleet()
    assert fleet.block_sizes == frozenset()
    joined(fleet, "a", *PROMPT)
    joined(fleet, "b", *range(501, 551), block_size=32)
    assert fleet.block_sizes == {16, 32}
    both = PromptBlocks(1_608, {16: PROMPT[:20], 32: list(range(501, 551))})
    assert fleet.choose(both, 0.1).scores[0][0] == "b"
    assert {score.replica: score.cached_tokens for score in fleet.choose(both, 0.1).scores} == {"a": 320, "b": 1_600}
    fleet.leave("b", 0.2)
    fleet.leave("b", 0.2)
    assert fleet.block_sizes == {16}
    assert fleet.routable == ("a",)


def test_gauges_of_the_engines_count(fleet: Fleet) -> None:
    """A long queue elsewhere reported outweighs a warm prefix."""
    fleet.on_frame("warm", frame("warm", 0, load=Load(3, 9, 50_000, 0, 100)), 0.1)
    assert fleet.choose(prompt(), 0.1).candidates == ("cold", "warm")


def test_live_events_move_credit(fleet: Fleet) -> None:
    """Stored, removed and cleared, by tier."""
    fleet.on_frame("cold", frame("cold", 1, Stored("gpu", tuple(PROMPT[:50])), Stored("cpu", tuple(PROMPT[50:]))), 0.1)
    assert fleet.choose(prompt(), 0.1).candidates == ("warm", "cold")
    fleet.on_frame("warm", frame("warm", 1, Removed("gpu", tuple(PROMPT[10:]))), 0.2)
    assert fleet.choose(prompt(), 0.2).candidates == ("cold", "warm")
    assert fleet.resident("cold")["cpu"] == frozenset(PROMPT[50:])
    fleet.on_frame("cold", frame("cold", 2, Cleared()), 0.3)
    assert fleet.resident("cold") == {"gpu": frozenset(), "cpu": frozenset(), "disk": frozenset()}


def test_malformed_and_misaddressed_messages_change_nothing_and_are_counted(fleet: Fleet) -> None:
    """Hostile input is harmless."""
    before = fleet.resident("warm")
    for _ in range(3):
        assert fleet.on_frame("warm", b"\xc1", 0.1) == []
        assert fleet.on_chunk("warm", b"\x93", 0.1) == []
    assert fleet.on_frame("warm", frame("cold", 1, Cleared()), 0.1) == []
    request = decode_snapshot_request(fleet.join(info("new"), 0.1)[0].request)
    stray = encode_chunk(SnapshotChunk("warm", "i", 0, 0, 1, 16, ()), nonce=request)
    assert fleet.on_chunk("new", stray, 0.1) == []
    assert fleet.fenced("new")
    assert fleet.on_frame("stranger", frame("stranger", 0, Cleared()), 0.1) == []
    assert fleet.on_chunk("stranger", b"", 0.1) == []
    assert fleet.resident("warm") == before
    assert {status.replica: status.bad_messages for status in fleet.status(0.1)} == {"cold": 0, "warm": 7, "new": 1}


def test_a_replica_that_claims_more_than_its_pool_is_fenced_and_asked_again(fleet: Fleet) -> None:
    """The hard cap holds, the rest of the frame is not believed."""
    many = tuple(range(5_000, 5_000 + 1_000 + INDEX_MARGIN_BLOCKS))
    fleet.on_frame("warm", frame("warm", 1, Stored("gpu", many), Removed("gpu", many)), 0.1)
    assert fleet.fenced("warm")
    assert fleet.resident("warm")["gpu"] == frozenset()
    [again] = fleet.tick(0.1 + SNAPSHOT_BACKOFF_MAX_S)
    fleet.on_chunk("warm", snapshot("warm", 1, 1, 2, request=again.request), 0.7)
    assert not fleet.fenced("warm")
    assert "claims more blocks" in " ".join(fleet.status(0.7)[1].problems)
    fleet.check_integrity()


def test_the_same_news_of_a_replica_changes_nothing_and_other_news_start_it_afresh(fleet: Fleet) -> None:
    """Membership is told again and again."""
    assert fleet.join(info("warm"), 0.1) == []
    assert not fleet.fenced("warm")
    open_one = fleet.choose(prompt(), 0.1)
    [action] = fleet.join(info("warm", incarnation="i2"), 0.2)
    assert isinstance(action, Action)
    assert fleet.fenced("warm")
    assert fleet.resident("warm")["gpu"] == frozenset()
    fleet.finish(open_one.reservation, 0.3)
    assert [status.open_reservations for status in fleet.status(0.3)] == [0, 0]
    fleet.check_integrity()


def test_answers_to_requests_of_an_earlier_membership_are_ignored(fleet: Fleet) -> None:
    """Each join numbers its requests anew, far from the last."""
    [old] = fleet.join(info("x"), 0.1)
    fleet.leave("x", 0.2)
    fleet.join(info("x"), 0.3)
    fleet.on_chunk("x", snapshot("x", 0, 5, request=old.request), 0.4)
    assert fleet.fenced("x")


def test_requests_of_a_replica_that_left_can_still_be_finished(fleet: Fleet) -> None:
    """The stream outlives the membership."""
    decision = fleet.choose(prompt(), 0.1)
    fleet.leave("warm", 0.2)
    fleet.first_token(decision.reservation, 1_600, 0.3)
    fleet.finish(decision.reservation, 0.4)
    assert fleet.open_reservations == 0


def test_the_prefill_rate_is_learnt_from_times_to_first_token(fleet: Fleet) -> None:
    """Predictions become the cluster's own."""
    before = fleet.choose(prompt(100_000, []), 0.0).scores[0].cost_s
    for at in range(40):
        decision = fleet.choose(prompt(50_000, []), float(at))
        fleet.first_token(decision.reservation, 0, at + 0.5)
        fleet.finish(decision.reservation, at + 0.6)
    fleet.tick(RESERVATION_TTL_S)
    for name in ("cold", "warm"):
        fleet.on_frame(name, frame(name, 0), RESERVATION_TTL_S)
    after = fleet.choose(prompt(100_000, []), RESERVATION_TTL_S).scores[0].cost_s
    assert after < before / 4


def test_a_mismatched_block_size_is_said_in_words(fleet: Fleet) -> None:
    """A replica whose events disagree with its own metadata is loud."""
    fleet.on_frame("warm", frame("warm", 1, Stored("gpu", (1,)), block_size=32), 0.1)
    status = fleet.status(0.2)[1]
    assert status.state == "mismatched"
    assert "another block size" in status.problems[0]


def test_status_shows_what_operators_ask_for(fleet: Fleet) -> None:
    """Per replica: state, blocks by tier, lag, reservations, and how true the predictions were."""
    decision = fleet.choose(prompt(), 0.1)
    fleet.first_token(decision.reservation, 1_584, 0.2)
    status = fleet.status(0.5)[1]
    assert (status.replica, status.state, status.routable, status.fenced) == ("warm", "live", True, False)
    assert status.blocks == {"gpu": 100, "cpu": 0, "disk": 0}
    assert (status.predicted_cached_tokens, status.actual_cached_tokens) == (1_600, 1_584)
    assert (status.silence_s, status.behind_frames, status.open_reservations) == (0.5, 0, 1)
    assert status.problems == ()
    loads, paces = "<Loads replicas=2 open=1 lost=0>", "<Paces 10000 tokens/s, 0.50 ms per decode>"
    assert repr(fleet) == f"<Fleet m replicas=2 {loads} {paces}>"


def test_another_policy_decides_when_it_is_given() -> None:
    """Round robin ignores what replicas hold but still predicts it."""
    fleet = Fleet(policy=RoundRobin())
    joined(fleet, "a", *PROMPT)
    joined(fleet, "b")
    decisions = [fleet.choose(prompt(), 0.1) for _ in range(4)]
    assert [one.candidates[0] for one in decisions] == ["a", "b", "a", "b"]
    assert decisions[0].predicted_cached_tokens == 1_600


def test_check_integrity_looks_into_every_part(fleet: Fleet) -> None:
    """A contradiction anywhere is found."""
    fleet._members["warm"].alive = False
    with pytest.raises(KvistBug, match="disagree"):
        fleet.check_integrity()
    fleet._members["warm"].feed._known = 99
    with pytest.raises(KvistBug, match="live means"):
        fleet.check_integrity()


@given(st.integers(1, 40), st.lists(st.integers(0, 100), min_size=2, max_size=6), st.booleans())
@settings(deadline=None, max_examples=60)
def test_equal_histories_give_equal_decisions(tokens: int, depths: list[int], tick: bool) -> None:
    """No randomness and no clock of its own: a recorded history can be replayed."""

    def history() -> list[tuple[str, ...]]:
        fleet = Fleet()
        for at, depth in enumerate(depths):
            joined(fleet, f"r{at}", *PROMPT[:depth])
        made = []
        for step in range(6):
            decision = fleet.choose(prompt(tokens * 40), 0.1 * step)
            made.append(decision.candidates)
            if tick:
                fleet.first_token(decision.reservation, 0, 0.1 * step + 0.05)
        fleet.check_integrity()
        return made

    assert history() == history()


def test_a_stolen_clock_cannot_make_an_old_frame_new(fleet: Fleet) -> None:
    """Frames that were applied are not applied again, however late they come."""
    stored = frame("cold", 1, Stored("gpu", (1, 2)))
    fleet.on_frame("cold", stored, 0.1)
    fleet.on_frame("cold", frame("cold", 2, Removed("gpu", (1, 2))), 0.2)
    fleet.on_frame("cold", stored, 0.3)
    assert fleet.resident("cold")["gpu"] == frozenset()
    assert limits.HEARTBEAT_INTERVAL_S < LEASE_S


@pytest.mark.parametrize(("optimistic", "predicted"), [(True, 400), (False, 1_600)])
def test_an_optimistic_replica_gets_credit_for_what_its_engine_proved_to_find(optimistic: bool, predicted: int) -> None:
    """The engine's own counts correct it, and only it: of others, what they show is what they have."""
    fleet = Fleet(model="m")
    [action] = fleet.join(info("r", optimistic=optimistic), 0.0)
    fleet.on_chunk("r", snapshot("r", -1, *PROMPT, request=action.request), 0.0)
    for turn in range(30):
        decision = fleet.choose(prompt(), 0.1 * turn)
        fleet.first_token(decision.reservation, 400, 0.1 * turn + 0.05)
        fleet.finish(decision.reservation, 0.1 * turn + 0.05)
    assert fleet.choose(prompt(), 3.0).predicted_cached_tokens == predicted
    assert fleet.status(3.0)[0].overstated_tokens == 1_600 - predicted
    fleet.check_integrity()


def test_a_preview_ranks_as_a_choice_would_and_reserves_nothing() -> None:
    """Asked twice it says the same, and the choice after it is the one foretold."""
    fleet = Fleet()
    joined(fleet, "cold")
    joined(fleet, "warm", *PROMPT)
    prompt = PromptBlocks(1_601, {16: PROMPT})
    foretold = fleet.preview(prompt, 0.0)
    assert fleet.preview(prompt, 0.0) == foretold
    assert fleet.open_reservations == 0
    assert fleet.choose(prompt, 0.0).scores == foretold
    assert [score.replica for score in foretold] == ["warm", "cold"]


def test_a_preview_without_any_replica_says_so() -> None:
    """As a choice does."""
    with pytest.raises(NoReplica):
        Fleet().preview(PromptBlocks(10, {}), 0.0)
