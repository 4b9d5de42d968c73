"""Interrupt code at chosen places, as a signal handler that raises does."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any

AFTER = {dis.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX")}
AT = {dis.opmap["JUMP_BACKWARD"]}


class Interrupts:
    """Interrupts at the n-th place of these modules where Python checks for signals.

    Such a place is the start of a function, the return of a call, or a jump back. `where` names the place; None if the
    modules have fewer places.
    """

    def __init__(self, number: int, *modules: ModuleType) -> None:
        self.where: str | None = None
        self._left = number
        self._files = {str(module.__file__) for module in modules}

    def trace(self, frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        code = frame.f_code
        if code.co_filename not in self._files:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        before: list[int] = []

        def opcodes(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
            if event == "opcode":
                if (before and code.co_code[before[0]] in AFTER) or code.co_code[frame.f_lasti] in AT:
                    self._place(frame)
                before[:] = [frame.f_lasti]
            return opcodes

        self._place(frame)
        return opcodes

    def _place(self, frame: FrameType) -> None:
        self._left -= 1
        if not self._left:
            sys.settrace(None)
            self.where = f"{frame.f_code.co_name}:{frame.f_lineno}"
            raise KeyboardInterrupt


def contained(call: Callable[[], Any]) -> None:
    """Make a call that is interrupted, so that nothing of it stays in the thread.

    An interrupt in the place of an instruction may skip the end of an `except` block (CPython 3.11): its exception
    counts as being handled from then on, and every later error of the thread has it as its context. What a generator
    handles ends with the generator.
    """

    def inside() -> Iterator[None]:
        call()
        yield

    next(inside())
