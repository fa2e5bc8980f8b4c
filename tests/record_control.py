"""Record graphs with loops and branches with MXNet 1.9.1: `python tests/record_control.py`.

Runs as `tests/record_golden.py` does.  Writes tests/golden/control.json (symbol.json and names of each network) and control.npz
(arguments, outputs, gradients) of the table NETS in tests/control_nets.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from control_nets import NETS

FOLDER = Path(__file__).parent / "golden"


def values(name: str, argument: str, shape: tuple[int, ...]) -> np.ndarray:
    """The array of an argument: small numbers, counters start at 0, variances are positive."""
    draw = np.random.RandomState(sum(map(ord, name + argument)))
    if argument == "i":
        return np.zeros(shape, np.float32)
    if argument.endswith("_label"):
        return (np.arange(shape[0]) % 3).astype(np.float32)
    found = draw.uniform(0.5, 1.5, shape) * np.where(draw.uniform(size=shape) < 0.3, -1, 1)
    return (np.abs(found) if "var" in argument else found).astype(np.float32)


def main() -> None:
    """Record every net."""
    import mxnet as mx

    about, arrays = {}, {}
    for name, make in NETS.items():
        mx.AttrScope._subgraph_names.clear()
        with mx.name.NameManager():
            symbol, shapes = make(mx)
        names = symbol.list_arguments()
        given = shapes  # MXNet does not see through every loop
        if set(names) - set(shapes):
            given = dict(zip(names, symbol.infer_shape(**shapes)[0]))  # noqa: B905  (runs on MXNet's Python)
        args = {n: mx.nd.array(values(name, n, tuple(given[n]))) for n in names}
        wanted = [n for n in names if not n.endswith("_label")]
        grads = {n: mx.nd.zeros(args[n].shape) for n in wanted}
        try:
            bound = symbol.bind(mx.cpu(), dict(args), args_grad=grads)
        except mx.base.MXNetError:  # it has no gradient for moving statistics, and for what two bodies read
            print("forward only:", name)
            wanted, grads = [], {}
            bound = symbol.bind(mx.cpu(), dict(args), grad_req="null")
        try:
            outs = bound.forward(is_train=bool(wanted))
            mx.nd.waitall()
        except mx.base.MXNetError as error:  # its inference does not reach through a branch in a loop
            print("file only:", name, str(error)[:200])
            wanted, outs, grads = [], [], {}
        heads = [np.random.RandomState(i).uniform(-1, 1, o.shape).astype(np.float32) for i, o in enumerate(outs)]
        arrays.update({f"{name}/out/{i}": o.asnumpy() for i, o in enumerate(outs)})
        if wanted:
            bound.backward([mx.nd.array(h) for h in heads])
            mx.nd.waitall()
        arrays.update({f"{name}/in/{n}": a.asnumpy() for n, a in args.items()})
        arrays.update({f"{name}/head/{i}": h for i, h in enumerate(heads)})
        arrays.update({f"{name}/grad/{n}": g.asnumpy() for n, g in grads.items()})
        about[name] = {
            "symbol": json.loads(symbol.tojson()),
            "arguments": names,
            "outputs": symbol.list_outputs(),
            "shapes": {k: list(v) for k, v in shapes.items()},
        }
    np.savez_compressed(FOLDER / "control.npz", **arrays)
    (FOLDER / "control.json").write_text(json.dumps(about, separators=(",", ":"), sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
