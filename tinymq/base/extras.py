"""Maps packages to the extras that install them, so that a part of tinymq that lacks a package can name the extra.

The base install contains the client. `required` wraps the third-party imports of every other entry point: the command
line, brokers as a library and their settings, `tinymq.testing`, the Spark data source.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

# The keys are the first words of module names; pyproject.toml has the versions. A package of two extras is listed with
# the smaller extra.
EXTRAS: dict[str, str] = {
    "cyclopts": "cli",
    "rich": "cli",
    "grpc_health": "broker",
    "grpc_reflection": "broker",
    "h11": "broker",
    "kazoo": "zookeeper",
    "prometheus_client": "broker",
    "pydantic": "broker",
    "pydantic_settings": "broker",
    "pysyncobj": "broker",
    "pyspark": "spark",
    "structlog": "broker",
}


class MissingExtra(ImportError):
    """A package of an extra is not installed. The message names the extra."""


@contextmanager
def required(purpose: str) -> Iterator[None]:
    """Wrap imports that `purpose` needs. Raises MissingExtra instead of the ImportError for a package of an extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = EXTRAS.get(package, "")
        if not extra:
            raise
        raise MissingExtra(
            f"{purpose} needs {package}, which the base install leaves out: pip install 'tinymq[{extra}]'"
            + (" (or 'tinymq[all]')" if extra != "spark" else ""),
            name=error.name,
        ) from None
