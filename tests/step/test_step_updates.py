"""Steps with several updates: GANs, actor and critic, against the same trainings by hand in JAX and optax."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jfit
import jfit.counters

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 2)).astype("float32") * [1.0, 0.3] + [0.5, 0.0]
Z = RNG.normal(size=(80, 3)).astype("float32")
DATA = {"x": X.astype("float32"), "z": Z}


def mlp(params, x):
    return jnp.tanh(x @ params["w1"] + params["b1"][None]) @ params["w2"]


def layers(seed, inputs, outputs):
    rng = np.random.default_rng(seed)
    w1, w2 = rng.normal(size=(inputs, 8)) * 0.5, rng.normal(size=(8, outputs)) * 0.5
    return {"w1": jnp.asarray(w1, jnp.float32), "b1": jnp.zeros(8), "w2": jnp.asarray(w2, jnp.float32)}


START = {"generator": layers(1, 3, 2), "critic": layers(2, 2, 1), "unused": jnp.ones(1)}


def gan(params, x, z):
    fake = mlp(params["generator"], z)
    return {"real": mlp(params["critic"], x)[:, 0], "fake": mlp(params["critic"], fake)[:, 0]}


def of_critic(out, batch):
    return jax.nn.softplus(-out["real"]) + jax.nn.softplus(out["fake"])


def of_generator(out, batch):
    return jax.nn.softplus(-out["fake"])


def updates(every=2, **generator):
    second = {"optimizer": optax.adam(3e-2)} | generator
    critic = jfit.Update("critic/*", of_critic, "sgd", {"learning_rate": 0.1, "momentum": 0.5})
    return [critic, jfit.Update("generator/*", of_generator, every=every, **second)]


def fitted(every=2, data=DATA, **options):
    given = {"updates": updates(every), "batch_size": 16, "num_epoch": 4, "shuffle": False, "progress": False, "params": START}
    return jfit.fit(gan, data, **given | options)


def by_hand(every, critic, generator, steps=20, clip=None):
    """The same training with a jitted step for each network; returns the parameters, and the losses of each step."""

    def step_of(name, loss, transform):
        @jax.jit
        def step(params, state, x, z):
            def mean_loss(part):
                return loss(gan({**params, name: part}, x, z), None).mean()

            value, grads = jax.value_and_grad(mean_loss)(params[name])
            if clip is not None:
                grads = jax.tree.map(lambda g: g * jnp.minimum(1, clip / optax.global_norm(grads)), grads)
            changes, state = transform.update(grads, state, params[name])
            return {**params, name: optax.apply_updates(params[name], changes)}, state, value

        return step

    params, losses = START, {"critic": [], "generator": []}
    states = critic.init(params["critic"]), generator.init(params["generator"])
    first, second = step_of("critic", of_critic, critic), step_of("generator", of_generator, generator)
    for i in range(steps):
        rows = slice(i % 5 * 16, i % 5 * 16 + 16)
        params, a, loss = first(params, states[0], DATA["x"][rows], Z[rows])
        losses["critic"].append(loss)
        states = a, states[1]
        if (i + 1) % every == 0:
            params, b, loss = second(params, states[1], DATA["x"][rows], Z[rows])
            losses["generator"].append(loss)
            states = states[0], b
    return params, losses


def assert_close(found, expected, rtol=1e-6, atol=1e-6):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol, atol), found, expected)


def assert_equal(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.repetitions(2)
@pytest.mark.parametrize("every", [1, 2, 5])
def test_a_gan_is_trained_as_by_hand(every):
    run = fitted(every)
    params, losses = by_hand(every, optax.sgd(0.1, momentum=0.5), optax.adam(3e-2))
    assert_close(run.params, params)
    last = run.history.epochs[-1]
    assert last["critic_loss"] == last["loss"] == pytest.approx(float(np.mean(losses["critic"][-5:])), rel=1e-5)
    done = len([i for i in range(15, 20) if (i + 1) % every == 0])
    assert last["generator_loss"] == pytest.approx(float(np.mean(losses["generator"][-done:])), rel=1e-5)
    assert run.base_lr == np.float32(0.1) and last["lr"] == pytest.approx(0.1) and int(run.state.step) == 20


def test_names_keep_the_ratio_of_their_learning_rates_under_a_schedule_and_gradients_are_clipped_per_update():
    given = updates(1, optimizer="sgd", optimizer_params={"learning_rate": 0.3})
    run = fitted(updates=given, schedule="cosine", clip_norm=0.05)
    rate = jfit.optim.run_schedule("cosine", None, 0.1, 20, 5)
    critic, generator = (lambda count, k=k: k * rate(count + 1, 0.1) for k in (1, 3))
    params, _ = by_hand(1, optax.sgd(critic, momentum=0.5), optax.sgd(generator), clip=0.05)
    assert_close(run.params, params)


def test_several_steps_in_a_dispatch_and_two_devices_have_the_same_results():
    one, many, two = fitted(steps_per_call=1), fitted(steps_per_call=4), fitted(devices=2)
    assert_equal(one.params, many.params)
    assert_close(one.params, two.params)
    assert two.history.epochs[-1]["generator_loss"] == pytest.approx(one.history.epochs[-1]["generator_loss"], rel=1e-5)
    parts = fitted(micro_batches=4)
    assert_close(one.params, parts.params)


def test_rows_of_weight_0_and_padding_are_as_if_they_were_not_there():
    data = {name: x[:72] for name, x in DATA.items()}  # the last batch has 8 rows, padded to 16
    whole, padded = fitted(1, data=data, num_epoch=1), fitted(1, data=data, num_epoch=1, devices=2)
    assert_close(whole.params, padded.params)
    weights = np.r_[np.ones(72), np.zeros(8)].astype("float32")
    assert_close(fitted(1, num_epoch=1, sample_weight=weights).params, whole.params)


def test_a_resumed_run_has_the_same_bits(tmp_path):
    def stop(event):
        if event.step == 13:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        callback = jfit.callbacks.lambda_callback(every=1, step=stop)
        fitted(5, checkpoint=tmp_path, checkpoint_every=3, ema=0.9, callbacks=[callback])
    resumed, whole = fitted(5, checkpoint=tmp_path, resume=True, ema=0.9), fitted(5, ema=0.9)
    assert_equal(resumed.state, whole.state)
    assert_equal(resumed.history.epochs[-1]["generator_loss"], whole.history.epochs[-1]["generator_loss"])
    with pytest.raises(ValueError, match=r"updates was .* and is"):
        fitted(2, checkpoint=tmp_path, resume=True, ema=0.9, num_epoch=6)


def test_averages_are_those_of_the_parameters_after_each_step():
    states = []
    watch = jfit.callbacks.lambda_callback(every=1, step=lambda event: states.append(event.run.snapshot().params))
    run = fitted(2, ema={"decay": 0.9, "debias": False}, num_epoch=1, callbacks=[watch])
    average = dict(jfit.init_state(jfit.Model.from_function(gan, loss=of_critic, params=START)).params)
    for params in states:
        average = {name: 0.9 * average[name] + 0.1 * x for name, x in params.items()}
    assert_close(run.named_params, average)
    assert_equal(run.raw_params["unused"], START["unused"])


def test_each_update_has_its_own_random_numbers():
    def noisy(params, x, key):
        return {"a": params["a"] * jax.random.normal(key, x.shape), "b": params["b"] * jax.random.normal(key, x.shape)}

    start = {"a": jnp.ones(()), "b": jnp.ones(())}
    both = [jfit.Update(name, lambda out, batch, name=name: out[name], "sgd", name=name) for name in "ab"]
    x = np.zeros(4, "float32")
    run = jfit.fit(noisy, {"x": x}, params=start, updates=both, batch_size=4, num_epoch=1, progress=False)
    model = jfit.Model.from_function(noisy, loss=lambda out, batch: out["a"], params=start)
    key = jax.random.wrap_key_data(jfit.init_state(model, seed=0).key)
    for k, name in enumerate("ab"):
        noise = jax.random.normal(jfit.step.part_key(jax.random.fold_in(key, k), 0), (4,))
        assert run.params[name].item() == pytest.approx(1 - 0.01 * float(noise.mean()), abs=1e-7)


def test_actor_and_critic_share_a_batch_and_a_trunk():
    rng = np.random.default_rng(3)
    data = {
        "s": rng.normal(size=(48, 4)).astype("float32"),
        "action": rng.integers(0, 3, 48).astype("int32"),
        "returns": rng.normal(size=48).astype("float32"),
    }
    start = {"trunk": layers(4, 4, 8), "actor": jnp.zeros((8, 3)), "critic": jnp.zeros(8)}

    def net(params, s):
        hidden = jnp.tanh(mlp(params["trunk"], s))
        return {"logits": hidden @ params["actor"], "value": hidden @ params["critic"]}

    def of_value(out, batch):
        return (out["value"] - batch["returns"]) ** 2

    def of_policy(out, batch):
        advantage = jax.lax.stop_gradient(batch["returns"] - out["value"])
        chosen = jnp.take_along_axis(jax.nn.log_softmax(out["logits"]), batch["action"][:, None], axis=1)[:, 0]
        return -advantage * chosen, {"entropy": -jnp.sum(jax.nn.softmax(out["logits"]) * jax.nn.log_softmax(out["logits"]), 1)}

    pair = [
        jfit.Update(["critic", "trunk/*"], of_value, "adam", {"learning_rate": 0.02}),
        jfit.Update("actor", of_policy, optax.sgd(0.5)),
    ]
    fixed = {"params": start, "updates": pair, "batch_size": 16, "num_epoch": 7, "shuffle": False, "progress": False}
    run = jfit.fit(lambda params, s, action, returns: net(params, s), data, **fixed)
    params, adam, sgd = start, optax.adam(0.02), optax.sgd(0.5)

    @jax.jit
    def step(params, states, batch):
        def value_loss(own):
            return of_value(net({**params, **own}, batch["s"]), batch).mean()

        own = {"critic": params["critic"], "trunk": params["trunk"]}
        changes, first = adam.update(jax.grad(value_loss)(own), states[0], own)
        params = {**params, **optax.apply_updates(own, changes)}

        def policy_loss(actor):
            return of_policy(net({**params, "actor": actor}, batch["s"]), batch)[0].mean()

        changes, second = sgd.update(jax.grad(policy_loss)(params["actor"]), states[1], params["actor"])
        return {**params, "actor": params["actor"] + changes}, (first, second)

    states = adam.init({"critic": start["critic"], "trunk": start["trunk"]}), sgd.init(start["actor"])
    for i in range(21):
        params, states = step(params, states, {k: v[i % 3 * 16 : i % 3 * 16 + 16] for k, v in data.items()})
    assert_close(run.params, params)
    assert {"critic_loss", "actor_loss", "actor_entropy"} <= set(run.history.epochs[-1])


class Pair(NamedTuple):
    a: Any
    b: Any


def of_pair(params, x):
    return {"u": x.a @ params["u"], "v": x.b @ params["v"]}


def of_u(out, batch):
    return (out["u"] - batch["label"].a * batch["scale"].sum()) ** 2


def of_v(out, batch):
    return (out["v"] - batch["label"].b) ** 2 * batch["weight"]


@pytest.mark.parametrize("in_batches", [False, True])
@pytest.mark.parametrize("first", [of_u, lambda out, label: (out["u"] - 3 * label.a) ** 2])
def test_losses_read_different_arrays_and_the_same_pytrees(first, in_batches):
    rows = {"x": Pair(X, Z), "label": Pair(X[:, 0], Z[:, 0]), "weight": Z[:, 1] ** 2}
    rows = jax.tree.map(lambda x: x[:32].astype("float32"), rows)
    batches = [jax.tree.map(lambda x, k=k: x[k : k + 16], rows) | {"scale": np.ones(3, "float32")} for k in (0, 16)]
    start, params = {"u": jnp.ones(2), "v": jnp.ones(3)}, {"u": jnp.ones(2), "v": jnp.ones(3)}
    run = jfit.fit(
        of_pair,
        batches if in_batches else rows | {"scale": np.ones(3, "float32")},
        params=start,
        row_axes={"scale": None},
        updates=[jfit.Update("u", first, optax.sgd(0.1)), jfit.Update("v", of_v, optax.sgd(0.1))],
        batch_size=16,
        num_epoch=1,
        shuffle=False,
        progress=False,
    )

    def mean_loss(params, loss, batch):
        return loss(of_pair(params, batch["x"]), batch).mean()

    for batch in batches:
        for name, loss in (("u", of_u), ("v", of_v)):
            params = {**params, name: params[name] - 0.1 * jax.grad(mean_loss)(params, loss, batch)[name]}
    assert_close(run.params, params)


def test_a_step_that_is_not_finite_is_skipped_by_each_update():
    bad = {"x": DATA["x"].copy(), "z": Z}
    bad["x"][20] = np.nan  # in step 1, only in the loss of the critic
    with pytest.warns(UserWarning, match="not finite"):
        run = fitted(1, data=bad, nan="skip")
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(run.params))


def test_another_learning_rate_compiles_nothing():
    given = lambda rate: updates(2, optimizer="adam", optimizer_params={"learning_rate": rate})  # noqa: E731
    fitted(updates=given(0.3))
    with jfit.counters.counted() as counts:
        fitted(updates=given(0.2))
    assert counts["compiles"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"updates": []}, r"updates is \[\]; expected a list of jfit.Update"),
        (
            {"updates": [jfit.Update("critic/*", of_critic, every=2)]},
            "'critic' has every=2, but the first one runs in every step",
        ),
        ({"updates": [jfit.Update("critic/*", of_critic)] * 2}, "two have the name 'critic'; pass name="),
        ({"updates": [jfit.Update("citric/*", of_critic)]}, r"update 'citric': 'citric/\*' matches no trainable parameter"),
        ({"frozen": "critic/*"}, r"update 'critic': 'critic/\*' matches no trainable parameter"),
        ({"loss": of_critic}, "loss= cannot be combined with updates=: it is an argument of each jfit.Update; leave it out"),
        ({"optimizer": "adam"}, "optimizer= cannot be combined with updates="),
        ({"reduce": "ordered"}, "reduce='ordered' cannot be combined with updates="),
        ({"shard": {"critic/w1": (None, "model")}}, "shard= cannot be combined with updates=: it is not supported"),
        (
            {"updates": [jfit.Update("critic/*", of_critic, "adam", {"lr_mult": {"x": 2.0}})]},
            "lr_mult has 'x', which is no",
        ),
        ({"updates": [jfit.Update("critic/*")]}, "a function as model needs loss="),
    ],
)
def test_updates_that_do_not_fit_raise(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        fitted(**options)
    with pytest.raises(ValueError, match="every is 0; expected"):
        jfit.Update("a", every=0)


def test_tools_refuse_updates():
    with pytest.raises(ValueError, match="found 'updates', an argument of fit that sweeps do not support"):
        jfit.sweep(gan, DATA, over={"seed": [0, 1]}, params=START, updates=updates())
    run = fitted(num_epoch=1)
    with pytest.raises(ValueError, match="a step with updates= has several backward passes"):
        run.replay(2)


@pytest.mark.parametrize("overflows", [0, 1])
def test_a_schedule_counts_steps_without_those_in_which_the_first_update_overflows(overflows):
    large = lambda loss: lambda out, batch: 1e30 * loss(out, batch)  # noqa: E731
    losses = [large(loss) if i == overflows else loss for i, loss in enumerate((of_critic, of_generator))]
    both = [jfit.Update(name, loss, "sgd") for name, loss in zip(("critic/*", "generator/*"), losses, strict=True)]
    rate = lambda count: 0.01 * (count + 1)  # noqa: E731
    run = fitted(updates=both, policy="float16", schedule=rate, log_every=1, num_epoch=None, num_steps=5)
    counts = range(5) if overflows else [0] * 5
    np.testing.assert_allclose(run.history.column("lr", "steps"), [rate(n) for n in counts], rtol=1e-6)
    assert int(run.state.loss_scale.skipped) == 5 * (not overflows)
    assert float(run.state.loss_scale.scale) == 2.0**10  # it is halved once per step, by the update that overflows
