"""`jfit.fit(shard=, mesh=)`: parameters split over the axes of a named mesh, with the numbers of one device."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from fit_support import blobs, mlp, train
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jfit
from jfit import counters, sym
from jfit.parallel import collectives

SHARD = {"fc*_weight": ("model", None)}
MESH = {"data": 2, "model": 2}
ADAM: dict[str, Any] = {"optimizer": "adam", "optimizer_params": {"learning_rate": 0.01}}


def net():
    """8 hidden units and 4 classes, so that both matrices divide by 4."""
    return mlp(classes=4)


def close(a, b, rtol=2e-5, atol=2e-6):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=atol), a, b)


def same_numbers(one, other):
    """Two runs agree in their state and history up to rounding."""
    a, b = one.snapshot(), other.snapshot()
    close((a.params, a.aux, a.opt_state), (b.params, b.aux, b.opt_state))
    for row, expected in zip(one.history.epochs, other.history.epochs, strict=True):
        keys = {k for k in expected if k not in ("time", "compile_time", "data_time", "samples_per_second")}
        close({k: row[k] for k in keys}, {k: expected[k] for k in keys}, 1e-4, 1e-5)


def bytes_on_each_device(tree):
    totals: dict[Any, int] = {}
    for leaf in jax.tree.leaves(tree):
        for shard in leaf.addressable_shards:
            totals[shard.device] = totals.get(shard.device, 0) + shard.data.nbytes
    return set(totals.values())


def program_of(run):
    """(program of a training step, its arguments) of a run with arrays on the devices."""
    dispatcher = run._loop.dispatcher
    program, args = dispatcher._full_program(dispatcher.batches.epoch_data(dispatcher.data.order(0)), 1)
    return program, (run.state, *args)


# ------------------------------------------------------------------------------------------------ graphs
def test_a_graph_has_the_numbers_of_one_device_and_its_state_is_split():
    options = {**ADAM, "steps_per_call": 1, "data": blobs(48, classes=4)}
    with counters.counted() as plain:
        expected = train(net(), **options)
    run = train(net(), shard=SHARD, mesh=MESH, **options)
    with counters.counted() as counts:
        again = train(net(), shard=SHARD, mesh=MESH, **options)
    assert counts["traces"] == counts["compiles"] == 0
    assert counts["host_syncs"] == plain["host_syncs"]
    same_numbers(run, expected)
    close(again.params, run.params, 0, 0)

    state = run.state
    for tree in (state.params, state.opt_state.slots["mean"], state.opt_state.slots["var"]):
        assert tree["fc1_weight"].sharding.spec == tree["fc2_weight"].sharding.spec == P("model", None)
        assert tree["fc1_weight"].addressable_shards[0].data.shape == (4, 4)
        assert tree["fc1_bias"].sharding.is_fully_replicated
    whole = 3 * 4 * (8 * 4 + 8 + 4 * 8 + 4) + 4
    assert bytes_on_each_device((expected.state.params, expected.state.opt_state)) == {whole}
    assert bytes_on_each_device((state.params, state.opt_state)) == {whole - 3 * 4 * (8 * 4 + 4 * 8) // 2}
    assert np.asarray(run.params["fc1_weight"]).shape == (8, 4)


@pytest.mark.slow
def test_evaluation_and_incomplete_batches_have_the_numbers_of_one_device():
    data, options = blobs(50, classes=4), {**ADAM, "eval_data": blobs(21, classes=4, seed=1)}
    expected, run = (train(net(), data, **options, **more) for more in ({}, {"shard": SHARD, "mesh": MESH}))
    same_numbers(run, expected)
    with counters.counted() as counts:
        train(net(), data, shard=SHARD, mesh=MESH, **options)
    assert counts["traces"] == counts["compiles"] == 0
    for rows in (50, 7, 8):  # several batches; one that is padded; one whose rows are split
        close(run.predict(data[0][:rows]), expected.predict(data[0][:rows]))
    close(run.score(data), expected.score(data), 1e-5)
    close(run.score(data, batch_size=7), expected.score(data), 1e-5)


@pytest.mark.slow
def test_checkpoints_are_whole_and_resume_without_a_mesh_and_on_another(tmp_path):
    data, options = blobs(40, classes=4), {**ADAM, "shuffle": True, "num_epoch": 3}
    expected = train(net(), data, **options)
    train(net(), data, **{**options, "num_epoch": 1}, shard=SHARD, mesh=MESH, checkpoint=tmp_path)
    saved = jfit.checkpoint.load_arrays(tmp_path)
    assert jfit.checkpoint.load_meta(tmp_path)["fingerprint"]["devices"].startswith("4 x ")
    assert saved["params/fc1_weight"].shape == saved["opt_state/slots/mean/fc1_weight"].shape == (8, 4)
    for more in ({}, {"shard": {"fc*_weight": (None, "m")}, "mesh": {"m": 4}}, {"devices": 2}):
        same_numbers(train(net(), data, **options, resume=tmp_path, **more), expected)
    loaded = jfit.Run.load(tmp_path)
    assert loaded.predict(data[0]).shape == (40, 4)


SETTINGS: dict[str, Any] = {
    "batch statistics": {
        "net": mlp(classes=4, batch_norm=True),
        "optimizer": "sgd",
    },  # Adam scales the noise of a zero gradient
    "dropout": {"net": mlp(classes=4, dropout=0.5)},
    "micro-batches": {"net": mlp(classes=4, dropout=0.5), "micro_batches": 2},
    "averages": {"ema": 0.9},
    "norm": {"clip_norm": 0.1, "optimizer": "lamb"},
    "regularizer": {"regularizers": {"*_weight": jfit.regularizers.l2(1e-2)}, "frozen": ["fc1_weight"]},
    "one step": {"steps_per_call": 1, "schedule": "cosine"},
    "weights": {"sample_weight": np.arange(50) % 3},
    "bfloat16": {"policy": "bfloat16", "tolerance": 2e-2},
}


@pytest.mark.repetitions(slow=6)
@pytest.mark.slow
@pytest.mark.parametrize("case", SETTINGS)
def test_settings_of_fit_have_the_numbers_of_one_device(case):
    options = {**ADAM, **SETTINGS[case]}
    graph, tolerance = options.pop("net", net()), options.pop("tolerance", None)
    one, run = (train(graph, blobs(50, classes=4), **options, **more) for more in ({}, {"shard": SHARD, "mesh": MESH}))
    if tolerance is not None:
        close(run.snapshot().params, one.snapshot().params, tolerance, tolerance)
    else:
        same_numbers(run, one)
        close(run.params, one.params)


@pytest.mark.slow
@pytest.mark.optimized
@pytest.mark.parametrize("sparse", [False, True])
def test_the_rows_of_an_embedding_table_are_split_and_never_gathered(sparse):
    rng = np.random.default_rng(0)
    ids, y = rng.integers(0, 4000, (32, 6)), rng.integers(0, 4, 32)
    table = sym.Embedding(sym.Variable("data"), input_dim=4000, output_dim=8, sparse_grad=sparse, name="table")
    graph = sym.SoftmaxOutput(sym.FullyConnected(sym.Flatten(table), num_hidden=4, name="fc"), name="softmax")
    one, run = (
        train(graph, (ids, y), **ADAM, steps_per_call=1, **more)
        for more in ({}, {"shard": {"table_weight": ("model",)}, "mesh": {"data": 2, "model": 4}})
    )
    same_numbers(run, one)
    assert run.state.opt_state.slots["mean"]["table_weight"].addressable_shards[0].data.shape == (1000, 8)
    program, args = program_of(run)
    traffic, part = collectives(program, *args), 1000 * 8 * 4  # bytes of the rows of one device
    assert traffic.all_gather.operand_bytes < 1000  # row indices only
    assert traffic.total.operand_bytes < (part if sparse else 2 * part)  # a dense gradient is summed over the axis "data"


# ------------------------------------------------------------------------------------------------ functions
HEADS, WIDTH, TOKENS = 4, 16, 5
MEGATRON = {"w[qkv]": (None, "model"), "w1": (None, "model"), "wo": ("model", None), "w2": ("model", None)}


def transformer(p, x):
    """One block of pre-normed attention and MLP, and a linear readout of the mean: (rows, tokens, WIDTH) -> (rows, 3)."""

    def normed(x):
        return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)

    rows, h = x.shape[0], normed(x)
    q, k, v = ((h @ p[name]).reshape(rows, TOKENS, HEADS, -1) for name in ("wq", "wk", "wv"))
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2)
    x = x + jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(rows, TOKENS, WIDTH) @ p["wo"]
    x = x + jax.nn.gelu(normed(x) @ p["w1"]) @ p["w2"]
    return x.mean(1) @ p["out"]


def transformer_data(rows=16):
    rng = np.random.default_rng(0)
    shapes = dict.fromkeys(("wq", "wk", "wv", "wo"), (WIDTH, WIDTH)) | {"w1": (WIDTH, 64), "w2": (64, WIDTH), "out": (WIDTH, 3)}
    params = {k: (0.3 * rng.normal(size=s)).astype("float32") for k, s in shapes.items()}
    return params, rng.normal(size=(rows, TOKENS, WIDTH)).astype("float32"), rng.integers(0, 3, rows)


def cross_entropy(out, y):
    return optax.softmax_cross_entropy_with_integer_labels(out, y)


@pytest.mark.slow
@pytest.mark.optimized
def test_a_transformer_has_the_numbers_and_the_collectives_of_jit_with_shardings():
    params, x, y = transformer_data()
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    auto, transform = Mesh(mesh.devices, mesh.axis_names), optax.adam(0.01)
    specs = {k: P(*MEGATRON.get("w[qkv]" if k in ("wq", "wk", "wv") else k, ())) for k in params}

    # by hand
    def update(params, opt_state, x, y):
        gradients = jax.grad(lambda p: cross_entropy(transformer(p, x), y).mean())(params)
        updates, opt_state = transform.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    of_params = {k: NamedSharding(auto, s) for k, s in specs.items()}
    expected: Any = jax.device_put(params, of_params)
    of_state = jax.tree.map(lambda x: NamedSharding(auto, P()), transform.init(params))
    of_state = (of_state[0]._replace(mu=of_params, nu=of_params), *of_state[1:])
    opt_state = jax.device_put(transform.init(params), of_state)
    rows = NamedSharding(auto, P("data"))
    by_hand = jax.jit(update, in_shardings=(of_params, of_state, rows, rows), out_shardings=(of_params, of_state))
    batch = jax.device_put((x, y), rows)
    traffic = collectives(by_hand, expected, opt_state, *batch)
    for _ in range(2):
        expected, opt_state = by_hand(expected, opt_state, *batch)

    options: dict[str, Any] = {"loss": cross_entropy, "optimizer": transform, "batch_size": 16, "progress": False}
    options["steps_per_call"] = 1
    run = jfit.fit(transformer, (x, y), params=params, num_epoch=2, shuffle=False, shard=MEGATRON, mesh=mesh, **options)
    close(run.params, expected, 1e-4, 1e-5)
    close(run.predict(x), transformer(jax.device_get(expected), x), 1e-4, 1e-5)
    assert {k: v.sharding.spec for k, v in run.params.items()} == specs
    adam = run.state.opt_state[0]
    assert {k: v.sharding.spec for k, v in adam.mu.items()} == {k: v.sharding.spec for k, v in adam.nu.items()} == specs

    program, args = program_of(run)
    ours = collectives(program, *args)
    flops = [
        p.lower(*a).compile().cost_analysis()["flops"] for p, a in ((program, args), (by_hand, (expected, opt_state, *batch)))
    ]
    assert flops[0] < 1.1 * flops[1]
    assert ours.all_gather.count == traffic.all_gather.count == 0  # no parameter is gathered
    assert ours.total.operand_bytes <= traffic.total.operand_bytes + 64  # loss, weights and metrics besides

    continued = jfit.fit(run, (x, y), num_epoch=1, shuffle=False, shard=MEGATRON, mesh=mesh, **{**options, "loss": None})
    assert continued.params["w1"].sharding.spec == P(None, "model")


@pytest.mark.slow
def test_all_devices_are_one_axis_without_a_mesh_and_parameters_may_be_split_over_the_rows_axis():
    params, x, y = transformer_data()
    options: dict[str, Any] = {"params": params, "loss": cross_entropy, "batch_size": 16, "num_epoch": 2, "progress": False}
    one = jfit.fit(transformer, (x, y), **options, **ADAM)
    for axis in ("model", "data"):
        run = jfit.fit(transformer, (x, y), **options, **ADAM, shard={"*": axis, "out": None})
        assert len(run.state.step.devices()) == 8
        assert run.params["w1"].addressable_shards[0].data.shape == (2, 64)
        close(run.params, one.params, 1e-4, 1e-5)


# ------------------------------------------------------------------------------------------------ errors
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shard": {"fc_weight": "m"}}, r"shard has 'fc_weight', which matches no parameter; did you mean 'fc._weight'"),
        (
            {"shard": {"fc1_weight": "x"}},
            r"shard\['fc1_weight'\] cannot split 'fc1_weight' .*axis: x of P\('x',\) is not found",
        ),
        ({"shard": {"fc1_weight": ("m", "m")}}, r"duplicate entries for `m`"),
        ({"shard": {"fc1*": (None, "m")}}, r"shard\['fc1\*'\] cannot split 'fc1_bias' of shape \(8,\).* rank"),
        (
            {"shard": {"fc2_weight": (("a", "b"),)}, "mesh": {"a": 2, "b": 4}},
            r"'fc2_weight' of shape \(4, 8\).* partitioned 8 times, but the dimension size is 4",
        ),
        ({"shard": {"fc1_weight": 3}}, r"shard\['fc1_weight'\] cannot split 'fc1_weight'"),
        ({"mesh": {"model": 2}}, r"no parameter is split over axis 'model' of the mesh, of size 2"),
        (
            {"mesh": {"data": 4}, "batch_size": 6},
            r"a batch \(batch_size=6\) has 6 rows, which do not divide by the axis 'data' of the mesh, of size 4",
        ),
        (
            {"mesh": {"data": 4}, "micro_batches": 4},
            r"each of the 4 micro-batches of a batch \(batch_size=8\) has 2 rows, which do not divide",
        ),
        ({"mesh": {"data": 4}, "eval_batch_size": 6}, r"an evaluation batch \(eval_batch_size=6\) has 6 rows"),
        ({"mesh": {"data": 16}}, r"devices=16 is not available: this machine has 8 cpu devices"),
        ({"mesh": {"data": 2}, "devices": 4}, r"cannot reshape array of size 4 into shape \(2,\)"),
        ({"mesh": {"data": 2}, "devices": "auto"}, r"devices='auto' is not supported here"),
        (
            {"mesh": {"data": 2}, "reduce": "sharded"},
            r"mesh= is passed with reduce='sharded' .* on a mesh XLA inserts the sums",
        ),
        (
            {"shard": {"fc1_weight": ("a", "b")}, "mesh": None},
            r"shard= names the axes \['a', 'b'\], so the mesh cannot be",
        ),
        ({"shard": {"fc1_weight": None}, "mesh": None}, r"shard= names no axis, so the mesh cannot be made without mesh="),
    ],
)
def test_errors_name_what_does_not_fit(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        train(net(), blobs(16, classes=4), **{"mesh": {"m": 2}, **options})


@pytest.mark.slow
def test_a_mesh_has_its_devices_and_parameters_stay_there():
    mesh = Mesh(np.array(jax.devices()[2:4]), ("data",))
    with pytest.raises(ValueError, match=r"mesh= is passed with .* devices=2, but a mesh has its devices"):
        train(mesh=mesh, devices=2)
    run = train(net(), shard=SHARD, mesh=Mesh(mesh.devices, ("model",)), num_epoch=1)
    assert run.params["fc1_weight"].devices() == set(jax.devices()[2:4])
    with pytest.raises(ValueError, match=r"params\['fc1_weight'\] is sharded over 2 devices"):
        train(net(), params=run.params)
