"""The process of one check: `python -m benchmarks.gpu_check.child NAME SETTINGS ROWS_FILE`."""

import faulthandler
import json
import sys
import warnings
from dataclasses import asdict
from pathlib import Path

from benchmarks.gpu_check.checks import CHECKS
from benchmarks.gpu_check.report import Row, Skipped
from benchmarks.gpu_check.settings import Settings


def main(name: str, settings: str, rows_file: str) -> None:
    """Append the rows of a check to a file, one JSON object a line, as they come."""
    faulthandler.enable()
    warnings.filterwarnings("ignore", "The bundled model does not know")
    check = next(check for check in CHECKS if check.name == name)
    with Path(rows_file).open("a") as file:

        def write(row: Row) -> None:
            file.write(json.dumps(asdict(row)) + "\n")
            file.flush()

        try:
            for row in check.load()(Settings(**json.loads(settings))):
                write(row)
        except Skipped as reason:
            write(Row("not run", str(reason), "skipped"))


if __name__ == "__main__":
    main(*sys.argv[1:])
