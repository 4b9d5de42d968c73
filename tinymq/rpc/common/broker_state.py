"""What the services serve: a broker, once there is one, and what state this process is in until then and after."""

from __future__ import annotations

from enum import Enum

from tinymq.base.errors import NotReady
from tinymq.base.meter import Meter, Unmetered
from tinymq.broker.serve.broker import Broker
from tinymq.broker.serve.slices import Slices


class State(Enum):
    """Of a broker process, as `cluster status` shows it."""

    UNFORMED = "unformed"  # its data folder belongs to no cluster yet
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    FAILED = "failed"  # its disk refused: it serves nothing more


_WHY = {
    State.UNFORMED: ("this broker belongs to no cluster yet", "form one: tinymq cluster init"),
    State.STARTING: ("this broker is starting", "try again shortly"),
    State.STOPPING: ("this broker is stopping", "ask another broker"),
    State.FAILED: ("this broker's disk failed", "ask another broker; see its log"),
}


class Serving:
    """Shared by all services of one process; changed by the application alone."""

    def __init__(self) -> None:
        self.state = State.STARTING
        self.meter: Meter = Unmetered()
        self.metrics_address = ""  # where what is measured is shown; "": nowhere
        self.stream_address = ""  # where clients dial the stream port; "": nowhere
        self.slices = Slices()  # of large requests
        self.broker: Broker | None = None  # set once running; kept while stopping, for answers under way

    def running(self) -> Broker:
        """The broker, or NotReady with the reason."""
        if self.state is State.RUNNING and self.broker is not None:
            return self.broker
        message, hint = _WHY.get(self.state, ("this broker is starting", ""))
        raise NotReady(message, hint=hint)
