"""The error of a relay that must not go on by itself."""

from __future__ import annotations

from tinymq.base.errors import TinymqError


class OutboxUnresolved(TinymqError):
    """The relay cannot know which rows are in the log. It has changed nothing; an operator decides.

    The brokers no longer know the outcome of a transaction whose rows are still here: nobody used its id for 7 days,
    or `__coordinator` lost a part of its log. Or the database is older than the log: it was restored from a backup, or
    copied.
    """

    default_hint = "compare the table with the topics, then: tinymq outbox resolve --sent, or --unsent"
