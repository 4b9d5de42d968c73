"""Every error that a user, a peer or a disk can cause, as a tree of types.

    TinymqError
    ├── InvalidRequest         the call itself is wrong; sending it again changes nothing
    │   ├── InvalidName, InvalidBatch, BatchTooLarge, InvalidConfig, InvalidFrame, UnsupportedVersion,
    │   │   WrongEventLoop
    │   └── OffsetOutOfRange, OutOfOrderSequence, Fenced, UnknownProducer, VersionConflict, WrongKind, LeaseLost,
    │       SessionEnded, TransactionAborted, VersionReused
    ├── NotFound               UnknownTopic, UnknownPartition, UnknownChannel, UnknownGroup
    ├── AlreadyExists          TopicExists
    ├── Unavailable            nothing was done: try again (retriable)
    │   ├── NotLeader, NotReady, OffsetNotAvailable, BufferFull, BrokerUnreachable, QuotaExceeded, Held
    │   └── DeadlineExceeded   nothing was done, and the time is up
    ├── OutcomeUnknown         the request may have taken effect, or not
    ├── NotDelivered           records that a producer could not send
    ├── Denied                 Unauthenticated, WrongSecret, WrongCluster, WrongBroker
    ├── StorageError           DiskFull, OutOfDescriptors, SyncFailed, CorruptData, BrokenInvariant,
    │                          FolderInUse, PortInUse, UnsafePath
    └── Closed                 used after it was closed

Every operating error is one of these, and no error of a library leaks unmapped. Applications import them from `tinymq`
(docs/errors.md), and that is the module that a traceback shows. A broken invariant is an
AssertionError, and ends the replica that met it (BrokenInvariant), or else the process. On the wire an error is its
`code`, message, hint and detail.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from tinymq.base.types import Unsent

PUBLIC = "tinymq"  # the module from which applications import the errors


class TinymqError(Exception):
    """Base of all. `code` is stable and names the class. `retriable` says whether the same call may succeed later.
    `hint` says what to do. `detail` has facts for programs, all of them strings.

        try:
            mq.send("no-such-topic", b"...")
        except TinymqError as error:
            print(error.code, error.retriable, error.hint)
    """

    code: ClassVar[str] = "Error"
    retriable: ClassVar[bool] = False
    default_hint: ClassVar[str] = ""

    def __init__(self, message: str = "", *, hint: str | None = None, **detail: object) -> None:
        super().__init__(message or self.code)
        self.message = message or self.code
        self.hint = self.default_hint if hint is None else hint
        self.detail: dict[str, str] = {k: str(v) for k, v in detail.items() if v is not None}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.code = cls.__name__
        cls.__module__ = PUBLIC if cls.__module__ == __name__ else cls.__module__
        assert cls.code not in BY_CODE, cls.code
        BY_CODE[cls.code] = cls

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


TinymqError.__module__ = PUBLIC
BY_CODE: dict[str, type[TinymqError]] = {}


class InvalidRequest(TinymqError):
    """The request is wrong in itself."""

    default_hint = "change the request: the same one fails again"


class InvalidName(InvalidRequest):
    """The name of a topic, group or user has a form that is not allowed."""

    default_hint = "topic names: 1 to 249 of A-Z a-z 0-9 . _ -"


class InvalidBatch(InvalidRequest):
    """The bytes are not a batch of this format, or contradict themselves."""

    default_hint = "send batches made by tinymq's client; docs/wire-protocol.md draws them"


class BatchTooLarge(InvalidRequest):
    """A record or batch is over a limit, packed or unpacked."""

    default_hint = "send smaller records or batches; docs/operations.md has the brokers' limits"


class InvalidConfig(InvalidRequest):
    """A setting is unknown, contradictory or out of range."""

    default_hint = "docs/operations.md shows the settings"


class InvalidFrame(InvalidRequest):
    """The received bytes are no frame of the protocol of this port, or a frame over its bound, or cut short."""

    default_hint = "check what connects to the port between brokers, and to the stream port"


class UnsupportedVersion(InvalidRequest):
    """The other end, or a file, speaks a version that this build does not."""

    default_hint = "run client and brokers at most one minor version apart"


class WrongEventLoop(InvalidRequest):
    """An asynchronous client is used on an event loop that it does not belong to."""

    default_hint = "use it on the loop that used it first, and make one for each asyncio.run; a Client suits any thread"


class OffsetOutOfRange(InvalidRequest):
    """The offset is below the log start, beyond the end, or that of a lost record. detail: log_start, high_watermark,
    and history_start if records from there on were lost."""

    default_hint = "start from 'earliest', or from log_start in the error's detail"


class OutOfOrderSequence(InvalidRequest):
    """An idempotent producer skipped a sequence: an earlier batch is missing."""

    default_hint = "send the missing batch first, or take a new epoch"


class Fenced(InvalidRequest):
    """A newer epoch of this producer has written, or another consumer took over this channel."""

    default_hint = "another one took over: make a new producer, or open the channel again"


class UnknownProducer(InvalidRequest):
    """The partition does not know this producer id, and its sequence is not 0."""

    default_hint = "the client takes a new epoch by itself; the outcome of batches in flight is unknown"


class VersionConflict(InvalidRequest):
    """The object of a change no longer has the version that the change was based on."""

    default_hint = "read the object again, and decide again"


class WrongKind(InvalidRequest):
    """The cursor belongs to a channel or a group of another kind, or to another group of that name."""

    default_hint = "channels, stream groups and queue groups share their names; see: tinymq group list"


class LeaseLost(InvalidRequest):
    """The worker does not hold this record now: its lease ran out, a seek moved the group, or others settled it."""

    default_hint = "the record is, or was, delivered again: make its handling idempotent, or lengthen lease_ms"


class SessionEnded(InvalidRequest):
    """The partition's leader has ended this worker's session, because the worker was silent for too long."""

    default_hint = "the client attaches under a new session by itself; what it held is delivered again"


class TransactionAborted(InvalidRequest):
    """The transaction was rolled back, perhaps because its time was up: none of its records will ever be visible."""

    default_hint = "run the whole transaction again"


class VersionReused(InvalidRequest):
    """Another query has committed this version of the application, or a higher one. Nothing was written."""


class NotFound(TinymqError):
    """The named object does not exist."""

    default_hint = "check the name, or make it first"


class UnknownTopic(NotFound):
    """There is no topic of this name, or it was deleted."""

    default_hint = "create it: tinymq topic create NAME"


class UnknownPartition(NotFound):
    """The topic has no such partition."""

    default_hint = "partitions are numbered from 0; see: tinymq topic describe NAME"


class UnknownChannel(NotFound):
    """The partition has no such channel."""

    default_hint = "open it first; see: tinymq channel list TOPIC"


class UnknownGroup(NotFound):
    """There is no such group, or it was deleted."""

    default_hint = "create it: tinymq group create NAME; see: tinymq group list"


class AlreadyExists(TinymqError):
    """The object to create exists already."""

    default_hint = "choose another name"


class TopicExists(AlreadyExists):
    """There is a topic of this name already."""

    default_hint = "choose another name, or accept the topic as it is: --if-not-exists, exist_ok=True"


class Unavailable(TinymqError):
    """The request cannot be served now. Nothing was done."""

    retriable = True
    default_hint = "try again shortly"


class NotLeader(Unavailable):
    """This replica does not lead the partition. detail: leader, leader_address, leader_epoch (if known)."""

    default_hint = "ask the leader that the error's detail names, or for the metadata again"


class NotReady(Unavailable):
    """The broker is starting, unformed or stopping, or the partition has no leader yet."""


class OffsetNotAvailable(Unavailable):
    """The offset is beyond the end that this replica may show. Another one, or a later try, may have it. detail:
    high_watermark."""

    default_hint = "try again, or ask another replica"


class BufferFull(Unavailable):
    """The producer's buffer stayed full for as long as it may block."""

    default_hint = "the brokers are slower than this producer; raise buffer_bytes_max or slow down"


class BrokerUnreachable(Unavailable):
    """No broker answered. The message lists every address that was tried, and why it failed."""

    default_hint = "check the addresses, and that the brokers run"


class QuotaExceeded(Unavailable):
    """The request is over a bound of the broker. detail: retry_after_ms, if it is known."""

    default_hint = "slow down, and try again shortly"


class Held(Unavailable):
    """The records are held for a planned read. detail: offset, retry_after_ms."""

    default_hint = "wait for the hold to end, or release it"


class DeadlineExceeded(Unavailable):
    """The deadline has passed, and certainly nothing was done."""

    default_hint = "see whether a majority of the brokers runs: tinymq cluster status; or allow more time"


class OutcomeUnknown(TinymqError):
    """The request may have taken effect, or not.

    If an idempotent producer sends again, the outcome becomes known. A plain producer may write a second time.
    """

    default_hint = "read back before sending again"


class NotDelivered(TinymqError):
    """Records of a producer that ended without an acknowledgement, and whose Delivery was never read.

    Each one of `records` has its own error. `left_out` further ones were not kept.

        try:
            with mq.producer() as producer:
                producer.send("orders", b"...")
        except NotDelivered as error:
            print(len(error.records) + error.left_out)
    """

    default_hint = "each of .records has its own error"

    def __init__(self, message: str = "", *, records: Sequence[Unsent] = (), left_out: int = 0) -> None:
        super().__init__(message, left_out=left_out)
        self.records = tuple(records)
        self.left_out = left_out


class Denied(TinymqError):
    """The other end refuses this broker or client."""

    default_hint = "check the address of the other end, and the identity given to it"


class Unauthenticated(Denied):
    """The other end does not know who calls: no token was sent, or one that is unknown, revoked or expired."""

    default_hint = "pass token=..., or set TINYMQ_TOKEN; an administrator makes one: tinymq user token NAME"


class WrongSecret(Denied):
    """The peer does not know the cluster's secret."""

    default_hint = "all brokers of a cluster share one secret file"


class WrongCluster(Denied):
    """The peer, or the data directory, belongs to another cluster."""

    default_hint = "check data_dir and the voters' addresses: a data directory belongs to one cluster for good"


class WrongBroker(Denied):
    """The peer, or the data directory, belongs to another broker of this cluster."""

    default_hint = "check broker_id, data_dir and the voters' addresses: each broker has its own data directory"


class StorageError(TinymqError):
    """A disk, a file or a port refused."""

    default_hint = "check the broker's disk"


class DiskFull(StorageError):
    """The broker's disk has no space left."""

    default_hint = "free space on the broker's disk"
    retriable = True


class OutOfDescriptors(StorageError):
    """The process or the system has no file descriptor left. Nothing is wrong with the disk."""

    default_hint = "raise the broker's limit of open files (ulimit -n); the broker tries again by itself"
    retriable = True


class SyncFailed(StorageError):
    """fsync failed: the written data may be lost, and a second fsync proves nothing."""

    default_hint = "check the disk, then start the broker again"


class CorruptData(StorageError):
    """The stored bytes are not those that were written. They are never served."""

    default_hint = "check the disk; the other replicas have the data"


class BrokenInvariant(StorageError):
    """An invariant is broken: a bug in this broker or another, and no damage. The stored data stays as it is."""

    default_hint = "this is a bug: keep the broker's data directory and log, and report it; the other replicas serve"


class FolderInUse(StorageError):
    """Another process has the data directory open."""

    default_hint = "one broker per data directory: stop the other one"


class UnsafePath(StorageError):
    """The path is not a file or directory of this user: it may be a planted link."""

    default_hint = "look at the path and its owner; remove it, or choose another directory"


class PortInUse(StorageError):
    """Another process listens on the port."""

    default_hint = "stop it, or choose another port"


class Closed(TinymqError):
    """Used after close()."""

    default_hint = "open another one"
