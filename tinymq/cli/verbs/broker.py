"""`tinymq broker`: one broker in this process, from its configuration to a polite end.

SIGTERM and SIGINT let it hand over what it leads and stop; a second one ends it at once, which is safe, too.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from tinymq.base.errors import CorruptData
from tinymq.cli.common.exits import Exit, exit_of, explain

if TYPE_CHECKING:
    from tinymq.base.config import BrokerConfig
    from tinymq.base.errors import TinymqError

LogFormat = Literal["json", "text"]


def broker(
    *,
    config: Annotated[
        Path | None, Parameter(name=["--config", "-c"], help="A TOML file; else the environment.")
    ] = None,
    broker_id: Annotated[int | None, Parameter(help="This broker's number, from 1.")] = None,
    data_dir: Annotated[Path | None, Parameter(help="Where everything is kept.")] = None,
    listen: Annotated[str | None, Parameter(help="host:port for clients.")] = None,
    stream_listen: Annotated[
        str | None, Parameter(help='host:port for the record streams of Python clients; "": they use --listen.')
    ] = None,
    peer_listen: Annotated[str | None, Parameter(help="host:port for other brokers.")] = None,
    metrics_listen: Annotated[str | None, Parameter(help='host:port for /metrics and /status; "": none.')] = None,
    voter: Annotated[
        list[str] | None, Parameter(help="id@host:port of a broker that keeps the metadata; may be repeated.")
    ] = None,
    join: Annotated[
        str | None,
        Parameter(
            help="host:port[,host:port…] where running brokers listen for other brokers (peer_listen): become one more "
            "broker of their cluster, without a vote on its metadata. Needed once: then the data folder knows."
        ),
    ] = None,
    dial: Annotated[
        list[str] | None,
        Parameter(
            help="id@host:port at which this broker dials another one, wherever that one is said to be: a tunnel, or a "
            "proxy; may be repeated."
        ),
    ] = None,
    secret_file: Annotated[Path | None, Parameter(help="The secret that all brokers share; mode 0600.")] = None,
    log_format: Annotated[LogFormat, Parameter(help="JSON lines, or key=value for people.")] = "json",
) -> int:
    """Run one broker until SIGTERM or SIGINT. Options win over the environment (TINYMQ_...), that over the file."""
    from tinymq.app import settings
    from tinymq.cli.common import tuning
    from tinymq.cli.verbs import broker_log

    flags = {
        "BROKER_ID": broker_id,
        "DATA_DIR": data_dir,
        "LISTEN": listen,
        "STREAM_LISTEN": stream_listen,
        "PEER_LISTEN": peer_listen,
        "METRICS_LISTEN": metrics_listen,
        "VOTERS": voter,
        "JOIN": None if join is None else [each.strip() for each in join.split(",") if each.strip()],
        "DIAL": dial,
        "SECRET_FILE": secret_file,
    }
    os.environ.update(as_environment(flags, settings.PREFIX))
    loaded = settings.load(config)
    broker_log.set_up(log_format)
    tuning.tune()
    tuning.raise_open_files(loaded.limits.connections_max)
    return asyncio.run(_run(loaded))


def as_environment(flags: Mapping[str, object], prefix: str) -> dict[str, str]:
    """Options that were given, as the variables that say the same: settings come by one way alone. Pure."""
    given = {prefix + name: value for name, value in flags.items() if value is not None}
    return {name: json.dumps(value) if isinstance(value, list) else str(value) for name, value in given.items()}


async def _run(config: BrokerConfig) -> int:
    from tinymq.app.broker_app import BrokerApp

    app = BrokerApp(config)
    asked = asyncio.Event()

    def ask_to_stop() -> None:
        if asked.is_set():
            os._exit(Exit.INTERRUPTED)
        asked.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ask_to_stop)
    try:
        await app.start()
    except CorruptData as damaged:  # it names the file; which folder that is in is known here
        where = f"the data folder {config.data_dir}"
        raise CorruptData(f"in {where}: {damaged.message}", hint=damaged.hint, **damaged.detail) from damaged
    try:
        error = await _until_stopped(app.wait_failed(), asked.wait())
    finally:
        await app.stop()
    if error is None:
        return Exit.OK
    explain(error)
    return exit_of(error) or Exit.FAILED


async def _until_stopped(failed: Any, asked: Any) -> TinymqError | None:
    """Why the broker must stop; None when it was asked to."""
    failing, asking = asyncio.ensure_future(failed), asyncio.ensure_future(asked)
    await asyncio.wait((failing, asking), return_when=asyncio.FIRST_COMPLETED)
    asking.cancel()
    error: TinymqError | None = failing.result() if failing.done() else None
    failing.cancel()
    return error
