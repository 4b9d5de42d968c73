"""A registry of one's own: docs/registry.md walks through it."""
