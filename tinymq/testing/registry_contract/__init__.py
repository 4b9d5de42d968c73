"""The contract suite of registries, which also tests your own registry. Pytest collects it where you import it.

    # test_my_registry.py
    from tinymq.testing.registry_contract import *

    @pytest.fixture
    def open_registry():
        @asynccontextmanager
        async def opened(clock, directory):  # see bench.OpenRegistry
            registry = MyRegistry(directory / "file", clock, random.Random(1), Timing())
            await registry.start(set())
            yield registry
            await registry.stop()

        return opened

A registry that passes the suite fulfils the contract. The suite needs pytest. docs/registry.md lists what else to test.
"""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("pytest") is None:
    raise ImportError("tinymq.testing.registry_contract needs pytest, which no extra installs: pip install pytest")

from tinymq.testing.registry_contract import brokers, queues, records
from tinymq.testing.registry_contract.bench import Bench, OpenRegistry, Scenario, broker, run

TESTS = {name: test for part in (brokers, queues, records) for name, test in vars(part).items() if name[:5] == "test_"}
globals().update(TESTS)

__all__ = ["Bench", "OpenRegistry", "Scenario", "broker", "run", *TESTS]
