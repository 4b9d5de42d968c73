"""Runs a handler of the user's own code on one record, as `tinymq dlq replay` does."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tinymq.base.errors import InvalidRequest
from tinymq.cli.common.output import say_traceback

if TYPE_CHECKING:
    from tinymq.client import Message

Handler = Callable[[Any], Any]


def load_handler(text: str) -> Handler:
    """Import the function that MODULE:FUNCTION names, from the current directory or an installed package.

    Raises InvalidRequest.
    """
    module_name, colon, path = text.partition(":")
    if not (module_name and colon and path):
        raise InvalidRequest(f"{text!r} names no handler", hint="write MODULE:FUNCTION, such as shop.mail:send")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        hint = "run the command where `python -c 'import MODULE'` succeeds"
        raise InvalidRequest(f"module {module_name!r} cannot be imported: {error}", hint=hint) from error
    for name in path.split("."):
        found = getattr(found, name, None)
    if not callable(found):
        raise InvalidRequest(f"module {module_name!r} has no function {path!r}", hint="write MODULE:FUNCTION")
    handler: Handler = found
    return handler


def run_handler(handler: Handler, message: Message, *, debug: bool) -> str | None:
    """Run the handler on a record, with the headers of the original. Returns its error as text; None: it succeeded.

    With `debug`, the debugger opens where the handler failed.
    """
    own = tuple((name, value) for name, value in message.headers if not name.startswith("tinymq-"))
    try:
        result = handler(message._replace(headers=own))
        if inspect.isawaitable(result):
            asyncio.run(_await(result))
    except Exception as error:
        say_traceback(error)
        if debug:
            import pdb

            pdb.post_mortem(error.__traceback__)
        return f"{type(error).__name__}: {error}"
    return None


async def _await(result: Any) -> None:
    await result
