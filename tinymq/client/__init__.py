"""The client: producers, readers, groups, queues and admin, for asyncio and for threads.

Its public names are listed in `__init__.pyi`, once. Each is loaded when it is first used, so that `import tinymq` takes
no time. `tinymq` has the same names.
"""

from __future__ import annotations

import importlib
import re

# By the loader, because the package may lie in an archive, such as those of spark-submit's --py-files.
_STUB: str = __loader__.get_data(__file__.removesuffix("c") + "i").decode()
_MODULE_BY_NAME = {
    name: module for module, name in re.findall(r"^from (\S+) import (?:\(\n +)?(\w+) as \2", _STUB, re.MULTILINE)
}

__all__ = sorted(_MODULE_BY_NAME)


def __getattr__(name: str) -> object:
    module = _MODULE_BY_NAME.get(name)
    if module is None:
        raise AttributeError(f"module 'tinymq.client' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
