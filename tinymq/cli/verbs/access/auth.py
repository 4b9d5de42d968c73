"""`tinymq auth`: switch the checks of callers on and off, and make an administrator with the cluster's secret."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from tinymq.cli.common.options import Output
from tinymq.cli.common.output import print_json, say
from tinymq.cli.common.servers import DEFAULT_SERVERS, ServerOptions
from tinymq.cli.verbs.access.new_token import check_free, hand_out
from tinymq.cli.verbs.access.user import Out

HELP = """
While they are off, everybody who reaches a broker may do everything. The first administrator is made with the
cluster's secret.

Example: tinymq auth enable
"""

app = App(
    name="auth", help="Switch the checks of callers on and off: enable, disable, administrator.", help_epilogue=HELP
)


@app.command
def enable(*, servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table") -> None:
    """Check every caller from now on. Works with the token of an administrator only, so that nobody is shut out."""
    _switch(True, servers, output)


@app.command
def disable(*, servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table") -> None:
    """Let everybody do everything again. Users, tokens and grants stay."""
    _switch(False, servers, output)


@app.command
def administrator(
    name: Annotated[str, Parameter(help="The user, who is made if there is none of that name.")],
    /,
    *,
    secret_file: Annotated[Path, Parameter(help="The file with the secret that all brokers share.")],
    out: Out = None,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """Make an administrator with a new token: the first one, or another one when every token is lost.

    The proof is the cluster's secret, which is in a file on the brokers' machines. The secret and the token stay here.
    """
    from tinymq.app.settings import read_secret
    from tinymq.dev import ask

    check_free(out)
    secret = read_secret(secret_file)
    token = ask.administrator(servers.addresses(), secret, name, servers.left_s, servers.tls())
    hand_out(token, out, name, output)
    say(f"user {name} administers the cluster; check callers from now on: tinymq auth enable")


def _switch(enabled: bool, servers: ServerOptions, output: Output) -> None:
    with servers.connect() as mq:
        administrators = mq.access.switch(enabled)
    say("callers are checked" if enabled else "callers are not checked: everybody may do everything")
    if enabled:
        say(f"administrators: {', '.join(administrators)}")
    if output == "json":
        print_json({"enabled": enabled, "administrators": administrators})
