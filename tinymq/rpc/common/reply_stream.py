"""Writes the answers of a stream, in a task of its own. A client that has gone is not an error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

import grpc
import structlog

from tinymq.base.errors import Closed, TinymqError

M = TypeVar("M")

logger = structlog.get_logger("tinymq.rpc")


class GrpcReplies(Generic[M]):
    """Writes answers to a gRPC stream."""

    def __init__(self, context: grpc.aio.ServicerContext[Any, M]) -> None:
        self._context = context

    async def write(self, message: M) -> None:
        """Raises Closed when the client has gone."""
        try:
            await self._context.write(message)
        except grpc.aio.BaseError as error:
            raise Closed(f"the client has gone: {type(error).__name__}") from None


def start_writer(write: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Run the writing half of a stream. A bug in the writer is logged, because the reading half may be cancelled
    without awaiting it."""
    writer = asyncio.get_running_loop().create_task(write)
    writer.add_done_callback(_ended)
    return writer


def _ended(writer: asyncio.Task[None]) -> None:
    error = None if writer.cancelled() else writer.exception()
    if error is not None and not isinstance(error, TinymqError):
        logger.error("stream_writer_failed", exc_info=error)


def quiet_departures() -> None:
    """Keep gRPC from logging a traceback for each client that leaves before its answer is complete.

    gRPC sends the answers of unary calls, and the status of every call, after the handler has returned. So only its
    logger gets the errors of sending them.
    """
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_no_departure)


def _is_no_departure(record: logging.LogRecord) -> bool:
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or kind.__name__ != "ExecuteBatchError"
