"""Checkpoints: atomic writes, verification, detection of damage and of states of another model."""

import os
import signal
import subprocess
import sys
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import safetensors.numpy

from jfit.checkpoints import checkpoint
from jfit.formats import FormatError, dump_sealed, sweep


class State(NamedTuple):
    step: Any
    params: Any
    aux: Any
    opt_state: Any
    lr: Any
    key: Any
    local: Any = None


def make_state(step=0, hidden=3):
    params = {"fc1_weight": jnp.ones((hidden, 4)), "fc1_bias": jnp.zeros((hidden,), jnp.bfloat16)}
    optimizer = optax.sgd(0.1, momentum=0.9)
    return State(jnp.int32(step), params, {}, optimizer.init(params), jnp.float32(0.1), jax.random.key(step + 1))


def plain(tree):
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)  # noqa: E731
    return jax.tree.map(lambda x: np.asarray(jax.random.key_data(x) if is_key(x) else x), tree)


def assert_equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(plain(a)), jax.tree.leaves(plain(b)), strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape
        np.testing.assert_array_equal(x, y)


def damage(folder):
    path = folder / "state.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_restored_state_is_bit_equal_with_its_keys_and_meta(tmp_path):
    state = make_state(123)
    folder = checkpoint.save(tmp_path, state, meta={"position": {"epoch": 1}})
    assert folder == tmp_path / "step-00000123" and sorted(os.listdir(folder)) == ["meta.json", "state.safetensors"]
    for path in (tmp_path, folder, str(folder)):
        found = checkpoint.restore(path, make_state(0))
        assert_equal(found, state)
        assert checkpoint.load_meta(path) == {"position": {"epoch": 1}}
    assert isinstance(found.params["fc1_weight"], np.ndarray) and found.step.shape == ()
    assert jnp.array_equal(jax.random.normal(found.key, (2,)), jax.random.normal(state.key, (2,)))


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_typed_and_raw_random_keys_are_restored(tmp_path, impl):
    state = {"step": 1, "key": jax.random.split(jax.random.key(3, impl=impl), 2), "old": jax.random.PRNGKey(3)}
    checkpoint.save(tmp_path, state)
    found = checkpoint.restore(tmp_path, state)
    assert found["key"].dtype == state["key"].dtype and found["key"].shape == (2,)
    assert_equal(found["old"], np.asarray(state["old"]))


def test_only_the_newest_checkpoints_are_kept_and_always_the_last_written(tmp_path):
    for step in range(5):
        checkpoint.save(tmp_path, make_state(step), keep=2)
    assert sorted(os.listdir(tmp_path)) == ["step-00000003", "step-00000004"]
    assert checkpoint.latest(tmp_path) == tmp_path / "step-00000004"
    checkpoint.save(tmp_path, make_state(1), keep=1)
    assert os.listdir(tmp_path) == ["step-00000001"]
    checkpoint.save(tmp_path, make_state(2), keep=None)
    assert len(os.listdir(tmp_path)) == 2


def test_a_damaged_newest_checkpoint_falls_back_to_the_previous_with_a_warning(tmp_path):
    for step in (1, 2):
        checkpoint.save(tmp_path, make_state(step))
    damage(tmp_path / "step-00000002")
    with pytest.warns(UserWarning, match=r"step-00000002 is damaged \(.*crc32.*Restored .*step-00000001 instead"):
        assert int(checkpoint.restore(tmp_path, make_state()).step) == 1
    with pytest.raises(FormatError, match=r"crc32: found .*its bytes changed; restore an older checkpoint"):
        checkpoint.restore(tmp_path / "step-00000002", make_state())
    damage(tmp_path / "step-00000001")
    with pytest.raises(FormatError, match=r"each of 2 is damaged; the newest: .*step-00000002"):
        checkpoint.restore(tmp_path, make_state())


def test_verify_detects_a_writer_that_changes_values(tmp_path, monkeypatch):
    write = safetensors.numpy.save_file
    reversed_values = lambda arrays, *rest: write({name: np.array(np.flip(x)) for name, x in arrays.items()}, *rest)  # noqa: E731
    monkeypatch.setattr(safetensors.numpy, "save_file", reversed_values)
    folder = checkpoint.save(tmp_path, {"step": 1, "x": np.arange(3), "y": np.int8(1)})
    with pytest.raises(FormatError, match=r"crc32: found .*its bytes changed"):
        checkpoint.verify(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "meta.json").unlink(), "meta.json: the file is missing"),
        (lambda f: (f / "meta.json").write_text("{"), "content: it is not valid JSON"),
        (lambda f: (f / "meta.json").write_text("{}"), "field 'sha256': the digest of the file is missing"),
        (lambda f: (f / "meta.json").write_bytes(dump_sealed({"step": 0})), "field 'format': it is missing or not of type int"),
        (lambda f: (f / "meta.json").write_bytes(dump_sealed({"format": 9})), "a newer jfit"),
        (lambda f: (f / "state.safetensors").unlink(), "state.safetensors: the file is missing"),
        (lambda f: os.truncate(f / "state.safetensors", 20), "size: found 20 bytes, expected"),
    ],
)
def test_verify_detects_each_kind_of_damage(tmp_path, change, message):
    folder = checkpoint.save(tmp_path, make_state())
    assert checkpoint.verify(folder)["step"] == 0
    change(folder)
    with pytest.raises(FormatError, match=message):
        checkpoint.verify(folder)


def test_a_state_of_another_model_raises_with_the_first_three_differences(tmp_path):
    checkpoint.save(tmp_path, make_state())
    with pytest.raises(ValueError, match=r"params/fc1_bias has shape \(3,\) in the checkpoint, expected \(5,\)"):
        checkpoint.restore(tmp_path, make_state(hidden=5))
    with pytest.raises(ValueError, match=r"; and 1 more\. Restore it with the model"):
        checkpoint.restore(tmp_path, make_state(hidden=5))
    other = make_state()._replace(lr=jnp.int32(1), local=jnp.ones(2))
    with pytest.raises(
        ValueError, match="local is not in the checkpoint; lr has dtype float32 in the checkpoint, expected int32"
    ):
        checkpoint.restore(tmp_path, other)
    with pytest.raises(ValueError, match="lr is in the checkpoint, but the run has no such array"):
        checkpoint.restore(tmp_path, make_state()._replace(lr=None))


def test_invalid_arguments_raise(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no checkpoint .* found in .*; pass the directory"):
        checkpoint.restore(tmp_path, make_state())
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        checkpoint.verify(tmp_path / "step-00000001")
    with pytest.raises(ValueError, match="keep is 0, expected at least 1"):
        checkpoint.save(tmp_path, make_state(), keep=0)
    with pytest.raises(ValueError, match="has no 'step'; pass step="):
        checkpoint.save(tmp_path, {"x": np.ones(1)})
    with pytest.raises(TypeError, match="name is a str, expected an array or number; pass it in meta="):
        checkpoint.save(tmp_path, {"step": 1, "name": "x"})
    with pytest.raises(TypeError, match="meta is not JSON-serializable"):
        checkpoint.save(tmp_path, {"step": 1}, meta={"x": object()})
    with pytest.raises(ValueError, match="both called 'a/b'"):
        checkpoint.save(tmp_path, {"step": 1, "a/b": np.ones(1), "a": {"b": np.ones(1)}})
    assert checkpoint.latest(tmp_path) is None and checkpoint.latest(tmp_path / "missing") is None


WRITER = """
import sys, numpy as np
from jfit import checkpoint
step = 0
while True:
    step += 1
    # Each step is saved twice: replacing a folder is the harder case.
    for _ in range(2):
        checkpoint.save(sys.argv[1], {"step": step, "x": np.full(200_000, step, np.float32)}, keep=2)
    print(step, flush=True)
"""


@pytest.mark.repetitions(2, slow=5)
@pytest.mark.parametrize("delay", [0.0, 0.011, 0.023, *[pytest.param(0.003 * i, marks=pytest.mark.slow) for i in range(9)]])
def test_kill_9_during_save_leaves_a_loadable_checkpoint(tmp_path, delay):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.getcwd()}
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, env=environment) as writer:
        assert writer.stdout is not None
        reported = int(writer.stdout.readline())
        time.sleep(delay)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    found = checkpoint.restore(tmp_path, {"step": 0, "x": np.zeros(200_000, np.float32)})
    assert found["step"] >= reported and np.all(found["x"] == found["step"])
    sweep(tmp_path)  # as the next save does
    assert all(name.startswith("step-") for name in os.listdir(tmp_path))
