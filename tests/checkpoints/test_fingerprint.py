"""Resuming with other settings, another model or other data raises an error that names them; versions are logged."""

from __future__ import annotations

import json
import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from fit_support import blobs, same, train

import jfit
from jfit.checkpoints import fingerprint
from jfit.formats import dump_sealed


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("run")
    train(num_epoch=1, checkpoint=path)
    return path


x, y = blobs()


@pytest.mark.repetitions(12)
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": 1}, "seed was 0 and is 1"),
        ({"shuffle": False}, "shuffle was true and is false"),
        ({"batch_size": 10}, "batch_size was 8 and is 10"),
        ({"micro_batches": 2}, "micro_batches was 1 and is 2"),
        ({"clip_norm": 1.0}, r"clip_norm was null and is 1\.0"),
        ({"optimizer_params": {"learning_rate": 0.1, "momentum": 0.5}}, r"momentum of the optimizer was 0\.9 and is 0\.5"),
        ({"data": (x[:49], y[:49])}, "rows was 50 and is 49"),
        ({"data": (x + 1, y)}, r"data: data was float32 \(4,\), sample \w+ and is float32 \(4,\), sample \w+"),
        ({"data": (x, (y + 1) % 3)}, "data: softmax_label was"),
        ({"sample_weight": np.arange(1.0, 51.0)}, "data: weight was None and is float32"),
        ({"schedule": "cosine"}, 'schedule was null and is cosine'),
        ({"reduce": "bfloat16"}, "reduce was psum and is bfloat16"),
    ],
)  # fmt: skip
def test_a_setting_that_changes_what_is_learned_is_named_and_refused(folder, changed, message):
    with pytest.raises(ValueError, match=rf"was trained with other settings, so it would learn something else: .*{message}"):
        train(num_epoch=1, resume=folder, **changed)


def test_another_graph_with_the_same_names_is_refused(folder):
    sym = jfit.sym
    net = sym.Activation(sym.FullyConnected(sym.Variable("data"), num_hidden=8, name="fc1"), act_type="tanh", name="relu")
    net = sym.SoftmaxOutput(sym.FullyConnected(net, num_hidden=3, name="fc2"), name="softmax")
    with pytest.raises(
        ValueError, match=r"model was graph \w+ and is graph \w+\. Pass the earlier values, or allow the change"
    ):
        train(net, resume=folder)


def test_allowed_changes_are_logged(folder, caplog):
    with caplog.at_level(logging.WARNING, "jfit"):
        run = train(num_epoch=1, resume=folder, seed=1, batch_size=10, resume_with=["seed", "batch_size"])
        assert run.position["step"] == 7
        train(num_epoch=1, resume=folder, data=(x[:49], y[:49]), resume_with="any")
    assert "continues with differences: batch_size was 8 and is 10; seed was 0 and is 1" in caplog.text
    assert "rows was 50 and is 49" in caplog.text
    with pytest.raises(ValueError, match=r"seed was 0 and is 1.*resume_with="):
        train(resume=folder, seed=1, resume_with="batch_size")
    with pytest.raises(ValueError, match=r"resume_with has 'sead'; expected 'any', or names of these: model, optimizer, "):
        train(resume=folder, resume_with=["sead"])


def test_equal_settings_written_in_another_way_and_more_epochs_continue_without_a_line(folder, caplog):
    with caplog.at_level(logging.WARNING, "jfit"):
        params = {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.0}
        again = train(resume=folder, optimizer_params=params, steps_per_call=1, data=(x.astype("float64"), y))
        assert same(again, train())
    assert not caplog.records


def test_frozen_names_have_no_order(tmp_path):
    train(num_epoch=1, checkpoint=tmp_path, frozen=["fc1_weight", "fc1_bias"])
    assert train(num_epoch=1, resume=tmp_path, frozen=("fc1_bias", "fc1_weight")).position["step"] == 7


def loss(output, label):
    return (output - label) ** 2


def doubled(output, label):
    return 2 * (output - label) ** 2


def test_a_function_is_compared_by_what_it_computes(tmp_path, caplog):
    scale = 1.0
    target = x @ np.ones(4, "float32")

    def fit(apply, **options):
        settings: dict[str, Any] = {"loss": loss, "optimizer": optax.adam(0.01), "params": {"w": jnp.zeros(4)}, "num_epoch": 1}
        return jfit.fit(apply, (x, target), batch_size=10, progress=False, **settings | options)

    fit(lambda p, x: scale * x @ p["w"], checkpoint=tmp_path)
    assert fit(lambda params, rows: scale * rows @ params["w"], resume=tmp_path).position["step"] == 5
    scale = 2.0
    with pytest.raises(ValueError, match=r"model was function \w+ and is function \w+"):
        fit(lambda p, x: scale * x @ p["w"], resume=tmp_path)
    scale = 1.0
    fit(lambda p, x: scale * x @ p["w"], resume=tmp_path, optimizer=optax.adam(0.02))  # a number: the learning rate
    assert "optimizer was optax" in caplog.text
    changes: list[tuple[dict[str, Any], str]] = [
        ({"loss": doubled}, r"loss was loss \w+ and is doubled \w+"),
        ({"optimizer": optax.adam(0.01, nesterov=True)}, r"optimizer was optax [\w ]+ and is optax [\w ]+"),
    ]
    for change, message in changes:
        with pytest.raises(ValueError, match=message):
            fit(lambda p, x: scale * x @ p["w"], resume=tmp_path, **change)


class Counting:
    """A loss that counts its calls."""

    def __init__(self, scale=1.0):
        self.calls, self.scale = 0, scale

    def __call__(self, output, label):
        self.calls += 1
        return self.scale * (output - label) ** 2


def test_an_object_that_changes_in_training_can_be_resumed_with_but_not_one_that_the_user_changed(tmp_path):
    target, counting = x @ np.ones(4, "float32"), Counting()

    def fit(loss, **options):
        settings = {"loss": loss, "params": {"w": jnp.zeros(4)}, "batch_size": 10, "progress": False}
        return jfit.fit(lambda p, x: x @ p["w"], (x, target), **settings, **options)

    fit(counting, num_epoch=1, checkpoint=tmp_path)
    assert counting.calls > 0
    assert fit(counting, num_epoch=2, checkpoint=tmp_path, resume=True).position["step"] == 10
    assert fit(Counting(), num_epoch=2, resume=tmp_path).position["step"] == 10
    counting.scale = 2.0
    with pytest.raises(ValueError, match=r"loss was Counting \w+ and is Counting \w+"):
        fit(counting, resume=tmp_path)


def edited(folder, target, **fields):
    """Copy the newest checkpoint with another fingerprint, as another machine would have written it."""
    source = jfit.checkpoint.latest(folder)
    assert source is not None
    path = target / source.name
    path.mkdir(parents=True)
    (path / "state.safetensors").write_bytes((source / "state.safetensors").read_bytes())
    record = json.loads((source / "meta.json").read_text())
    record["meta"]["fingerprint"] |= fields
    (path / "meta.json").write_bytes(dump_sealed({k: v for k, v in record.items() if k != "sha256"}))
    return target


def test_other_versions_devices_and_cores_are_logged_in_one_line(folder, tmp_path, caplog):
    versions = jfit.checkpoint.load_meta(folder)["fingerprint"]["versions"]
    other = edited(folder, tmp_path, versions=versions | {"jax": "0.0.1"}, devices="4 x TPU v7", cores=999)
    with caplog.at_level(logging.WARNING, "jfit"):
        assert same(train(resume=other), train())
    (record,) = caplog.records
    assert "versions: jax was 0.0.1 and is" in record.message and "devices was 4 x TPU v7 and is 1 x cpu" in record.message
    assert "cores was 999" in record.message


def test_other_flags_and_settings_of_jax_are_named_in_the_line(folder, tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/x --xla_cpu_ftz=false --xla_force_host_platform_device_count=8 --xla_a")
    monkeypatch.setenv("PJRT_NPROC", "3")
    with caplog.at_level(logging.WARNING, "jfit"), jax.default_matmul_precision("float32"):
        train(num_epoch=1, resume=folder)
    (record,) = caplog.records
    for name, value in (("--xla_cpu_ftz", "false"), ("--xla_a", "true"), ("jax_default_matmul_precision", "float32")):
        assert f"flags: {name} was not set and is {value}" in record.message
    assert "and is 3" in record.message and "dump" not in record.message and "count" not in record.message


def test_ordered_refuses_what_changes_its_bits(folder):
    now = jfit.checkpoint.load_meta(folder)["fingerprint"] | {"reduce": "ordered"}
    versions = {"versions": now["versions"] | {"jaxlib": "0"}}
    others = [(versions, "versions"), ({"cores": 999}, "cores"), ({"devices": "1 x TPU"}, "devices")]
    for earlier, name in [*others, ({"flags": {"--xla_cpu_ftz": "false"}}, "flags")]:
        with pytest.raises(ValueError, match=rf"so reduce='ordered' could not keep the bits: {name}.*resume_with=\['{name}'"):
            fingerprint.check(now | earlier, now, (), folder)
        fingerprint.check(now | earlier, now, [name], folder)
        fingerprint.check(now | earlier | {"reduce": "psum"}, now | {"reduce": "sharded"}, (), folder)
    fingerprint.check(now | {"devices": "4 x cpu"}, now, (), folder)  # the rule gives the same bits


def test_large_arrays_are_sampled(monkeypatch):
    monkeypatch.setattr(fingerprint, "MOST_BYTES", 64)
    assert fingerprint.digest(np.ones((50, 2))) == fingerprint.digest(np.ones((50, 2))) != fingerprint.digest(np.zeros((50, 2)))
    assert fingerprint.digest(jnp.ones(50)) == fingerprint.digest(jnp.ones(50)) != fingerprint.digest(jnp.ones(51))
