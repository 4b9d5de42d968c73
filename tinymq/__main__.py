"""`python -m tinymq` is the `tinymq` command."""

from __future__ import annotations

from tinymq.cli.main import main

if __name__ == "__main__":
    main()
