"""`tinymq outbox`: send what applications have written into the outbox of their database."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from types import FrameType
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from tinymq.base.errors import InvalidRequest, NotFound, Unavailable
from tinymq.base.quantity import quantity
from tinymq.cli.common.confirmation import confirm
from tinymq.cli.common.options import Lines, Output
from tinymq.cli.common.output import print_json, print_json_line, print_table, say
from tinymq.cli.common.servers import DEFAULT_SERVERS, ServerOptions
from tinymq.cli.verbs.topic import Yes

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from tinymq.outbox.relay import Relay, RelayStatus

TICK_S = 0.2
HELP = """
An application writes a record into a table of its own database, in the transaction that changes its data:
outbox.send(connection, "orders", ...) of tinymq.outbox. The relay sends the committed ones, each exactly once, whatever
crashes. docs/outbox.md tells how.

DATABASE is a URL of SQLAlchemy. Give it as TINYMQ_OUTBOX_DATABASE if it has a password: others see the command line.

Example: tinymq outbox create --database sqlite:///shop.db

Example: tinymq outbox relay --database postgresql+psycopg://app@db.example.org/shop

Example: tinymq outbox status --database sqlite:///shop.db -o json
"""

app = App(name="outbox", help="The outbox of a database: relay, status, create, resolve.", help_epilogue=HELP)

DatabaseUrl = Annotated[
    str, Parameter(name="--database", env_var="TINYMQ_OUTBOX_DATABASE", help="The database, as a URL of SQLAlchemy.")
]


@app.command
def relay(
    *,
    database: DatabaseUrl,
    rows_max: Annotated[int, Parameter(help="Rows in one transaction, at most.")] = 500,
    poll_ms: Annotated[float, Parameter(help="Between two looks into an empty table.")] = 100,
    lease_ms: Annotated[
        float, Parameter(help="A relay that is silent for so long is replaced by one that waits.")
    ] = 10_000,
    status_every: Annotated[float, Parameter(help="Seconds between two lines that say how many rows were sent.")] = 10,
    metrics: Annotated[
        str | None, Parameter(help="Serve metrics for Prometheus there: HOST:PORT, such as 127.0.0.1:9471.")
    ] = None,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Lines = "table",
) -> None:
    """Send the rows of an outbox, until Ctrl-C.

    Start as many as you like, on any machines: one works, the others wait, and one of them takes over when it stops or
    is silent for --lease-ms. Brokers and database may come and go. The first Ctrl-C, or SIGTERM, ends the transaction
    under way; a second one ends the relay at once, and the next relay finds out what it had done.

    A row that the brokers refuse for good, such as one for a topic that does not exist, is named, and holds up those
    behind it, so that nothing is overtaken: make the topic, or mend or delete the row. The relay fails if an operator
    has to decide first: see `tinymq outbox resolve`.

    --metrics serves /metrics without TLS and to everybody who reaches the port: loopback, or a private network.

    With -o json, each change of the status is a line on standard output.
    """
    from tinymq.outbox.relay import Relay, RelayConfig

    if not status_every > 0:
        raise InvalidRequest(f"--status-every {status_every:g}: it must be more than 0")
    config = RelayConfig(rows_max=rows_max, poll_ms=poll_ms, lease_ms=lease_ms)
    servers.named()  # raises now, and not in the thread
    told = _Told(as_json=output != "table")
    stop = threading.Event()
    working = Relay(_engine(database), servers.connect, config, told.on_status)
    asked: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        asked.append(number)  # and nothing else: the thread below may hold any lock
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    ticks_max, ticks = max(1, round(status_every / TICK_S)), 0
    with _metrics_port(metrics, working), ThreadPoolExecutor(1) as pool:
        running = pool.submit(working.run, stop)
        while not wait([running], timeout=TICK_S).done:
            ticks += 1
            if ticks % ticks_max == 0:
                told.progress(working.status)
            if asked and not stop.is_set():
                say("stopping: the transaction under way ends first")
                stop.set()
    running.result()
    say(f"stopped: {_sent(working.status)}")


@app.command
def status(*, database: DatabaseUrl, output: Output = "table") -> None:
    """Show how many rows wait, how many of them are in a transaction, and the transactional id of the relay.

    `beat` rises while a relay works. The outcome of the newest transaction: tinymq transaction describe ID.
    """
    from tinymq.outbox.store import RelayStore

    store = RelayStore(_engine(database))
    store.check()
    standing, (rows, marked) = store.standing(), store.counts()
    if output == "json":
        epoch = None if standing.owner is None else standing.owner[1]
        print_json({
            "rows": rows, "marked": marked, "transactional_id": standing.transactional_id, "epoch": epoch,
            "beat": standing.beat, "released": standing.released,
        })  # fmt: skip
        return
    columns = ["rows", "in a transaction", "transactional id", "beat", "relay"]
    relay_is = "none" if standing.owner is None else "stopped" if standing.released else "working, or lost"
    print_table(columns, [(rows, marked, standing.transactional_id, standing.beat, relay_is)])


@app.command
def create(*, database: DatabaseUrl) -> None:
    """Create the tables of the outbox, if they are missing. Applications with migrations of their own need no such
    command: the tables are in their MetaData."""
    from tinymq.outbox.store import RelayStore

    RelayStore(_engine(database)).create()
    say("the tables are there: tinymq_outbox, tinymq_outbox_relay")


@app.command
def resolve(
    *,
    database: DatabaseUrl,
    sent: Annotated[bool, Parameter(negative="", help="The rows are in the log: remove them.")] = False,
    unsent: Annotated[bool, Parameter(negative="", help="They are not: send them again.")] = False,
    yes: Yes = False,
    servers: ServerOptions = DEFAULT_SERVERS,
) -> None:
    """Decide about the rows of a transaction whose outcome nobody knows, so that the relay can go on.

    The relay has stopped, and said so: nobody had used its transactional id for 7 days, or the cluster has lost a part
    of `__coordinator`, or the database was restored from a backup. Look into the topics first: with --sent, rows that
    are not there are lost; with --unsent, rows that are there appear twice. Stop all relays before.
    """
    from tinymq.outbox.relay import resolve as carry_out
    from tinymq.outbox.store import RelayStore

    if sent == unsent:
        raise InvalidRequest("say what became of the rows", hint="give --sent or --unsent")
    engine = _engine(database)
    store = RelayStore(engine)
    store.check()
    _, marked = store.counts()
    does = "remove" if sent else "send again"
    confirm(f"{does} {quantity(marked, 'row')} of a transaction of unknown outcome", yes)
    with servers.connect() as mq:
        count = carry_out(engine, mq, sent=sent)
    say(f"{quantity(count, 'row')} {'removed' if sent else 'will be sent again'}; start the relay")


def _metrics_port(listen: str | None, working: Relay) -> AbstractContextManager[object]:
    """The port that serves the relay's metrics; None: there is none. Raises InvalidConfig."""
    if listen is None:
        return nullcontext()
    from tinymq.cli.common.broker_log import PartitionNames, set_up
    from tinymq.metrics.outbox import RelayFigures, RelayPort

    def figures() -> RelayFigures:
        status = working.status
        return RelayFigures(
            state=status.state, transactional_id=status.transactional_id, sent=status.sent, recovered=status.recovered,
            transactions=status.transactions, failures=status.failures, pending=status.backlog.rows,
            oldest_us=status.backlog.oldest_us,
        )  # fmt: skip

    set_up("text", PartitionNames())
    return RelayPort(listen, figures, "--metrics")


class _Told:
    """The messages of `relay` to its user."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._state = ("", "")
        self._sent = 0

    def on_status(self, status: RelayStatus) -> None:
        """The status has changed."""
        if self._as_json:
            print_json_line(asdict(status))
        state = status.state, status.error
        if state == self._state:
            return
        self._state = state
        if status.state == "working" and not status.error:
            say(f"working as {status.transactional_id}")
        elif status.state == "standby":
            say("another relay works: waiting")
        elif status.error:
            say(f"trying again: {status.error}")

    def progress(self, status: RelayStatus) -> None:
        """Some time has passed."""
        if status.sent != self._sent:
            self._sent = status.sent
            say(_sent(status))


def _sent(status: RelayStatus) -> str:
    return f"{quantity(status.sent, 'row')} sent in {quantity(status.transactions, 'transaction')}"


def _engine(database: str) -> Engine:
    """Raises InvalidRequest for a malformed URL, Unavailable if the database does not answer."""
    from tinymq.base.extras import required

    with required("tinymq outbox"):
        from sqlalchemy import create_engine
        from sqlalchemy.exc import ArgumentError, DBAPIError, InvalidRequestError, NoSuchModuleError

    hint = "a URL of SQLAlchemy with a driver for threads, such as postgresql+psycopg://user@host/name"
    try:
        engine = create_engine(database, pool_pre_ping=True)
        with engine.connect():
            return engine
    except ModuleNotFoundError as error:
        raise NotFound(f"the driver of this database is not installed: {error.name}", hint="pip install it") from None
    except (ArgumentError, NoSuchModuleError, InvalidRequestError) as error:
        raise InvalidRequest(f"--database: {error}", hint=hint) from None
    except DBAPIError as error:
        raise Unavailable(
            f"the database does not answer: {error.orig}", hint="look at --database, and at the server"
        ) from None
