"""Build the site strictly, from the files beside this one, into build/docs: a warning is an error.

python docs/build.py            # needs the extra "docs", and no network
python docs/build.py --serve    # also show it on http://127.0.0.1:8000
"""

import argparse
import functools
import http.server
import importlib.util
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
NEEDED = {"sphinx": "sphinx", "furo": "furo", "myst_parser": "myst-parser", "stable_baselines3": "stable-baselines3"}
"""Modules that the build imports, and the packages that have them."""


def check_installed() -> None:
    """Exit with what to install if a module is missing."""
    missing = [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        sys.exit(f'The site needs {", ".join(missing)}. Install the extra "docs": pip install -e ".[docs]"')


def build(output: Path) -> None:
    """Build the site into a folder.

    Raises:
        SystemExit: A warning or an error; Sphinx has printed it.
    """
    from sphinx.cmd.build import main as sphinx

    if status := sphinx(["--fail-on-warning", "--nitpicky", "--fresh-env", "--quiet", str(FOLDER), str(output)]):
        sys.exit(status)


def serve(folder: Path, port: int) -> None:
    """Show a folder until Ctrl-C."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        print(f"http://127.0.0.1:{server.server_port}, until Ctrl-C")
        server.serve_forever()


def main() -> None:
    """Build, and serve if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--output", type=Path, default=FOLDER.parent / "build" / "docs", help="where the site is written"
    )
    parser.add_argument("--serve", action="store_true", help="show it after the build")
    parser.add_argument("--port", type=int, default=8000, help="of --serve")
    args = parser.parse_args()
    check_installed()
    build(args.output)
    print(f"Built: {args.output / 'index.html'}")
    if args.serve:
        serve(args.output, args.port)


if __name__ == "__main__":
    main()
