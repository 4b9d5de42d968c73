"""The log room: bytes on one disk. Nothing here knows of Raft, peers or clients."""

from tinymq.log.broker_files.broker_identity import BrokerIdentity
from tinymq.log.broker_files.vote_store import VoteStore
from tinymq.log.engine.store import OpenedLog, Store
from tinymq.log.files.files import File, Files, RealFiles
from tinymq.log.files.runner import InlineRunner, Runner, ThreadRunner
from tinymq.log.replica_log.log import Log
from tinymq.log.replica_log.log_config import DISK, LogConfig, log_config
from tinymq.log.writer.writer import Writer

__all__ = [
    "DISK",
    "BrokerIdentity",
    "File",
    "Files",
    "InlineRunner",
    "Log",
    "LogConfig",
    "OpenedLog",
    "RealFiles",
    "Runner",
    "Store",
    "ThreadRunner",
    "VoteStore",
    "Writer",
    "log_config",
]
