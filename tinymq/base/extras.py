"""Maps packages to the extras that install them, so that a part of tinymq that lacks a package can name the extra.

The base install contains the client. `required` wraps the third-party imports of every other entry point: the command
line, brokers as a library and their settings, `tinymq.testing`, outbox and inbox, the Spark data source.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from urllib.parse import urlsplit
from urllib.request import url2pathname

# The keys are the first words of module names; pyproject.toml has the versions. A package of two extras is listed with
# the smaller extra.
EXTRAS: dict[str, str] = {
    "cryptography": "cli",
    "cyclopts": "cli",
    "rich": "cli",
    "duckdb": "duckdb",
    "grpc_health": "broker",
    "grpc_reflection": "broker",
    "h11": "broker",
    "jwt": "jwt",
    "kazoo": "zookeeper",
    "polars": "polars",
    "prometheus_client": "broker",
    "pydantic": "broker",
    "pydantic_settings": "broker",
    "pysyncobj": "broker",
    "pyspark": "spark",
    "sqlalchemy": "outbox",
    "structlog": "broker",
}


class MissingExtra(ImportError):
    """A package of an extra is not installed. The message names the extra, and the command that installs it."""

    __module__ = "tinymq"  # from which applications import it


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
            f"{purpose} needs {package}, which the base install leaves out and the extra {extra!r} adds:"
            f" {install_command(extra)}",
            name=error.name,
        ) from None


def install_command(extra: str) -> str:
    """The command that adds an extra to this environment, from wherever tinymq itself was installed."""
    try:
        origin = metadata.distribution("tinymq").read_text("direct_url.json")
    except metadata.PackageNotFoundError:  # it runs from a folder on PYTHONPATH
        origin = None
    return shlex.join([sys.executable, "-m", "pip", "install", *pip_arguments(extra, origin)])


def pip_arguments(extra: str, origin: str | None) -> list[str]:
    """The arguments of `pip install` for tinymq with an extra. Pure.

    `origin` is the file `direct_url.json` that pip leaves beside a package that came from a wheel, a folder or a
    repository; None: it came from an index.
    """
    wanted = f"tinymq[{extra}]"
    if origin is None:
        return [wanted]
    content = json.loads(origin)
    url = content["url"]
    if "vcs_info" in content:
        return [f"{wanted} @ {content['vcs_info']['vcs']}+{url}@{content['vcs_info']['commit_id']}"]
    if not url.startswith("file:"):
        return [f"{wanted} @ {url}"]
    path = f"{url2pathname(urlsplit(url).path)}[{extra}]"
    return ["--editable", path] if content.get("dir_info", {}).get("editable") else [path]
