"""A clock that a test moves. It is public because the contract suite of registries needs it."""

from __future__ import annotations

from tinymq.simulation.manual_clock import ManualClock, ManualTimer

__all__ = ["ManualClock", "ManualTimer"]
