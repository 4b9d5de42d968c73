"""The program that makes an invoice of each sale. Run several, each with a name of its own, and kill them as you like.

python -m examples.enricher.program 127.0.0.1:7070 enricher-1
"""

from __future__ import annotations

import sys

from examples.enricher.sales import INVOICES, SALES, invoice_of, packed, sale_in
from tinymq import Client, OutcomeUnknown, TransactionAborted

GROUP = "enricher"


def run(mq: Client, name: str) -> None:
    """Make invoices until the process ends. `name`: the transactional id, and the place in the group."""
    # With an instance_id the group keeps the partitions of a program that was killed until it is started again.
    with mq.consumer(SALES, group=GROUP, instance_id=name, auto_commit=False) as consumer:
        while True:
            messages = consumer.poll(timeout=5.0, max_records=20)
            if not messages:
                continue
            try:
                with mq.transaction(name, transaction_timeout_ms=10_000) as tx:
                    tx.commit_offsets(consumer)
                    for message in messages:
                        invoice = invoice_of(sale_in(message.value))
                        tx.send(INVOICES, packed(invoice), key=message.key)
            except (TransactionAborted, OutcomeUnknown) as error:
                print(f"{name}: {error}", flush=True)  # the consumer knows whether these messages come again


if __name__ == "__main__":
    servers, program_name = sys.argv[1:]
    with Client(servers) as client:
        run(client, program_name)
