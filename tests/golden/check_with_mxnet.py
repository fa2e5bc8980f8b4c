"""Check that MXNet 1.9.1 reads the files that jfit writes, and jfit those that MXNet writes.

Three commands, because MXNet runs in a separate environment (Python 3.11, `pip install mxnet==1.9.1 numpy==1.23.5`):

    python tests/golden/check_with_mxnet.py write DIR     jfit writes a file for every dtype, storage type and version
    MXNET_PYTHON tests/golden/check_with_mxnet.py mxnet DIR   MXNet reads each file, writes it again, and its contents as JSON
    python tests/golden/check_with_mxnet.py read DIR      jfit reads what MXNet wrote; prints the table of docs/files.md
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np

# MXNet 1.9.1 reads these; int16, uint16, uint32 and uint64 have numbers in its files, and it refuses them itself.
NAMES = ("float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool", "int16", "uint16", "uint32", "uint64")


def contents() -> dict[str, dict[str, Any]]:
    """File name -> what is written to it."""
    draw = np.random.RandomState(0)
    files: dict[str, dict[str, Any]] = {}
    for name in NAMES:
        files[f"dense-{name}"] = {"arg:w": (draw.rand(2, 3) * 2).astype(name), "aux:ü/名": np.ones(4, name)}
    files["dense-bfloat16"] = {"arg:w": None}  # made with ml_dtypes in `write`
    files["scalar-v3"] = {
        "arg:s": np.float32(2.5).reshape(()),
        "arg:z": np.zeros((0, 3), "float32"),
        "arg:d": np.ones((2, 2), "float32"),
    }
    files["v0"], files["v1"] = {"arg:w": np.float32([[1, 2], [3, 4]])}, {"arg:w": np.float32([[1, 2], [3, 4]])}
    files["empty"] = {}
    files["missing"] = {"arg:w": np.ones(2, "float32"), "arg:n": None}
    files["row_sparse"] = {"arg:r": ("row_sparse", np.float32([[1, 2], [3, 4]]), [[1, 3]], (5, 2))}
    files["row_sparse-empty"] = {"arg:r": ("row_sparse", np.zeros((0, 2), "float32"), [[]], (5, 2))}
    files["csr"] = {"arg:c": ("csr", np.float32([1, 2, 3]), [[0, 2, 2, 3], [0, 2, 1]], (3, 3))}
    return files


def write(folder: Path) -> None:
    """Step 1, in jfit's environment."""
    import ml_dtypes

    import jfit
    from jfit.formats import SparseArray, save_arrays

    folder.mkdir(parents=True, exist_ok=True)
    for name, arrays in contents().items():
        made: dict[str, Any] = {}
        for key, value in arrays.items():
            sparse = isinstance(value, tuple)
            made[key] = (
                SparseArray(value[0], value[1], tuple(np.array(a, "int64") for a in value[2]), value[3]) if sparse else value
            )
        if name == "dense-bfloat16":
            made = {"arg:w": np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)}
        save_arrays(folder / f"{name}.params", made)
    for name, start in (("v0", struct.pack("<III", 2, 2, 2)), ("v1", struct.pack("<Iiqq", 0xF993FAC8, 2, 2, 2))):
        record = start + struct.pack("<iii4f", 1, 0, 0, 1, 2, 3, 4)  # versions that jfit reads and never writes
        (folder / f"{name}.params").write_bytes(struct.pack("<QQQ", 0x112, 0, 1) + record + struct.pack("<QQ", 1, 5) + b"arg:w")
    net = jfit.sym.BatchNorm(jfit.sym.Convolution(jfit.sym.Variable("data"), kernel=(3, 3), num_filter=2, name="c"), name="b")
    jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(net, num_hidden=3, name="f"), name="softmax").save(
        folder / "net-symbol.json"
    )


def mxnet(folder: Path) -> None:
    """Step 2, in MXNet's environment: what it reads, as lists, and the same written by it."""
    import mxnet as mx

    report: dict[str, Any] = {}
    for path in sorted(folder.glob("*.params")):
        if path.stem.endswith("-again"):
            continue
        try:
            with mx.util.np_shape(path.stem.endswith("v3")):
                found = mx.nd.load(str(path))
                named = found if isinstance(found, dict) else dict(enumerate(found))
                report[path.stem] = {str(k): _described(v) for k, v in named.items()}
                if all(value is not None for value in report[path.stem].values()):  # it reads missing arrays, and writes none
                    mx.nd.save(str(folder / f"{path.stem}-again.params"), found)
                mx.nd.waitall()
        except Exception as error:
            report[path.stem] = str(error).split("Stack trace")[0].strip().splitlines()[-1][-100:]
    net = mx.sym.load(str(folder / "net-symbol.json"))
    report["net"] = [net.list_arguments(), net.list_auxiliary_states(), net.list_outputs()]
    net.save(str(folder / "net-again.json"))
    (folder / "mxnet.json").write_text(json.dumps({"version": mx.__version__, "found": report}), encoding="utf-8")


def _described(value: Any) -> Any:
    try:
        stype = value.stype
    except Exception:
        return None
    if stype == "default" and not value.shape and not value.size:
        return None
    dense = value.asnumpy()
    name = np.dtype(value.dtype).name
    if name not in NAMES:  # bfloat16 comes as its bits
        name, dense = "bfloat16", (dense.view("uint16").astype("uint32") << 16).view("float32")
    return [stype, name, list(value.shape), dense.astype("float64").reshape(-1).tolist()]


def read(folder: Path) -> int:
    """Step 3, in jfit's environment: the table, and whether all agree."""
    import jfit
    from jfit.formats import SparseArray, load_arrays

    recorded = json.loads((folder / "mxnet.json").read_text(encoding="utf-8"))
    print(f"| file written by jfit | MXNet {recorded['version']} reads | jfit reads what MXNet wrote of it |\n|---|---|---|")
    wrong = 0
    for name in contents():
        ours, theirs = load_arrays(folder / f"{name}.params"), recorded["found"][name]
        if isinstance(theirs, str):
            print(f"| {name} | refuses: {theirs} | |")
            continue
        named = ours if isinstance(ours, dict) else dict(enumerate(ours))
        same = list(map(str, named)) == list(theirs) and all(_agrees(named[k], theirs[str(k)]) for k in named)
        if not (folder / f"{name}-again.params").exists():
            print(f"| {name} | {'equal' if same else 'DIFFERENT'} | writes none |")
            wrong += not same
            continue
        again = load_arrays(folder / f"{name}-again.params")
        other = again if isinstance(again, dict) else dict(enumerate(again))
        back = list(other) == list(named) and all(
            a is b is None or np.array_equal(*(v.todense() if isinstance(v, SparseArray) else v for v in (a, b)))
            for a, b in zip(named.values(), other.values(), strict=True)
        )
        wrong += not same or not back
        print(f"| {name} | {'equal' if same else 'DIFFERENT'} | {'equal' if back else 'DIFFERENT'} |")
    net, again = jfit.sym.load(folder / "net-symbol.json"), jfit.sym.load(folder / "net-again.json")
    same = [net.list_arguments(), net.list_auxiliary_states(), net.list_outputs()] == recorded["found"]["net"]
    wrong += not same or again.tojson() != net.tojson()
    print(
        f"| symbol.json | {'equal' if same else 'DIFFERENT'} | {'equal' if again.tojson() == net.tojson() else 'DIFFERENT'} |"
    )
    return wrong


def _agrees(ours: Any, theirs: Any) -> bool:
    if ours is None or theirs is None:
        return ours is None and theirs is None
    stype = getattr(ours, "stype", "default")
    dense = ours.todense() if stype != "default" else ours
    values = np.asarray(dense).astype("float64").reshape(-1).tolist()
    return [stype, dense.dtype.name, list(dense.shape), values] == theirs


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("write", "mxnet", "read"):
        raise SystemExit(__doc__)
    sys.exit({"write": write, "mxnet": mxnet, "read": read}[sys.argv[1]](Path(sys.argv[2])))
