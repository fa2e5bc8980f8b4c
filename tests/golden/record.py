"""Record what MXNet 1.9.1 gives: `python tests/golden/record.py NAME ...` writes the files of tests/golden/cases/NAME.py.

Runs in a separate environment (Python 3.11, `pip install mxnet==1.9.1 numpy==1.23.5`) with MXNET_MKLDNN_ENABLED=0, or the
variables that the module names.  A module has a function `recorded(mx) -> {file: content}`, where a .npz file gets arrays by
name and a .json file what JSON can represent; or a table CASES of operators, which becomes tests/golden/ops/NAME.npz and
NAME.json in the layout of `golden_ops`, so that

    @pytest.mark.parametrize(("case", "arrays"), load_cases("NAME"), ids=case_id)
    def test_recorded_case(case, arrays): run_case(case, arrays)

replays them.  A case of an operator is a dict:
    op       name of the operator
    attrs    its attributes (Python values)
    inputs   input name -> numpy array; in the operator's order
    aux      auxiliary name -> array (default: none)
    req      input name -> grad_req (default: "write" for floating inputs, "null" for others; all null: forward only)
    named    True: inputs are passed by name (where MXNet's order has auxiliary states between them)
    skip     keys that are not compared, such as "grad/rois"
    note     why a key is skipped
"""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).parent


def maker(mx: Any, op: str) -> Any:
    """The function that makes a symbol of this operator; some families have a module of their own."""
    for home in ("contrib", "linalg", "sparse", "image"):
        found = getattr(getattr(mx.sym, home), op.removeprefix(f"_{home}_"), None)
        if op.startswith(f"_{home}_") and found is not None:
            return found
    return getattr(mx.sym, op, None) or getattr(mx.sym._internal, op)


def record(mx: Any, number: int, case: dict[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """One case as (description, arrays by key)."""
    op, inputs, aux = case["op"], case["inputs"], case.get("aux", {})
    req = {n: case.get("req", {}).get(n, "write" if a.dtype.kind == "f" else "null") for n, a in inputs.items()}
    attrs = {k: str(v) for k, v in case.get("attrs", {}).items()}
    make = maker(mx, op)
    states = {n: mx.sym.Variable(n) for n in aux}  # by name: some operators do not list them among their inputs
    given = {n: mx.sym.Variable(n) for n in inputs}
    if case.get("named"):
        symbol = make(name="op0", **given, **states, **case.get("attrs", {}))
    else:
        symbol = make(*given.values(), name="op0", **states, **case.get("attrs", {}))
    boxes = {n: mx.nd.array(a, dtype=a.dtype) for n, a in inputs.items()}
    states = {n: mx.nd.array(a, dtype=a.dtype) for n, a in aux.items()}
    arrays = {f"in/{n}": a for n, a in inputs.items()} | {f"aux/{n}": a for n, a in aux.items()}
    needs = any(r != "null" for r in req.values())
    grads = {n: mx.nd.zeros(inputs[n].shape, dtype=inputs[n].dtype) for n, r in req.items() if r != "null"}
    bound = symbol.bind(mx.cpu(), boxes, args_grad=grads, grad_req=req, aux_states=states)
    for i, out in enumerate(bound.forward(is_train=False)):
        arrays[f"eval/{i}"] = out.asnumpy()
    count = len(bound.outputs)
    has_grad = False
    if needs:
        outputs = bound.forward(is_train=True)
        draw = np.random.RandomState(number)
        heads = [draw.uniform(-1, 1, o.shape).astype(o.dtype) for o in outputs]
        for i, (out, head) in enumerate(zip(outputs, heads)):  # noqa: B905  (runs on MXNet's Python)
            arrays[f"train/{i}"], arrays[f"og/{i}"] = out.asnumpy(), head
        bound.backward([mx.nd.array(h, dtype=h.dtype) for h in heads])
        mx.nd.waitall()
        has_grad = True
        arrays.update({f"grad/{n}": g.asnumpy() for n, g in grads.items()})
        arrays.update({f"aux_train/{n}": a.asnumpy() for n, a in states.items()})
    about = {
        "id": f"{op}.{number}",
        "op": op,
        "attrs": attrs,
        "inputs": [{"name": n, "grad_req": None if req[n] == "null" else req[n]} for n in inputs]
        + [{"name": n, "grad_req": None} for n in aux],
        "list_auxiliary_states": list(aux),
        "n_outputs": count,
        "has_train": needs,
        "has_grad": has_grad,
        "grad_init": 0,
        "skip_compare": list(case.get("skip", ())),
    }
    return about | ({"note": case["note"]} if "note" in case else {}), arrays


def operators(mx: Any, name: str, cases: list[dict[str, Any]]) -> dict[str, Any]:
    """The two files of a table of operators."""
    found, stored = [], {}
    for number, case in enumerate(cases):
        try:
            about, arrays = record(mx, number, case)
        except Exception as error:
            raise SystemExit(f"{name}: case {number} ({case['op']}, {case.get('attrs')}): {error}") from error
        found.append(about)
        stored.update({f"{about['id']}/{key}": value for key, value in arrays.items()})
    return {f"ops/{name}.npz": stored, f"ops/{name}.json": found}


def write(path: Path, content: Any) -> None:
    """An archive of arrays, or JSON with a line for each entry."""
    if path.suffix == ".npz":
        return np.savez_compressed(path, **content)
    dump = lambda value: json.dumps(value, separators=(",", ":"), default=float)  # noqa: E731
    entries = [f"{dump(k)}: {dump(v)}" for k, v in content.items()] if isinstance(content, dict) else map(dump, content)
    path.write_text(("{\n%s\n}\n" if isinstance(content, dict) else "[\n%s\n]\n") % ",\n".join(entries), encoding="utf-8")


def main(names: list[str]) -> None:
    """Record the modules of these names."""
    import mxnet as mx

    warnings.simplefilter("ignore")
    for name in names:
        module = importlib.import_module(f"cases.{name}")
        files = module.recorded(mx) if hasattr(module, "recorded") else operators(mx, name, module.CASES)
        for file, content in files.items():
            write(GOLDEN / file, content)
            print(file, len(content))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    main(sys.argv[1:])
