"""List the files of jfit that run in five typical tasks (walks), and how often the code switches between them.

Both measure how scattered the code is: a switch is a call of a function in another file than the last one that was called.

    python -m benchmarks.walks                       the files of each walk
    python -m benchmarks.walks --against ../other    the same, compared with another version of jfit

A file is listed if one of its functions is called. All modules are imported beforehand, so that imports are not listed; each
walk runs in a separate process, so that caches of another walk have no effect. Operators (`ops/`, one file for each family) and
`counters.py` are left out.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import pkgutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
ROWS, WIDTH, CLASSES, BATCH = 64, 4, 3, 16
# Files that handle the learning rate in every run: files of these names, and the folder of the optimizers.
RATE_FILES, RATE_FOLDER = {"state.py", "loop.py", "report.py", "table.py"}, "optim/"
RATE = {"learning_rate": 0.1}
SHARE = 0.6  # with --against: files and switches of a walk should be at most this share of the other version's


def files_called(work: Callable[[], Any]) -> list[str]:
    """The file of each function of jfit that `work()` calls, in order of the calls: those of this thread, then other threads'.

    Paths are relative to the package.
    """
    import jfit

    package = os.path.dirname(os.path.abspath(jfit.__file__)) + os.sep
    called: dict[int, list[str]] = {threading.get_ident(): []}

    def note(frame: Any, event: str, arg: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(package) and code.co_name != "<module>":
            called.setdefault(threading.get_ident(), []).append(code.co_filename.removeprefix(package))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    files = [f for calls in list(called.values()) for f in calls]
    return [f for f in files if not f.startswith("ops" + os.sep) and f != "counters.py"]


def network() -> Any:
    """A perceptron with one hidden layer and a softmax head."""
    from jfit import sym

    net = sym.FullyConnected(sym.Variable("data"), num_hidden=8, name="fc1")
    net = sym.FullyConnected(sym.Activation(net, act_type="relu", name="relu1"), num_hidden=CLASSES, name="fc2")
    return sym.SoftmaxOutput(net, name="softmax")


def rows() -> tuple[np.ndarray, np.ndarray]:
    """Random features (ROWS, WIDTH) and class labels (ROWS,), both float32."""
    random = np.random.default_rng(0)
    features = random.normal(size=(ROWS, WIDTH)).astype("float32")
    return features, random.integers(0, CLASSES, ROWS).astype("float32")


def values() -> dict[str, np.ndarray]:
    """Parameters of `network()` by name."""
    shapes = {"fc1_weight": (8, WIDTH), "fc1_bias": (8,), "fc2_weight": (CLASSES, 8), "fc2_bias": (CLASSES,)}
    return {name: np.full(shape, 0.1, "float32") for name, shape in shapes.items()}


def _fit(**settings: Any) -> Callable[[], Any]:
    from jfit import fit

    net, data = network(), rows()
    return lambda: fit(net, data, batch_size=BATCH, num_epoch=1, optimizer_params=RATE, progress=False, **settings)


def batch_to_update() -> list[str]:
    """fit on arrays, one epoch."""
    return files_called(_fit())


def json_to_jaxpr() -> list[str]:
    """Symbol JSON -> graph -> model -> jaxpr of a forward pass in training mode."""
    import jax

    from jfit import lower, sym

    text, params, load_json = network().tojson(), values(), sym.load_json
    features, labels = rows()
    key = jax.random.key(0)

    def work() -> None:
        model = lower(load_json(text))
        inputs = {"data": features, "softmax_label": labels}
        jax.make_jaxpr(lambda p, i: model.apply(p, {}, i, train=True, key=key))(params, inputs)

    return files_called(work)


def module_step() -> list[str]:
    """Module: forward, backward and update of one batch."""
    import jfit.mx as mx

    it = mx.io.NDArrayIter(*rows(), batch_size=BATCH, label_name="softmax_label")
    module = mx.mod.Module(mx.sym.load_json(network().tojson()))
    module.bind(it.provide_data, it.provide_label)
    module.init_params()
    module.init_optimizer(optimizer_params=tuple(RATE.items()))
    batch = it.next()

    def work() -> None:
        module.forward(batch, is_train=True)
        module.backward()
        module.update()

    return files_called(work)


def learning_rate() -> list[str]:
    """The learning rate, from the arguments of fit and a schedule to the update and the history.

    Lists the files that run with a schedule but not without, and those that handle the rate in every run: the optimizers, the
    train state, the loop and the history.
    """
    scheduled, constant = files_called(_fit(schedule="cosine")), set(files_called(_fit()))
    return [f for f in scheduled if f not in constant or f.startswith(RATE_FOLDER) or os.path.basename(f) in RATE_FILES]


def files_to_prediction() -> list[str]:
    """Files .params and -symbol.json -> predictions for every row."""
    from jfit import Loaded, formats, load

    net, (features, _) = network(), rows()
    with tempfile.TemporaryDirectory() as folder:
        net.save(f"{folder}/net-symbol.json")
        formats.save_arrays(f"{folder}/net-0001.params", {f"arg:{k}": v for k, v in values().items()})
        assert isinstance(load(f"{folder}/net"), Loaded)
        return files_called(lambda: load(f"{folder}/net").predict(features))


WALKS = {w.__name__: w for w in (batch_to_update, json_to_jaxpr, module_step, learning_rate, files_to_prediction)}


def _import_all() -> None:
    import jfit

    for module in pkgutil.walk_packages(jfit.__path__, "jfit."):
        try:
            importlib.import_module(module.name)
        except ImportError:
            continue  # an optional dependency is not installed


def measure(root: Path = ROOT) -> dict[str, tuple[list[str], int]]:
    """Name of each walk -> its files, sorted, and the number of switches, for the version of jfit in the folder `root`."""
    walks = {}
    environment = {**os.environ, "PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu"}
    for name in WALKS:
        command = [sys.executable, __file__, "--walk", name]
        done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"the walk {name} in {root} failed:\n{done.stderr[-2000:]}")
        called = json.loads(done.stdout.splitlines()[-1])
        walks[name] = sorted(set(called)), sum(a != b for a, b in itertools.pairwise(called))
    return walks


def main(argv: list[str] | None = None) -> int:
    """Print the files of each walk; with --against, also the number of files compared with the other version's."""
    parser = argparse.ArgumentParser(prog="benchmarks.walks", description="List the files of jfit that run in typical tasks.")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder that contains jfit/; default: this repository")
    parser.add_argument("--against", type=Path, help="another folder that contains a jfit/, to compare with")
    parser.add_argument("--walk", choices=sorted(WALKS), help="one walk, in this process, as JSON")
    options = parser.parse_args(argv)
    if options.walk:
        _import_all()
        print(json.dumps(WALKS[options.walk]()))
        return 0
    walks, others = measure(options.root.resolve()), measure(options.against.resolve()) if options.against else {}
    for name, (files, switches) in walks.items():
        print(f"{name}: {len(files)} files, {switches} switches\n    " + "\n    ".join(files))
    for name, (files, switches) in others.items():
        now = len(walks[name][0]), walks[name][1]
        shares = now[0] / len(files), now[1] / switches
        verdict = "within" if max(shares) <= SHARE else "over"
        files_part = f"{now[0]} of {len(files)} files ({shares[0]:.0%})"
        print(f"{name}: {files_part}, {now[1]} of {switches} switches ({shares[1]:.0%}), {verdict} {SHARE:.0%}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
