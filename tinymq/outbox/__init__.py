"""The outbox: records that are written in a transaction of the application's database, and sent by a relay.

Here: the tables, the writing end, and the relay. Not here: the command (cli), and transactions of the log (client).
"""

from tinymq.outbox.outbox import AsyncOutbox, Outbox

__all__ = ["AsyncOutbox", "Outbox"]
