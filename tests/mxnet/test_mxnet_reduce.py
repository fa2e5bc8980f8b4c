"""Compression of gradients to 2 bits and bfloat16 in Module and KVStore."""

import jax.numpy as jnp
import numpy as np
import pytest

import jfit
from jfit import sym
from jfit.mxnet.errors import MXNetError
from jfit.mxnet.gluon.tree import PytreeParams
from jfit.mxnet.kvstore import KVStore, create
from jfit.step import reduce as rules


def ready(store, **options):
    net = sym.SoftmaxOutput(sym.FullyConnected(sym.Variable("data"), num_hidden=3, name="fc"), name="softmax")
    module = jfit.Module(net, context=[jfit.cpu(0), jfit.cpu(1)], **options)
    module.bind([("data", (8, 5))], [("softmax_label", (8,))])
    module.init_params()
    module.init_optimizer(store)
    return module


def test_compression_of_a_module_is_the_rule_of_data_parallel():
    module = ready("device", compression_params={"type": "bfloat16"})
    assert module.parameters.reduce is rules.get("bfloat16")
    store = KVStore("device")
    store.set_gradient_compression({"type": "2bit"})
    assert ready(store).parameters.reduce is rules.two_bit(0.5)


def test_compressed_pushes_have_the_numbers_of_the_rules():
    rng, rule = np.random.default_rng(0), rules.two_bit()
    pushes = [[rng.normal(size=(3, 4)).astype("float32") for _ in range(2)] for _ in range(3)]
    store = create("device")
    store.set_gradient_compression({"type": "2bit"})
    store.init("w", np.zeros((3, 4), "float32"))
    residuals = [rule.init({"w": jnp.zeros((3, 4))})] * 2
    for push in pushes:
        store.push("w", push)
        sent = []
        for i, gradient in enumerate(push):
            result, _, residuals[i] = rule.apply({"w": jnp.asarray(gradient)}, (), residuals[i], None)
            sent.append(result["w"])
        np.testing.assert_allclose(store.pull("w"), sent[0] + sent[1], rtol=1e-6)
    store = create("device")
    store.set_gradient_compression({"type": "bfloat16"})
    store.init("w", np.zeros(1, "float32"))
    store.push("w", [np.float32([1 + 2**-12]), np.float32([2**-12])])
    assert store.pull("w").tolist() == [1 + 2**-12]  # the first was rounded to 1, the sum was not
    tree = PytreeParams({"w": jnp.zeros(2)}, {"type": "2bit"})
    assert tree.sum_over_devices([{"w": jnp.array([0.75, -0.25])}])["w"].tolist() == [0.5, 0.0]


def test_unknown_compression_is_an_error():
    with pytest.raises(MXNetError, match="the supported types are"):
        create("device").set_gradient_compression({"type": "8bit"})
