"""`tinymq context`: name clusters, and choose the one that commands use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from tinymq.cli.common.options import Output
from tinymq.cli.common.output import print_json, print_table, say
from tinymq.cli.common.servers import check_addresses
from tinymq.client.common import contexts
from tinymq.client.common.contexts import Context
from tinymq.dev import dev_directory

HELP = """
A command takes the brokers of -s or of the context that --context names, else of the environment (TINYMQ_SERVERS, or
else TINYMQ_CONTEXT), else of the local cluster in the current directory, else of the context in use. A program names
its context: Client(context="staging"). `tinymq dev up` sets a context with the name of its directory, and uses it.

Example: tinymq context set staging db1:7070,db2:7070

Example: tinymq context use staging
"""

app = App(
    name="context",
    help="Name clusters, and choose the one that commands use: list, set, use, delete.",
    help_epilogue=HELP,
)
Name = Annotated[str, Parameter(help="The context's name.")]


@app.command(name="list")
def list_(*, output: Output = "table") -> None:
    """List the contexts. A star marks the one in use."""
    known = contexts.load()
    if output == "json":
        rows = [
            {
                "name": name,
                "servers": each.servers,
                "directory": each.directory or None,
                "current": name == known.current,
            }
            for name, each in known.by_name.items()
        ]
        print_json({"contexts": rows})
        return
    print_table(
        ["", "context", "servers", "directory"],
        [
            ("*" if name == known.current else "", name, each.servers, each.directory or None)
            for name, each in known.by_name.items()
        ],
    )


@app.command(name="set")
def set_(
    name: Name,
    servers: Annotated[str, Parameter(help="host:port[,host:port…], after tinymq+tls:// with TLS.")],
    /,
    *,
    token_file: Annotated[Path | None, Parameter(help="Keep the token of this file for the cluster's brokers.")] = None,
    tls_ca: Annotated[Path | None, Parameter(help="The certificate of the brokers' authority.")] = None,
    tls_dir: Annotated[Path | None, Parameter(help="The directory of your certificate.")] = None,
    output: Output = "table",
) -> None:
    """Name a cluster, or change its addresses, its token and its certificates, and use it."""
    check_addresses(servers)
    token = contexts.read_token(token_file) if token_file is not None else ""
    ca, directory = (str(path.absolute()) if path is not None else "" for path in (tls_ca, tls_dir))
    context = Context(servers, token=token, tls_ca=ca, tls_dir=directory)
    contexts.save(contexts.load().with_one(name, context, use=True))
    _used(name, output)


@app.command
def use(name: Name, /, *, output: Output = "table") -> None:
    """Use a context from now on."""
    contexts.save(contexts.load().using(name))
    _used(name, output)
    if dev_directory.exists(dev_directory.DEFAULT):
        say(f"in this directory, commands use the local cluster of {dev_directory.DEFAULT} instead")


@app.command
def delete(name: Name, /, *, output: Output = "table") -> None:
    """Forget a context. The cluster stays as it is."""
    contexts.save(contexts.load().without(name))
    say(f"context {name} deleted")
    if output == "json":
        print_json({"name": name, "deleted": True})


def _used(name: str, output: Output) -> None:
    context = contexts.load().get(name)
    say(f"commands use {name}: {context.servers}")
    if output == "json":
        print_json({"name": name, "servers": context.servers})
