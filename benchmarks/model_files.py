"""Time to load model files, lower them and run them for the first time, and the memory used.

    python -m benchmarks.model_files FIXTURES                            the recorded models and two large generated ones
    python -m benchmarks.model_files FIXTURES --only lenet,resnet152     some of them
    python -m benchmarks.model_files FIXTURES --markdown out.md          also write the printed table to a file

FIXTURES is a folder with models/manifest.json and models/<name>/model-symbol.json, model-0000.params. Each model is measured
in a fresh process, so that compiled programs and memory of another model have no effect.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MOST_S = 3.0  # limit for loading a large model (1,500 nodes, or the size of ResNet-152) from disk, in seconds


def resnet(units: tuple[int, ...] = (3, 8, 36, 3), heads: bool = False) -> Any:
    """A bottleneck ResNet classifier; with `heads`, an SSD-like detector with box and class predictors at six scales."""
    from jfit import sym

    def block(data: Any, filters: int, kernel: int, name: str, stride: int = 1, act: bool = True) -> Any:
        size = {"kernel": (kernel, kernel), "pad": (kernel // 2, kernel // 2), "stride": (stride, stride)}
        net = sym.Convolution(data, num_filter=filters, no_bias=True, name=f"{name}_conv", **size)
        net = sym.BatchNorm(net, fix_gamma=False, name=f"{name}_bn")
        return sym.Activation(net, act_type="relu", name=f"{name}_relu") if act else net

    net = block(sym.Variable("data"), 64, 7, "stem", 2)
    net = sym.Pooling(net, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="max", name="stem_pool")
    scales = []
    for stage, count in enumerate(units):
        for unit in range(count):
            name, width, stride = f"stage{stage}_unit{unit}", 64 << stage, 2 if unit == 0 and stage else 1
            inner = block(block(net, width, 1, f"{name}_a", stride), width, 3, f"{name}_b")
            inner = block(inner, 4 * width, 1, f"{name}_c", act=False)
            same = net if unit else block(net, 4 * width, 1, f"{name}_skip", stride, act=False)
            net = sym.Activation(inner + same, act_type="relu", name=f"{name}_out")
        scales.append(net)
    if heads:
        return _detector(scales[1:], block)
    net = sym.Flatten(sym.Pooling(net, global_pool=True, kernel=(7, 7), pool_type="avg", name="pool"), name="flat")
    return sym.SoftmaxOutput(sym.FullyConnected(net, num_hidden=1000, name="fc"), name="softmax")


def _detector(scales: list[Any], block: Any) -> Any:
    from jfit import sym

    while len(scales) < 6:
        scales.append(block(scales[-1], 256, 3, f"extra{len(scales)}", 2))
    flat: dict[str, list[Any]] = {"loc": [], "cls": []}
    for number, scale in enumerate(scales):
        for kind, filters in (("loc", 16), ("cls", 84)):
            name = f"{kind}{number}"
            out = sym.Convolution(scale, kernel=(3, 3), pad=(1, 1), num_filter=filters, name=name)
            flat[kind].append(sym.Flatten(sym.transpose(out, axes=(0, 2, 3, 1), name=f"{name}_t"), name=f"{name}_f"))
    loc = sym.Concat(*flat["loc"], dim=1, name="loc")
    cls = sym.Reshape(sym.Concat(*flat["cls"], dim=1, name="cls"), shape=(0, -1, 21), name="scores")
    return sym.Group([sym.softmax(cls, axis=2, name="probability"), sym.BlockGrad(loc, name="boxes")])


LARGE = {"resnet152": (False, (1, 3, 224, 224)), "detector152": (True, (1, 3, 256, 256))}


def make_large(name: str, folder: Path) -> dict[str, Any]:
    """Write the files of a large model with random parameters; returns its case (name, prefix, data_shapes) for `measure`."""
    import jax

    import jfit
    from jfit.formats import save_arrays

    heads, shape = LARGE[name]
    net = resnet(heads=heads)
    specs = {"data": jax.ShapeDtypeStruct(shape, "float32")}
    params, aux = jfit.lower(net).init(jax.random.key(0), specs)
    net.save(folder / f"{name}-symbol.json")
    save_arrays(
        folder / f"{name}-0000.params", {f"arg:{k}": v for k, v in params.items()} | {f"aux:{k}": v for k, v in aux.items()}
    )
    return {"name": name, "prefix": str(folder / name), "data_shapes": {"data": list(shape)}}


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Measure the times (seconds) and memory (bytes) of one model in this process."""
    import jax
    import numpy as np

    import jfit

    jax.block_until_ready(jax.numpy.zeros(1) + 1)  # start the backend before the clock
    before = _memory(reset=True)
    clock = [time.perf_counter()]
    loaded = jfit.load(case["prefix"])
    jax.block_until_ready(loaded.params)
    clock.append(time.perf_counter())
    net = loaded.symbol
    assert net is not None
    model = jfit.lower(net, inputs=(*loaded.model.inputs, *loaded.model.labels))
    clock.append(time.perf_counter())
    shapes = {name: shape for name, shape in case["data_shapes"].items() if name in model.inputs}
    data = {name: np.zeros(shape, "float32") for name, shape in shapes.items()}
    call = jax.jit(lambda params, aux, inputs: model.apply(params, aux, inputs, key=jax.random.key(0))[0])
    for _ in range(2):
        jax.block_until_ready(call(loaded.params, loaded.aux, data))
        clock.append(time.perf_counter())
    load, lower, first, second = (b - a for a, b in pairwise(clock))
    files = [*Path(case["prefix"]).parent.glob(Path(case["prefix"]).name + "-*")]
    return {
        "name": case["name"],
        "nodes": len(net.nodes()),
        "parameters": sum(int(np.prod(v.shape)) for v in loaded.params.values()),
        "bytes": sum(f.stat().st_size for f in files),
        "load_s": load,
        "lower_s": lower,
        "first_s": first,
        "second_s": second,
        "memory": _memory() - before,
    }


def _memory(reset: bool = False) -> int:
    """Peak resident memory in bytes since the last reset (Linux), or since the start of the process (elsewhere)."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _in_fresh_process(case: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.model_files", "--measure-here", json.dumps(case)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})
    if done.returncode:
        return {"name": case["name"], "failed": done.stderr.strip().splitlines()[-1][:100]}
    return json.loads(done.stdout.splitlines()[-1])


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table as a Markdown page, with pass or FAIL for the large models."""
    from benchmarks.measure import machine

    about = machine()
    lines = ["# Model files", "", f"{about['processor']}, {about['cores']} cores; Python {about['python']}, "]
    lines[-1] += ", ".join(f"{k} {v}" for k, v in about["versions"].items() if v and k in ("jax", "jaxlib", "numpy")) + "."
    lines += [
        "",
        "| model | nodes | parameters | files | load | lower | first call | next call | memory |",
        "|---|" + "---:|" * 8,
    ]
    for row in rows:
        if "failed" in row:
            lines.append(f"| {row['name']} | {row['failed']} |" + " |" * 7)
            continue
        times = f"{row['load_s']:.3f} s | {row['lower_s']:.3f} s | {row['first_s']:.2f} s | {row['second_s'] * 1e3:.1f} ms"
        sizes = f"{row['nodes']} | {row['parameters']:,} | {row['bytes'] / 1e6:.1f} MB"
        lines.append(f"| {row['name']} | {sizes} | {times} | {row['memory'] / 1e6:.0f} MB |")
    for row in rows:
        if row["name"] in LARGE and "failed" not in row:
            verdict = "pass" if row["load_s"] <= MOST_S else "FAIL"
            lines += ["", f"{row['name']} loads in {row['load_s']:.2f} s (bar: {MOST_S:g} s): {verdict}"]
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> None:
    """Measure every model and print the table; write it to the file of --markdown."""
    parser = argparse.ArgumentParser(prog="benchmarks.model_files", description="Load, lowering and first-call times.")
    parser.add_argument("fixtures", type=Path, nargs="?", help="folder with models/manifest.json")
    parser.add_argument("--only", help="comma-separated names")
    parser.add_argument("--markdown", type=Path, help="write the table here (it is printed anyway)")
    parser.add_argument("--measure-here", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.measure_here:
        print(json.dumps(measure(options.measure_here)))
        return
    only = options.only.split(",") if options.only else None
    cases: list[dict[str, Any]] = []
    if options.fixtures:
        manifest = json.loads((options.fixtures / "models" / "manifest.json").read_text(encoding="utf-8"))
        for case in manifest if isinstance(manifest, list) else manifest["models"]:
            prefix = str(options.fixtures / "models" / case["name"] / "model")
            cases.append({"name": case["name"], "prefix": prefix, "data_shapes": case["data_shapes"]})
    with tempfile.TemporaryDirectory() as folder:
        cases = [case for case in cases if only is None or case["name"] in only]
        cases += [make_large(name, Path(folder)) for name in LARGE if only is None or name in only]
        page = markdown([_in_fresh_process(case) for case in cases])
    print(page)
    if options.markdown:
        options.markdown.parent.mkdir(parents=True, exist_ok=True)
        options.markdown.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
