"""The log room: bytes on one disk. Nothing here knows of Raft, peers or clients."""

from tinymq.log.ballots import Ballots
from tinymq.log.files import File, Files, RealFiles
from tinymq.log.identity import Identity
from tinymq.log.log import Log
from tinymq.log.log_config import DISK, LogConfig, log_config
from tinymq.log.runner import InlineRunner, Runner, ThreadRunner
from tinymq.log.store import OpenedLog, Store
from tinymq.log.writer import Writer

__all__ = [
    "DISK",
    "Ballots",
    "File",
    "Files",
    "Identity",
    "InlineRunner",
    "Log",
    "LogConfig",
    "OpenedLog",
    "RealFiles",
    "Runner",
    "Store",
    "ThreadRunner",
    "Writer",
    "log_config",
]
