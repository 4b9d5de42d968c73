"""The `tinymq` command: runs a verb and maps its outcome to an exit code. tinymq/cli/commands.py has the verbs.

A verb's module is imported when the verb is used, and gRPC and Arrow when the verb needs them, so that help and the
errors for mistyped commands appear at once. This module turns every error that ends a verb into a message and an exit
code. It does the same when a package that the base install leaves out is missing, cyclopts included.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from tinymq.base import extras
from tinymq.cli.common import output, stopwatch
from tinymq.cli.common.exits import Exit, exit_of, explain


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and end the process with one of `Exit`."""
    try:
        code = run(sys.argv[1:] if argv is None else argv)
    except Exception as bug:  # a bug, not an operating error: show the whole traceback
        output.say_traceback(bug)
        code = Exit.FAILED
    sys.exit(code)


def run(argv: Sequence[str]) -> int:
    """Run the command line `argv` and return the exit code. Bugs propagate as exceptions."""
    try:
        with stopwatch.command(), extras.required("the tinymq command"):
            return _run(argv)
    except extras.MissingExtra as missing:
        explain(missing)
        return Exit.USAGE


def _run(argv: Sequence[str]) -> int:
    from cyclopts import CycloptsError

    from tinymq.cli.commands import app

    try:
        result = app(argv, exit_on_error=False, print_error=False, result_action="return_value")
        output.flush()
    except CycloptsError as mistyped:
        output.say_mistyped(mistyped)
        return Exit.USAGE
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        output.abandon_stdout()  # the reader of stdout has exited, as `head` does
        return Exit.OK
    except Exception as error:
        code = exit_of(error)
        if code is None:
            raise
        explain(error)
        return code
    return result if isinstance(result, int) else Exit.OK


if __name__ == "__main__":
    main()
