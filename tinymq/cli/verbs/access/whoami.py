"""`tinymq whoami`: who the brokers take you for."""

from __future__ import annotations

from cyclopts import App

from tinymq.cli.common.options import Output, epilogue
from tinymq.cli.common.output import print_json, print_line
from tinymq.cli.common.servers import DEFAULT_SERVERS, ServerOptions


def whoami(*, servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table") -> None:
    """Show who the brokers take you for, how you proved it, and what you may do."""
    with servers.connect() as mq:
        me = mq.access.who_am_i()
    if output == "json":
        print_json(
            {
                "name": me.name or None, "proof": me.proof or None, "roles": list(me.roles), "grants": list(me.grants),
                "enabled": me.enabled, "expires_s": me.expires_s,
            }
        )  # fmt: skip
        return
    print_line(f"{me.name} (by {me.proof})" if me.name else "nobody: no token was given")
    if me.roles:
        print_line(f"roles: {', '.join(me.roles)}")
    for grant in me.grants:
        print_line(f"may {grant}")
    if not me.enabled:
        print_line("callers are not checked: everybody may do everything")


app = App(
    name="whoami",
    help_epilogue=epilogue(
        whoami,
        "tinymq whoami --token-file anna.token",
    ),
)
app.default(whoami)
