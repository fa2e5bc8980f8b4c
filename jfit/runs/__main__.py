"""Command line: `python -m jfit.runs list FOLDER`, `show FOLDER`, `diff A B`, `verify FOLDER --with train.py:arguments`."""

from __future__ import annotations

import argparse
import importlib
import runpy
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jfit.formats.atomic import FormatError, printable
from jfit.runs.folders import find, open_run
from jfit.runs.text import diff_text, list_text, show_text
from jfit.tools.verify import verify

_WITH = (
    "verify trains again, so it needs the data of the run: --with FILE.py:FUNCTION or --with MODULE:FUNCTION, a function "
    "without arguments that returns the arguments of jfit.fit as a dict, such as {'model': net, 'train_data': (x, y)}; "
    "settings that are in the checkpoints may be left out"
)


def main(arguments: Sequence[str]) -> int:
    """Run a command and print its result.

    Args:
        arguments: name of the command, its folders and options.

    Returns:
        Exit status: 0; 1 if `verify` found a difference; 2 for an error, whose message is on stderr.

    Example:
        >>> import tempfile, jfit
        >>> folder = tempfile.mkdtemp()
        >>> main(["list", folder])  # doctest: +ELLIPSIS
        no checkpoints in ... or in the folders below it
        0
    """
    options = _parser().parse_args(arguments)
    try:
        if options.command == "verify":
            return _verify(options)
        if options.command == "list":
            print(printable(list_text(options.folder, find(options.folder))))
        elif options.command == "show":
            print(printable(show_text(open_run(options.folder), options.rows)))
        else:
            print(diff_text(open_run(options.a), open_run(options.b), options.all))
    except (OSError, FormatError, ValueError, TypeError) as error:
        print(printable("\n".join([str(error), *getattr(error, "__notes__", ())])), file=sys.stderr)
        return 2
    except Exception:  # the exit status 1, that of Python, means a difference
        traceback.print_exc()
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
    command = commands.add_parser("verify", help="train again between checkpoints and compare the bits", description=_WITH)
    command.add_argument("folder")
    command.add_argument("--with", dest="source", metavar="FILE.py:FUNCTION", help="returns the arguments of jfit.fit")
    command.add_argument("--steps", type=int, nargs="+", help="steps of the checkpoints to compare (default: all)")
    return parser


def _verify(options: argparse.Namespace) -> int:
    if options.source is None:
        raise ValueError(_WITH)
    arguments = _arguments_of(options.source)
    data = arguments.pop("train_data", None)
    if data is None:
        raise ValueError(f"--with {options.source}: the dict has no 'train_data', found {sorted(arguments)}; {_WITH}")
    result = verify(options.folder, data, **arguments, steps=options.steps)
    print(printable(str(result)))
    return 0 if result.same else 1


def _arguments_of(source: str) -> dict[str, Any]:
    """Call the function that FILE.py:FUNCTION or MODULE:FUNCTION names."""
    place, _, name = source.rpartition(":")
    if not place or not name:
        raise ValueError(f"--with {source!r}: expected FILE.py:FUNCTION or MODULE:FUNCTION; {_WITH}")
    is_file = place.endswith(".py")
    sys.path.insert(0, str(Path(place).resolve().parent) if is_file else "")
    try:
        names = runpy.run_path(place, run_name="jfit_runs") if is_file else vars(importlib.import_module(place))
    except (ImportError, OSError, SyntaxError) as error:
        raise ValueError(f"--with {source}: {error}; {_WITH}") from error
    finally:
        del sys.path[0]
    if not callable(names.get(name)):
        raise ValueError(f"--with {source}: {place} has no function {name!r}; {_WITH}")
    try:
        arguments = names[name]()
    except Exception as error:
        raise ValueError(f"--with {source}: the function raised {type(error).__name__}: {error}") from error
    if not isinstance(arguments, Mapping):
        raise ValueError(f"--with {source}: the function returned a {type(arguments).__name__}, expected a dict; {_WITH}")
    return dict(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
