"""Compiled programs are kept by what they compute: which calls compile, which do not, and that none gets a wrong program."""

import collections
import dataclasses
import functools
import gc
import inspect
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jfit
from jfit import counters, optim, programs
from jfit.parallel import spmd
from jfit.programs import Program, Recent, key_of

X = np.random.default_rng(0).normal(size=(20, 3)).astype("float32")
Y = (X[:, 0] > 0).astype("float32")
DEVICES = pytest.mark.parametrize("devices", [1, 2])


@pytest.fixture(autouse=True)
def empty():
    jfit.clear_programs()


def net(dropout=0.5, hidden=4, **attrs):
    h = jfit.sym.FullyConnected(jfit.sym.Variable("data", **attrs), num_hidden=hidden, name="fc1")
    h = jfit.sym.Dropout(jfit.sym.Activation(h, act_type="tanh", name="act"), p=dropout, name="drop")
    return jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(h, num_hidden=2, name="fc2"), name="softmax")


def fitted(model=None, x=X, y=Y, **options):
    """Train a small network; return the run and what was counted."""
    options = {"batch_size": 8, "num_epoch": 1, "progress": False} | options
    with counters.counted() as counts:
        run = jfit.fit(net() if model is None else model, (x, y), **options)
    return run, counts


def traces(counts):
    return {name.split(":")[1]: count for name, count in counts.items() if name.startswith("traces:")}


def same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])


# ------------------------------------------------------------------------------------------------ fit, score, predict
@pytest.mark.repetitions(1)
@DEVICES
def test_a_second_fit_of_an_equal_network_traces_and_compiles_nothing(devices):
    def everything():
        run, counts = fitted(x=X, devices=devices, eval_data=(X, Y), optimizer_params={"momentum": 0.9})
        with counters.counted() as after:
            score, outputs = run.score((X, Y)), run.predict(X)
        return run.params, score, outputs, counts + after

    params, score, outputs, first = everything()
    again_params, again_score, again_outputs, second = everything()
    assert first["traces:train"] == first["traces:train_tail"] == first["traces:predict"] == 1
    assert second["traces"] == 0 and second["compiles"] == 0
    same(params, again_params)
    assert score == again_score
    np.testing.assert_array_equal(outputs, again_outputs)


@pytest.mark.slow
def test_the_kept_program_computes_the_same_bits_as_a_new_one():
    fitted()
    kept, counts = fitted(seed=3)
    assert not traces(counts)
    jfit.clear_programs()
    new, counts = fitted(seed=3)
    assert traces(counts)
    same(kept.params, new.params)


@pytest.mark.repetitions(1)
@DEVICES
def test_folds_and_another_learning_rate_and_momentum_use_the_first_programs(devices):
    numbers = lambda fold: {"learning_rate": 0.1 + 0.1 * fold, "momentum": 0.9 - 0.1 * fold}  # noqa: E731
    fitted(x=X[4:], y=Y[4:], devices=devices, optimizer_params=numbers(0))
    for fold in range(1, 5):
        keep = np.arange(20) // 4 != fold
        run, counts = fitted(x=X[keep], y=Y[keep], devices=devices, seed=fold, optimizer_params=numbers(fold))
        assert not traces(counts) and counts["compiles"] == 0
        assert run.history.epochs[-1]["lr"] == pytest.approx(0.1 + 0.1 * fold)


def test_another_learning_rate_of_a_schedule_uses_the_first_programs():
    fitted(schedule="cosine", optimizer_params={"learning_rate": 0.1})
    run, counts = fitted(schedule="cosine", optimizer_params={"learning_rate": 0.2})
    assert not traces(counts) and counts["compiles"] == 0
    jfit.clear_programs()
    same(run.params, fitted(schedule="cosine", optimizer_params={"learning_rate": 0.2})[0].params)


CHANGES = {
    "dropout": lambda: fitted(net(dropout=0.25)),
    "size": lambda: fitted(net(hidden=5)),
    "momentum": lambda: fitted(optimizer_params={"momentum": 0.9}),  # from 0, without momentum
    "multiplier": lambda: fitted(optimizer_params={"lr_mult": {"fc1_weight": 0.0}}),
    "optimizer": lambda: fitted(optimizer="adam"),
    "metric": lambda: fitted(eval_metric="ce"),
    "schedule": lambda: fitted(schedule="cosine", optimizer_params={"learning_rate": 0.1}),
    "clip": lambda: fitted(clip_norm=0.01),
    "policy": lambda: fitted(policy="bfloat16"),
    "frozen": lambda: fitted(frozen=["fc1_*"]),
    "regularizers": lambda: fitted(regularizers={"fc1_weight": jfit.regularizers.l2(0.1)}),
    "batch size": lambda: fitted(batch_size=4),
    "device": lambda: fitted(devices=jax.devices()[1:2]),
    "devices": lambda: fitted(devices=2),
    "data": lambda: fitted(x=X.astype("float16")),
    "micro_batches": lambda: fitted(micro_batches=2),
}


@pytest.mark.repetitions(1, slow=9)
@pytest.mark.parametrize("what", CHANGES)
def test_each_change_of_the_program_is_noticed(what):
    """After an unchanged run, a changed one gives the same parameters as in an empty process."""
    fitted()
    changed, counts = CHANGES[what]()
    assert counts["traces:train"] or what == "multiplier"  # multipliers are arrays in the state
    jfit.clear_programs()
    new, _ = CHANGES[what]()
    same(changed.params, new.params)


@pytest.mark.slow
def test_other_settings_of_jax_are_other_programs():
    fitted()
    with jax.default_matmul_precision("float32"):
        assert fitted()[1]["traces:train"] == 1
    with jax.enable_x64(True):
        assert fitted()[1]["traces:train"] == 1
    assert not traces(fitted()[1])


@pytest.mark.slow
def test_a_redefined_function_and_optax_optimizer_are_traced_once_and_not_compiled():
    def cell(scale):
        def apply(params, x):
            return jnp.tanh(x @ params["w"]) * scale

        params = {"w": np.full((3, 2), 0.1, "float32")}
        loss = optax.softmax_cross_entropy_with_integer_labels
        return fitted(apply, y=Y.astype("int32"), loss=loss, params=params, optimizer=optax.adam(0.1), eval_metric="acc")

    first, _ = cell(2.0)
    second, counts = cell(2.0)
    assert traces(counts)["train"] == traces(counts)["train_tail"] == 1
    assert counts["compiles"] == 0
    same(first.params, second.params)
    other, counts = cell(3.0)
    assert counts["compiles"] >= 2
    assert not np.array_equal(other.params["w"], first.params["w"])


def test_data_parallel_and_score_of_equal_models_share_programs():
    def steps():
        model, batch = jfit.lower(net()), {"data": X[:8], "softmax_label": Y[:8]}
        parallel = jfit.data_parallel(jfit.train_step(model, optim.sgd(0.1, momentum=0.9)), devices=2)
        state, _ = parallel(parallel.place(jfit.init_state(model, optim.sgd(0.1, momentum=0.9), batch)), batch)
        params = {k: np.asarray(v) for k, v in state.params.items()}
        jfit.predict(net(), X, params=params)
        return jfit.score(net(), (X, Y), params=params)

    first = steps()
    with counters.counted() as counts:
        assert steps() == first
    assert counts["traces"] == 0


# ------------------------------------------------------------------------------------------------ lowered graphs
def test_equal_graphs_have_one_model_and_changed_ones_another():
    model = jfit.lower(net())
    assert jfit.lower(net()).apply is model.apply
    for other in (net(dropout=0.1), net(__lr_mult__="2"), jfit.sym.Group([net(), net()])):
        assert jfit.lower(other).apply is not model.apply
    assert jfit.lower(net(), inputs=["data"]).apply is not model.apply
    assert jfit.lower(net(), batch_axes={"data": 1}).apply is not model.apply
    assert jfit.lower(net(), capture="act").outputs[-1].name == "act_output"


def test_a_changed_attribute_of_a_node_makes_another_model():
    first = net()
    model = jfit.lower(first)
    first.nodes()[1].attrs["__wd_mult__"] = "0"
    assert jfit.lower(first).apply is not model.apply
    assert "__wd_mult__" not in jfit.lower(net()).symbol.nodes()[1].attrs


def test_a_model_of_an_equal_graph_has_the_symbol_and_the_dicts_of_its_caller():
    first, graph = jfit.lower(net()), net()
    model = jfit.lower(graph)
    assert model.symbol is graph and key_of(model) == key_of(first) is not None
    first.batch_axes["data"] = 1
    first.tables["fc1_weight"] = None
    assert not model.batch_axes and not model.tables and not jfit.lower(net()).batch_axes
    both = jfit.sym.Group([model.symbol, graph])  # of the same nodes: each name occurs once
    assert len(both.nodes()) == len(graph.nodes())


def test_graphs_with_operators_of_the_user_are_not_kept():
    @jfit.ops.operator("twice_kept", attrs={})
    def twice(ctx, attrs, data):
        "2 x."
        return 2 * data

    try:
        graph = jfit.sym.twice_kept(jfit.sym.Variable("data"), name="t")
        assert jfit.lower(graph).apply is not jfit.lower(graph, inputs=iter(["data"])).apply
        assert jfit.lower(graph, inputs=iter(["data"])).inputs == ("data",)
        assert key_of(jfit.lower(graph)) is None
    finally:
        jfit.ops.REGISTRY.pop("twice_kept")
        jfit.ops.ALIASES.pop("twice_kept")


# ------------------------------------------------------------------------------------------------ programs
def multiply(factor, **options):
    return Program(lambda x: factor * x, jax.jit, name="multiply", **options)


def test_programs_of_equal_text_compile_once_and_others_do_not_share():
    three = jnp.float32(3)
    with counters.counted() as counts:
        assert [float(multiply(k)(three)) for k in (2, 2, 5)] == [6, 6, 15]
    assert counts["compiles"] == 2 and counts["traces:multiply"] == 3


def test_equal_text_for_one_shape_says_nothing_about_another():
    def by_size(large):
        return Program(lambda x: x * (2 if x.size < 4 else large), jax.jit)

    a, b = by_size(10), by_size(100)
    for program, large in ((a, 10), (b, 100), (a, 10)):
        assert program(jnp.ones(2)).tolist() == [2, 2]
        assert program(jnp.ones(4)).tolist() == [large] * 4


def test_arguments_that_the_text_does_not_use_are_not_confused():
    first, second = Program(lambda a, b: a, jax.jit), Program(lambda a, b: b, jax.jit)
    assert float(first(jnp.float32(1), jnp.float32(2))) == 1
    assert float(second(jnp.float32(1), jnp.float32(2))) == 2


def test_results_of_equal_text_keep_their_structure_and_types():
    assert Program(lambda x: {"a": x}, jax.jit)(jnp.float32(1)).keys() == {"a"}
    assert Program(lambda x: {"b": x}, jax.jit)(jnp.float32(1)).keys() == {"b"}
    key = jax.random.key_data(jax.random.key(0))
    assert Program(lambda x: x, jax.jit)(key).dtype == jnp.uint32
    assert jnp.issubdtype(Program(jax.random.wrap_key_data, jax.jit)(key).dtype, jax.dtypes.prng_key)
    strong = Program(lambda x: x + jnp.zeros((), x.dtype), jax.jit)(jnp.ones(()))
    assert not strong.weak_type


def test_constants_belong_to_the_text():
    a, b = (np.random.default_rng(seed).normal(size=1000).astype("float32") for seed in (0, 1))
    for constant in (a, b):
        np.testing.assert_array_equal(Program(lambda x, c=constant: x + c, jax.jit)(np.zeros(1000, "float32")), constant)


def test_functions_on_the_host_are_never_shared():
    def host(value):
        result = jax.ShapeDtypeStruct((), "float32")
        return Program(lambda x: jax.pure_callback(lambda v: np.float32(value), result, x), jax.jit)

    assert [float(host(v)(jnp.float32(0))) for v in (1, 2, 3)] == [1, 2, 3]


def test_donated_arguments_are_deleted_also_in_a_kept_program():
    for _ in range(2):
        program = spmd.compile_spmd(lambda x, axis_name: x + 1, jax.devices()[:1], (None,), None, donate=(0,))
        x = jnp.ones(3)
        assert program(x).tolist() == [2, 2, 2] and x.is_deleted()


def test_alternating_shapes_are_traced_once_each():
    program = spmd.compile_spmd(lambda w, x, axis_name: w * x.sum(), jax.devices()[:1], (None, 0), None, name="alternating")
    with counters.counted() as counts:
        for size in (2, 3, 2, 3, 2, 3):
            assert float(program(jnp.float32(2), jnp.ones(size))) == 2 * size
    assert counts["traces"] == 2


@pytest.mark.slow
def test_a_program_follows_settings_that_change_between_calls():
    program = multiply(2)
    program(jnp.ones(2))
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        program(jnp.full(2, jnp.nan))
    with jax.disable_jit():
        assert program(jnp.ones(2)).tolist() == [2, 2]
    jax.clear_caches()
    assert program(jnp.ones(2)).tolist() == [2, 2]


def test_a_program_can_be_called_inside_a_traced_function():
    assert float(jax.jit(multiply(2))(jnp.float32(3))) == 6
    assert float(jax.grad(multiply(2))(jnp.float32(3))) == 2


def test_errors_of_the_function_are_raised_each_time():
    def fails(x):
        raise ValueError("no")

    program = Program(fails, jax.jit)
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            program(jnp.ones(2))


class Data:
    """Something that a function closes over."""


def test_kept_programs_do_not_keep_what_their_function_closes_over():
    def closure():
        data = Data()
        Program(lambda x: (data, x + 1)[1], jax.jit)(jnp.ones(2))
        return weakref.ref(data)

    alive = closure()
    gc.collect()
    assert alive() is None


@pytest.mark.slow
@DEVICES
def test_kept_programs_do_not_keep_data_parameters_or_runs(devices):
    def apply(params, x):
        return x @ params["w"]

    params = {"w": np.ones((3, 1), "float32")}
    x, model = X.copy(), jfit.Model.from_function(apply, loss="mse", params=params)
    run, _ = fitted(model, x=x, y=Y[:, None], devices=devices)
    alive = [weakref.ref(thing) for thing in (x, run, *jax.tree.leaves(run.params))]
    of_graph, _ = fitted(x=X, devices=devices)
    alive += [weakref.ref(thing) for thing in (of_graph, *of_graph.params.values())]
    del run, x, model, of_graph
    gc.collect()
    assert [ref() for ref in alive] == [None] * len(alive)


@pytest.mark.slow
def test_the_tables_are_bounded_and_can_be_cleared():
    recent = Recent(2)
    for key in "abac":
        recent[key] = key
    assert recent.get("b") is None and recent.get("a") == "a" and len(recent) == 2
    fitted()
    jfit.clear_programs()
    assert traces(fitted()[1])["train"] == 1


# ------------------------------------------------------------------------------------------------ what could be confused
def changed(model, apply):
    """Predictions of a model whose `apply` is a wrapper."""
    model = model if apply is None else model._replace(apply=apply(model.apply))
    return fitted(model, seed=0)[0].predict(X)


def zeroed(fn):
    @functools.wraps(fn)
    def wrapper(*args, **options):
        outputs, aux = fn(*args, **options)
        return tuple([0 * x for x in outputs]), aux

    return wrapper


def test_a_wrapper_does_not_have_the_key_of_the_function_that_it_wraps():
    model = jfit.lower(net(dropout=0.0))
    plain, wrapped = changed(model, None), changed(model, zeroed)
    assert plain.any() and not wrapped.any()
    for wrap in (zeroed, jax.checkpoint, functools.partial(jax.named_call, name="x")):
        wrapper = wrap(model.apply)
        assert key_of(wrapper) != key_of(model.apply)
        assert key_of(model._replace(apply=wrapper)) is None
    assert key_of(model) is not None


def test_a_value_that_changes_before_the_trace_does_not_change_programs_of_others():
    def stepped(regularizers, change=lambda: None):
        model, batch = jfit.lower(net(dropout=0.0)), {"data": X[:8], "softmax_label": Y[:8]}
        step = jfit.train_step(model, optim.sgd(0.1), regularizers=regularizers)
        program = jfit.data_parallel(step, devices=1)
        state = program.place(jfit.init_state(model, optim.sgd(0.1), batch))
        change()
        return np.asarray(program(state, batch)[0].params["fc1_weight"])

    regularizers = {"fc1_weight": jfit.regularizers.l2(0.1)}
    strong = stepped(regularizers, lambda: regularizers.update(fc1_weight=jfit.regularizers.l2(3.0)))
    weak = stepped({"fc1_weight": jfit.regularizers.l2(0.1)})
    jfit.clear_programs()
    np.testing.assert_array_equal(weak, stepped({"fc1_weight": jfit.regularizers.l2(0.1)}))
    np.testing.assert_array_equal(strong, stepped({"fc1_weight": jfit.regularizers.l2(3.0)}))


def test_a_value_that_changes_during_the_trace_or_between_shapes_is_not_shared():
    def scaled(values, during=None):
        def fn(x):
            if during is not None:
                values[0] = during
            return values[0] * x

        return Program(fn, jax.jit, name="changing")

    program = scaled([2.0])
    values = [2.0]
    again = scaled(values)
    assert program(jnp.ones(2)).tolist() == again(jnp.ones(2)).tolist() == [2, 2]
    values[0] = 7.0
    assert again(jnp.ones(3)).tolist() == [7, 7, 7]
    assert scaled([2.0])(jnp.ones(3)).tolist() == [2, 2, 2]
    assert scaled([2.0], during=5.0)(jnp.ones(4)).tolist() == [5] * 4
    assert scaled([2.0], during=None)(jnp.ones(4)).tolist() == [2] * 4


class Scaled(functools.partial):
    """A partial with another call."""

    def __call__(self, *args):
        return 50.0 * super().__call__(*args)


def test_subclasses_have_no_key_by_their_base_class():
    assert key_of(functools.partial(jnp.sum, axis=0)) == key_of(functools.partial(jnp.sum, axis=0)) is not None
    assert key_of(Scaled(jnp.sum)) is None
    values = np.arange(3.0)
    assert key_of(values) is not None
    assert key_of(np.ma.masked_array(values, [True, False, False])) is None
    assert key_of(values.view(type("Own", (np.ndarray,), {}))) is None
    assert key_of(np.zeros(2, [("a", "f4"), ("b", "i4")])) is None
    assert key_of(np.zeros(2, jnp.bfloat16)) == key_of(np.zeros(2, jnp.bfloat16)) != key_of(np.zeros(2, "float16"))
    assert key_of(jnp.bfloat16(2)) is None or key_of(np.zeros((), jnp.bfloat16)[()]) is not None
    assert key_of(collections.defaultdict(list)) is None


@jax.tree_util.register_pytree_with_keys_class
class Twins:
    """A pytree whose leaves have the same path."""

    def __init__(self, *leaves):
        self.leaves = leaves

    def tree_flatten_with_keys(self):
        return [(jax.tree_util.GetAttrKey("w"), leaf) for leaf in self.leaves], None

    @classmethod
    def tree_unflatten(cls, aux, leaves):
        return cls(*leaves)


def test_arguments_with_equal_or_special_names_are_not_confused():
    one, two = jnp.float32(1), jnp.float32(2)
    assert [float(Program(lambda t, i=i: t.leaves[i], jax.jit)(Twins(one, two))) for i in (0, 1)] == [1, 2]
    for names in (("a\nb", "a\\nb"), ('a"', "a'"), ("a" * 500 + "1", "a" * 500 + "2"), ("ä", "\u00e4 ")):
        values = dict(zip(names, (one, two), strict=True))
        assert [float(Program(lambda t, n=n: t[n] * 1, jax.jit)(values)) for n in names] == [1, 2]


def test_a_program_that_is_traced_inside_another_leaves_it_incomplete():
    def made(factor):
        inner = Program(lambda x: x + 0, jax.jit, name="inner")
        fn = lambda x: (programs.depends_on_more(), inner(np.float32(1)), factor * x)[-1]  # noqa: E731
        return Program(programs.Made(fn, "without the factor"), jax.jit, name="outer")

    assert [float(made(factor)(jnp.float32(1))) for factor in (2, 3)] == [2, 3]


def test_the_text_of_large_constants_is_not_made(monkeypatch):
    large = jnp.ones(1 << 19)
    monkeypatch.setattr(jax.stages.Lowered, "as_text", lambda self: pytest.fail("the text has the constants"))
    nested = jax.jit(lambda x: (x + large).sum())
    for _ in range(2):
        assert float(Program(lambda x: nested(x) + 0, jax.jit)(jnp.float32(1))) == 1 << 20


def test_calls_look_only_at_arguments_whose_shapes_differ_between_calls(monkeypatch):
    program, looked_at = Program(lambda state, batch, extra=0: state["w"].sum() + batch.sum() + extra, jax.jit), []
    state, batches = {"w": np.ones(3), "b": np.ones(2)}, [np.ones(2), np.ones(4)]
    shapes = programs._shapes
    monkeypatch.setattr(programs, "_shapes", lambda args: looked_at.extend(args) or shapes(args))
    for expected, batch in zip((5, 7), batches, strict=True):
        assert program(state, batch) == expected
    looked_at.clear()
    for expected, batch in zip((5, 7), batches, strict=True):
        assert program(state, batch) == expected
    assert [x.shape for x in looked_at] == [(2,), (4,)]
    assert program({"w": np.ones(5)}, batches[0]) == 7  # another structure of the first argument
    assert program(state, batches[1], np.ones(())) == 8  # another number of arguments
    monkeypatch.setattr(program, "_read", lambda args: pytest.fail("a call that was made before is no first call"))
    assert [float(program(*args)) for args in ((state, batches[0]), (state, batches[1]), ({"w": np.ones(5)}, batches[0]))] == [
        5,
        7,
        7,
    ]


def test_initial_values_of_an_initializer_that_is_compiled_are_compiled_once():
    for initializer in (jfit.init.Orthogonal(), lambda key, desc, shape, dtype: jax.random.laplace(key, shape, dtype)):
        first, _ = fitted(initializer=initializer)
        second, counts = fitted(initializer=initializer)
        assert counts["compiles"] == 0
        same(first.params, second.params)


# ------------------------------------------------------------------------------------------------ numbers of optimizers
NUMBERS = {
    "sgd": {"momentum": 0.9},
    "nag": {"momentum": 0.9},
    "signum": {"momentum": 0.9, "wd_lh": 0.003},
    "dcasgd": {"momentum": 0.9, "lamda": 0.07},
    "test": {"wd": 0.0},
    "adam": {"beta1": 0.85, "beta2": 0.98, "epsilon": 3e-7},
    "adamw": {"beta1": 0.85, "beta2": 0.98, "epsilon": 3e-7},
    "adamax": {"beta1": 0.85, "beta2": 0.98},
    "nadam": {"beta1": 0.85, "beta2": 0.98, "epsilon": 3e-7, "schedule_decay": 0.04},
    "rmsprop": {"gamma1": 0.8, "gamma2": 0.7, "epsilon": 3e-7, "centered": True, "clip_weights": 0.9},
    "adagrad": {"eps": 3e-6},
    "groupadagrad": {"eps": 3e-6, "wd": 0.0, "frozen": ["*_bias"]},
    "adadelta": {"rho": 0.8, "epsilon": 3e-6},
    "ftrl": {"lamda1": 0.003, "beta": 0.7},
    "ftml": {"beta1": 0.7, "beta2": 0.98, "epsilon": 3e-7},
    "lamb": {"beta1": 0.85, "beta2": 0.98, "epsilon": 3e-7, "lower_bound": 0.3, "upper_bound": 0.5},
    "lars": {"momentum": 0.9, "eta": 0.03, "eps": 0.002},
    "lbsgd": {"momentum": 0.9, "batch_scale": 2},
    "sgld": {},
}


def trained_with(name, change, **options):
    """Train with the numbers of `NUMBERS`, each changed by a factor, and with weight decay, on batches of 7 rows."""
    numbers = {"wd": 0.003} | NUMBERS[name]
    options = {"frozen": numbers.pop("frozen", [])} | options
    numbers = {k: v * change if type(v) is float else v for k, v in numbers.items()}
    return fitted(net(dropout=0.0), batch_size=7, num_epoch=2, optimizer=name, optimizer_params=numbers, **options)


@pytest.mark.slow
@pytest.mark.repetitions(slow=5)
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_are_arguments_give_the_bits_of_constants(name, monkeypatch):
    options = {"clip_norm": 0.7, "clip_value": 0.3} if list(NUMBERS).index(name) % 2 else {}
    trained_with(name, 1.01, **options)
    run, counts = trained_with(name, 1.0, **options)
    assert not traces(counts), name
    monkeypatch.setattr(programs, "is_argument", lambda value: False)
    jfit.clear_programs()
    static, counts = trained_with(name, 1.0, **options)
    assert counts["traces:train"] == 1
    same(run.params, static.params)


def test_a_sweep_over_injected_numbers_of_optax_compiles_nothing():
    injected = optax.inject_hyperparams(optax.sgd)

    def point(rate, make=injected):
        return fitted(optimizer=make(learning_rate=rate), x=X[:16], y=Y[:16])

    first, _ = point(0.1)
    second, counts = point(0.3)
    assert traces(counts) == {"train": 1} and counts["compiles"] == 0
    assert not np.array_equal(first.params["fc1_weight"], second.params["fc1_weight"])
    same(point(0.3, optax.sgd)[0].params, second.params)


def test_numbers_made_while_a_program_is_traced_are_not_confused():
    """An optimizer that depends on the order of the graph is made again, and here only when the program is traced."""
    model, batch = jfit.lower(net(dropout=0.0)), {"data": X[:8], "softmax_label": Y[:8]}

    def step(wd):
        train = functools.partial(jfit.train_step, model, optim.nadam(0.1, wd=wd))
        fn = programs.Made(lambda state, batch, axis_name: train()(state, batch)[0], "without the weight decay")
        program = spmd.compile_spmd(fn, jax.devices()[:1], (None, 0), None)
        return program(jfit.init_state(model, optim.nadam(0.1, wd=wd), batch), batch).params

    assert not np.array_equal(step(0.5)["fc1_weight"], step(0.7)["fc1_weight"])


def test_integers_and_special_values_belong_to_the_program():
    argument = programs.is_argument
    assert argument(0.9) and argument(-5.0) and argument(1e-8)
    assert not any(map(argument, (0.0, -0.0, 1.0, 2, True, None, float("nan"), float("inf"), 1e-42, 1e300, np.float32(0.5))))


# ------------------------------------------------------------------------------------------------ keys
def test_a_training_step_is_equal_to_one_with_equal_settings():
    def step(momentum=0.9, **settings):
        return jfit.train_step(jfit.lower(net()), optim.sgd(0.1, momentum=momentum), **settings)

    settings = {"metrics": jfit.metrics.get(["acc", "pcc"]), "schedule": optim.schedules.cosine(10), "clip_norm": 1.5}
    first, same_again = step(**settings), step(**settings | {"metrics": jfit.metrics.get(["acc", "pcc"])})
    assert first == same_again and hash(first) == hash(same_again) and len({first, same_again}) == 1
    others = {"metrics": (), "schedule": optim.schedules.cosine(11), "clip_norm": 2.5, "reduce": "2bit", "frozen": ["fc1_*"]}
    others |= {"regularizers": {"fc1_weight": jfit.regularizers.l2(0.1)}, "policy": "bfloat16", "outputs": True}
    for name, value in others.items():
        assert dataclasses.replace(first, **{name: value}) != first, name
        assert dataclasses.replace(first, **{name: value}) == dataclasses.replace(same_again, **{name: value})
    number = step(0.5, **settings | {"clip_norm": 2.5})  # another step, but its program is that of the first
    assert number != first and programs.read_key(number, arguments=True).value == programs.read_key(first, arguments=True).value
    assert (
        programs.read_key(step(0.0, **settings), arguments=True).value != programs.read_key(first, arguments=True).value
    )  # without momentum


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("compiled", [jax.jit, lambda step: jax.jit(lambda *args: jax.lax.scan(step, *args))])
def test_steps_with_other_numbers_that_live_at_the_same_time_have_programs_of_their_own_in_jax(compiled):
    model, data = jfit.lower(net()), {"data": X[:8], "softmax_label": Y[:8]}
    batch = data if compiled is jax.jit else {name: np.stack([value] * 3) for name, value in data.items()}
    options = [{"momentum": 0.5}, {"momentum": 0.9}, {"momentum": 0.9, "wd": 0.1}]
    made = [jfit.train_step(model, optim.sgd(0.1, **each)) for each in options]
    made += [jfit.train_step(model, optim.sgd(0.1), clip_norm=limit) for limit in (0.01, 5.0)]
    results = []
    for step in made:
        state, run = jfit.init_state(model, step.optimizer, data), compiled(step)
        for _ in range(3):
            state, _ = run(state, batch)
        results.append(np.asarray(state.params["fc1_weight"]).tobytes())
    assert len({*results}) == len(made)


def test_steps_with_functions_of_the_user_or_optax_are_equal_to_themselves_only():
    model, adam = jfit.lower(net()), optax.adam(0.1)
    assert jfit.train_step(model, adam) != jfit.train_step(model, adam)
    step = jfit.train_step(model, "sgd", regularizers={"fc1_weight": jnp.sum})
    assert step == step and step != jfit.train_step(model, "sgd", regularizers={"fc1_weight": lambda w: jnp.sum(w)})
    assert key_of(jfit.train_step(model, "sgd", regularizers={"fc1_weight": lambda w: jnp.sum(w)})) is None

    class Shrinking(jfit.step.train.TrainStep):
        """Its own code is not in the key of its base class."""

    own = Shrinking(model, "sgd")
    assert key_of(own) is None and key_of(jfit.train_step(model, "sgd")) is not None


@pytest.mark.parametrize("name", optim.OPTIMIZERS)
def test_every_number_of_an_optimizer_is_in_its_constants(name):
    """Numbers are left out of its key, so that a program that read one elsewhere would be that of another number."""
    make = optim.OPTIMIZERS[name].make
    base = {"momentum": 0.9, "lower_bound": 0.3, "upper_bound": 0.5, "clip_weights": 0.9, "clip_gradient": 0.7, "wd": 0.01}
    base |= {"wd_lh": 0.1, "grad_scale": 2.0} | ({"wd": 0.0} if "group" in name else {})
    base = {k: v for k, v in base.items() if k in inspect.signature(make).parameters}
    parameters = inspect.signature(make).parameters
    floats = {k: p.default for k, p in parameters.items() if type(p.default) is float} | base
    assert {k for k, p in parameters.items() if "float" in p.annotation} == floats.keys() - {"learning_rate"}

    def values(**changed):
        key = programs.read_key(make(**base | changed).update)
        assert key.is_complete
        return [c.values for c in key.constants]

    for parameter, value in floats.items():
        if value and parameter != "learning_rate" and name != "test":  # "test" has no numbers
            assert values(**{parameter: value * 0.9}) != values(**{parameter: value * 0.8}), parameter


def test_optimizers_have_keys_by_their_parameters_but_not_by_their_learning_rate():
    for name in optim.OPTIMIZERS:
        get = functools.partial(optim.get, name, lr_mult={"w": 2.0})
        key = key_of(get())
        assert key is not None, name
        assert key == key_of(get(learning_rate=0.7)), name
        assert key != key_of(get(learning_rate=optim.schedules.cosine(10))), name
        assert key != key_of(get(lr_mult={"w": 3.0})), name


@pytest.mark.parametrize("a, b", [(1, 1.0), (1, True), (0.0, -0.0), ("1", 1), ((1, 2), [1, 2]), (None, "None"), (b"a", "a")])
def test_values_that_python_compares_equal_have_different_keys(a, b):
    assert key_of(a) != key_of(b)
    assert key_of((a, {"x": a})) != key_of((a, {"x": b}))


def test_values_that_cannot_be_described_have_no_key():
    for value in (jnp.ones(2), np.ones(5000), lambda x: x, Data(), Data, [jnp.ones(())], functools.partial(lambda x: x)):
        assert key_of(value) is None
    assert key_of(float("nan")) == key_of(float("nan"))
    assert key_of(np.arange(3)) == key_of(np.arange(3)) != key_of(np.arange(3.0))


def test_a_learning_rate_that_is_not_in_the_state_belongs_to_the_program():
    def updated(rate):
        model, batch = jfit.lower(net(dropout=0.0)), {"data": X[:8], "softmax_label": Y[:8]}
        state = jfit.init_state(model, optim.sgd(rate), batch)._replace(base_lr=None)
        return jfit.data_parallel(jfit.train_step(model, optim.sgd(rate)), devices=1)(state, batch)[0].params["fc2_bias"]

    assert not np.array_equal(updated(0.1), updated(0.2))
    assert programs.settings()
