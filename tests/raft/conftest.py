"""Brokers log transitions; thousands of simulated ones would fill the output."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def quiet_log() -> Iterator[None]:
    def drop(logger: object, name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        raise structlog.DropEvent

    structlog.configure(processors=[drop])
    yield
    structlog.reset_defaults()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--scripts", type=int, default=3, help="number of random scripts of each kind")
    parser.addoption("--rewrite", action="store_true", help="rewrite the records of raft/scenarios/*.txt")
