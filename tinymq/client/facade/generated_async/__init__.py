"""The asynchronous classes that `make proto` generates from their cores (tinymq/client/facade/generate.py).

Nothing here is written by hand. A class passes each call on, and has none of its core's other names.
"""
