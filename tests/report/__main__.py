"""`python -m attention_conformance.tests.report DIR`: makes the views of a report again from its event log."""

import argparse
import sys
from pathlib import Path

from attention_conformance.tests.report.log import LogError, replay
from attention_conformance.tests.report.views import ERRORS, VIEWS, write
from attention_conformance.tests.report.views.terminal import lines

FAILED, UNUSABLE = 3, 4
"""Exit status if a view could not be made, and if there is no log to read."""


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0; 3 if a view could not be made; 4 if the folder holds no log, or cannot be written."""
    parser = argparse.ArgumentParser(prog="python -m attention_conformance.tests.report", description=__doc__)
    parser.add_argument("folder", metavar="DIR", type=Path, help="the folder of --report, which holds events.jsonl")
    parser.add_argument("--print", action="store_true", help="print the summary of the run, and write nothing")
    options = parser.parse_args(arguments)
    try:
        run = replay(options.folder)
        if options.print:
            print("\n".join(lines(run)))
            return 0
        failed = write(run, options.folder)
    except (LogError, OSError) as error:
        print(f"attention_conformance.tests.report: {error}", file=sys.stderr)
        return UNUSABLE
    print(f"written: {', '.join(str(options.folder / name) for name in VIEWS if name not in failed)}")
    for name, reason in failed.items():
        print(f"ERROR: {name} could not be made: {reason}; see {options.folder / ERRORS}", file=sys.stderr)
    return FAILED if failed else 0


if __name__ == "__main__":
    sys.exit(main())
