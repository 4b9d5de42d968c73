"""The inbox: a consumer notes in its own database what it has handled, in the transaction that handles it.

Here: the tables and the calls. Not here: how records are read (client).
"""

from tinymq.inbox.inbox import AsyncInbox, Inbox

__all__ = ["AsyncInbox", "Inbox"]
