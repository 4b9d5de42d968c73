"""Brokers to register."""

from __future__ import annotations

from tinymq.testing.registry_contract.bench import broker

__all__ = ["broker"]
