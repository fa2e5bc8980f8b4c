"""Model parallelism by `ctx_group`: the numbers of one device, with every group's arrays on its own device."""

import jax
import numpy as np
import pytest

import jfit.mx as mx
from jfit import counters

GROUPS = {"dev1": mx.cpu(1), "dev2": mx.cpu(2)}


def perceptron():
    """Three groups of layers: dev1, none (runs where its inputs are), dev2, dev1 again."""
    net = mx.sym.Variable("data")
    with mx.AttrScope(ctx_group="dev1"):
        net = mx.sym.FullyConnected(net, num_hidden=8, no_bias=True, name="fc1")
    net = mx.sym.Activation(mx.sym.BatchNorm(net, fix_gamma=False, name="bn"), act_type="tanh", name="act")
    with mx.AttrScope(ctx_group="dev2"):
        net = mx.sym.Dropout(mx.sym.FullyConnected(net, num_hidden=6, name="fc2"), p=0.3, name="drop")
    with mx.AttrScope(ctx_group="dev1"):
        net = mx.sym.FullyConnected(net, num_hidden=3, name="fc3")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def recurrent():
    """An LSTM of two layers over three steps, one layer in each group, with initial states of unknown batch size."""
    net = mx.sym.Embedding(mx.sym.Variable("data"), input_dim=7, output_dim=4, name="embed")
    for layer in (1, 2):
        with mx.AttrScope(ctx_group=f"dev{layer}"):
            cell = mx.rnn.LSTMCell(4, prefix=f"l{layer}_")
            net, _ = cell.unroll(3, net, merge_outputs=True)
    net = mx.sym.FullyConnected(net, num_hidden=3, name="fc")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def device(array):
    (only,) = array.value.devices()
    return only


def executor(net, groups, **shapes):
    mx.random.seed(3)
    bound = net.simple_bind(mx.cpu(0), group2ctx=groups, **shapes)
    rng = np.random.default_rng(0)
    for name, array in bound.arg_dict.items():
        whole = rng.integers(0, 3, array.shape) if name in ("softmax_label", "data") else rng.standard_normal(array.shape)
        array[:] = whole.astype("float32") * (1 if name in ("softmax_label", "data") else 0.5)
    return bound


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("net, shapes", [(perceptron, {"data": (4, 5)}), (recurrent, {"data": (4, 3)})])
def test_an_executor_with_groups_computes_the_numbers_of_one_device(net, shapes):
    results = []
    for groups in (None, GROUPS):
        bound = executor(net(), groups, **shapes)
        bound.forward(is_train=True)
        bound.backward()
        grads = {n: g.asnumpy() for n, g in bound.grad_dict.items()}
        results.append(([o.asnumpy() for o in bound.outputs], grads, {n: a.asnumpy() for n, a in bound.aux_dict.items()}))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), *results)


def test_the_arrays_of_an_executor_are_on_the_device_of_their_group():
    bound = executor(perceptron(), GROUPS, data=(4, 5))
    bound.forward(is_train=True)
    bound.backward()
    first, second = jax.devices()[1:3]
    expected = {"fc1_weight": first, "bn_gamma": first, "fc2_weight": second, "fc2_bias": second, "fc3_weight": first}
    assert {n: device(bound.arg_dict[n]) for n in expected} == expected
    assert {n: device(bound.grad_dict[n]) for n in expected} == expected
    assert device(bound.aux_dict["bn_moving_mean"]) == first
    assert device(bound.outputs[0]) == jax.devices()[0]


def data(net):
    rng = np.random.default_rng(1)
    if net is recurrent:
        return rng.integers(0, 7, (10, 3)).astype("float32"), np.resize([0.0, 1.0, 2.0], (10, 12))[:, :1].ravel()
    return rng.standard_normal((10, 5)).astype("float32"), np.resize([0.0, 1.0, 2.0], 10)


def fitted(net, groups, **options):
    mx.random.seed(5)
    x, y = data(net)
    train = mx.io.NDArrayIter(x, y, batch_size=4)
    module = mx.mod.Module(net(), context=mx.cpu(0), group2ctxs=groups)
    rate = {"optimizer_params": {"learning_rate": 0.1}}
    module.fit(train, initializer=mx.init.Xavier(), **{"optimizer": "adam", "num_epoch": 2, **rate, **options})
    scores = dict(module.score(train, ["acc", "ce"]))
    return module, (scores, [{n: v.asnumpy() for n, v in part.items()} for part in module.get_params()])


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "nadam"])
def test_a_module_with_groups_trains_to_the_parameters_of_one_device(optimizer):
    one, several = (fitted(perceptron, groups, optimizer=optimizer) for groups in (None, GROUPS))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), one[1], several[1])
    x = mx.io.NDArrayIter(data(perceptron)[0], batch_size=4)
    np.testing.assert_allclose(one[0].predict(x).asnumpy(), several[0].predict(x).asnumpy(), rtol=1e-5, atol=1e-6)


def test_parameters_and_optimizer_state_are_on_the_device_of_their_group_and_no_later_step_compiles(tmp_path):
    module, _ = fitted(perceptron, GROUPS)
    home, first, second = jax.devices()[:3]
    expected = {"fc1_weight": first, "bn_gamma": first, "fc2_weight": second, "fc2_bias": second, "fc3_weight": first}
    state = module.state
    for tree in (state.params, *state.opt_state.slots.values()):
        assert {n: tree[n].devices() for n in expected} == {n: {d} for n, d in expected.items()}
    assert state.aux["bn_moving_mean"].devices() == {first}
    assert not any(home in v.devices() for v in state.params.values())
    before = {n: np.asarray(v) for n, v in state.opt_state.slots["mean"].items()}
    module.save_optimizer_states(tmp_path / "s")
    module.load_optimizer_states(tmp_path / "s")
    after = module.state.opt_state.slots["mean"]
    jax.tree.map(np.testing.assert_array_equal, before, dict(after))
    assert after["fc2_weight"].devices() == {second}
    x, y = data(perceptron)
    batch = mx.io.DataBatch([mx.nd.array(x[:4])], [mx.nd.array(y[:4])])
    module.forward_backward(batch)
    module.update()
    with counters.counted() as counts:
        for _ in range(3):
            module.forward_backward(batch)
            module.update()
    assert counts["traces"] == counts["compiles"] == 0


class HalfStep(mx.optimizer.Optimizer):
    """A user's optimizer, which runs in Python."""

    def create_state(self, index, weight):
        return mx.nd.zeros(weight.shape, weight.context)

    def update(self, index, weight, grad, state):
        state[:] = state + grad
        weight[:] = weight - 0.01 * state


def test_one_context_may_be_in_a_list_and_several_are_errors():
    net, lists = perceptron(), {"dev1": [mx.cpu(1)], "dev2": [mx.cpu(2)]}
    for same in (lists, [GROUPS]):
        assert mx.mod.Module(net, group2ctxs=same).binding.groups == [dict(zip(GROUPS, jax.devices()[1:3], strict=True))]
    assert mx.mod.Module(net, group2ctxs={"dev1": mx.cpu(0), "other": mx.cpu(3)}).binding.groups == []
    with pytest.raises(ValueError, match=r"ctx_group 'dev1' has 2 contexts, \[cpu\(1\), cpu\(2\)\]; pass one"):
        net.simple_bind(mx.cpu(0), group2ctx={"dev1": [mx.cpu(1), mx.cpu(2)]}, data=(2, 5))
