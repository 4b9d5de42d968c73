"""The phase of a transaction as a stored number."""

from __future__ import annotations

from collections.abc import Mapping

from tinymq.base.errors import CorruptData
from tinymq.broker.transactions.transactional_id import Phase
from tinymq.proto import transaction_pb2 as pb

_PHASES: Mapping[Phase, pb.TransactionState.Phase.ValueType] = {
    Phase.OPEN: pb.TransactionState.OPEN,
    Phase.COMMITTED: pb.TransactionState.COMMITTED,
    Phase.ABORTED: pb.TransactionState.ABORTED,
}
_PHASE_OF = {number: phase for phase, number in _PHASES.items()}


def pack_phase(phase: Phase) -> pb.TransactionState.Phase.ValueType:
    return _PHASES[phase]


def parse_phase(number: pb.TransactionState.Phase.ValueType) -> Phase:
    """Raises CorruptData for a number that stands for no phase."""
    phase = _PHASE_OF.get(number)
    if phase is None:
        raise CorruptData(f"a transaction is in phase {number}, which does not exist")
    return phase
