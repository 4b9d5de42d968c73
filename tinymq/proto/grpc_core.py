"""The settings with which gRPC's C core is loaded. It reads them from the environment, once, while it is imported.

They are there for the import alone. The environment of the process, which its children inherit, stays as it was.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

SETTINGS = {
    # Handlers of fork are for the synchronous API. With grpc.aio in the parent they can crash the child.
    "GRPC_ENABLE_FORK_SUPPORT": "0",
    # Lines on stderr, such as one for each failed handshake of TLS. They are typed errors here already, and a stranger
    # could fill a broker's log with them.
    "GRPC_VERBOSITY": "NONE",
}


@contextmanager
def settings() -> Iterator[None]:
    """Wrap the first `import grpc` of a process. A setting of the user takes precedence."""
    added = {name: text for name, text in SETTINGS.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
