"""Tuning of a broker's process: the interpreter, the C library's allocator, and the limit of open files."""

from __future__ import annotations

import ctypes
import gc
import sys

MIB = 1 << 20
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def tune() -> None:
    """Skip numpy, keep freed memory, and collect garbage less often. Call this before anything imports pyarrow.

    pyarrow imports numpy if it is installed, and works without it. A broker does not need numpy, and the import takes
    0.2 of the 0.75 s of processor time that a start costs. Restarting a cluster means waiting for every broker.

    Batches are buffers of about 1 MiB. By default glibc maps and unmaps memory for each of them, and the kernel
    clears every page again (docs/adr/0008 has the figures). Brokers hold many long-lived objects and create few cycles,
    so frequent collections would be wasted work.
    """
    sys.modules.setdefault("numpy", None)  # type: ignore[arg-type]  # `import numpy` now fails, as if it were not installed
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return  # not glibc: keep the defaults of this C library
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
