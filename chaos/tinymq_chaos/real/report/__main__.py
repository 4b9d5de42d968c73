"""Make a run's report again from its folder, or compare the run with an earlier one. Exit code 2: a folder holds no
run, or cannot be written to."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tinymq_chaos.real.report import BadFolder, write_comparison, write_report


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tinymq_chaos.real.report", description=__doc__)
    parser.add_argument("folder", type=Path, help="of a run: it holds history.jsonl and run.json")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="of an earlier run: compare the two")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the page; else report.html or comparison.html in the run's folder"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_options(arguments)
    try:
        if options.against is None:
            path = write_report(options.folder, options.out)
        else:
            path = write_comparison(options.folder, options.against, options.out)
    except (BadFolder, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
