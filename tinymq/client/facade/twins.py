"""The table of the client's public classes that are generated: which class does the work, and which names are its own.

generate.py reads it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

GENERATED = "tinymq.client.facade.generated"


@dataclass(frozen=True)
class Twin:
    """The synchronous and the asynchronous class of one thing, and the class that does the work of both."""

    module: str  # of the class that does the work
    name: str  # of the synchronous class; the asynchronous one has Async before it
    by_hand: str = ""  # the module of facade/ whose class `name` extends the generated one
    async_by_hand: str = ""  # the same for the asynchronous class
    internal: frozenset[str] = frozenset()  # names of the core that only other rooms of the client use
    sync_only: frozenset[str] = frozenset()  # names without an asynchronous half: of engines that call from threads
    lazy: bool = False  # the module is imported when it is first used: most programs never use it
    room: str = ""  # below generated/, of the synchronous class

    @property
    def has_core(self) -> bool:
        """Is the asynchronous class generated, too?"""
        return bool(self.internal)

    @property
    def source(self) -> str:
        """The name of the class that does the work."""
        return f"{self.name}Core" if self.has_core else f"Async{self.name}"

    @property
    def sync(self) -> Half:
        place = f"{self.room}.{self._file}" if self.room else self._file
        return Half(self, self.name, self.by_hand, f"{GENERATED}.{place}")

    @property
    def asynchronous(self) -> Half:
        """Only with a core."""
        return Half(self, f"Async{self.name}", self.async_by_hand, f"{GENERATED}_async.{self._file}")

    @property
    def async_home(self) -> str:
        """The module that defines the asynchronous class for applications."""
        return self.asynchronous.home if self.has_core else self.module

    @property
    def _file(self) -> str:
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", self.name).lower()


@dataclass(frozen=True)
class Half:
    """A public class, and the class that is generated for it."""

    twin: Twin
    name: str  # of the public class
    by_hand: str  # the module of facade/ whose class `name` extends the generated one; "": it is the generated one
    generated_module: str

    @property
    def is_async(self) -> bool:
        return self.name.startswith("Async")

    @property
    def generated_name(self) -> str:
        return f"{self.name}Calls" if self.by_hand else self.name

    @property
    def home(self) -> str:
        """The module that defines the class for applications."""
        return self.by_hand or self.generated_module


TWINS = (
    Twin("tinymq.client.admin.access", "Access", lazy=True),
    Twin("tinymq.client.cluster.transaction_admin", "TransactionAdmin", room="transactions"),
    Twin("tinymq.client.admin.group_admin", "GroupAdmin"),
    Twin("tinymq.client.admin.admin", "Admin", lazy=True),
    Twin(
        "tinymq.client.facade.core.client_core",
        "Client",
        by_hand="tinymq.client.facade.client",
        async_by_hand="tinymq.client.facade.async_client",
        internal=frozenset({"cluster", "producers", "serve_with", "shared_producer"}),
    ),
    Twin(
        "tinymq.client.frame.frame",
        "Frame",
        by_hand="tinymq.client.facade.frame",
        internal=frozenset({"reading"}),
        sync_only=frozenset({"lazy", "relation"}),
    ),
    Twin("tinymq.client.admin.holds", "Hold"),
    Twin("tinymq.client.admin.schedule", "Schedule", by_hand="tinymq.client.facade.schedule"),
    Twin(
        "tinymq.client.produce.producer",
        "Producer",
        by_hand="tinymq.client.facade.producer",
        internal=frozenset(
            {"abandon", "append_here", "close_s", "closed", "direct", "ended"}
            | {"ready", "send_delayed", "send_whole", "unfinished", "written"}
        ),
    ),
    Twin(
        "tinymq.client.group.consumer",
        "Consumer",
        by_hand="tinymq.client.facade.consumer",
        internal=frozenset({"arrival", "at_hand", "batch", "closed", "leave", "more", "take", "transactional"}),
    ),
    Twin(
        "tinymq.client.transaction.transaction",
        "Transaction",
        by_hand="tinymq.client.facade.transaction",
        internal=frozenset({"closed", "leave"}),
    ),
    Twin("tinymq.client.transaction.half_message", "HalfMessage", room="transactions"),
    Twin("tinymq.client.transaction.checker", "Checker", room="transactions"),
    Twin(
        "tinymq.client.transaction.partition_transaction",
        "PartitionTransaction",
        by_hand="tinymq.client.facade.partition_transaction",
        internal=frozenset({"append"}),
    ),
    Twin(
        "tinymq.client.work.worker",
        "Worker",
        by_hand="tinymq.client.facade.worker",
        internal=frozenset(
            {"arrival", "attached", "check_transactional", "closed", "fail_in_hand"}
            | {"leave", "say", "staged", "take", "take_one"}
        ),
    ),
    Twin(
        "tinymq.client.queue.queue",
        "Queue",
        by_hand="tinymq.client.facade.queue",
        internal=frozenset({"closed", "leave"}),
    ),
    Twin(
        "tinymq.client.consume.reader",
        "Reader",
        by_hand="tinymq.client.facade.reader",
        internal=frozenset({"arrival", "closed", "fail"}),
    ),
    Twin(
        "tinymq.client.consume.scan",
        "Scan",
        by_hand="tinymq.client.facade.scan",
        internal=frozenset({"closed", "take"}),
    ),
)
HALVES = [half for twin in TWINS for half in ((twin.sync, twin.asynchronous) if twin.has_core else (twin.sync,))]
BY_SOURCE = {twin.source: twin for twin in TWINS}
