"""Several optimizers in one training, by patterns of parameter names."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from test_optim_names import START, X, Y, assert_close, by_hand, fitted

import jfit
import jfit.counters

LABELS = {"in": {"w": "in", "b": "in"}, "out": "out"}


def test_each_pattern_has_its_optimizer_as_in_multi_transform():
    run = fitted({"in/*": optax.adam(1e-2), "*": "sgd"}, optimizer_params={"*": {"learning_rate": 0.05, "momentum": 0.9}})
    both = {"in": optax.adam(1e-2), "out": optax.sgd(0.05, momentum=0.9)}
    assert_close(run.params, by_hand(optax.multi_transform(both, LABELS)))
    assert run.base_lr == np.float32(0.05) and run.lr == pytest.approx(0.05)
    passed = fitted(optax.multi_transform(both, LABELS))  # a tree of labels, for an optax transformation
    assert_close(passed.params, run.params)


def test_a_schedule_and_another_base_rate_change_all_learning_rates_by_the_same_factor():
    optimizers = {"out": "adam", "in/w": "sgd", "in/b": jfit.optim.sgd(0.3)}
    params = {"out": {"learning_rate": 0.02}, "in/w": {"learning_rate": 0.1}}
    run = fitted(optimizers, optimizer_params=params, schedule="cosine")
    rate = jfit.optim.run_schedule("cosine", None, 1.0, 12, 4)

    def scaled(base):
        return lambda count: base * rate(count + 1, 1.0)

    both = {"out": optax.adam(scaled(0.02)), "w": optax.sgd(scaled(0.1)), "b": optax.sgd(scaled(0.3))}
    labels = {"in": {"w": "w", "b": "b"}, "out": "out"}
    assert_close(run.params, by_hand(optax.multi_transform(both, labels)))
    again = fitted(optimizers, optimizer_params=params, callbacks=[lambda event: event.run.set_base_lr(0.01)], num_epoch=1)
    assert again.base_lr == np.float32(0.01)


def test_a_schedule_as_the_learning_rate_of_one_optimizer_is_its_own():
    own = optax.linear_schedule(0.1, 0.0, 12)
    run = fitted({"out": "sgd", "*": "adam"}, optimizer_params={"out": {"learning_rate": own}, "*": {"learning_rate": 0.02}})
    labels = {"in": "adam", "out": "sgd"}
    assert_close(run.params, by_hand(optax.multi_transform({"adam": optax.adam(0.02), "sgd": optax.sgd(own)}, labels)))
    assert run.base_lr == np.float32(0.02)


def test_other_rates_of_several_optimizers_compile_nothing():
    def rates(a, b):
        return {"in/*": {"learning_rate": a}, "*": {"learning_rate": b}}

    fitted({"in/*": "adam", "*": "sgd"}, optimizer_params=rates(0.1, 0.05))
    with jfit.counters.counted() as counts:
        fitted({"in/*": "adam", "*": "sgd"}, optimizer_params=rates(0.2, 0.03))
    assert counts["compiles"] == 0


def test_frozen_parameters_need_no_optimizer_and_multipliers_stay():
    params = {"in/w": {"learning_rate": 0.1, "lr_mult": {"in/w": 0.5}}}
    run = fitted({"in/w": "sgd", "out": "sgd"}, optimizer_params=params, frozen=["in/b"])
    both = {"w": optax.sgd(0.05), "b": optax.set_to_zero(), "out": optax.sgd(0.01)}
    assert_close(run.params, by_hand(optax.multi_transform(both, {"in": {"w": "w", "b": "b"}, "out": "out"})))


def test_graphs_take_several_optimizers_and_averages_and_resume_continues_them(tmp_path):
    def net():
        hidden = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=4, name="fc1")
        return jfit.sym.LinearRegressionOutput(jfit.sym.FullyConnected(hidden, num_hidden=1, name="fc2"), name="out")

    def train(epochs, **options):
        given = {"fc2*": {"learning_rate": 0.05, "momentum": 0.9}}
        optimizer = {"fc1*": optax.adam(1e-2), "fc2*": "sgd"}
        data = {"data": X, "out_label": Y[:, None]}
        fixed = {"batch_size": 16, "optimizer": optimizer, "optimizer_params": given, "ema": 0.9, "progress": False}
        return jfit.fit(net(), data, num_epoch=epochs, **fixed, **options)

    whole = train(3)
    assert set(whole.state.opt_state.inner) == {"fc1*", "fc2*"}
    train(1, checkpoint=tmp_path)
    resumed = train(3, checkpoint=tmp_path, resume=True)
    for name, x in whole.state.params.items():
        np.testing.assert_array_equal(resumed.state.params[name], x)
        np.testing.assert_array_equal(resumed.params[name], whole.params[name])


def test_train_step_takes_a_dict_of_optimizers():
    model = jfit.Model.from_function(
        lambda params, x: x * params["a"] + params["b"], loss=optax.l2_loss, params={"a": 1.0, "b": 0.0}
    )
    optimizers = {"a": "sgd", "*": jfit.optim.sgd(1.0)}
    step, state = jfit.train_step(model, optimizers), jfit.init_state(model, optimizers)
    state, out = step(state, {"x": jnp.ones(2), "label": jnp.zeros(2)})
    assert state.params["a"].item() == pytest.approx(0.99) and state.params["b"].item() == pytest.approx(-1)
    assert out.lr.item() == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("optimizer", "params", "message"),
    [
        ({"in/*": "sgd"}, None, "patterns .'in/.'., and none matches 'out'; add a pattern for it, such as \"\\*\""),
        ({"in/*": "sgd", "*": "sgd", "out": "sgd"}, None, "pattern 'out', but no trainable parameter is left for it"),
        ({"*": "sgd"}, {"learning_rate": 0.1}, "optimizer_params has 'learning_rate'; with a dict of optimizers, expected"),
        ({"in/*": "sgd", "*": "adam"}, {"in/*": {"learning_rate": 0.0}}, "the first one is the base of the others"),
    ],
)
def test_patterns_that_do_not_fit_raise(optimizer, params, message):
    with pytest.raises(ValueError, match=message):
        fitted(optimizer, START, optimizer_params=params)
