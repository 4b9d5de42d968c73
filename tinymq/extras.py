"""Which extra of the distribution brings which package: a part of tinymq that lacks one says what to install.

The base install is the client. `required` stands around the third-party imports of every other way in: the command
line, brokers as a library and their settings, `tinymq.testing`, the Spark data source.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

# By the first word of a module's name; pyproject.toml has the versions. A package that two extras bring is listed with
# the smaller one.
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
    """Around imports that `purpose` needs. Raises MissingExtra in place of the ImportError of an extra's package."""
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
