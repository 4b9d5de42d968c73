"""`tinymq transaction`: list and describe transactional ids, roll an open one back, and resolve hung ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from tinymq.base.errors import InvalidRequest, NotFound, NotReady
from tinymq.base.quantity import quantity
from tinymq.cli.common.confirmation import confirm
from tinymq.cli.common.due import left
from tinymq.cli.common.options import Output
from tinymq.cli.common.output import print_json, print_table, say
from tinymq.cli.common.servers import DEFAULT_SERVERS, ServerOptions
from tinymq.cli.verbs.topic import DryRun, Yes

if TYPE_CHECKING:
    from tinymq.client import HungTransaction, TransactionalIdDescription, TransactionDescription

HELP = """
A program begins transactions under a transactional id: mq.transaction("billing-1").

Example: tinymq transaction list

Example: tinymq transaction abort billing-1

Example: tinymq transaction list --hung
"""

app = App(
    name="transaction",
    help="Transactions and the ids that begin them: list, describe, abort, resolve.",
    help_epilogue=HELP,
)

TransactionalId = Annotated[str, Parameter(help="The transactional id, as `tinymq transaction list` shows it.")]
Hung = Annotated[
    bool, Parameter(negative=(), help="Only transactions without an end, in the partitions that ask for it in vain.")
]
UNFINISHED = {"open": "open", "committed": "committing", "aborted": "rolling back"}


@app.command(name="list")
def list_(*, hung: Hung = False, servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table") -> None:
    """List the transactional ids, with the outcome of the newest transaction, and the time of the newest use.

    `open`: the program has not decided yet; if it does not within the time in `ends in`, the transaction is rolled
    back. `committing` and `rolling back`: it is decided, and the partitions in `partitions` have not carried it out
    yet. An id that nobody uses for 7 days is forgotten.

    With --hung: the transactions with batches in partitions whose leaders have asked for the end in vain. `unresolved`:
    the coordinator has lost a part of its log, and `tinymq transaction resolve` decides. `unanswered`: the coordinator
    does not answer; `tinymq cluster status` shows why. `behind`: it is resolved, and an earlier one of the same
    producer is not.
    """
    if hung:
        with servers.connect() as mq:
            _print_hung(mq.admin.list_hung_transactions(), output)
        return
    with servers.connect() as mq:
        found = mq.admin.list_transactional_ids()
    if output == "json":
        print_json({"transactional_ids": [_document(each) for each in found]})
        return
    rows = []
    for each in found:
        newest = each.transactions[-1] if each.transactions else None
        partitions = sum(len(transaction.partitions) for transaction in each.transactions)
        used = each.used_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        rows.append((each.transactional_id, each.epoch, _newest(each), partitions, _ends_in(newest), used))
    print_table(["transactional id", "epoch", "newest", "partitions", "ends in", "used"], rows)


@app.command
def describe(
    transactional_id: TransactionalId, /, *, servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table"
) -> None:
    """Show the transactions of an id that are not over, and the partitions that they wait for.

    An open transaction shows the partitions to which it has sent; a decided one those that have not carried the
    decision out yet: their leaders do so as soon as they can.
    """
    with servers.connect() as mq:
        found = mq.admin.describe_transactional_id(transactional_id)
    if output == "json":
        print_json(_document(found))
        return
    rows = [
        (each.number, UNFINISHED.get(each.state, each.state), _ends_in(each), _places(each))
        for each in found.transactions
    ]
    print_table(["transaction", "state", "ends in", "partitions"], rows)
    if not rows:
        say(f"no transaction of {transactional_id} is under way; its newest one: {_newest(found)}")


@app.command
def abort(
    transactional_id: TransactionalId,
    /,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """Roll the open transaction of an id back. Nothing that it has sent will ever be visible.

    Its program is told so by its next call, and may go on with another transaction. A transaction that is decided
    cannot be rolled back. If none is open, nothing changes, and the exit code is 3.
    """
    with servers.connect() as mq:
        found = mq.admin.describe_transactional_id(transactional_id)
        still = next((each for each in found.transactions if each.state == "open"), None)
        if still is None:
            raise NotFound(
                f"no transaction of {transactional_id!r} is open",
                hint=f"see: tinymq transaction describe {transactional_id}",
            )
        if not dry_run:
            confirm(
                f"roll back what {transactional_id} has sent to {quantity(len(still.partitions), 'partition')}", yes
            )
            mq.admin.abort_transaction(transactional_id)
    if output == "json":
        print_json({"transactional_id": transactional_id, "number": still.number, "aborted": not dry_run})
    else:
        would = "would be" if dry_run else "is"
        say(f"transaction {still.number} of {transactional_id} {would} rolled back: {_places(still) or 'nothing sent'}")


@app.command
def resolve(
    transaction: Annotated[str, Parameter(help="The transaction, as `tinymq transaction list --hung` shows it.")],
    /,
    *,
    commit: Annotated[bool, Parameter(negative=(), help="Publish its records.")] = False,
    abort: Annotated[bool, Parameter(negative=(), help="Drop its records.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """Decide about a hung transaction whose own decision may be lost: --commit or --abort.

    Use it after `tinymq cluster recover` has accepted the loss of a part of __coordinator, and look first: if readers
    see records of the transaction in another partition, it was committed. The decision holds for all partitions, also
    for those that are away now, and cannot be undone. If no partition has such a transaction, the exit code is 3.
    """
    if commit is abort:
        raise InvalidRequest("a decision is needed", hint="pass either --commit or --abort")
    with servers.connect() as mq:
        found = [each for each in mq.admin.list_hung_transactions() if each.transaction == transaction]
        if not found:
            hint = "see: tinymq transaction list --hung"
            raise NotFound(f"no partition has a hung transaction {transaction!r}", hint=hint)
        if any(each.reason == "unanswered" for each in found):
            hint = "bring the coordinator back, or recover it, first: tinymq cluster status"
            raise NotReady(f"the coordinator of {transaction} does not answer, and may know the decision", hint=hint)
        carried_out = False
        if not dry_run:
            if output == "table":
                _print_hung(found, output)
            partitions = quantity(len(found), "partition")
            confirm(f"{'publish' if commit else 'drop'} what {transaction} has in {partitions}", yes)
            carried_out = mq.admin.resolve_transaction(transaction, commit=commit)
    if output == "json":
        decision = "commit" if commit else "abort"
        print_json({
            "transaction": transaction, "decision": decision, "resolved": not dry_run, "carried_out": carried_out,
            "hung": [asdict(each) for each in found],
        })  # fmt: skip
        return
    if dry_run:
        _print_hung(found, output)
    done = "would be" if dry_run else "is" if carried_out else "is decided, and soon"
    say(f"transaction {transaction} {done} {'committed' if commit else 'rolled back'}")


def _print_hung(found: Sequence[HungTransaction], output: Output) -> None:
    if output == "json":
        print_json({"hung": [asdict(each) for each in found]})
        return
    rows = [
        (each.transaction, each.reason, f"{each.topic}/{each.partition}", each.batches, each.records, each.bytes)
        for each in found
    ]
    print_table(["transaction", "reason", "partition", "batches", "records", "bytes"], rows)


def _newest(found: TransactionalIdDescription) -> str:
    if found.transactions:
        state = found.transactions[-1].state
        return UNFINISHED.get(state, state)
    return "none" if found.committed is None else "committed" if found.committed else "rolled back"


def _ends_in(transaction: TransactionDescription | None) -> str | None:
    return left(transaction.until) if transaction is not None and transaction.state == "open" else None


def _places(transaction: TransactionDescription) -> str:
    return ", ".join(f"{topic}/{partition}" for topic, partition in transaction.partitions)


def _document(found: TransactionalIdDescription) -> dict[str, Any]:
    return {
        "transactional_id": found.transactional_id,
        "producer_id": found.producer_id,
        "epoch": found.epoch,
        "used_at": found.used_at.isoformat(),
        "transactions": [
            {
                "number": each.number,
                "state": each.state,
                "until": each.until.isoformat(),
                "partitions": [{"topic": topic, "partition": partition} for topic, partition in each.partitions],
            }
            for each in found.transactions
        ],
        "decided_number": found.decided_number,
        "committed": found.committed,
    }
