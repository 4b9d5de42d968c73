"""`tinymq broker`: runs one broker in this process, from its configuration to an orderly stop.

On SIGTERM or SIGINT the broker transfers its leaderships and stops. A second signal ends it at once, which is safe too.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from tinymq.base.errors import CorruptData
from tinymq.cli.common.exits import Exit, exit_of, explain
from tinymq.cli.common.options import LogFormat, epilogue

if TYPE_CHECKING:
    from tinymq.base.config import BrokerConfig
    from tinymq.base.errors import TinymqError
    from tinymq.cli.common.broker_log import PartitionNames


JOIN = (
    "host:port[,host:port…] where running brokers listen for other brokers (their peer_listen). Join "
    "their cluster, without a vote on its metadata. Needed at the first start only."
)
TLS_DIR = "The directory of this broker's certificate: ca.crt, tls.crt, tls.key."
Security = Annotated[
    Literal["off", "accept", "required"], Parameter(help="TLS on every port; accept: with it and without.")
]
DIAL = (
    "id@host:port at which this broker connects to another broker, instead of that broker's own address: "
    "a tunnel or a proxy; may be repeated."
)


def broker(
    *,
    config: Annotated[
        Path | None,
        Parameter(
            name=["--config", "-c"], help="A TOML file with settings. [default: only options and the environment]"
        ),
    ] = None,
    broker_id: Annotated[int | None, Parameter(help="This broker's number, from 1.")] = None,
    data_dir: Annotated[
        Path | None, Parameter(help="The data directory, which holds everything that the broker stores.")
    ] = None,
    listen: Annotated[str | None, Parameter(help="host:port for clients.")] = None,
    stream_listen: Annotated[
        str | None,
        Parameter(help='host:port for the record streams of Python clients; "" for none: they use --listen.'),
    ] = None,
    peer_listen: Annotated[str | None, Parameter(help="host:port for other brokers.")] = None,
    metrics_listen: Annotated[str | None, Parameter(help='host:port for /metrics and /status; "" for none.')] = None,
    security: Security | None = None,
    tls_dir: Annotated[Path | None, Parameter(help=TLS_DIR)] = None,
    voter: Annotated[
        list[str] | None,
        Parameter(help="id@host:port of a voter, a broker that replicates the metadata; may be repeated."),
    ] = None,
    join: Annotated[str | None, Parameter(help=JOIN)] = None,
    dial: Annotated[list[str] | None, Parameter(help=DIAL)] = None,
    secret_file: Annotated[
        Path | None, Parameter(help="The file with the secret that all brokers share; mode 0600.")
    ] = None,
    log_format: Annotated[LogFormat, Parameter(help="JSON lines, or key=value for people.")] = "json",
) -> int:
    """Run one broker until SIGTERM or SIGINT.

    Options take precedence over the environment (TINYMQ_...), and the environment over the file.
    """
    from tinymq.app import settings
    from tinymq.cli.common import broker_log, tuning

    flags = {
        "BROKER_ID": broker_id,
        "DATA_DIR": data_dir,
        "LISTEN": listen,
        "STREAM_LISTEN": stream_listen,
        "PEER_LISTEN": peer_listen,
        "METRICS_LISTEN": metrics_listen,
        "SECURITY": security,
        "TLS_DIR": tls_dir,
        "VOTERS": voter,
        "JOIN": None if join is None else [each.strip() for each in join.split(",") if each.strip()],
        "DIAL": dial,
        "SECRET_FILE": secret_file,
    }
    os.environ.update(as_environment(flags, settings.PREFIX))
    loaded = settings.load(config)
    names = broker_log.PartitionNames()
    broker_log.set_up(log_format, names)
    tuning.tune()
    tuning.raise_open_files(loaded.limits.connections_max)
    return asyncio.run(_run(loaded, names))


def as_environment(flags: Mapping[str, object], prefix: str) -> dict[str, str]:
    """Return the options that are present as environment variables, so that settings have a single source. Pure."""
    present = {prefix + name: value for name, value in flags.items() if value is not None}
    return {name: json.dumps(value) if isinstance(value, list) else str(value) for name, value in present.items()}


async def _run(config: BrokerConfig, names: PartitionNames) -> int:
    from tinymq.app.broker_app import BrokerApp

    app = BrokerApp(config)
    names.lookup = app.partition_name
    stop_requested = asyncio.Event()

    def request_stop() -> None:
        if stop_requested.is_set():
            os._exit(Exit.INTERRUPTED)
        stop_requested.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, request_stop)
    try:
        await app.start()
    except CorruptData as damaged:  # its message names the file relative to the data directory
        place = f"the data directory {config.data_dir}"
        raise CorruptData(f"in {place}: {damaged.message}", hint=damaged.hint, **damaged.detail) from damaged
    try:
        error = await _until_stopped(app.wait_failed(), stop_requested.wait())
    finally:
        await app.stop()
    if error is None:
        return Exit.OK
    explain(error)
    return exit_of(error) or Exit.FAILED


async def _until_stopped(failed: Any, stop_requested: Any) -> TinymqError | None:
    """Wait until the broker must stop. Returns the error that stops it, or None if a signal does."""
    failing, asking = asyncio.ensure_future(failed), asyncio.ensure_future(stop_requested)
    await asyncio.wait((failing, asking), return_when=asyncio.FIRST_COMPLETED)
    asking.cancel()
    error: TinymqError | None = failing.result() if failing.done() else None
    failing.cancel()
    return error


app = App(
    name="broker",
    help_epilogue=epilogue(
        broker,
        "tinymq broker --config broker.toml",
        "tinymq broker --broker-id 1 --data-dir data --voter 1@db1:7080 --voter 2@db2:7080 --voter 3@db3:7080",
    ),
)
app.default(broker)
