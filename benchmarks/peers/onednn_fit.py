"""`jfit.fit` whose 2-D convolutions call oneDNN: what XLA's CPU backend would gain from a library made for convolutions.

An experiment, not a part of jfit, which is a pure wheel: the handler `onednn_convolution.cc` must be compiled. The environment
variable ONEDNN is a folder with `include` and `lib` of oneDNN 3, such as those of the wheels:

    pip download --no-deps onednn-cpu-gomp onednn-devel-cpu-gomp && unzip -o '*.whl' && cp -r *.data/data onednn
    ONEDNN=$PWD/onednn python -m benchmarks.peers --workload w3 --cores 1 --legs jfit,onednn,torch
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jfit.ops.conv
from benchmarks.peers import Leg, jfit_fit
from benchmarks.workloads import Workload
from jfit.ops.conv_forms import Window, folds

SOURCE = Path(__file__).with_name("onednn_convolution.cc")
FORWARD, TO_DATA, TO_WEIGHT = range(3)


def _register() -> None:
    if "ONEDNN" not in os.environ:
        raise ImportError("ONEDNN is not set", name="oneDNN (see benchmarks/peers/onednn_fit.py)")
    folder = Path(os.environ["ONEDNN"])
    library = folder / "jfit_convolution.so"
    if not library.exists() or library.stat().st_mtime < SOURCE.stat().st_mtime:
        paths = [f"-I{folder}/include", f"-I{jax.ffi.include_dir()}", f"-L{folder}/lib", f"-Wl,-rpath,{folder}/lib"]
        subprocess.run(["g++", "-std=c++17", "-O2", "-fPIC", "-shared", SOURCE, "-o", library, *paths, "-ldnnl"], check=True)
    handler = ctypes.cdll.LoadLibrary(str(library)).Convolution
    jax.ffi.register_ffi_target("jfit_benchmark_convolution", jax.ffi.pycapsule(handler), platform="cpu")


def _call(mode: int, first: Any, second: Any, sizes: dict[str, tuple[int, ...]], window: Window, groups: int) -> Any:
    lists = {**sizes, "stride": window.stride, "dilate": window.dilate}
    lists |= {"low": tuple(low for low, _ in window.pads), "high": tuple(high for _, high in window.pads)}
    attributes: dict[str, Any] = {name: np.asarray(value, np.int64) for name, value in lists.items()}
    shape = {FORWARD: "out", TO_DATA: "data", TO_WEIGHT: "weight"}[mode]
    call = jax.ffi.ffi_call("jfit_benchmark_convolution", jax.ShapeDtypeStruct(sizes[shape], jnp.float32))
    return call(first, second, mode=np.int64(mode), groups=np.int64(groups), **attributes)


def _sizes(data: Any, weight: Any, window: Window) -> dict[str, tuple[int, ...]]:
    out = (data.shape[0], *window.output(data.shape[1:3], weight.shape[:2]), weight.shape[3])
    return {"data": data.shape, "weight": weight.shape, "out": out}


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def convolve(data: Any, weight: Any, window: Window, groups: int) -> Any:
    """Convolve images (batch, height, width, channels) with a weight (height, width, channels / groups, filters)."""
    return _call(FORWARD, data, weight, _sizes(data, weight, window), window, groups)


def _forward(data: Any, weight: Any, window: Window, groups: int) -> Any:
    return convolve(data, weight, window, groups), (data, weight)


def _backward(window: Window, groups: int, arrays: Any, grad: Any) -> Any:
    data, weight = arrays
    sizes = _sizes(data, weight, window)
    to_data = _call(TO_DATA, grad, weight, sizes, window, groups)
    return to_data, _call(TO_WEIGHT, data, grad, sizes, window, groups)


convolve.defvjp(_forward, _backward)


def begin(workload: Workload) -> Leg:
    """Prepare the leg; in this process all 2-D convolutions of float32 call oneDNN."""
    _register()
    plain = jfit.ops.conv.convolve

    def chosen(data: Any, weight: Any, window: Window, groups: int) -> Any:
        if data.ndim != 4 or data.dtype != jnp.float32 or folds(data.shape[1:-1], weight.shape[:-2], window):
            return plain(data, weight, window, groups)
        return convolve(data, weight, window, groups)

    jfit.ops.conv.convolve = chosen
    return jfit_fit.begin(workload)
