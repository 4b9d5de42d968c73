"""What a broker's process asks of the interpreter and of the C library, once, before it allocates much."""

from __future__ import annotations

import ctypes
import gc
import sys

MIB = 1 << 20
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def tune() -> None:
    """Before anything imports pyarrow: start with less, keep freed memory, and look for garbage less often.

    pyarrow takes numpy along where it is installed, and does without it where it is not. A broker has no use for it,
    and it is 0.2 of the 0.75 s of processor time that a start costs: who restarts a cluster waits for all brokers.

    Batches are buffers of about 1 MiB. By default glibc maps and unmaps memory for each of them, and the kernel
    clears every page again (docs/adr/0008 has the figures). Brokers hold many long-lived objects and make few cycles,
    so the collector's default pace is wasted on them.
    """
    sys.modules.setdefault("numpy", None)  # type: ignore[arg-type]  # imports of it fail, as if it were not there
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return  # another C library: its defaults stay
    mallopt(_M_MMAP_THRESHOLD, 32 * MIB)
    mallopt(_M_TRIM_THRESHOLD, 512 * MIB)
    mallopt(_M_TOP_PAD, 16 * MIB)


def raise_open_files(connections_max: int) -> None:
    """Raise the limit of open files as far as the system allows this process, and log the new limit."""
    import structlog

    from tinymq.net import descriptors

    limit = descriptors.raise_limit()
    shares = descriptors.share(limit, connections_max)
    structlog.get_logger("tinymq.broker").info(
        "open_files", limit=limit, connections_max=shares.connections, clients=shares.clients, streams=shares.streams,
        peers=shares.peers, metrics=shares.metrics,
    )  # fmt: skip
