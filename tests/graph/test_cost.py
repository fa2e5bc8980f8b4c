"""`jfit.cost`: memory as of the real training step, operations as counted by hand, from shapes only."""

import jax
import numpy as np
import pytest

import jfit
from jfit import sym


def mlp():
    net = sym.Activation(sym.FullyConnected(sym.Variable("data"), num_hidden=64), act_type="relu")
    return sym.SoftmaxOutput(sym.FullyConnected(net, num_hidden=10), name="softmax"), (32, 100)


def attention(p, x):
    q, k, v = (x @ p[name] for name in "qkv")
    h = x + jax.nn.softmax(q @ k.swapaxes(1, 2) / 4, axis=-1) @ v
    return (h + jax.nn.gelu(h @ p["up"]) @ p["down"]).mean(axis=1) @ p["out"]


SHAPES = {"q": (16, 16), "k": (16, 16), "v": (16, 16), "up": (16, 32), "down": (32, 16), "out": (16, 10)}
TRANSFORMER = {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in SHAPES.items()}


def zeros(specs):
    return {n: np.zeros(s if isinstance(s, tuple) else s.shape, "float32") for n, s in specs.items()}


def accounted(model, batch, optimizer, devices=1):
    """Bytes of the program of the real step, with real arrays."""
    parallel = jfit.data_parallel(jfit.train_step(model, optimizer), devices)
    used = parallel.lower(jfit.init_state(model, optimizer, batch), batch).compile().memory_analysis()
    return used.argument_size_in_bytes + used.output_size_in_bytes + used.temp_size_in_bytes - used.alias_size_in_bytes


@pytest.mark.slow
def test_memory_of_a_transformer_from_shapes_is_that_of_the_real_step():
    labels = jax.ShapeDtypeStruct((8,), np.int32)
    cost = jfit.cost(attention, ((8, 5, 16), labels), params=TRANSFORMER, loss="cross_entropy", optimizer="adam", measure=False)
    model = jfit.Model.from_function(attention, loss="cross_entropy", params=zeros(TRANSFORMER))
    batch = {"x": np.zeros((8, 5, 16), "float32"), "label": np.zeros(8, "int32")}
    assert cost.memory.total == pytest.approx(accounted(model, batch, "adam"), rel=0.02)
    assert cost.flops_forward == pytest.approx(2 * 8 * (5 * 16 * (3 * 16 + 2 * 32) + 2 * 5 * 5 * 16 + 160), rel=0.2)


@pytest.mark.slow
def test_cost_of_a_dense_network_is_that_of_the_real_step_and_of_hand_counts():
    net, shape = mlp()
    cost = jfit.cost(net, shape, optimizer="adam", measure=False)
    batch = zeros({"data": shape, "softmax_label": (32,)})
    assert cost.memory.total == pytest.approx(accounted(jfit.lower(net), batch, "adam"), rel=0.02)
    count = 100 * 64 + 64 + 64 * 10 + 10
    assert cost.parameters == count and cost.memory.parameters == 4 * count
    assert cost.memory.optimizer == pytest.approx(8 * count, abs=100) and cost.memory.data == 4 * 32 * 101
    assert cost.flops_forward == pytest.approx(2 * 32 * (100 * 64 + 640), rel=0.05)
    averaged = jfit.cost(net, shape, optimizer="adam", ema=0.9, clip_norm=1.0, measure=False)  # options of fit
    assert averaged.memory.optimizer == pytest.approx(12 * count, abs=100) and averaged.flops_forward == cost.flops_forward
    assert cost.reduced_bytes == 0 and cost.largest_batch is None and "pass memory=" in str(cost)
    assert "<td>memory: gradients</td>" in cost._repr_html_()


@pytest.mark.slow
def test_several_devices_send_their_gradients_and_the_largest_batch_fits():
    net, shape = mlp()
    cost = jfit.cost(net, shape, optimizer="sgd", devices=2, memory=1_000_000)
    assert cost.memory.total == pytest.approx(
        accounted(jfit.lower(net), zeros({"data": shape, "softmax_label": (32,)}), "sgd", 2), rel=0.02
    )
    assert cost.reduced_bytes == pytest.approx(4 * cost.parameters, abs=100) and cost.seconds > 0
    fits, more = (jfit.cost(net, shape, size, devices=2, measure=False).memory.total for size in (cost.largest_batch, 4000))
    assert jfit.cost(net, shape, policy="bfloat16").seconds > 0
    assert 0.8e6 < fits <= 1_000_000 < more


def test_errors_name_the_batch_size_and_the_rule():
    net, shape = mlp()
    with pytest.raises(ValueError, match="batch_size is 33; expected a positive multiple of 2"):
        jfit.cost(net, shape, 33, micro_batches=2)
    with pytest.raises(ValueError, match="reduce='sharded' is not supported"):
        jfit.cost(net, shape, reduce="sharded")


def test_costs_of_many_rows_are_whole_numbers_and_what_xla_cannot_count_is_a_sentence():
    data = sym.BatchNorm(sym.Variable("data"), fix_gamma=False)
    net = sym.SoftmaxOutput(sym.FullyConnected(data, num_hidden=3), name="softmax")
    small, large = (jfit.cost(net, (1, 4), rows, measure=False) for rows in (10**6, 10**12))  # a warning would be an error
    assert large.flops_forward - small.flops_forward == (10**12 - 10**6) * (small.flops_forward // 10**6)
    assert large.memory.data == 10**12 * 5 * 4
    with pytest.raises(ValueError, match=r"a step of 1,000,000,000,000,000,000 rows writes .* bytes, more than XLA counts"):
        jfit.cost(net, (1, 4), 10**18, measure=False)


@pytest.mark.parametrize(
    ("arguments", "settings", "text"),
    [
        (((8, 4), 2.0), {}, "batch_size is 2.0; expected an integer of at least 1"),
        (((8, 4),), {"micro_batches": 0}, "micro_batches is 0; expected an integer of at least 1"),
        (((8, 4),), {"memory": "8G"}, "memory is '8G'; expected a number above 0, or None for the limit"),
        (((8, 4),), {"memory": -1}, "memory is -1; expected a number above 0, or None for the limit"),
        ((((8, 4), (7,)),), {}, "input 'data' has 8 rows, input 'softmax_label' has 7"),
        (({"dat": (8, 4)},), {}, r"but the model has the inputs \['data'\]"),
    ],
)
@pytest.mark.repetitions(8)
def test_wrong_arguments_raise_sentences_before_a_compile(arguments, settings, text):
    net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3)
    with pytest.raises(ValueError, match=text):
        jfit.cost(jfit.sym.SoftmaxOutput(net, name="softmax"), *arguments, **settings, measure=False)
    with pytest.raises(ValueError, match="is a loss head"):
        jfit.cost(net, (8, 4), measure=False)
