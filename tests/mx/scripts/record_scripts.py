"""Runs the programs of this folder, written as published examples of MXNet 1.x are, and records what MXNet 1.9.1 logs.

`python tests/mx/scripts/record_scripts.py [script ...]`, run by an interpreter that has MXNet 1.9.1 (Python 3.11, numpy
1.23.5), runs each script in its own process and writes its lines and CPU seconds to `tests/golden/scripts.json`;
`tests/mx/test_mx_scripts.py` runs them on jfit and compares.  Data and initial weights come from `numpy.random.RandomState`,
never from MXNet's random generator.  `--times`, run by an interpreter that has jfit, runs the scripts by
`python -m jfit.mx run` and prints the CPU seconds of both.
"""

import contextlib
import io
import json
import logging
import os
import random
import re
import resource
import runpy
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent
GOLDEN = FOLDER.parent.parent / "golden" / "scripts.json"
CHANGING = [  # what is different in every run
    (re.compile(r"Time cost=[\d.]+"), "Time cost=..."),
    (re.compile(r"Speed: [\d.]+ samples/sec"), "Speed: ... samples/sec"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(,\d+)?"), "<time>"),
]
OWN_WORDS = re.compile(  # messages that jfit words differently, or gives only where there is something to say
    r"learning rate from ``lr_scheduler``|Warning: the optimizer's learning_rate|WARNING: discarded 0 sentences"
    r"|threads for decoding|MXNET_CPU_WORKER_NTHREADS|ImageIter: loading record"
)


def names():
    """Return the names of the scripts."""
    return sorted(p.stem for p in FOLDER.glob("*.py") if p.stem != "record_scripts")


def lines_of(name):
    """Run a script as `python name.py` does, in an empty folder, and return the lines it printed and logged."""
    root, text, place, argv = logging.getLogger(), io.StringIO(), Path.cwd(), sys.argv
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []
    root.setLevel(logging.WARNING)
    np.random.seed(0)
    random.seed(0)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.chdir(folder)
        sys.argv = [f"{name}.py"]
        try:
            with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
                runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        finally:
            os.chdir(place)
            sys.argv = argv
            root.handlers[:] = handlers
            root.setLevel(level)
    return masked(text.getvalue())


def masked(text):
    """Return the lines of a text without times, speeds and messages in other words."""
    for pattern, instead in CHANGING:
        text = pattern.sub(instead, text)
    return [line.rstrip() for line in text.splitlines() if not OWN_WORDS.search(line)]


def record(chosen):
    recorded = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    recorded = {name: recorded[name] for name in recorded if name in names()}
    for name in chosen or names():
        done = subprocess.run([sys.executable, __file__, "--one", name], capture_output=True, text=True)
        if done.returncode:
            print(f"{name} fails on MXNet:\n{done.stderr}")
            continue
        recorded[name] = json.loads(done.stdout.splitlines()[-1])
        print(f"{name}: {len(recorded[name]['lines'])} lines, {recorded[name]['seconds']} s")
    GOLDEN.write_text(json.dumps(recorded, indent=0, sort_keys=True) + "\n")


def times(chosen):
    recorded = json.loads(GOLDEN.read_text())
    for name in chosen or sorted(recorded):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "jfit.mx", "run", str(FOLDER / f"{name}.py")]
            done = subprocess.run(command, cwd=folder, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        status = "" if done.returncode == 0 else f", status {done.returncode}"
        print(f"{name:32} MXNet {recorded[name]['seconds']:6.1f} s, jfit {seconds:6.1f} s{status}", flush=True)


def main(arguments):
    if arguments[:1] == ["--one"]:
        lines = lines_of(arguments[1])
        used = resource.getrusage(resource.RUSAGE_SELF)
        print(json.dumps({"lines": lines, "seconds": round(used.ru_utime + used.ru_stime, 1)}))
    elif arguments[:1] == ["--times"]:
        times(arguments[1:])
    else:
        record(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
