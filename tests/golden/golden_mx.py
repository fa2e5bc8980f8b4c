"""Replay of results recorded from MXNet 1.9.1 through MXNet's Python interface, and the tolerances of the comparison.

`api` is a module or namespace with MXNet's names: `jfit.mx`, whose arrays are NDArrays, or `PLAIN_MXNET`, the classes of
`jfit.mxnet`, whose arrays are plain JAX and NumPy arrays.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import jfit
from jfit.mxnet import optimizer
from jfit.mxnet.kvstore import store as kvstore
from jfit.mxnet.module.module import Module
from jfit.mxnet.optimizer import lr_scheduler

GOLDEN = Path(__file__).parent
PLAIN_MXNET = SimpleNamespace(
    sym=jfit.sym,
    cpu=jfit.cpu,
    mod=SimpleNamespace(Module=Module),
    io=SimpleNamespace(DataBatch=jfit.data.DataBatch, NDArrayIter=jfit.NDArrayIter),
    nd=SimpleNamespace(array=lambda a, dtype=None: np.asarray(a, dtype)),
    optimizer=optimizer,
    lr_scheduler=lr_scheduler,
    kv=kvstore,
)


def manifest(*path):
    """A JSON file of the golden data."""
    return json.loads(GOLDEN.joinpath(*path).read_text())


def arrays_of(*path):
    """All arrays of an npz file of the golden data."""
    with np.load(GOLDEN.joinpath(*path)) as archive:
        return {key: archive[key] for key in archive.files}


def under(arrays, prefix, may_be_empty=False):
    """The arrays whose key begins with `prefix`, by the rest of the key; at least one, or nothing would be compared."""
    found = {key[len(prefix) :]: value for key, value in arrays.items() if key.startswith(prefix)}
    assert found or may_be_empty, f"no array of the recording is called {prefix}..."
    return found


CASES = manifest("train", "manifest.json")


# ------------------------------------------------------------------------------------------------ comparing
def host(array):
    """numpy of an array, boxed or not."""
    return array.asnumpy() if hasattr(array, "asnumpy") else np.asarray(array)


def assert_close(what, got, want, tolerance=1e-4, floor=0.0):
    """max |got - want| <= tolerance * max(max |want|, floor), and the same shape."""
    got = host(got)
    assert got.shape == want.shape, f"{what}: shape {got.shape}, MXNet has {want.shape}"
    if want.size:
        error = np.abs(got.astype("float64") - want).max() / max(np.abs(want).max(), floor, 1e-30)
        assert error <= tolerance, f"{what}: relative error {error:.2g}, allowed are {tolerance:.2g}"


def same(got, want, tolerance=1e-4):
    """Nested lists of names and numbers agree; None stands for nan."""
    if isinstance(want, (list, tuple)):
        return len(got) == len(want) and all(same(g, w, tolerance) for g, w in zip(got, want, strict=True))
    if want is None or isinstance(want, (str, bool)):
        return got == want or (want is None and got != got)
    return abs(float(got) - want) <= tolerance * max(abs(want), 1e-3)


def fixed_gammas(symbol_json):
    """Gammas of BatchNorm nodes with fix_gamma: exactly 1 in jfit, moved by weight decay in MXNet."""
    nodes = json.loads(symbol_json)["nodes"]
    fixed = [n for n in nodes if n["op"] == "BatchNorm" and n.get("attrs", {}).get("fix_gamma", "True") in ("True", "1")]
    return {nodes[n["inputs"][1][0]]["name"] for n in fixed}


# ------------------------------------------------------------------------------------------------ Module trajectories
class Trajectory:
    """A recorded training: a module bound and initialized as MXNet's was, and what must come out of it.

    Args:
        api: MXNet's names.
        case: of the manifest.
    """

    def __init__(self, api, case):
        self.api, self.case = api, case
        self.arrays = arrays_of("train", case["file"])
        self.tolerance = max(1e-4, 30 * case["sensitivity_max"])
        self.fixed, self.off_one = fixed_gammas(case["symbol_json"]), set()
        self.module = self._bound()

    def array(self, value):
        return self.api.nd.array(value, dtype=value.dtype)

    def _bound(self):
        case, api = self.case, self.api
        module = api.mod.Module(
            api.sym.load_json(case["symbol_json"]),
            context=[api.cpu(i) for i in range(case["n_ctx"])],
            work_load_list=case["work_load_list"],
            fixed_param_names=case["fixed_param_names"],
            compression_params=case["compression_params"],
        )
        shape = self.arrays["X"].shape[1:]
        module.bind([("data", shape)], [("softmax_label", shape[:1])], grad_req=case["grad_req"])
        args = {k: self.array(v) for k, v in under(self.arrays, "init/arg/").items()}
        aux = {k: self.array(v) for k, v in under(self.arrays, "init/aux/", may_be_empty=True).items()}
        module.init_params(arg_params=args, aux_params=aux)
        return module

    def init_optimizer(self):
        """As MXNet's module got its optimizer: by name, by name with multipliers, or an instance."""
        case, api, params = self.case, self.api, dict(self.case["optimizer_params"])
        store = api.kv.create(case["kvstore"]) if case["explicit_kvstore_object"] else case["kvstore"]
        if case["lr_scheduler"]:
            params["lr_scheduler"] = getattr(api.lr_scheduler, case["lr_scheduler"]["class"])(**case["lr_scheduler"]["kwargs"])
        if case["optimizer"] == "instance":
            kind, given = re.search(r"instance (\w+)\((.*?)\)", case["note"]).groups()
            numbers = {key: _number(value) for key, value in (pair.split("=") for pair in given.split(","))}
            made = getattr(api.optimizer, kind)(**numbers)
        elif case["set_lr_mult"] is None and case["set_wd_mult"] is None:
            return self.module.init_optimizer(store, case["optimizer"], params)
        else:
            names = dict(enumerate(n for n in self.module.symbol.list_arguments() if n not in ("data", "softmax_label")))
            scale, symbol = 1 / case["batch_size"], self.module.symbol
            made = api.optimizer.create(case["optimizer"], rescale_grad=scale, sym=symbol, param_idx2name=names, **params)
            made.set_lr_mult(case["set_lr_mult"] or {})
            made.set_wd_mult(case["set_wd_mult"] or {})
        return self.module.init_optimizer(store, made)

    def batch(self, t):
        return self.api.io.DataBatch([self.array(self.arrays["X"][t])], [self.array(self.arrays["Y"][t])], pad=0)

    def step(self, t, read=()):
        """One step; `read` names what is looked at in between: "outputs" after forward, "gradients" after backward."""
        self.module.forward(self.batch(t), is_train=True)
        if "outputs" in read:
            self.module.get_outputs()
        self.module.backward()
        if "gradients" in read:
            self.module.gradients()
        self.module.update()

    def check_outputs(self, t):
        """The outputs of step t, taken before its update."""
        want = self.arrays["outputs"][t]
        assert_close(f"outputs[{t}]", self.module.get_outputs()[0], want, 1e-4 if t == 0 else self.tolerance)

    def check_params(self, t):
        """Parameters and auxiliary states, where MXNet wrote them down after step t."""
        if t + 1 not in self.case["checkpoints"]:
            return
        now = dict(zip(("arg", "aux"), self.module.get_params(), strict=True))
        for key, want in under(self.arrays, f"step{t + 1}/").items():
            kind, name = key.split("/", 1)
            got, moves = host(now[kind][name]), self.case["sensitivity_3e-7"].get(name, self.case["sensitivity_max"])
            if name in self.fixed and (got == 1).all():  # decided.fix_gamma
                self.off_one |= set() if (want == 1).all() else {name}
                continue
            assert_close(f"step {t + 1} {key}", got, want, 1e-4 if t == 0 else max(1e-4, 30 * moves), 1e-3)

    def check_states(self, states):
        """The optimizer's state after the last step: {index: [arrays]}."""
        recorded = under(self.arrays, "state/", may_be_empty=not any(self.case["state_counts"].values()))
        largest = {}
        for key, value in recorded.items():
            slot = key.rpartition("/")[2]
            largest[slot] = max(largest.get(slot, 0.0), float(np.abs(value).max()))
        assert set(states) >= set(self.case["state_counts"])
        for index, count in self.case["state_counts"].items():
            if self.case["optimizer_idx2name"].get(index, index) in self.off_one:  # decided.fix_gamma
                continue
            assert len(states[index]) == count
            for slot, got in enumerate(states[index]):
                key = f"{index}/{slot}"
                assert_close(f"state {key}", got, recorded[key], 2 * self.tolerance, 1e-3 * largest[str(slot)])

    def environment(self, monkeypatch):
        """The environment variables that the case was recorded with."""
        if "MXNET_UPDATE_ON_KVSTORE=0" in self.case["note"]:
            monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", "0")


def _number(text):
    above, _, below = text.partition("/")
    return float(above) / float(below or 1)


def flat(nested):
    """The arrays of an optimizer's state in MXNet's nesting."""
    if isinstance(nested, (list, tuple)):
        return [array for part in nested for array in flat(part)]
    return [] if nested is None else [host(nested)]


# ------------------------------------------------------------------------------------------------ logs
@contextlib.contextmanager
def captured_log():
    """What goes to the root logger, as a list of `LEVEL:message` lines, filled at the end."""
    stream, root, lines = io.StringIO(), logging.getLogger(), []
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s:%(message)s"))
    old, level = root.handlers[:], root.level
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        root.handlers[:] = old
        root.setLevel(level)
        lines += stream.getvalue().splitlines()


NUMBER = re.compile(r"([\w-]+)=(nan|-?[\d.]+(?:e-?\d+)?)")


def masked(line):
    """A log line without what differs from run to run: speed and time."""
    return re.sub(r"Time cost=[\d.e+-]+", "Time cost=<T>", re.sub(r"Speed: \S+ samples", "Speed: <SPEED> samples", line))


def parsed(line):
    """(text of a log line with numbers masked, its numbers by name)."""
    line = masked(line)
    return NUMBER.sub(r"\1=#", line), {name: float(value) for name, value in NUMBER.findall(line)}
