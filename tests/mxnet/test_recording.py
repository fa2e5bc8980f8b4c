"""Recording: what is compiled and when, what is kept in memory, several devices; the numbers are in tests/mx/checks."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recorded import is_computed

import jfit.mx as mx
from jfit import counters
from jfit.mxnet.recording import plan

nd, autograd = mx.nd, mx.autograd


def variable(*shape, seed=0, ctx=None):
    x = nd.array(np.random.RandomState(seed).uniform(-1, 1, shape), ctx=ctx)
    x.attach_grad()
    return x


def train(steps=3, dropout=0.5):
    """Return losses and final weights of a small network with dropout and batch statistics."""
    mx.random.seed(1)
    x, w, v = nd.array(np.random.RandomState(5).randn(8, 6)), variable(4, 6), variable(3, 4, seed=1)
    states = [nd.ones(4), nd.zeros(4), nd.zeros(4), nd.ones(4)]
    losses = []
    for _ in range(steps):
        with autograd.record():
            h = nd.BatchNorm(nd.FullyConnected(x, w, num_hidden=4, no_bias=True), *states, fix_gamma=False)
            h = nd.Dropout(nd.relu(h), p=dropout)
            loss = (nd.FullyConnected(h, v, num_hidden=3, no_bias=True) ** 2).mean()
        loss.backward()
        for p in (w, v):
            p -= 0.1 * p.grad
        losses.append(loss.asscalar())
    return [*losses, w.asnumpy(), v.asnumpy(), states[2].asnumpy(), states[3].asnumpy()]


def test_a_loop_compiles_its_step_once(monkeypatch):
    monkeypatch.setattr(plan, "_new", [0])
    train(1)
    with counters.counted() as counts:
        train(4)
    assert counts["compiles"] == 0


def test_operators_that_run_one_by_one_compute_the_same_as_the_program(monkeypatch):
    programs = train()
    monkeypatch.setattr(plan, "MAX_NEW", 0)
    monkeypatch.setattr(plan.Plan, "_compiles", lambda self: False)
    for a, b in zip(programs, train(), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


def test_structures_that_are_new_each_time_are_not_compiled_as_a_whole(monkeypatch):
    monkeypatch.setattr(plan, "MAX_NEW", 0)
    x = variable(3)
    names = []
    monkeypatch.setattr(plan, "Program", lambda fn, build, name: names.append(name) or plan_program(fn, build, name=name))
    for length in (3, 4, 5, 5):
        with autograd.record():
            y = x
            for _ in range(length):
                y = y * 0.5
        y.backward()
        np.testing.assert_allclose(x.grad.asnumpy(), 0.5**length, rtol=1e-6)
    assert names == ["autograd_backward"]  # of the length that came twice


plan_program = plan.Program


def test_dropout_has_the_same_mask_in_values_read_before_the_backward_pass():
    x = variable(50)
    with autograd.record():
        y = nd.Dropout(x, p=0.5)
    before = y.asnumpy()
    y.backward()
    np.testing.assert_array_equal(before, x.asnumpy() * x.grad.asnumpy())
    with autograd.record():
        z = nd.Dropout(x, p=0.5)
    z.backward()
    assert (z.asnumpy() != before).any()


def test_nothing_is_computed_before_it_is_read():
    x = variable(4)
    with counters.counted() as counts, autograd.record():
        y = nd.exp(x) * 2
        assert y.shape == (4,) and y.dtype == np.float32
    assert counts["compiles"] == 0 and not is_computed(y)
    np.testing.assert_allclose(y.asnumpy(), np.exp(x.asnumpy()) * 2, rtol=1e-6)


def test_a_result_is_read_although_another_one_of_the_same_operation_was_dropped_before():
    x = variable(2, 2)
    with autograd.record():
        first = nd.split(x + 1, num_outputs=2)[0]
        first.asnumpy()
        twice = first * 2
        np.testing.assert_array_equal(twice.asnumpy(), 2 * x.asnumpy()[:, :1] + 2)
    twice.backward()
    assert x.grad.asnumpy().tolist() == [[2, 0], [2, 0]]


def test_what_a_backward_pass_used_is_freed_although_the_loss_is_kept():
    x = variable(4)
    data = nd.ones(4)
    kept = weakref.ref(data.value)
    with autograd.record():
        hidden = x * data
        loss = hidden.sum()
    del hidden
    loss.backward()
    loss.wait_to_read()
    tape = weakref.ref(mx.autograd.Tape())
    del data
    gc.collect()
    assert kept() is None and tape() is None
    assert loss.asscalar() == pytest.approx(x.asnumpy().sum(), rel=1e-5)


def test_losses_of_several_devices_are_differentiated_on_theirs():
    contexts = [mx.cpu(1), mx.cpu(2)]
    weights = [variable(3, ctx=c) for c in contexts]
    data = [nd.array([1, 2, 3], ctx=contexts[0]), nd.array([4, 5, 6], ctx=contexts[1])]
    with autograd.record():
        losses = [(w * x).sum() for w, x in zip(weights, data, strict=True)]
    for loss in losses:
        loss.backward()
    for w, x, c in zip(weights, data, contexts, strict=True):
        assert w.grad.context == c
        np.testing.assert_array_equal(w.grad.asnumpy(), x.asnumpy())
    with autograd.record():
        losses = [(w * x).sum() for w, x in zip(weights, data, strict=True)]
    autograd.backward(losses)
    np.testing.assert_array_equal(weights[1].grad.asnumpy(), data[1].asnumpy())


def test_gradients_go_back_through_copies_to_another_device():
    x = variable(3, ctx=mx.cpu(1))
    with autograd.record():
        y = (x * 2).as_in_context(mx.cpu(2))
        z = y * y + x.as_in_context(mx.cpu(2))
    z.backward()
    assert z.context == mx.cpu(2) and x.grad.context == mx.cpu(1)
    np.testing.assert_allclose(x.grad.asnumpy(), 8 * x.asnumpy() + 1, rtol=1e-6)


def test_gradients_go_back_over_several_recordings():
    x = variable(3)
    with autograd.record():
        y = x * x
    with autograd.record():
        z = y * 3
        with autograd.pause():
            constant = z * 2
        w = z * constant
    w.backward()
    np.testing.assert_allclose(x.grad.asnumpy(), 2 * x.asnumpy() * 3 * constant.asnumpy(), rtol=1e-5)


def test_a_gradient_of_a_gradient_agrees_with_the_formula():
    x, w = variable(5), variable(5, seed=3)
    with autograd.record():
        y = (nd.tanh(x * w) * x).sum()
        (slope,) = autograd.grad(y, [x], create_graph=True)
        penalty = (slope * slope).sum()
    penalty.backward()
    import jax
    import jax.numpy as jnp

    def formula(a, b):
        return (jax.grad(lambda a: (jnp.tanh(a * b) * a).sum())(a) ** 2).sum()

    for found, expected in zip((x.grad, w.grad), jax.grad(formula, (0, 1))(x.value, w.value), strict=True):
        np.testing.assert_allclose(found.asnumpy(), expected, rtol=2e-5, atol=1e-6)


def test_the_second_gradient_of_several_is_differentiated_again():
    x, w = variable(3), variable(3, seed=1)

    def loss(w, x):
        slopes = jax.grad(lambda w, x: jnp.tanh(w * x).sum(), argnums=(0, 1))(w, x)
        return (slopes[1] ** 2).sum()

    with autograd.record():
        slopes = autograd.grad(nd.tanh(w * x).sum(), [w, x], create_graph=True)
        y = (slopes[1] ** 2).sum()
    y.backward()
    expected = jax.grad(loss)(w.asnumpy(), x.asnumpy())
    np.testing.assert_allclose(w.grad.asnumpy(), expected, rtol=1e-5)


def test_all_outputs_of_a_function_can_be_read_after_the_backward_pass():
    x = mx.np.array([1.0, 2.0, 3.0, 4.0])
    x.attach_grad()
    with autograd.record():
        a, b = mx.np.split(x, 2)
        y = (a * b).sum()
    y.backward()
    assert x.grad.asnumpy().tolist() == [3, 4, 1, 2] and b.asnumpy().tolist() == [3, 4]


class Double(autograd.Function):
    def forward(self, x):
        return 2 * x

    def backward(self, gradient):
        return 2 * gradient


@pytest.mark.parametrize("double", [Double, lambda: lambda x: x.as_in_context(mx.cpu(1)) * 2])
def test_results_of_functions_are_constants_after_the_backward_pass(double):
    x = variable(3)
    with autograd.record():
        y = double()(x)
        z = y * y
    z.backward()
    with autograd.record():
        z = x.as_in_context(y.context) * y
    z.backward()
    np.testing.assert_allclose(x.grad.asnumpy(), y.asnumpy())
    with pytest.raises(mx.base.MXNetError, match="computed before"):
        y.backward()


def test_a_scope_can_be_entered_again():
    x, scope = variable(2), autograd.record()
    with scope, scope:
        y = x * 2
    assert not autograd.is_recording()
    with scope:
        z = y * 3
    z.backward()
    assert x.grad.asnumpy().tolist() == [6, 6]


def test_a_parameter_that_is_frozen_after_it_was_recorded_gets_no_gradient():
    weight, x = mx.gluon.Parameter("weight", shape=(2,), init="ones"), variable(2)
    weight.initialize()
    with autograd.record():
        y = weight.data() * x
    weight.grad_req = "null"
    y.backward()
    assert weight.data().grad is None and x.grad.asnumpy().tolist() == [1, 1]


@pytest.mark.parametrize("together", [False, True])
def test_every_backward_pass_updates_the_moving_mean_of_the_last(together):
    norm = mx.gluon.nn.BatchNorm(in_channels=1)
    norm.initialize()
    with autograd.record():
        y, z = norm(nd.array([[1], [3]])), norm(nd.array([[5], [7]]))
    if together:
        autograd.backward([y, z])
    else:
        z.backward()
        y.backward()
    np.testing.assert_allclose(norm.running_mean.data().asscalar(), 0.9 * (0.1 * 6) + 0.1 * 2, rtol=1e-6)
