"""Servers that import an application and fork workers, with a client in it: gunicorn, Celery and uWSGI."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tinymq import Client
from tinymq.testing import Cluster

ENDS_S = 60.0  # a process that takes longer hangs


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=1) as running:
        yield running


def values(mq: Client, topic: str) -> list[bytes | None]:
    with mq.reader(topic, end="latest") as reader:
        return [message.value for message in reader]


SERVICE = """
import os
from tinymq import Client, TinymqError
mq = Client(os.environ["SERVERS"])
if "EARLY" in os.environ:
    mq.send(os.environ["TOPIC"], b"early")
def application(environ, start_response):
    try:
        mq.send(os.environ["TOPIC"], b"%d" % os.getpid())
        status, body = "200 OK", b"sent"
    except TinymqError as error:
        status, body = "503 Service Unavailable", f"{error.code} {error.hint}".encode()
    start_response(status, [("Content-Length", str(len(body)))])
    return [body]
"""


@contextlib.contextmanager
def gunicorn(folder: Path, environment: dict[str, str], *options: str) -> Iterator[int]:
    """Serve `service.py` of a folder by two workers, and return the port. Connections wait in the kernel until then."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        number = listening.fileno()
        command = [
            sys.executable, "-m", "gunicorn", "service:application", "--workers=2", f"--bind=fd://{number}",
            "--no-control-socket", *options,
        ]  # fmt: skip
        running = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **environment}, pass_fds=[number], stderr=subprocess.PIPE, text=True
        )
        try:
            yield int(listening.getsockname()[1])
        finally:
            running.terminate()
            _, said = running.communicate(timeout=ENDS_S)
        assert running.returncode == 0, said
        assert "Traceback" not in said
        assert "SIGKILL" not in said


def get(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ENDS_S)
    with contextlib.closing(connection):
        connection.request("GET", "/")
        return connection.getresponse().read().decode()


@pytest.mark.parametrize(
    ("options", "environment", "answer"),
    [
        pytest.param((), {"EARLY": "1"}, "sent", id="no preload, used at import"),
        pytest.param(("--preload",), {}, "sent", id="preload"),
        pytest.param(("--preload",), {"EARLY": "1"}, "Closed fork before", id="preload, used at import"),
    ],
)
def test_workers_of_gunicorn_send_or_say_why_not(
    cluster: Cluster, mq: Client, tmp_path: Path, options: tuple[str, ...], environment: dict[str, str], answer: str
) -> None:
    topic = f"gunicorn-{len(options)}-{len(environment)}"
    mq.admin.create_topic(topic, partitions=1, replication_factor=1)
    (tmp_path / "service.py").write_text(SERVICE)
    with gunicorn(tmp_path, {"SERVERS": cluster.servers, "TOPIC": topic, **environment}, *options) as port:
        for _ in range(4):
            assert get(port).startswith(answer)
    if answer == "sent":
        assert len(values(mq, topic)) >= 4


TASKS = """
import os
from celery import Celery
from tinymq import Client
folder = os.environ["FOLDER"]
app = Celery("tasks", broker="filesystem://")
app.conf.broker_transport_options = {
    "data_folder_in": folder, "data_folder_out": folder, "control_folder": folder + "/control"
}
app.conf.task_ignore_result = True
mq = Client(os.environ["SERVERS"])
if "EARLY" in os.environ:
    mq.send(os.environ["TOPIC"], b"early")
@app.task
def place(number):
    mq.send(os.environ["TOPIC"], b"%d %d" % (number, os.getpid()))
"""
PLACE = "import tasks\nfor number in range({}): tasks.place.delay(number)"


@contextlib.contextmanager
def celery(folder: Path, environment: dict[str, str]) -> Iterator[Iterator[str]]:
    """Run a worker of `tasks.py` of a folder with two processes, and return the lines that it logs."""
    command = [
        sys.executable, "-m", "celery", "--app=tasks", "worker", "--pool=prefork", "--concurrency=2",
        "--loglevel=INFO", "--without-gossip", "--without-mingle", "--without-heartbeat",
    ]  # fmt: skip
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True) as running:
        guard = threading.Timer(ENDS_S, running.kill)
        guard.start()
        try:
            assert running.stderr is not None
            yield iter(running.stderr)
            running.terminate()
            running.communicate()
        finally:
            guard.cancel()
        assert running.returncode == 0


@pytest.mark.long  # a worker of Celery takes ten seconds to start
@pytest.mark.parametrize("early", [False, True], ids=["used by tasks", "used at import"])
def test_tasks_of_celery_send_or_say_why_not(cluster: Cluster, mq: Client, tmp_path: Path, early: bool) -> None:
    """The worker imports the module, and forks its processes after that."""
    topic, count = f"celery-{early}", 10
    mq.admin.create_topic(topic, partitions=1, replication_factor=1)
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "control").mkdir()
    environment = {**os.environ, "SERVERS": cluster.servers, "TOPIC": topic, "FOLDER": str(tmp_path)}
    subprocess.run([sys.executable, "-c", PLACE.format(count)], cwd=tmp_path, env=environment, check=True)
    with celery(tmp_path, {**environment, **({"EARLY": "1"} if early else {})}) as logged:
        if early:
            assert any("tinymq.Closed" in line for line in logged)
            return
        with mq.reader(topic) as reader:
            sent = dict((next(reader).value or b"").split() for _ in range(count))
    assert sent.keys() == {b"%d" % number for number in range(count)}
    assert b"%d" % os.getpid() not in sent.values()


@contextlib.contextmanager
def uwsgi(folder: Path, environment: dict[str, str], *options: str) -> Iterator[int]:
    """Serve `service.py` of a folder by two workers, and return the port. Connections wait in the kernel until then."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        command = [
            str(Path(sys.executable).with_name("uwsgi")), f"--http-socket=fd://{listening.fileno()}", "--master",
            "--processes=2", "--wsgi-file=service.py", "--die-on-term", *options,
        ]  # fmt: skip
        running = subprocess.Popen(
            command, cwd=folder, env=environment, pass_fds=[listening.fileno()], stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            yield int(listening.getsockname()[1])
        finally:
            running.terminate()
            try:
                running.communicate(timeout=ENDS_S)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)


HOOKS = ("--enable-threads", "--py-call-osafterfork")
LAZY = ("--enable-threads", "--lazy-apps", "--worker-reload-mercy=5")


@pytest.mark.long  # uWSGI is compiled when it is installed
@pytest.mark.parametrize(
    ("options", "early", "answer"),
    [
        pytest.param(HOOKS, False, "sent", id="with hooks"),
        pytest.param(HOOKS, True, "Closed fork before", id="with hooks, used at import"),
        pytest.param(LAZY, False, "sent", id="lazy"),
        pytest.param(LAZY, True, "sent", id="lazy, used at import"),
        pytest.param((), False, "Closed uWSGI runs no fork hooks", id="without hooks"),
        pytest.param(("--enable-threads",), False, "Closed uWSGI runs no fork hooks", id="threads without hooks"),
    ],
)
def test_workers_of_uwsgi_send_or_say_why_not(
    cluster: Cluster, mq: Client, tmp_path: Path, options: tuple[str, ...], early: bool, answer: str
) -> None:
    topic = f"uwsgi-{len(options)}-{early}-{'--lazy-apps' in options}"
    mq.admin.create_topic(topic, partitions=1, replication_factor=1)
    (tmp_path / "service.py").write_text(SERVICE)
    environment = {**os.environ, "SERVERS": cluster.servers, "TOPIC": topic, **({"EARLY": "1"} if early else {})}
    with uwsgi(tmp_path, environment, f"--virtualenv={sys.prefix}", *options) as port:
        for _ in range(4):
            assert get(port).startswith(answer)
    if answer == "sent":
        assert len(values(mq, topic)) >= 4


SLOW = """
import os, threading
from tinymq import Client
with Client(os.environ["SERVERS"]) as mq:
    mq.send(os.environ["TOPIC"], b"importing")
threading.Event().wait()
"""


@pytest.mark.long  # as above
def test_uwsgi_ends_while_its_workers_import(cluster: Cluster, mq: Client, tmp_path: Path) -> None:
    """SIGTERM interrupts an import, of any module. uWSGI goes on with that worker, and kills it after its mercy."""
    mq.admin.create_topic("uwsgi-slow", partitions=1, replication_factor=1)
    (tmp_path / "service.py").write_text(SLOW)
    environment = {**os.environ, "SERVERS": cluster.servers, "TOPIC": "uwsgi-slow"}
    with mq.reader("uwsgi-slow") as reader, uwsgi(tmp_path, environment, f"--virtualenv={sys.prefix}", *LAZY):
        assert [next(reader).value for _ in range(2)] == [b"importing"] * 2
