"""A clock that a test moves by hand: it is public, for the contract suite of registries runs on it."""

from __future__ import annotations

from tinymq.simulation.manual_clock import ManualClock, ManualTimer

__all__ = ["ManualClock", "ManualTimer"]
