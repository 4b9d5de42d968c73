"""Whether handlers are live, as values and one rule. `health()` of a client reads them from any thread; no I/O."""

from __future__ import annotations

from dataclasses import dataclass

TICK_S = 0.5
LOOP_SILENT_S_MAX = 5.0  # a loop that has not ticked for so long is blocked, so no handler of this process is live
DETACHED_S_MAX = 30.0  # time for a group's failover, before a probe should restart the process


@dataclass(frozen=True, slots=True)
class HandlerHealth:
    """One subscription.

    for handler in mq.health().handlers:
        print(handler.group, handler.running, handler.last_error)
    """

    handler: str
    group: str
    live: bool
    state: str  # "joining", "handling", "detached" (its session broke; it joins again), "failed" or "stopped"
    running: int  # handlers that have begun and not ended
    oldest_s: float  # how long the oldest of these has run; 0.0 without one
    handled: int  # records, since `serve` began
    errors: int  # of handlers, since `serve` began
    last_error: str = ""  # in one line


@dataclass(frozen=True, slots=True)
class Health:
    """A client's handlers. True in a condition if all are live.

    status = 200 if mq.health() else 503
    """

    live: bool
    reason: str  # why it is not live; "" if it is
    handlers: tuple[HandlerHealth, ...] = ()

    def __bool__(self) -> bool:
        return self.live


NOT_SERVING = Health(False, "run() or serve() is not running")
NOTHING_SUBSCRIBED = Health(True, "")  # a program that only sends or reads: its probe must not restart it


def judge(handlers: tuple[HandlerHealth, ...], loop_silent_s: float) -> Health:
    """The health of a client whose loop was last heard `loop_silent_s` seconds ago."""
    if loop_silent_s > LOOP_SILENT_S_MAX:
        reason = f"the client's loop is blocked for {loop_silent_s:.1f} s: an async handler must not block"
        return Health(False, reason, handlers)
    dead = [each for each in handlers if not each.live]
    reason = "; ".join(f"{each.handler} of group {each.group} is {each.state}" for each in dead)
    return Health(not dead, reason, handlers)


def is_live(state: str, detached_s: float) -> bool:
    """Whether a handler in that state is live; it was last attached `detached_s` seconds ago."""
    return state in ("handling", "stopped") or (state in ("joining", "detached") and detached_s <= DETACHED_S_MAX)
