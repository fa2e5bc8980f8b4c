"""Settings that would be ignored: unknown multipliers, a new learning rate at resume, another model, sharded parameters."""

import jax
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jfit


def net(hidden=2, name="fc"):
    fc = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=hidden, name=name)
    return jfit.sym.SoftmaxOutput(fc, name="softmax")


def linear(params, x):
    return x @ params["w"] + params["b"][None]


START = {"w": np.zeros((3, 2), "float32"), "b": np.zeros(2, "float32")}


@pytest.fixture
def data(rng):
    x = rng.normal(size=(16, 3)).astype("float32")
    return x, (x[:, 0] > 0).astype("int32")


def fit(model, data, **options):
    options = {"batch_size": 8, "num_epoch": 1, "eval_metric": None, "progress": False, **options}
    return jfit.fit(model, data, **options)


def fit_linear(data, **options):
    return fit(linear, data, **{"params": START, "loss": "cross_entropy", **options})


# ------------------------------------------------------------------------------------------------ multipliers
@pytest.mark.parametrize("kind", ["lr_mult", "wd_mult"])
@pytest.mark.parametrize(
    ("name", "hint"),
    [("fc_weigth", "did you mean 'fc_weight'"), ("fc_*", "pass a function of the name"), ("zz", r"the names are 'fc_weight'")],
)
def test_multipliers_of_unknown_parameters_raise(kind, name, hint, data):
    message = rf"{kind} has '{name.replace('*', '.')}', which is no parameter of the model; .*{hint}"
    params = {"learning_rate": 0.1, "wd": 0.1, kind: {name: 2.0}}
    with pytest.raises(ValueError, match=message):
        fit(net(), data, optimizer_params=params)
    with pytest.raises(ValueError, match=message):
        fit(net(), data, optimizer=jfit.optim.sgd(**params))
    with pytest.raises(ValueError, match=message):
        jfit.lr_find(net(), data, batch_size=8, steps=3, optimizer_params=params)


def test_multipliers_of_frozen_parameters_and_of_inputs_are_valid(data):
    fit_linear(data, frozen="b", optimizer_params={"lr_mult": {"b": 2.0}})
    variable = jfit.sym.Variable("data", lr_mult=2.0)
    fc = jfit.sym.FullyConnected(variable, num_hidden=2, name="fc")
    fit(jfit.sym.SoftmaxOutput(fc, name="softmax"), data)


# ------------------------------------------------------------------------------------------------ learning rate at resume
def resumed(data, folder, first, second, **options):
    fit_linear(data, checkpoint=folder, optimizer_params=first, **options)
    return fit_linear(data, checkpoint=folder, optimizer_params=second, resume=True, **{**options, "num_epoch": 2})


@pytest.mark.repetitions(1)
@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [(0.5, 0.5, 0.5), (0.5, 0.125, 0.125), (0.5, None, 0.5), (None, 0.125, 0.125), (None, None, 0.01)],
)
def test_a_learning_rate_passed_at_resume_is_used(first, second, expected, data, tmp_path):
    rates = [None if rate is None else {"learning_rate": rate} for rate in (first, second)]
    run = resumed(data, tmp_path, *rates)
    assert run.base_lr == pytest.approx(expected) and run.lr == pytest.approx(expected) and run.position["epoch"] == 2


@pytest.mark.slow
def test_a_rate_that_a_callback_changed_survives_a_resume_with_the_same_settings(data, tmp_path):
    fit_linear(data, checkpoint=tmp_path, optimizer_params={"learning_rate": 0.5}, callbacks=[_changes_rate])
    again = fit_linear(data, checkpoint=tmp_path, optimizer_params={"learning_rate": 0.5}, resume=True, num_epoch=2)
    assert again.base_lr == 0.25
    third = fit_linear(data, checkpoint=tmp_path, resume=True, num_epoch=3)
    assert third.base_lr == 0.25
    fourth = fit_linear(data, checkpoint=tmp_path, optimizer_params={"learning_rate": 0.5}, resume=True, num_epoch=4)
    assert fourth.base_lr == 0.25  # the rate that the first run was given
    fifth = fit_linear(data, checkpoint=tmp_path, optimizer_params={"learning_rate": 1.0}, resume=True, num_epoch=5)
    assert fifth.base_lr == 1.0


def _changes_rate(event):
    if event.kind == "epoch_end":
        event.run.set_base_lr(0.25)


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("make", [lambda rate: jfit.optim.sgd(rate), lambda rate: optax.sgd(rate)])
def test_the_rate_of_an_optimizer_instance_is_used_at_resume(make, data, tmp_path):
    fit_linear(data, checkpoint=tmp_path, optimizer=make(0.5), shuffle=False)
    run = fit_linear(data, checkpoint=tmp_path, optimizer=make(0.125), resume=True, num_epoch=2, shuffle=False)
    first = fit_linear(data, optimizer=make(0.5), shuffle=False)
    expected = fit_linear(data, params=first.params, optimizer=make(0.125), shuffle=False)
    np.testing.assert_allclose(run.params["w"], expected.params["w"], rtol=1e-6)


def test_a_rate_in_the_state_of_the_optimizer_cannot_be_changed_at_resume(data, tmp_path):
    make = optax.inject_hyperparams(optax.sgd)
    fit_linear(data, checkpoint=tmp_path, optimizer=make(learning_rate=0.5))
    fit_linear(data, checkpoint=tmp_path, optimizer=make(learning_rate=0.5), resume=True, num_epoch=2)
    with pytest.raises(ValueError, match=r"state has learning rate 0.5, so 0.125 would not be used; resume with 0.5"):
        fit_linear(data, checkpoint=tmp_path, optimizer=make(learning_rate=0.125), resume=True, num_epoch=3)


def test_the_base_rate_of_a_schedule_is_used_at_resume(data, tmp_path):
    def train(rate, **options):
        return fit_linear(
            data, checkpoint=tmp_path, schedule="factor", schedule_params={"step": 100, "base_lr": rate}, **options
        )

    train(0.5)
    assert train(0.125, resume=True, num_epoch=2).lr == 0.125


# ------------------------------------------------------------------------------------------------ Run.load
def function_model(apply=linear, **changes):
    return jfit.Model.from_function(apply, loss="cross_entropy", params={**START, **changes})


def test_loading_a_run_with_another_function_raises(data, tmp_path):
    run = fit_linear(data)
    run.save(tmp_path)
    np.testing.assert_array_equal(jfit.Run.load(tmp_path, function_model()).predict(data), run.predict(data))
    other = jfit.Model.from_function(lambda p, x: x @ p["w"], loss="cross_entropy", params={"w": START["w"]})
    difference = "the checkpoint has the parameter 'b', the model does not"
    with pytest.raises(ValueError, match=f"does not match model=: {difference}; pass the model of the run that saved it"):
        jfit.Run.load(tmp_path, other)


@pytest.mark.repetitions(1)
@pytest.mark.parametrize(
    ("make", "difference"),
    [
        (lambda: net(3), r"parameter 'fc_weight' has shape \(2, 3\) in the checkpoint, expected \(3, 3\)"),
        (lambda: net(2, "fd"), r"the model has the parameter 'fd_weight', the checkpoint does not \(it has 'fc_weight'"),
        (
            lambda: jfit.sym.SoftmaxOutput(
                jfit.sym.Convolution(jfit.sym.Variable("data"), num_filter=2, kernel=(3, 3), name="fc"), name="softmax"
            ),
            "its graph cannot have inputs of the shapes of the run: ",
        ),
    ],
)
def test_loading_a_run_with_another_graph_raises(make, difference, data, tmp_path):
    run = fit(net(), data)
    run.save(tmp_path)
    np.testing.assert_array_equal(jfit.Run.load(tmp_path, net()).predict(data[0]), run.predict(data[0]))
    with pytest.raises(ValueError, match=f"does not match model=: .*{difference}"):
        jfit.Run.load(tmp_path, make())


def test_a_run_whose_model_has_an_init_function_loads(data, tmp_path):
    model = jfit.Model.from_function(linear, loss="cross_entropy", init=lambda key, x: START)
    run = fit(model, data)
    run.save(tmp_path)
    np.testing.assert_array_equal(jfit.Run.load(tmp_path, model).predict(data[0]), run.predict(data[0]))
    other = jfit.Model.from_function(linear, loss="cross_entropy", init=lambda key, x: {**START, "b": START["w"][0]})
    jfit.Run.load(tmp_path, other)
    other = jfit.Model.from_function(linear, loss="cross_entropy", init=lambda key, x: {**START, "b": START["w"]})
    with pytest.raises(ValueError, match=r"parameter 'b' has shape \(2,\) in the checkpoint, expected \(3, 2\)"):
        jfit.Run.load(tmp_path, other)


# ------------------------------------------------------------------------------------------------ sharded parameters
def sharded(value, spec):
    mesh = Mesh(np.array(jax.devices()[:2]), ("d",))
    return jax.device_put(value, NamedSharding(mesh, spec))


@pytest.mark.parametrize("form", ["function", "model", "symbol"])
def test_sharded_parameters_raise_and_replicated_ones_train(form, data):
    def train(spec):
        w = sharded(np.zeros((2, 3) if form == "symbol" else (3, 2), "float32"), spec)
        if form == "symbol":
            return fit(net(), data, params={"fc_weight": w})
        if form == "function":
            return fit_linear(data, params={**START, "w": w})
        return fit(function_model(w=w), data)

    assert train(PartitionSpec()).position["epoch"] == 1
    spec = PartitionSpec("d") if form == "symbol" else PartitionSpec(None, "d")
    with pytest.raises(
        ValueError, match=r"params\['(fc_weight|w)'\] is sharded over 2 devices, .* pass jax.device_get\(params\)"
    ):
        train(spec)


def test_sharded_parameters_raise_in_score_and_predict(data):
    params = {**START, "w": sharded(START["w"], PartitionSpec(None, "d"))}
    model = function_model()
    for call in (lambda: jfit.predict(model, data[0], params=params), lambda: jfit.score(model, data, params=params)):
        with pytest.raises(ValueError, match=r"params\['w'\] is sharded over 2 devices"):
            call()
    assert jfit.predict(model, data[0], params=jax.device_get(params)).shape == (16, 2)
