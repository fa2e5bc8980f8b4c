"""Command line: `python -m jfit.runs list FOLDER`, `show FOLDER`, `diff A B`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from jfit.formats.atomic import printable
from jfit.runs.folders import find, open_run
from jfit.runs.text import diff_text, list_text, show_text

def main(arguments: Sequence[str]) -> int:
    """Run a command and print its result.

    Args:
        arguments: name of the command, its folders and options.

    Returns:
        Exit status: 0; 2 for an error, whose message is on stderr.

    Example:
        >>> import tempfile, jfit
        >>> folder = tempfile.mkdtemp()
        >>> main(["list", folder])  # doctest: +ELLIPSIS
        no checkpoints in ... or in the folders below it
        0
    """
    options = _parser().parse_args(arguments)
    try:
        if options.command == "list":
            print(printable(list_text(options.folder, find(options.folder))))
        elif options.command == "show":
            print(printable(show_text(open_run(options.folder), options.rows)))
        else:
            print(diff_text(open_run(options.a), open_run(options.b), options.all))
    except (OSError, ValueError) as error:
        print(printable(str(error)), file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jfit.runs", description="Runs on the disk.  Nothing is changed or deleted."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("list", help="the runs in a folder and below it")
    command.add_argument("folder")
    command = commands.add_parser("show", help="settings, data, versions, checkpoints and history of a run")
    command.add_argument("folder")
    command.add_argument("--rows", type=int, default=10, help="number of epochs of the history, the last ones (default: 10)")
    command = commands.add_parser("diff", help="settings, data, versions and metrics of two runs that differ")
    command.add_argument("a")
    command.add_argument("b")
    command.add_argument("--all", action="store_true", help="also what is equal")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
