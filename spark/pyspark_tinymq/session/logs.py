"""Shows the source's warnings on stderr of Python's workers, which Spark adds to the logs of driver and executors."""

from __future__ import annotations

import logging
import sys

LOG = logging.getLogger("pyspark_tinymq")


def show_warnings() -> None:
    """Show warnings, unless the process has its own way of logging.

    Spark's setLogLevel does not reach Python's workers, so it could not hide a line for each action.
    """
    if not LOG.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s tinymq: %(message)s"))
        LOG.addHandler(handler)
        LOG.setLevel(logging.WARNING)
