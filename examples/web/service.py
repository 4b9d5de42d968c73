"""A web service with FastAPI: a request stores an order, and a worker in the same process sends its mail.

TINYMQ_SERVERS=127.0.0.1:7070 uvicorn examples.web.service:app

docs/web-services.md shows this file and explains it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from tinymq import AsyncClient, Job, TinymqError


class Order(BaseModel):
    customer: str
    address: str


async def send_mail(job: Job) -> None:
    """Return when the mail is sent. An exception delivers the order again after a pause."""
    order = Order.model_validate_json(job.value or b"")
    print(f"mail to {order.address}", flush=True)


@contextlib.asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, object]]:
    async with AsyncClient(request_timeout_ms=3000) as mq:  # of TINYMQ_SERVERS
        await mq.admin.create_topic("orders", partitions=6, exist_ok=True)
        mq.subscribe("orders", group="order-mailer", kind="queue", concurrency=16)(send_mail)
        worker = asyncio.create_task(mq.serve(stop_timeout=20, signals=False))
        yield {"mq": mq}
        worker.cancel()  # takes no further order, and finishes the mails that have begun
        with contextlib.suppress(asyncio.CancelledError):
            await worker


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def place(order: Order, request: Request) -> dict[str, int]:
    mq: AsyncClient = request.state.mq
    stored = await mq.send("orders", order.model_dump_json().encode(), key=order.customer.encode())
    return {"partition": stored.partition, "offset": stored.offset}  # it is on the disks of a majority


@app.exception_handler(TinymqError)
async def unavailable(_: Request, error: TinymqError) -> JSONResponse:
    return JSONResponse({"error": error.code, "hint": error.hint}, 503 if error.retriable else 500)


@app.get("/health")
async def health(request: Request) -> Response:
    found = request.state.mq.health()
    return Response(found.reason or "ok", 200 if found else 503)
