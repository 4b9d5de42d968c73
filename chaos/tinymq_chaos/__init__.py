"""Fault tests of tinymq: a deterministic simulator of whole brokers. May import anything; nothing imports it."""
