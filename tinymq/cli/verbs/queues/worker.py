"""`tinymq worker`: run a program for each record of a queue group."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from tinymq.base.errors import InvalidRequest
from tinymq.cli.common.options import Lines
from tinymq.cli.common.output import print_json_line, say
from tinymq.cli.common.servers import DEFAULT_SERVERS, ServerOptions
from tinymq.cli.common.template import iso
from tinymq.cli.verbs.group import place_of, setting_of

if TYPE_CHECKING:
    from tinymq.client import Client, Job

REJECT = 100  # the exit code of a program that rejects its record
STDERR_BYTES_MAX = 4096  # of a program that failed: they become the error of the delivery
VARIABLE_BYTES_MAX = 32 << 10  # of the environment, which the system bounds as a whole
TICK_S = 0.2
FINISH_S = 1e6  # for programs that have begun: a second Ctrl-C ends the wait
HELP = """
The program gets the record's value on its standard input, and in its environment TINYMQ_TOPIC, TINYMQ_PARTITION,
TINYMQ_OFFSET, TINYMQ_DELIVERY (1 at first), TINYMQ_TIMESTAMP, TINYMQ_KEY, and TINYMQ_HEADERS as JSON. A key that is
no text is in TINYMQ_KEY_BASE64 instead. What a record contains never becomes a part of the command line.

Exit code 0: the record is done. 100: no program can handle it, and it becomes a dead letter. Any other: the
delivery has failed, with the end of the program's standard error as the reason; the record is delivered again after
the group's next pause, or becomes a dead letter.

Several workers may run, on any machines. Ctrl-C starts no further program and waits for those that run; a second
one kills them, and their deliveries have failed.

Example: tinymq worker emails -g mailer --exec ./send.sh --set lease_ms=60000
"""  # below the options: what `commands.py` says of a verb replaces its docstring

app = App(name="worker", help_epilogue=HELP)


@app.default
def worker(
    topic: Annotated[str, Parameter(help="The topic.")],
    /,
    *,
    group: Annotated[str, Parameter(name=["--group", "-g"], help="The queue group; it is made if there is none.")],
    exec_: Annotated[str, Parameter(name="--exec", help="The program, as a line for /bin/sh.")],
    concurrency: Annotated[int, Parameter(name=["--concurrency", "-c"], help="Programs at a time.")] = 1,
    time_limit: Annotated[
        float | None, Parameter(help="Kill a program that runs for so many seconds; its delivery has failed.")
    ] = None,
    count: Annotated[
        int | None, Parameter(name=["--count", "-n"], help="Stop after so many records; with -c, some more.")
    ] = None,
    idle: Annotated[float | None, Parameter(help="Stop after so many seconds without a record.")] = None,
    start: Annotated[str, Parameter(help="start, end or @time: where a new group begins.")] = "start",
    set_: Annotated[
        list[str] | None, Parameter(name="--set", help="A setting of a new group, NAME=VALUE; may be repeated.")
    ] = None,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Lines = "table",
) -> None:
    """Run a program for each record of a queue group, until Ctrl-C."""
    if time_limit is not None and time_limit <= 0:
        raise InvalidRequest(f"--time-limit {time_limit}: it must be more than 0")
    settings = dict(setting_of(text) for text in set_ or [])
    programs = Programs(exec_, time_limit, as_json=output != "table", count_max=count)
    with servers.connect() as mq:
        programs.stop = mq.stop
        mq.subscribe(
            topic, group=group, kind="queue", concurrency=concurrency, start=place_of(start), group_settings=settings
        )(programs.run)
        watching = threading.Thread(target=_watch, args=(mq, programs, idle), daemon=True)
        watching.start()
        try:
            mq.run(stop_timeout=FINISH_S)
        finally:
            programs.end()
            watching.join()
    say(programs.summary())
    if programs.refusal:
        raise InvalidRequest(programs.refusal, hint="correct --exec; the record waits for its next delivery")


NOT_RUN = (126, 127)  # exit codes of a shell that could not run the command


class Programs:
    """The programs of one worker, one for each record in hand. Many threads call `run`."""

    def __init__(self, command: str, limit_s: float | None, *, as_json: bool, count_max: int | None) -> None:
        self.stop: Callable[[], object] = lambda: None  # ends the worker
        self.ended = threading.Event()
        self.used_s = time.monotonic()  # when a program last began or ended
        self.refusal = ""  # why the command cannot be run
        self._command = command
        self._limit_s = limit_s
        self._as_json = as_json
        self._count_max = count_max
        self._begun = 0
        self._outcomes = {"done": 0, "failed": 0, "rejected": 0}
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()

    @property
    def idle_s(self) -> float:
        """For how long no program has run."""
        with self._lock:
            return 0.0 if self._running else time.monotonic() - self.used_s

    def run(self, job: Job) -> None:
        """Handle a job by a program. Settles it."""
        with self._lock:
            self._begun += 1
            if self._count_max is not None and self._begun >= self._count_max:
                self.stop()
        began_s = time.monotonic()
        code, error = self._carry_out(job)
        if code in NOT_RUN and not (self._outcomes["done"] or self._outcomes["rejected"]):
            # The command is wrong, and not the record: with a typing error in it, each record would become a dead
            # letter. A program that has worked before may end so for reasons of its own.
            self.refusal = f"{self._command!r} cannot be run: {error.strip() or f'exit code {code}'}"
            job.nack(error=self.refusal)
            self.stop()
            return
        if code == 0:
            outcome = "done"
            job.ack()
        elif code == REJECT:
            outcome = "rejected"
            job.reject(error)
        else:
            outcome = "failed"
            job.nack(error=error or f"exit code {code}")
        self._report(job, outcome, code, time.monotonic() - began_s)

    def end(self) -> None:
        """Kill the programs that still run."""
        self.ended.set()
        with self._lock:
            for program in self._running:
                _kill(program)

    def summary(self) -> str:
        return ", ".join(f"{number} {outcome}" for outcome, number in self._outcomes.items())

    def _carry_out(self, job: Job) -> tuple[int, str]:
        """The exit code, and the end of what the program wrote to its standard error."""
        try:
            # A session of its own: Ctrl-C on the terminal is for the worker, which lets programs finish.
            program = subprocess.Popen(
                ["/bin/sh", "-c", self._command],
                stdin=subprocess.PIPE,
                stdout=2 if self._as_json else None,
                stderr=subprocess.PIPE,
                env={**os.environ, **environment_of(job)},
                start_new_session=True,
            )
        except OSError as error:
            return 127, f"{error}"
        with self._lock:
            self._running.add(program)
            if self.ended.is_set():
                _kill(program)
        late = ""
        try:
            _, written = program.communicate(job.value or b"", self._limit_s)
        except subprocess.TimeoutExpired:
            late = f"killed after {self._limit_s:g} s\n"
            _kill(program)
            _, written = program.communicate()
        finally:
            with self._lock:
                self._running.discard(program)
                self.used_s = time.monotonic()
        text = written[-STDERR_BYTES_MAX:].decode(errors="replace")
        if text.strip():
            say(text.rstrip("\n"))
        return program.returncode, late + text

    def _report(self, job: Job, outcome: str, code: int, took_s: float) -> None:
        with self._lock:
            self._outcomes[outcome] += 1
            if self._as_json:
                place = {"topic": job.topic, "partition": job.partition, "offset": job.offset}
                print_json_line(
                    {**place, "delivery": job.delivery, "outcome": outcome, "code": code, "seconds": round(took_s, 3)}
                )
            elif outcome != "done":
                say(f"{job.topic}/{job.partition} at offset {job.offset}, delivery {job.delivery}: {outcome} ({code})")


def environment_of(job: Job) -> Mapping[str, str]:
    """The environment that tells a program about its record: everything but the value. Keys and headers of more than 32
    KiB are left out."""
    headers = json.dumps([{"name": name, **_text("value", value)} for name, value in job.headers], ensure_ascii=False)
    found: dict[str, Any] = {
        "TINYMQ_TOPIC": job.topic,
        "TINYMQ_PARTITION": str(job.partition),
        "TINYMQ_OFFSET": str(job.offset),
        "TINYMQ_DELIVERY": str(job.delivery),
        "TINYMQ_TIMESTAMP": iso(job.message.timestamp_us),
        "TINYMQ_HEADERS": headers,
        **{f"TINYMQ_{name.upper()}": value for name, value in _text("key", job.key).items()},
    }
    return {
        name: value
        for name, value in found.items()
        if value is not None and "\0" not in value and len(value.encode(errors="replace")) <= VARIABLE_BYTES_MAX
    }


def _text(name: str, data: bytes | None) -> dict[str, str | None]:
    """Data as text, or in base64 if it is not UTF-8."""
    try:
        text = None if data is None else data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if text is None or "\0" not in text:
        return {name: text}
    return {f"{name}_base64": base64.b64encode(data or b"").decode()}


def _watch(mq: Client, programs: Programs, idle_s: float | None) -> None:
    """Stop the worker after some time without a record."""
    while not programs.ended.wait(TICK_S):
        if not mq.health():  # it is joining the group, or has lost its leaders
            programs.used_s = time.monotonic()
        if idle_s is not None and programs.idle_s >= idle_s:
            mq.stop()
            return


def _kill(program: subprocess.Popen[bytes]) -> None:
    """Kill a program with all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)
