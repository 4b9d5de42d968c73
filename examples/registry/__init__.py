"""An example of your own registry: docs/registry.md walks through it."""
