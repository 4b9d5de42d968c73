"""A local cluster of plain processes: start it, inspect it, kill single brokers, stop it.

It signals only processes that it started itself (tinymq/dev/process.py).
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tinymq.base.errors import InvalidRequest, NotReady
from tinymq.base.private_files import open_to_others
from tinymq.base.quantity import named, quantity
from tinymq.dev import ask, cause, dev_directory, process
from tinymq.dev.dev_directory import DevBroker, DevDirectory
from tinymq.net.loopback_ports import PortReservation

READY_S_MAX = 60.0  # from a broker's start until it serves
STOP_S_MAX = 15.0  # within this time, a broker that gets SIGTERM transfers its leaderships and ends
ASK_S_MAX = 1.0
POLL_S = 0.05
ADMINISTRATOR = "admin"  # the first user of a secure cluster

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LocalBroker:
    """One broker as `dev status` shows it."""

    id: int
    pid: int | None  # None: no process runs
    address: str
    metrics: str  # the address of its /metrics page; "": it has none
    state: str  # stopped | starting | unformed | running | stopping | failed


def up(
    path: Path, brokers: int | None, say: Say, first_port: int = dev_directory.ANY_PORT, *, secure: bool = False
) -> DevDirectory:
    """Start the stopped brokers of the cluster in `path`, and return when the cluster serves.

    Creates the cluster first if there is none. A new cluster gets its ports from `first_port` on, by the rules of
    dev_directory.create. If the cluster does not come up, the brokers that this call started are stopped again.
    `secure`: a new cluster requires TLS and checks its callers; its administrator's token is in the directory.
    """
    if not dev_directory.exists(path):
        dev_directory.check_number(3 if brokers is None else brokers)
    with dev_directory.locked(path), PortReservation() as ports:
        folder = _load_or_create(path, brokers, first_port, secure, ports)
        if mode := open_to_others(path):
            say(f"warning: other users can enter {path}, which has mode {mode}; to prevent that: chmod 700 {path}")
        started: list[DevBroker] = []
        try:
            for broker in folder.brokers:
                if not _runs(folder, broker):
                    _start(folder, broker)
                    started.append(broker)
                    say(f"broker {broker.id} started on {broker.address}")
            if not folder.formed:
                folder = _form(folder, say)
            if folder.secure and not folder.token:
                _secure(folder, say)
            _wait_ready(folder, folder.brokers)
        except BaseException:
            _stop(folder, started)
            if started:
                say(f"stopped again: {_named(started)}")
            raise
        return folder


def add(path: Path, say: Say) -> DevBroker:
    """Add a broker to the running cluster in `path`, and return when the broker serves.

    If the broker does not come up, it is removed again with all its files.
    """
    with dev_directory.locked_cluster(path) as folder, PortReservation() as ports:
        if not any(_runs(folder, broker) for broker in folder.voters):
            raise InvalidRequest(
                f"no voter of the cluster in {path} runs, so no broker can join it", hint="tinymq dev up"
            )
        folder = folder.with_one_more(ports.take)
        broker = folder.brokers[-1]
        try:
            _start(folder, broker)
            say(f"broker {broker.id} started on {broker.address}")
            _wait_ready(folder, [broker])
        except BaseException:
            _stop(folder, [broker])
            folder.without(broker)
            raise
        return broker


def start(path: Path, number: int) -> DevBroker:
    """Start broker `number` without waiting for it (see `wait_ready`)."""
    with dev_directory.locked_cluster(path) as folder:
        broker = folder.broker(number)
        if _runs(folder, broker):
            hint = f"see tinymq dev status; tinymq dev stop {number} stops it"
            raise InvalidRequest(f"broker {number} runs already", hint=hint)
        _start(folder, broker)
        return broker


def wait_ready(path: Path, number: int) -> None:
    """Return when broker `number` serves. Raises NotReady with the cause.

    Raises at once if too few of the other voters run, because then waiting cannot help.
    """
    folder = dev_directory.load(path)
    down = [broker for broker in folder.voters if not _runs(folder, broker)]
    if 2 * len(down) >= len(folder.voters):
        reason = f"broker {number} is started, and serves once a majority of {_named(folder.voters)} runs"
        raise NotReady(reason, hint=f"tinymq dev up also starts {_named(down)}")
    _wait_ready(folder, [folder.broker(number)])


def kill(path: Path, number: int) -> DevBroker:
    """Kill broker `number` (SIGKILL). It transfers no leadership and writes nothing more."""
    return _end(path, number, signal.SIGKILL)


def stop(path: Path, number: int) -> DevBroker:
    """Stop broker `number` in order (SIGTERM), and wait until it has ended."""
    return _end(path, number, signal.SIGTERM)


def down(path: Path, *, purge: bool) -> list[DevBroker]:
    """Stop every running broker, and return those brokers. With `purge`, remove the directory with all data."""
    with dev_directory.locked_cluster(path) as folder:
        running = [broker for broker in folder.brokers if _runs(folder, broker)]
        _stop(folder, folder.brokers)
        if purge:
            folder.remove()
        return running


def status(path: Path) -> list[LocalBroker]:
    """Return the state of each broker, from its process and from its own status."""
    folder = dev_directory.load(path)
    return [_state(folder, broker) for broker in folder.brokers]


def _load_or_create(
    path: Path, brokers: int | None, first_port: int, secure: bool, ports: PortReservation
) -> DevDirectory:
    if not dev_directory.exists(path):
        count = 3 if brokers is None else brokers
        return dev_directory.create(path, count, first_port, secure=secure, take_ports=ports.take)
    folder = dev_directory.load(path)
    if secure and not folder.secure:
        hint = "leave out --secure, or remove the cluster with its data first: tinymq dev down --purge"
        raise InvalidRequest(f"the cluster in {path} was made without TLS", hint=hint)
    if brokers not in (None, len(folder.brokers)):
        hint = "leave out -n; tinymq dev add adds a broker, tinymq dev down --purge removes the cluster with its data"
        raise InvalidRequest(
            f"the cluster in {path} has {quantity(len(folder.brokers), 'broker')}, not {brokers}", hint=hint
        )
    return folder


def _named(brokers: Sequence[DevBroker]) -> str:
    return named("broker", (broker.id for broker in brokers))


def _runs(folder: DevDirectory, broker: DevBroker) -> bool:
    process = folder.process(broker.id)
    return process is not None and process.alive


def _start(folder: DevDirectory, broker: DevBroker) -> None:
    command = [sys.executable, "-m", "tinymq.cli.main", "broker", "--config", str(folder.config(broker.id).absolute())]
    if not broker.metrics_address:
        command += ["--metrics-listen", ""]  # the default is a fixed port, which only one broker of a machine can use
    cause.mark_start(folder.log(broker.id), broker.id, datetime.now(UTC).isoformat())
    with process.uninterrupted():
        folder.set_process(broker.id, process.start(command, folder.log(broker.id)))


def _end(path: Path, number: int, signal_number: signal.Signals) -> DevBroker:
    with dev_directory.locked_cluster(path) as folder:
        broker = folder.broker(number)
        running = folder.process(number)
        if running is None or not running.signal(signal_number):
            raise InvalidRequest(f"broker {number} does not run", hint=f"tinymq dev start {number}")
        if not running.wait_gone(time.monotonic() + STOP_S_MAX):
            process.stop([running], 0.0)
        folder.set_process(number, None)
        return broker


def _stop(folder: DevDirectory, brokers: Sequence[DevBroker]) -> None:
    running = [folder.process(broker.id) for broker in brokers]
    process.stop([each for each in running if each is not None], STOP_S_MAX)
    for broker in brokers:
        folder.set_process(broker.id, None)


def _form(folder: DevDirectory, say: Say) -> DevDirectory:
    deadline = time.monotonic() + READY_S_MAX
    for broker in folder.voters:
        _wait_state(folder, broker, ("unformed", "running"), deadline)
    formed = ask.form([broker.address for broker in folder.voters], folder.secret, READY_S_MAX, folder.tls)
    say(f"cluster {formed.cluster_id.hex()} formed")
    return folder.set_formed()


def _secure(folder: DevDirectory, say: Say) -> None:
    """Make an administrator, and let the brokers check their callers from now on."""
    _wait_ready(folder, folder.voters)
    addresses = [broker.address for broker in folder.voters]
    token = ask.administrator(addresses, folder.secret, ADMINISTRATOR, READY_S_MAX, folder.tls)
    ask.check_callers(folder.servers, folder.authority, token)
    folder.keep_token(token)
    say(f"callers are checked; the token of the user {ADMINISTRATOR} is in {folder.token_file}")


def _wait_ready(folder: DevDirectory, brokers: Sequence[DevBroker]) -> None:
    deadline = time.monotonic() + READY_S_MAX
    for broker in brokers:
        _wait_state(folder, broker, ("running",), deadline)


def _wait_state(folder: DevDirectory, broker: DevBroker, states: Sequence[str], deadline: float) -> None:
    """Wait until the broker is in one of `states`. Raises NotReady, with the cause that its log names."""
    while (state := _state(folder, broker).state) not in states:
        late = time.monotonic() >= deadline
        if late or state in ("stopped", "failed"):
            outcome = f"is still {state} after {READY_S_MAX:.0f} s" if late else "did not start"
            why = cause.of_log(folder.log(broker.id))
            hint = "; ".join(filter(None, (why.hint, f"its log is {folder.log(broker.id)}")))
            raise NotReady(f"broker {broker.id} {outcome}: {why.message}", hint=hint)
        time.sleep(POLL_S)


def _state(folder: DevDirectory, broker: DevBroker) -> LocalBroker:
    process = folder.process(broker.id)
    if process is None or not process.alive:
        return LocalBroker(broker.id, None, broker.address, broker.metrics_address, "stopped")
    state = ask.state(broker.address, ASK_S_MAX, folder.tls, folder.token) or "starting"
    return LocalBroker(broker.id, process.pid, broker.address, broker.metrics_address, state)
