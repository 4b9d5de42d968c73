"""The state of this broker process, and the broker while it runs."""

from __future__ import annotations

from enum import Enum

from tinymq.access.audit import Audit
from tinymq.access.gate import Gate
from tinymq.base.clock import SystemClock
from tinymq.base.config import Limits
from tinymq.base.errors import NotReady
from tinymq.base.meter import Meter, Unmetered
from tinymq.broker.coordinator.coordinator import Coordinator
from tinymq.broker.coordinator.transaction_coordinator import TransactionCoordinator
from tinymq.broker.dead_letters.dead_letters import DeadLetters
from tinymq.broker.group_watch import GroupWatch
from tinymq.broker.groups.groups import Groups
from tinymq.broker.half_messages.half_coordinator import HalfCoordinator
from tinymq.broker.serve.broker import Broker
from tinymq.broker.serve.quotas import Quotas
from tinymq.broker.serve.slices import Slices
from tinymq.broker.work.unary_worker import UnaryWorkers
from tinymq.broker.work.workers import Workers
from tinymq.rpc.common.forward_mark import ForwardMarks


class BrokerState(Enum):
    """The state of a broker process, as `tinymq cluster status` shows it."""

    UNFORMED = "unformed"  # its data directory belongs to no cluster yet
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    FAILED = "failed"  # its disk failed: it serves nothing more


_WHY = {
    BrokerState.UNFORMED: (
        "this broker belongs to no cluster yet",
        "form one: tinymq cluster init -s ALL-BROKERS --secret-file FILE",
    ),
    BrokerState.STARTING: ("this broker is starting", "try again shortly"),
    BrokerState.STOPPING: ("this broker is stopping", "ask another broker"),
    BrokerState.FAILED: ("this broker's disk failed", "ask another broker; see its log"),
}


class Serving:
    """The state that all services of one process share. Only the application changes it."""

    def __init__(self, gate: Gate | None = None, secret: bytes = b"") -> None:
        """`gate` decides which calls are served; without one, all are. `secret`: of the cluster."""
        self.gate = gate if gate is not None else Gate(SystemClock(), Audit(SystemClock()))
        self.marks = ForwardMarks(secret)
        self.state = BrokerState.STARTING
        self.meter: Meter = Unmetered()
        self.quotas = Quotas(SystemClock(), Limits())
        self.metrics_address = ""  # of the metrics page, host:port; "" if there is none
        self.stream_address = ""  # of the stream port for clients, host:port; "" if there is none
        self.slices = Slices()  # the turns in which large requests are served
        self.broker: Broker | None = None  # set when it runs, and kept while it stops: open calls still need it

        self.groups: Groups | None = None  # set together with `broker`, as is the next one
        self.coordinator: Coordinator | None = None
        self.transactions: TransactionCoordinator | None = None
        self.half_messages: HalfCoordinator | None = None
        self.workers: Workers | None = None
        self.unary: UnaryWorkers | None = None
        self.letters: DeadLetters | None = None
        self.group_watch: GroupWatch | None = None

    def running_groups(self) -> Groups:
        """Return the groups of the cluster. Raises NotReady as `running`."""
        self.running()
        assert self.groups is not None, "set together with the broker"
        return self.groups

    def coordinating(self) -> Coordinator:
        """Return the coordinator of stream groups here. Raises NotReady as `running`."""
        self.running()
        assert self.coordinator is not None, "set together with the broker"
        return self.coordinator

    def deciding(self) -> TransactionCoordinator:
        """Return the coordinator of transactions here. Raises NotReady as `running`."""
        self.running()
        assert self.transactions is not None, "set together with the broker"
        return self.transactions

    def checking(self) -> HalfCoordinator:
        """Return the coordinator of half messages here. Raises NotReady as `running`."""
        self.running()
        assert self.half_messages is not None, "set together with the broker"
        return self.half_messages

    def working(self) -> Workers:
        """Return the workers of queue groups here. Raises NotReady as `running`."""
        self.running()
        assert self.workers is not None, "set together with the broker"
        return self.workers

    def unary_workers(self) -> UnaryWorkers:
        """Return the workers of queue groups that call for single records. Raises NotReady as `running`."""
        self.running()
        assert self.unary is not None, "set together with the broker"
        return self.unary

    def dead_letters(self) -> DeadLetters:
        """Return the dead letters of this broker. Raises NotReady as `running`."""
        self.running()
        assert self.letters is not None, "set together with the broker"
        return self.letters

    def watching_groups(self) -> GroupWatch:
        """Return the consumer groups of this broker, for metrics and status. Raises NotReady as `running`."""
        self.running()
        assert self.group_watch is not None, "set together with the broker"
        return self.group_watch

    def running(self) -> Broker:
        """Return the broker. Raises NotReady with the reason why there is none."""
        if self.state is BrokerState.RUNNING and self.broker is not None:
            return self.broker
        message, hint = _WHY.get(self.state, ("this broker is starting", ""))
        raise NotReady(message, hint=hint, state=self.state.value)
