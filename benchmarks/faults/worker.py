"""A process that runs the scripts of `benchmarks.faults.victims` on request, and may be killed by its own signals.

Requests are lines of JSON on stdin, answers lines of JSON on stdout.  What happens before a signal is recorded in a file,
which a process that was killed leaves behind.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

import jfit
from benchmarks.faults import damage, injections
from benchmarks.faults.moments import Moment
from benchmarks.faults.victims import SIGNALS, VICTIMS, Interrupted, Left

_warm: set[str] = set()  # scripts that have run in this process


def calibrate(entry: str, folder: str) -> dict[str, Any]:
    """Run a script without faults: its digest, and how many lines and seconds it takes once its programs are compiled."""
    digests, lines, seconds = [], 0, 0.0
    for number in range(3):  # compiled; timed; traced
        target = Path(folder) / str(number)
        target.mkdir(parents=True)
        started = time.monotonic()
        with Moment([], 0, 0, "line" if number == 2 else "s", _ignore) as moment:
            digests.append(VICTIMS[entry].train(target, False))
        seconds, lines = (time.monotonic() - started if number == 1 else seconds), moment.lines
    if len(set(digests)) > 1:
        raise AssertionError(f"{entry}: runs without faults have different bits: {digests}")
    _warm.add(entry)
    return {"digest": digests[0], "lines": lines, "seconds": seconds}


def strike(entry: str, event: str, moment: dict[str, Any], folder: str, log: str, **how: Any) -> dict[str, Any]:
    """Run a script, send it signals, and describe how it ended; a signal may end this process instead.

    Args:
        entry: key of `VICTIMS`.
        event: key of `SIGNALS`.
        moment: arguments "first", "gap" and "unit" of `Moment`.
        folder: folder of the script.
        log: file for the record.
        **how: "number" of signals; "resume": whether the script resumes; "cold": whether programs are compiled again; "ends":
            whether the process ends as the script does.
    """
    if how["cold"]:
        jfit.clear_programs()
        jax.clear_caches()
    elif entry not in _warm:
        calibrate(entry, tempfile.mkdtemp(dir=Path(folder).parent))
    Left.clear()
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    result: dict[str, Any] = {"end": "?", "digest": None}
    with open(log, "a", buffering=1, encoding="utf-8") as file:
        sent = Moment([SIGNALS[event]] * how["number"], **moment, record=lambda text: print(text, file=file))
        try:
            with sent:
                result |= {"digest": VICTIMS[entry].train(Path(folder), how["resume"]), "end": "finished"}
        except Interrupted:
            result["end"] = "returned"
        except KeyboardInterrupt:
            if how["ends"]:
                raise
            result["end"] = "KeyboardInterrupt"
        except SystemExit as error:
            if how["ends"]:
                raise
            result["end"] = f"exit {error.code}"
    result |= {"sent": sent.sent, "handled": sent.handled, "opened": Left.opened, "closed": Left.closed}
    result["handlers"] = before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    signal.signal(signal.SIGINT, before[0])
    signal.signal(signal.SIGTERM, before[1])
    return result


def go_on(entry: str) -> dict[str, Any]:
    """Continue an interrupted script in this process."""
    return {"digest": VICTIMS[entry].go_on()}


def resume(entry: str, folder: str) -> dict[str, Any]:
    """Run a script again in the folder in which it was stopped, and list what is in the folder then."""
    Left.clear()
    target = Path(folder)
    digest = VICTIMS[entry].train(target, True)
    return {"digest": digest, "names": sorted(os.listdir(target))}


TASKS: dict[str, Callable[..., dict[str, Any]]] = {
    "calibrate": calibrate,
    "strike": strike,
    "go_on": go_on,
    "resume": resume,
    "damage": damage.damage,
    "inject": injections.inject,
}


def main() -> None:
    """Answer requests until stdin ends."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts jobs in the background has them ignore it
    warnings.simplefilter("ignore")
    logging.disable()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what scripts print must not be taken for answers
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = TASKS[request.pop("task")](**request)
        except (KeyboardInterrupt, SystemExit):
            raise
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()[-3000:]}
        print(json.dumps(answer), file=answers)


def _ignore(_: str) -> None: ...


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
