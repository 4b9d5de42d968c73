"""The `tinymq` command."""
