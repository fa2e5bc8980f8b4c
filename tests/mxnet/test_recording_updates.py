"""A backward pass waits for the update of its variables: what is read or written in between, and afterwards."""

import gc
import weakref

import numpy as np
import pytest
from recorded import is_computed

import jfit.mx as mx
from jfit import counters
from jfit.mxnet.recording import plan

nd, autograd, gluon = mx.nd, mx.autograd, mx.gluon


@pytest.fixture(autouse=True)
def _no_plans_of_other_tests(monkeypatch):
    """Plans that ran once, in other tests, would keep new ones from being compiled at their first run."""
    monkeypatch.setattr(plan, "_new", [0])


def network(dtype="float32", dropout=0.5):
    mx.random.seed(3)
    net, nn = gluon.nn.HybridSequential(prefix="net_"), gluon.nn  # random numbers depend on the names
    net.add(nn.Dense(5, prefix="a_"), nn.BatchNorm(prefix="b_"), nn.Dropout(dropout, prefix="c_"), nn.Dense(2, prefix="d_"))
    net.initialize(mx.init.Xavier())
    net.cast(dtype)
    return net


def batch(seed, dtype="float32"):
    return nd.array(np.random.RandomState(seed).randn(6, 4), dtype=dtype)


def train(optimizer="sgd", hyper=None, steps=3, between=lambda net, loss: None, dtype="float32", hybrid=True):
    """Return the parameters after some steps; `between` is called between the backward pass and the update."""
    net = network(dtype)
    if hybrid:
        net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 0.1, **(hyper or {})})
    for t in range(steps):
        with autograd.record():
            loss = (net(batch(t, dtype)) ** 2).sum(axis=1)
        loss.backward()
        between(net, loss)
        trainer.step(6)
    return [p.data().asnumpy() for p in net.collect_params().values()]


def programs_of(monkeypatch):
    """Return the list of the names of programs, which grows when one is run."""
    names, call = [], plan.Program.__call__
    monkeypatch.setattr(plan.Program, "__call__", lambda self, *args: names.append(self._name) or call(self, *args))
    return names


def read_gradients(net, loss):
    for p in net.collect_params().values():
        if p.grad_req != "null":
            p.grad().asnumpy()


SETTINGS = [
    ("sgd", {}),
    ("sgd", {"momentum": 0.9, "wd": 0.01, "clip_gradient": 0.05}),
    ("adam", {}),
    ("nadam", {}),
    ("adam", {"multi_precision": True}),
]


@pytest.mark.repetitions(3)
@pytest.mark.parametrize("optimizer, hyper", SETTINGS)
def test_steps_with_the_backward_pass_give_the_bits_of_two_programs(optimizer, hyper):
    dtype = "float16" if hyper.get("multi_precision") else "float32"
    together = train(optimizer, hyper, dtype=dtype)
    for a, b in zip(together, train(optimizer, hyper, between=read_gradients, dtype=dtype), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("hybrid", [True, False])
def test_a_step_runs_one_program(monkeypatch, hybrid):
    train(hybrid=hybrid)
    names = programs_of(monkeypatch)
    train(hybrid=hybrid)
    assert names.count("autograd_step") == 3 and "autograd_backward" not in names


def test_values_that_are_read_before_the_step(monkeypatch):
    values, after = [], []
    plain = train()
    read = lambda net, loss: values.append((loss.asnumpy(), net[1].running_mean.data().asnumpy()))  # noqa: E731
    for a, b in zip(plain, train(between=read), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)

    def keep(net, loss):
        after.append((loss, net[1].running_mean.data()))
        assert loss.shape == (6,) and loss.dtype == np.float32 and not is_computed(loss)

    train(between=keep)
    for (loss, _), (later, _) in zip(values, after, strict=True):
        np.testing.assert_allclose(loss, later.asnumpy(), rtol=1e-5)
    np.testing.assert_allclose(values[-1][1], after[-1][1].asnumpy(), rtol=1e-5)


def one_weight(value=(1.0, 2.0), optimizer="sgd", **hyper):
    weight = gluon.Parameter("w", shape=(2,))
    weight.initialize(mx.init.Constant(nd.array(value)))
    return weight, gluon.Trainer([weight], optimizer, {"learning_rate": 0.5, **hyper})


def backward(weight, factor=1.0):
    with autograd.record():
        loss = (weight.data() * weight.data() * factor).sum()
    loss.backward()
    return loss


def test_a_gradient_that_is_read_after_the_step_is_that_of_the_old_weights(monkeypatch):
    names = programs_of(monkeypatch)
    weight, trainer = one_weight()
    for expected in ([2.0, 4.0], [0.0, 0.0]):
        backward(weight)
        trainer.step(1)
        assert weight.grad().shape == (2,) and not is_computed(weight.grad())
        np.testing.assert_array_equal(weight.grad().asnumpy(), expected)
    np.testing.assert_array_equal(weight.data().asnumpy(), [0.0, 0.0])
    assert names == ["autograd_step", "autograd_backward", "autograd_step"]  # which returns gradients from now on


def test_a_second_step_finds_a_stale_gradient():
    weight, trainer = one_weight()
    backward(weight)
    trainer.step(1)
    with pytest.raises(UserWarning, match="stale"):
        trainer.step(1)
    trainer.step(1, ignore_stale_grad=True)
    np.testing.assert_array_equal(weight.data().asnumpy(), [0.0, 0.0])
    trainer._updaters[0](0, weight.grad(), weight.data())  # with the gradient of the first weights
    np.testing.assert_array_equal(weight.data().asnumpy(), [-1.0, -2.0])


def test_weights_and_gradients_that_are_written_between_backward_pass_and_step():
    weight, trainer = one_weight()
    backward(weight)
    weight.data()[:] = 10
    trainer.step(1)
    np.testing.assert_array_equal(weight.data().asnumpy(), [9.0, 8.0])
    backward(weight)
    weight.grad()[:] = weight.grad() / 2
    trainer.step(1)
    np.testing.assert_array_equal(weight.data().asnumpy(), [4.5, 4.0])
    backward(weight)
    weight.set_data(nd.zeros(2))
    weight.zero_grad()
    trainer.step(1)
    np.testing.assert_array_equal(weight.data().asnumpy(), [0.0, 0.0])


def test_two_trainers_of_one_loss_and_two_losses_of_one_weight():
    (a, first), (b, second) = one_weight(), one_weight((3.0, 4.0))
    for _ in range(2):
        with autograd.record():
            loss = (a.data() * b.data()).sum()
        loss.backward()
        first.step(1)
        second.step(1)
    np.testing.assert_array_equal(a.data().asnumpy(), [-0.5 - 1.25, 0.0 - 1.5])
    np.testing.assert_array_equal(b.data().asnumpy(), [2.5 + 0.25, 3.0])
    backward(a)
    backward(a, factor=3)  # replaces the gradient
    before = a.data().asnumpy()
    first.step(2)
    np.testing.assert_array_equal(a.data().asnumpy(), before - 0.5 * 6 * before / 2)


def test_rates_and_batch_sizes_that_change_compile_nothing():
    weight, trainer = one_weight((8.0, 8.0), lr_scheduler=mx.lr_scheduler.FactorScheduler(1, 0.5, base_lr=0.25))
    other, plain = one_weight((8.0, 8.0))
    for _ in range(3):
        backward(weight), trainer.step(1)
        other.data()[:] = 8
        backward(other), plain.step(1)
    with counters.counted() as counts:
        for size in (2, 2, 2, 4):
            backward(weight), trainer.step(size)
            plain.set_learning_rate(0.125 * size)
            other.data()[:] = 8
            backward(other), plain.step(size)
            np.testing.assert_array_equal(other.data().asnumpy(), [6.0, 6.0])
    assert counts["compiles"] == 0


def test_added_gradients_and_retained_graphs_run_at_once():
    weight, trainer = one_weight()
    weight.grad_req = "add"
    for _ in range(2):
        backward(weight)
    trainer.step(1)
    np.testing.assert_array_equal(weight.data().asnumpy(), [-1.0, -2.0])
    np.testing.assert_array_equal(weight.grad().asnumpy(), [4.0, 8.0])
    weight.grad_req = "write"
    with autograd.record():
        loss = (weight.data() * 2).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    np.testing.assert_array_equal(weight.grad().asnumpy(), [2.0, 2.0])
    with pytest.raises(mx.MXNetError, match="computational graph"):
        loss.backward()


def test_a_gradient_that_is_itself_recorded_is_written():
    weight, other = nd.array([1.0, 2.0]), nd.array([3.0, 4.0])
    weight.attach_grad(), other.attach_grad()
    with autograd.record():
        weight.grad[:] = other * 2
    with autograd.record():
        loss = (weight * weight).sum()
    loss.backward()
    np.testing.assert_array_equal(weight.grad.asnumpy(), [2.0, 4.0])


def test_a_parameter_whose_grad_req_changes_has_a_stale_gradient():
    weight, trainer = one_weight()
    backward(weight)
    weight.grad_req = "add"
    with pytest.raises(UserWarning, match="stale"):
        trainer.step(1)


def test_an_exception_between_backward_pass_and_step_leaves_the_next_step_right():
    weight, trainer = one_weight()
    with pytest.raises(ZeroDivisionError):
        backward(weight), 1 / 0
    backward(weight)
    trainer.step(1)
    np.testing.assert_array_equal(weight.data().asnumpy(), [0.0, 0.0])


def test_moving_statistics_are_updated_by_each_backward_pass():
    means = []
    for read in (True, False):
        net = network()
        for t in range(2):
            with autograd.record():
                loss = net(batch(t)).sum()
            loss.backward()
            if read:
                net[1].running_mean.data().asnumpy()
        means.append(net[1].running_mean.data().asnumpy())
        assert np.abs(means[-1]).max() > 0
    np.testing.assert_array_equal(*means)


def test_results_that_are_not_part_of_the_loss_are_computed_with_it(monkeypatch):
    weight, trainer = one_weight()
    with autograd.record():
        double = weight.data() * 2
        loss, other = double.sum(), double * 3
    loss.backward()
    names = programs_of(monkeypatch)
    trainer.step(1)
    np.testing.assert_array_equal(other.asnumpy(), [6.0, 12.0])
    np.testing.assert_array_equal(double.asnumpy(), [2.0, 4.0])
    assert names == ["autograd_step"]


def test_what_a_backward_pass_used_is_freed_by_the_next_one():
    weight, trainer = one_weight()
    data = nd.array([1, 2])
    kept = weakref.ref(data.value)
    for x in (data, nd.array([3, 4])):
        with autograd.record():
            loss = (weight.data() * x).sum()
        loss.backward()
        trainer.step(1)
    del data, x
    gc.collect()
    assert kept() is None
    np.testing.assert_array_equal(weight.grad().asnumpy(), [3.0, 4.0])


def test_python_code_of_the_user_runs_in_the_backward_pass():
    calls = []

    class Double(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            self.assign(out_data[0], req[0], in_data[0] * 2)

        def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
            calls.append("backward")
            self.assign(in_grad[0], req[0], out_grad[0] * 2)

    @mx.operator.register("double_of_waiting_test")
    class DoubleProp(mx.operator.CustomOpProp):
        def create_operator(self, ctx, shapes, dtypes):
            return Double()

    weight, _ = one_weight()
    with autograd.record():
        loss = nd.Custom(weight.data(), op_type="double_of_waiting_test").sum()
    loss.backward()
    mx.nd.waitall()
    assert calls == ["backward"]
