"""A real cluster inside the calling process, for tests."""
