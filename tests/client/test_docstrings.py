"""Every public name has a docstring with an example, and every example runs, all on one cluster of one broker."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pytest

import tinymq
from tinymq import Client
from tinymq.client.admin.admin import AsyncAdmin
from tinymq.client.admin.group_admin import AsyncGroupAdmin
from tinymq.client.cluster.transaction_admin import AsyncTransactionAdmin
from tinymq.client.facade.generated.access import Access
from tinymq.client.facade.generated.admin import Admin
from tinymq.client.facade.generated.group_admin import GroupAdmin
from tinymq.client.facade.generated.transactions.transaction_admin import TransactionAdmin
from tinymq.rpc.operator_calls.first_administrator import make_administrator
from tinymq.testing import Cluster
from tinymq.testing.cluster import SECRET

NAMES = {name: getattr(tinymq, name) for name in tinymq.__all__}
REACHED = {"Admin": Admin, "GroupAdmin": GroupAdmin, "Access": Access}  # by `mq.admin` and `mq.access`
INHERITED = {"TransactionAdmin": TransactionAdmin, "AsyncTransactionAdmin": AsyncTransactionAdmin}  # a part of Admin
DOCUMENTED = {**NAMES, **REACHED, **INHERITED, "AsyncAdmin": AsyncAdmin, "AsyncGroupAdmin": AsyncGroupAdmin}
# Objects that do something, as opposed to values and settings. Each method is in an example.
ACTIVE = (
    *REACHED,
    "BatchDelivery", "Client", "Consumer", "Delivery", "Frame", "Hold", "Job", "Message", "Producer", "Queue", "Reader",
    "Scan", "Schedule", "ScheduledDelivery", "Worker",
)  # fmt: skip
VERDICTS = (tinymq.Reject, tinymq.Retry)  # which handlers raise
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "errors.md").read_text()
RECORDS = 20  # in a topic at first
CALL_S = 20.0
HANDLED = 2  # records of an example that would go on for ever


def shown_on_page(error: type[Exception]) -> bool:
    """docs/errors.md says of each error what to do. The examples are those of TinymqError and NotDelivered."""
    return error not in (tinymq.TinymqError, tinymq.NotDelivered, *VERDICTS) and f"| `{error.__name__}` |" in PAGE


def examples(of: object) -> list[str]:
    """The indented blocks of a docstring; or all below its first paragraph, which formatters do not leave indented."""
    doc = inspect.getdoc(of) or ""
    if _is_code(whole := doc.partition("\n\n")[2]):
        return [whole]
    blocks = re.findall(r"(?:^(?: {4}.*)?\n)*^ {4}.*$", doc, re.MULTILINE)
    return [code for block in blocks if (code := _code_at_the_end(block))]


def _code_at_the_end(block: str) -> str:
    """Without the text that hangs indented above it, of a list of settings."""
    paragraphs = block.strip("\n").split("\n\n")
    ends = ("\n\n".join(paragraphs[start:]) for start in range(len(paragraphs)))
    return next((code for end in ends if _is_code(code := textwrap.dedent(end).strip())), "")


def _is_code(text: str) -> bool:
    """A block of settings is indented, too, but is not Python."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return False
    return any(isinstance(node, ast.Call | ast.Await) for node in ast.walk(tree))


def methods(of: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class of ours."""
    for name in dir(of):
        member = inspect.getattr_static(of, name)
        if not name.startswith("_") and isinstance(member, FunctionType | property | classmethod):
            yield name, member


CASES = {
    f"{name}.{number}": code
    for name, of in sorted(DOCUMENTED.items())
    for number, code in enumerate(
        [*examples(of), *(example for _, method in methods(of) for example in examples(method))]
    )
}


class Enough(Exception):
    """Ends an example that would handle records for ever."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=1) as running, running.client() as mq:
        for topic in ("orders", "emails", "tasks"):
            mq.admin.create_topic(topic, partitions=1, replication_factor=1)
            for number in range(RECORDS):
                mq.send(topic, b"%d" % number, key=b"k")
        mq.admin.create_group("mailer", "emails", kind="queue")
        mq.admin.create_group("billing", "orders")
        mq.admin.create_topic("emails.dlq", partitions=1, replication_factor=1)  # else the first dead letter makes it
        with mq.worker("emails", group="mailer") as worker:
            next(worker).reject("nobody to send it to")
            worker.flush()
            with mq.reader("emails.dlq") as dead_letters:
                dead_letters.poll(CALL_S)
        with mq.scan("orders", 0, 0, 2, scan_id="nightly") as scan:
            list(scan)
        yield running


def _enough_after(count: int) -> Callable[..., None]:
    left = iter(range(count))

    def handle(*_: object) -> None:
        if next(left, None) is None:
            raise Enough

    return handle


@pytest.fixture(scope="module")
def mq(cluster: Cluster) -> Iterator[Client]:
    """An administrator's client: some examples are about users."""
    token = asyncio.run(make_administrator(cluster.servers.split(","), SECRET, "root", CALL_S))
    with cluster.client(token=token) as client:
        client.access.create_user("anna")
        client.access.create_token("anna", label="laptop")
        yield client


@pytest.mark.parametrize("case", CASES)
def test_an_example_runs(cluster: Cluster, mq: Client, case: str) -> None:
    """Each has groups of its own. It takes some names for granted, `mq` among them."""
    source = CASES[case].replace("localhost:7070", cluster.servers)
    source = re.sub(r'(group|channel)="(?!audit)([\w-]+)"', rf'\1="\2-{case}"', source)
    code = compile(source, case, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names = {
        **NAMES,
        "mq": mq,
        "pa": pa,
        "pl": polars,
        "duckdb": duckdb,
        "lines": [b"one", b"two"],
        "handle": _enough_after(HANDLED),
        "send": _enough_after(HANDLED),
        "busy": lambda: True,
        "print": lambda *_: None,
    }
    with contextlib.ExitStack() as opened:
        opened.enter_context(contextlib.suppress(Enough))
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(_awaited(code, names, cluster.servers))
            return
        if "producer" in code.co_names and "mq.producer" not in source:
            names["producer"] = opened.enter_context(mq.producer())
        if "worker" in code.co_names and "mq.worker" not in source:
            names["worker"] = opened.enter_context(mq.worker("emails", group=f"mailer-{case}"))
        exec(code, names)


async def _awaited(code: CodeType, names: dict[str, Any], servers: str) -> None:
    send = names["send"]

    async def sent(value: object) -> None:
        send(value)

    async with tinymq.AsyncClient(servers) as mq:
        await eval(code, {**names, "mq": mq, "send": sent})


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_public_name_has_a_docstring_and_an_example(name: str) -> None:
    of = DOCUMENTED[name]
    assert of.__doc__
    assert examples(of) or (issubclass(of, Exception) and shown_on_page(of)), f"{name} has no example"
    undocumented = [each for each, method in methods(of) if not inspect.getdoc(method)]
    assert undocumented == []


@pytest.mark.parametrize("name", ACTIVE)
def test_each_method_is_in_an_example(name: str) -> None:
    """In its own docstring, or in that of its class."""
    of = {name, *(base.__name__ for base in DOCUMENTED[name].__mro__)}
    shown = "\n".join(code for case, code in CASES.items() if case.partition(".")[0] in of)
    named = [each for each, _ in methods(DOCUMENTED[name])]
    assert [each for each in named if not re.search(rf"\.{each}\b|\bwith\b.*\b{each}\b", shown)] == []
