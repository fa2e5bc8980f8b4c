"""Programs written for MXNet.

python -m jfit.mx check FILE_OR_FOLDER ...     which names of MXNet they use that jfit lacks or does differently
python -m jfit.mx run SCRIPT.py ARGUMENTS ...  run an unchanged script: `import mxnet` imports jfit.mx
python -m jfit.mx run -m MODULE ARGUMENTS ...  the same for a module
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence

from jfit.mx import _alias


def main(arguments: Sequence[str]) -> int:
    """Run a command.

    Args:
        arguments: name of the command, and its arguments.

    Returns:
        Exit status: of `check`, 1 if a name is missing; of `run`, 1 if the script raised an error; 2 for a wrong command.

    Example:
        >>> main(["check"])
        2
    """
    command, *rest = arguments or [""]
    if command == "check" and rest:
        from jfit.mx._check import check  # `run` does not need it

        return check(rest)
    if command == "run" and rest and rest != ["-m"]:
        return run(rest)
    print(__doc__, file=sys.stderr)
    return 0 if command in ("-h", "--help") else 2


def run(arguments: Sequence[str]) -> int:
    """Run a script, or with "-m" a module, in which `import mxnet` imports `jfit.mx`.

    Args:
        arguments: the script, or "-m" and the module, and its own arguments.

    Returns:
        0, or 1 if it raised an error, whose traceback is printed as Python does.
    """
    _alias.install()
    try:
        if arguments[0] == "-m":
            sys.argv = list(arguments[1:])
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(arguments)
            sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
            runpy.run_path(arguments[0], run_name="__main__")
    except Exception as error:
        trace = error.__traceback__
        while trace and (trace.tb_frame.f_code.co_filename == __file__ or "runpy" in trace.tb_frame.f_code.co_filename):
            trace = trace.tb_next  # the first line of the traceback is one of the script
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
