"""The contract suite over every implementation (implementations.py)."""

from __future__ import annotations

from tinymq.testing.registry_contract import *  # noqa: F403
