"""Command line of the benchmarks: `python -m jfit.bench scaling [options]`."""

from __future__ import annotations

import sys

from jfit.bench import measure, scaling

# `scaling` starts a process with `measure` for each number of devices.
COMMANDS = {"scaling": scaling.main, "measure": measure.main}


def main(arguments: list[str]) -> int:
    """Run a command.

    Args:
        arguments: name of the command and its options.

    Returns:
        Exit status.

    Example:
        >>> main(["train"])
        'train' is no benchmark; run: python -m jfit.bench scaling --help
        2
    """
    name = arguments[0] if arguments else ""
    if name not in COMMANDS:
        print(f"{name!r} is no benchmark; run: python -m jfit.bench scaling --help")
        return 2
    return COMMANDS[name](arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
