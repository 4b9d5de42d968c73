"""The `tinymq` command: which verbs there are, and how a run of it ends.

A verb's module is imported when the verb is used, and gRPC and Arrow when it needs them, so that help and
mistyped commands answer at once. Whatever ends a verb is turned into a message and an exit code here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from cyclopts import App, CycloptsError, CycloptsPanel, Parameter

from tinymq.cli.exits import Exit, exit_of, explain

app = App(
    name="tinymq",
    help="A replicated, partitioned message log.",
    help_flags=["--help", "-h"],
    version_flags=["--version"],
    suppress_keyboard_interrupt=False,  # `run` ends it
    default_parameter=Parameter(negative_iterable=()),
)
app.command("tinymq.cli.dev:app", name="dev", help="A local cluster of plain processes: up, status, kill, start, down.")
app.command("tinymq.cli.broker:broker", name="broker", help="Run one broker until SIGTERM or SIGINT.")
app.command("tinymq.cli.topic:app", name="topic", help="Create, describe, alter, trim and delete topics.")
app.command("tinymq.cli.produce:produce", name="produce", help="Send lines from standard input or files.")
app.command("tinymq.cli.consume:consume", name="consume", help="Print records.")
app.command("tinymq.cli.channel:app", name="channel", help="List, move and delete the channels of a topic.")
app.command("tinymq.cli.queue:app", name="queue", help="Push to a partition, and poll it through a channel, by hand.")
app.command("tinymq.cli.hold:app", name="hold", help="Keep records from being removed for a while.")
app.command("tinymq.cli.scan:app", name="scan", help="See which replicas served a scan, such as a query of Spark.")
app.command("tinymq.cli.cluster:app", name="cluster", help="Form a cluster, see how it is, recover it.")
app.command("tinymq.cli.log:app", name="log", help="Look into segment files, offline.")


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and end the process with one of `Exit`."""
    sys.exit(run(sys.argv[1:] if argv is None else argv))


def run(argv: Sequence[str]) -> int:
    """Run the command line `argv`; return the exit code."""
    try:
        result = app(argv, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except CycloptsError as mistyped:
        from rich.console import Console  # which takes a tenth of a start: nobody else needs it

        Console(stderr=True).print(CycloptsPanel(mistyped))
        return Exit.USAGE
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output left, as `head` does. Nothing more can be said to it, at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    except Exception as error:
        code = exit_of(error)
        if code is None:
            raise  # a bug, not an operating error: let it be seen whole
        explain(error)
        return code
    return result if isinstance(result, int) else Exit.OK


if __name__ == "__main__":
    main()
