"""A leader's knowledge of a follower, and the window of unacknowledged bytes: hazards 2, 18, 22."""

from __future__ import annotations

import random

from tinymq.raft.rules.messages import AppendAck
from tinymq.raft.rules.progress import Mode, Progress

WINDOW = 1000


def ack(durable: int, received: int | None = None, commit: int = 0) -> AppendAck:
    return AppendAck(
        term=1,
        durable=durable,
        received=durable if received is None else received,
        conflict=False,
        next=0,
        next_term=0,
        commit=commit,
        count=0,
    )


def test_one_message_at_a_time_until_the_logs_are_known_to_meet() -> None:
    p = Progress(next=5)
    assert p.may_send(WINDOW)
    p.sent(9, 100, 0.0)
    assert not p.may_send(WINDOW)
    assert p.next == 5
    assert p.acknowledged(ack(9), 0.1)
    assert (p.mode, p.match, p.next) == (Mode.REPLICATE, 9, 10)
    assert p.may_send(WINDOW)


def test_the_window_is_in_bytes_and_opens_with_what_is_synced() -> None:
    p = Progress(next=1, mode=Mode.REPLICATE)
    p.sent(1, 600, 0.0)
    p.sent(2, 600, 0.0)
    assert not p.may_send(WINDOW)
    # a received entry does not open the window: it may still be in the follower's memory
    p.acknowledged(ack(0, received=2), 0.1)
    assert not p.may_send(WINDOW)
    p.acknowledged(ack(1), 0.2)
    assert (p.may_send(WINDOW), p.inflight_bytes) == (True, 600)


def test_a_success_never_lowers_next() -> None:
    p = Progress(next=1, mode=Mode.REPLICATE)
    for index in range(1, 6):
        p.sent(index, 10, 0.0)
    p.acknowledged(ack(2), 0.1)
    assert (p.match, p.next) == (2, 6)
    p.acknowledged(ack(1), 0.2)  # an older answer
    assert (p.match, p.next) == (2, 6)


def test_a_conflict_goes_back_to_one_message_at_a_time() -> None:
    p = Progress(next=20, match=8, mode=Mode.REPLICATE)
    p.sent(25, 10, 0.0)
    p.conflicted(12)
    assert (p.mode, p.next, p.inflight_bytes, p.may_send(WINDOW)) == (Mode.PROBE, 12, 0, True)
    assert p.match == 8


def test_a_follower_that_lost_acknowledged_entries_is_probed_again() -> None:
    """The follower has a flipped bit behind its last mark: sending from behind `match` would conflict without end."""
    p = Progress(next=20, match=8, mode=Mode.REPLICATE)
    p.conflicted(6)
    assert (p.mode, p.next, p.match) == (Mode.PROBE, 6, 5)


def test_a_lost_connection_starts_again_behind_match() -> None:
    p = Progress(next=20, match=8, mode=Mode.REPLICATE)
    p.sent(25, 10, 0.0)
    p.restart()
    assert (p.mode, p.next, p.match, len(p.inflight)) == (Mode.PROBE, 9, 8, 0)


def test_invariants_hold_for_random_answers() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        p = Progress(next=rng.randint(1, 10))
        last, now = 30, 0.0
        for _ in range(60):
            now += 0.01
            match rng.randrange(4):
                case 0 if p.may_send(WINDOW) and p.next <= last:
                    p.sent(rng.randint(p.next, last), rng.randint(64, 400), now)
                case 1:
                    durable = rng.randint(0, last)
                    p.acknowledged(ack(durable, rng.randint(durable, last), rng.randint(0, durable)), now)
                case 2:
                    p.conflicted(rng.randint(1, last))
                case 3:
                    p.restart()
            assert p.next > p.match, seed
            assert p.inflight_bytes == sum(size for _, size in p.inflight), seed
            assert list(p.inflight) == sorted(p.inflight), seed
