"""Runs the check files of this folder, programs in the style of MXNet's unit tests, and records what MXNet 1.9.1 computes.

A check file defines functions `check_...(mx)`, which return a dict of name -> value: arrays, numbers, text, lists, or what
`raised` returns.  Each value is one check.  `python tests/mx/checks/recorded_checks.py [file ...]`, run by an interpreter that
has MXNet 1.9.1 (Python 3.11, numpy 1.23.5), writes what MXNet computes to `tests/golden/checks/<file>.json`;
`tests/mx/test_mx_checks.py` compares jfit with it.  Inputs are written down or come from `numpy.random.RandomState`, never from
MXNet's random generator.
"""

import base64
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent
GOLDEN = FOLDER.parent.parent / "golden" / "checks"
MOST = 256  # values of an array that are recorded; of larger ones evenly spaced values


def files():
    """Return the names of the check files."""
    return sorted(p.stem for p in FOLDER.glob("*.py") if p.stem != "recorded_checks")


def checks_of(name):
    """Return the functions `check_...` of a check file by name."""
    spec = importlib.util.spec_from_file_location(f"mx_checks_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {k: f for k, f in vars(module).items() if k.startswith("check_")}


def raised(function, *args, **kwargs):
    """Call a function; return "raised <type>" with the name of the nearest public base class of its error, or "no error"."""
    try:
        function(*args, **kwargs)
    except Exception as error:
        names = [c.__name__ for c in type(error).__mro__]
        known = ("MXNetError", "ValueError", "TypeError", "IndexError", "KeyError", "AssertionError", "AttributeError")
        return "raised " + next((n for n in names if n in (*known, "RuntimeError", "UserWarning")), names[0])
    return "no error"


def plain(value):
    """Convert a returned value to JSON: arrays become {"shape", "dtype", "data"}."""
    if hasattr(value, "asnumpy"):
        value = value.asnumpy()
    if isinstance(value, (bool, str, int, float)) or value is None:
        return value
    if isinstance(value, np.ndarray):
        dtype = str(value.dtype)
        flat = np.asarray(value, "float64" if value.dtype.kind == "f" or dtype == "bfloat16" else "int64").reshape(-1)
        if flat.size > MOST:
            flat = flat[np.linspace(0, flat.size - 1, MOST).astype(int)]
        flat = flat.astype("float32") if flat.dtype.kind == "f" else flat
        return {"shape": list(value.shape), "dtype": dtype, "data": base64.b64encode(flat.tobytes()).decode()}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return str(value)


def values(record):
    """Convert the recorded form of an array back to (shape, dtype name, flat NumPy array)."""
    dtype = "float32" if record["dtype"].startswith(("float", "bfloat")) else "int64"
    return tuple(record["shape"]), record["dtype"], np.frombuffer(base64.b64decode(record["data"]), dtype)


def run(function, mx):
    """Return the values of one check function in recorded form, or the error that it raised."""
    try:
        with mx.name.NameManager():  # automatic names do not depend on what ran before
            return {k: plain(v) for k, v in function(mx).items()}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main(names):
    import mxnet

    GOLDEN.mkdir(exist_ok=True)
    for name in names or files():
        results = {k: run(f, mxnet) for k, f in checks_of(name).items()}
        failed = {k: r["error"] for k, r in results.items() if "error" in r}
        assert not failed, f"{name}: MXNet itself fails in {failed}"
        (GOLDEN / f"{name}.json").write_text(json.dumps(results, indent=0, sort_keys=True) + "\n")
        print(f"{name}: {sum(map(len, results.values()))} checks")


if __name__ == "__main__":
    sys.path.insert(0, str(FOLDER))
    main(sys.argv[1:])
