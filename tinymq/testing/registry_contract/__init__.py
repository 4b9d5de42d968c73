"""The contract suite of registries, also for your own registry: pytest collects the suite where you import it.

    # test_my_registry.py
    from tinymq.testing.registry_contract import *

    @pytest.fixture
    def open_registry():
        @asynccontextmanager
        async def opened(clock, folder): # see bench.OpenRegistry
            registry = MyRegistry(folder / "file", clock, random.Random(1), Timing())
            await registry.start(set())
            yield registry
            await registry.stop()

        return opened

A registry that passes is a valid one. The suite needs pytest. docs/registry.md says what else to test.
"""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("pytest") is None:
    raise ImportError("tinymq.testing.registry_contract needs pytest, which no extra brings: pip install pytest")

from tinymq.testing.registry_contract import brokers, queues, records
from tinymq.testing.registry_contract.bench import Bench, OpenRegistry, Scenario, broker, run

TESTS = {name: test for part in (brokers, queues, records) for name, test in vars(part).items() if name[:5] == "test_"}
globals().update(TESTS)

__all__ = ["Bench", "OpenRegistry", "Scenario", "broker", "run", *TESTS]
