"""tinymq: a replicated, partitioned message log in Python."""
