"""Hand-made folders of runs with known answers, for tests of reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tinymq_chaos.history import FinalReplica, History, Outcome, StoredEntry

TOPIC = "orders#00ff"


class Tape:
    """A history with a clock that the test sets, in seconds."""

    def __init__(self) -> None:
        self.at_s = 0.0
        self.history = History(lambda: self.at_s)
        self._count = 0

    def send(self, began_s: float, ended_s: float, outcome: Outcome = Outcome.OK, **args: Any) -> str:
        """Send one record to a partition; return its name. The offsets are those of one partition."""
        record = f"p-{self._count}"
        self.at_s = began_s
        given = {"topic": TOPIC, "partition": 0, "records": [record], "idempotent": True} | args
        call = self.history.invoke("producer", "send", began_s + 5, **given)
        self.at_s = ended_s
        if outcome is Outcome.OK:
            call.ok([given["partition"], self._count])
        elif outcome is Outcome.FAILED:
            call.failed("Unavailable")
        elif outcome is Outcome.UNKNOWN:
            call.unknown("OutcomeUnknown")
        self._count += 1
        return record

    def fault(self, kind: str, what: str, began_s: float, ended_s: float | None) -> None:
        self.at_s = began_s
        span = self.history.fault_began(kind, what)
        if ended_s is not None:
            self.at_s = ended_s
            self.history.fault_ended(span)

    def led(self, began_s: float, term: int, broker: int, topic: str = TOPIC) -> None:
        self.at_s = began_s
        self.history.led((topic, 0), term, broker)

    def replicas(self, records: list[str], brokers: tuple[int, ...] = (1, 2, 3), topic: str = TOPIC) -> None:
        entries = tuple(StoredEntry(i, 1, i, 0, 0, (record,)) for i, record in enumerate(records))
        for broker in brokers:
            role = "leader" if broker == brokers[0] else "follower"
            replica = FinalReplica(
                (topic, 0),
                broker,
                role,
                high_watermark=len(records),
                commit_index=len(records),
                log_start=0,
                entries=entries,
            )
            self.history.replicas.append(replica)

    def end(self, at_s: float) -> None:
        self.at_s = at_s
        self.history.end()

    def keep(self, folder: Path, **said: Any) -> Path:
        """Write a run's folder."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "history.jsonl").write_text("".join(f"{line}\n" for line in self.history.lines()))
        (folder / "run.json").write_text(json.dumps(said))
        return folder


def steady(until_s: int, but: tuple[float, float] = (0, 0)) -> Tape:
    """Write every 100 ms; each write takes 10 ms, except those in `but`, which are answered at its end."""
    tape = Tape()
    sent = []
    for i in range(until_s * 10):
        began_s = i / 10
        ended_s = but[1] if but[0] <= began_s < but[1] else began_s + 0.01
        sent.append(tape.send(began_s, ended_s))
    tape.replicas(sent)
    tape.end(float(until_s))
    return tape
