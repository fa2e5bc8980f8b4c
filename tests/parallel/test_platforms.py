"""What depends on the platform is decided by the devices in use, and not by the platform that JAX prefers.

Here, JAX claims to prefer an accelerator, and everything gets CPU devices.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfit
from jfit import mx, sym
from jfit.loop.dispatch import MAX_STEPS_PER_CALL, auto_steps_per_call
from jfit.mxnet.optimizer import apply
from jfit.mxnet.precision import Policy
from jfit.ops import lookup
from jfit.parallel import compile_spmd
from jfit.platforms import placed, platform_of, traced_for
from jfit.programs import Program
from jfit.step import unrolls

CPU, GPU = jax.devices("cpu")[:1], [SimpleNamespace(platform="gpu")]


@pytest.fixture
def accelerator(monkeypatch):
    """JAX prefers a GPU."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")


@pytest.fixture
def on_cpu():
    return jax.device_put(np.ones(3, np.float32), CPU[0])


def conv_net():
    net = sym.Convolution(sym.Variable("data"), num_filter=2, kernel=(3, 3), name="conv")
    return sym.SoftmaxOutput(sym.FullyConnected(sym.Flatten(net), num_hidden=2, name="fc"), name="softmax")


def platform_in(found):
    """A function that notes for which platform it is traced."""

    def double(x, axis_name=None):
        found.append(platform_of(x))
        return 2 * x

    return double


def test_only_one_file_asks_for_the_platform_that_jax_prefers():
    root = Path(jfit.__file__).parent
    assert [p.name for p in root.rglob("*.py") if "default_backend" in p.read_text(encoding="utf-8")] == ["platforms.py"]


def test_the_platform_is_that_of_placed_arrays_then_of_the_default_device(accelerator, on_cpu):
    assert platform_of() == platform_of(jnp.ones(2), 1.0) == "gpu"
    assert platform_of(1.0, on_cpu) == "cpu"
    with jax.default_device(CPU[0]):
        assert platform_of() == "cpu"
    with traced_for("tpu"):
        assert platform_of() == "tpu" and platform_of(on_cpu) == "cpu"


def test_programs_are_traced_for_their_devices(accelerator, on_cpu):
    found = []
    compile_spmd(platform_in(found), CPU, (None,), None)(np.ones(2, np.float32))
    compile_spmd(platform_in(found), jax.devices("cpu")[:2], (0,), 0)(np.ones((2, 3), np.float32))
    Program(platform_in(found), jax.jit)(on_cpu)
    placed(jax.jit(platform_in(found)))(on_cpu)
    assert found == ["cpu"] * 4
    jax.eval_shape(platform_in(found), on_cpu)
    assert found[-1] == "gpu"


def test_inner_functions_that_were_traced_for_another_platform_are_traced_again(accelerator, on_cpu):
    found = []
    inner = jax.jit(platform_in(found))
    jax.eval_shape(lambda x: inner(x), on_cpu)
    Program(lambda x: inner(x), jax.jit)(on_cpu)
    assert found == ["gpu", "cpu"]


def test_loops_and_steps_per_call_depend_on_the_devices(accelerator):
    model, dense = jfit.lower(conv_net()), jfit.lower(sym.FullyConnected(sym.Variable("data"), num_hidden=1))
    assert unrolls(model, CPU) and not unrolls(model, GPU) and not unrolls(model) and not unrolls(dense, CPU)
    params = {"w": np.zeros(10**6, np.float32)}
    assert auto_steps_per_call(dense, params, 100, CPU) == 1
    assert auto_steps_per_call(dense, params, 100, GPU) == MAX_STEPS_PER_CALL
    assert auto_steps_per_call(model, params, 1, CPU) == 1


def test_convolutions_take_the_form_of_their_devices(accelerator):
    x, w = np.ones((2, 3, 8, 8), np.float32), np.ones((2, 3, 3, 3), np.float32)
    net = jfit.lower(sym.Convolution(sym.Variable("data"), sym.Variable("w"), num_filter=2, kernel=(3, 3), no_bias=True))

    def runs_in_forms():
        return "custom_vjp" in str(jax.make_jaxpr(lambda: net.apply({"w": w}, {}, {"data": x})[0])())

    assert not runs_in_forms()
    with jax.default_device(CPU[0]):
        assert runs_in_forms()


def test_training_gives_the_bits_of_a_process_that_prefers_the_cpu(monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((12, 3, 8, 8), np.float32), rng.integers(0, 2, 12)

    def trained():
        jfit.clear_programs()
        run = jfit.fit(conv_net(), (x, y), batch_size=4, num_epoch=2, micro_batches=2, devices=jfit.cpu(0), progress=False)
        return run.params, jfit.predict(run.model, x, params=run.params, devices=jfit.cpu(0))

    params, outputs = trained()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    again, same = trained()
    np.testing.assert_array_equal(outputs, same)
    for name, value in params.items():
        np.testing.assert_array_equal(value, again[name])


def test_the_update_takes_numbers_in_the_form_of_its_device(accelerator, on_cpu, monkeypatch):
    rows = [apply._rows(platform, (0.1, 0.2), ())[0] for platform in ("cpu", "gpu")]
    assert isinstance(rows[0], tuple) and isinstance(rows[1], np.ndarray)
    found = []
    monkeypatch.setattr(apply, "_arguments", lambda platform, *numbers: found.append(platform) or (numbers[:3], numbers[3]))
    optimizer = mx.optimizer.SGD(learning_rate=0.5)
    new, _ = apply.apply_update(optimizer, [0], [on_cpu], [on_cpu], [None])
    assert found == ["cpu"] and new[0].tolist() == [0.5] * 3


def test_amp_casts_to_float16_on_accelerators_only(accelerator, on_cpu):
    policy, op, cast = Policy.of("float16", ["dot"], [], []), lookup("dot"), lambda name, arrays, attrs: attrs["dtype"]
    for array, found in [(on_cpu, ["array", "array"]), (jnp.ones(3), ["float16", "float16"])]:
        arrays = [mx.nd.NDArray(array)] * 2
        assert ["array" if x is arrays[0] else x for x in policy.cast_arrays(op, op.parse({}), arrays, cast)] == found


def test_an_exported_program_has_forms_for_cpu_only_if_it_runs_there():
    net = sym.Convolution(sym.Variable("data"), num_filter=8, num_group=8, kernel=(3, 3), name="conv")  # depthwise
    params = {"conv_weight": np.ones((8, 1, 3, 3), np.float32), "conv_bias": np.zeros(8, np.float32)}
    x = np.ones((2, 8, 6, 6), np.float32)

    def has_convolution(program):
        return "stablehlo.convolution" in program.exported.mlir_module()

    def exported(*platforms):
        return jfit.export.stablehlo(net, {"data": x.shape}, params, batch=None, platforms=platforms)

    found = [has_convolution(exported(*p)) for p in (["cpu"], ["cuda", "cpu"], ["cuda"], ["tpu"])]
    assert found == [False, False, True, True]
