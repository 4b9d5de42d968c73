"""Two processes with one broker number: a copy of a data directory is refused while the brokers hear the first one.

The other checkers judge acknowledged records, elections and states as always: a second process changes no promise.
"""

from __future__ import annotations

from collections.abc import Iterator

from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.checkers.common.facts import Facts

REASON = "another process of broker"  # words of the refusal that an operator reads
TOLD_S = 1.0  # a second process dials at once


def copies_let_in(facts: Facts) -> Iterator[Anomaly]:
    """A copy of a broker's data directory takes part. The harness ends it when the first broker is not heard."""
    for twin in facts.history.twins:
        if twin.copied and twin.let_in:
            what = f"a copy of broker {twin.broker}, which all others hear, is let in by {twin.let_in}"
            yield Anomaly(AnomalyKind.SECOND_BROKER, what, brokers=(twin.broker,), times_s=(twin.at_s,))


def copies_untold(facts: Facts) -> Iterator[Anomaly]:
    """A copy is not told why nobody talks to it."""
    for twin in facts.history.twins:
        lived_s = (twin.until_s if twin.until_s is not None else facts.history.now()) - twin.at_s
        if twin.copied and lived_s >= TOLD_S and not any(REASON in reason for reason in twin.told):
            what = f"a copy of broker {twin.broker} is not told of the first one, but {twin.told or 'nothing'}"
            yield Anomaly(AnomalyKind.SECOND_BROKER, what, brokers=(twin.broker,), times_s=(twin.at_s,))
