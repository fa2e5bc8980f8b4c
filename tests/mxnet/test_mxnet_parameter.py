"""Parameter and ParameterDict: values and gradients per context, deferred shapes, initialization, files."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused

import jfit
from jfit.formats.mxnet_arrays import load_arrays, save_arrays
from jfit.mx import gluon
from jfit.mxnet import context, initializer, keys
from jfit.mxnet.errors import MXNetError
from jfit.mxnet.gluon.parameter import DeferredInitializationError, Parameter
from jfit.mxnet.gluon.parameter_dict import Constant, ParameterDict
from jfit.mxnet.mutable import MutableArray
from jfit.mxnet.ndarray.array import NDArray

DEVICES = jax.devices()
TWO = [jfit.cpu(0), jfit.cpu(1)]


def ready(shape=(2, 3), ctx=None, name="w", init="one", **kwargs):
    param = Parameter(name, shape=shape, init=init, **kwargs)
    param.initialize(ctx=ctx)
    return param


def test_every_context_has_its_own_copy_of_the_same_values():
    param = ready(ctx=[jfit.cpu(1), jfit.cpu(3)], init="uniform")
    first, second = param.list_data()
    assert np.array_equal(first, second) and np.abs(first).max() <= 0.07
    assert [v.devices() for v in param.list_data()] == [{DEVICES[1]}, {DEVICES[3]}]
    assert [v.devices() for v in param.list_grad()] == [{DEVICES[1]}, {DEVICES[3]}]
    assert param.data(DEVICES[3]).devices() == param.data(jfit.cpu(3)).devices()
    assert param.list_ctx() == [jfit.cpu(1), jfit.cpu(3)]


def test_the_same_seed_gives_the_same_values():
    def drawn():
        keys.seed(3)
        return [np.asarray(ready(init="normal", name=n).data()) for n in ("a", "b")]

    (a, b), again = drawn(), drawn()
    assert np.array_equal(a, again[0]) and np.array_equal(b, again[1]) and not np.array_equal(a, b)


@pytest.mark.parametrize(
    ("own", "given", "default", "want"),
    [(None, None, "one", 1.0), ("zero", None, "one", 0.0), ("zero", "one", "zero", 1.0)],
)
def test_the_argument_initializer_precedes_that_of_the_parameter_and_the_default(own, given, default, want):
    param = Parameter("w", shape=(2,), init=own)
    param.initialize(given, default_init=default)
    assert param.data().tolist() == [want, want]


def test_the_parameter_name_matters_only_for_initializers_by_name():
    bias = Parameter("fc_bias", shape=(2,))
    bias.initialize("one")
    assert bias.data().tolist() == [1.0, 1.0]
    weight = Parameter("fc_weight", shape=(2,))
    weight.initialize(jfit.init.Mixed([".*weight", ".*"], ["one", "zero"]))
    assert weight.data().tolist() == [1.0, 1.0]


def test_initializers_that_write_in_place_are_accepted_and_biases_are_initialized_as_weights():
    def threes(desc, cell):
        assert (desc, type(cell)) == ("fc_bias", MutableArray)
        cell[:] = 3

    for start, want in ((threes, 3.0), (initializer.One(), 1.0)):
        bias = Parameter("fc_bias", shape=(2,))
        bias.initialize(start)
        assert bias.data().tolist() == [want, want]


def test_a_second_initialization_is_ignored_with_a_warning_unless_forced():
    param = ready()
    with pytest.warns(UserWarning, match="force_reinit=True"):
        param.initialize("zero")
    assert param.data().tolist()[0] == [1.0] * 3
    param.initialize("zero", force_reinit=True)
    assert param.data().tolist()[0] == [0.0] * 3


def test_initialization_is_deferred_until_the_shape_is_known():
    param = ready(shape=(2, 0), allow_deferred_init=True)
    with pytest.raises(DeferredInitializationError, match=r"its shape \(2, 0\) is not fully known"):
        param.data()
    assert issubclass(DeferredInitializationError, MXNetError) and param.list_ctx()
    param.set_data(np.full((2, 3), 4.0, "float32"))
    assert param.shape == (2, 3) and param.data().tolist()[0] == [4.0] * 3
    other = ready(shape=(2, 0), allow_deferred_init=True)
    other.shape = (2, 5)
    other._finish_deferred_init()
    assert other.data().shape == (2, 5)


test_invalid_use_raises = refused(
    (lambda: ready(shape=(2, 0)), ValueError, r"its shape \(2, 0\) is not fully known"),
    (lambda: Parameter("w", shape=(2,)).data(), RuntimeError, "'w' is not initialized"),
    (lambda: Parameter("w", shape=(2,)).list_ctx(), RuntimeError, "it has no context"),
    (lambda: Parameter("w", shape=(2,)).reset_ctx(TWO), "its context cannot change"),
    (lambda: Parameter("w", shape=(2,)).set_data(np.ones(2)), AssertionError, "call initialize"),
    (lambda: ready().data(jfit.cpu(5)), RuntimeError, r"is not on cpu\(5\); it was initialized on"),
    (lambda: ready().set_data(np.ones(3)), AssertionError, r"has shape \(2, 3\), which \(3,\) contradicts"),
    (lambda: ready(grad_req="null").grad(), RuntimeError, "its grad_req is 'null'"),
    (lambda: ready(grad_req="sum"), AssertionError, "must be one of write, add, null"),
    (lambda: ready(stype="dense"), AssertionError, r"are \('dense', 'default'\)"),
    (lambda: ready(stype="row_sparse").data(), RuntimeError, r"use row_sparse_data\(row_id\)"),
    (
        lambda: ready(stype="row_sparse").row_sparse_data(np.array([0])),
        RuntimeError,
        "create a Trainer first",
    ),
    (lambda: ready().row_sparse_data(np.array([0])), RuntimeError, r"or use data\(\)"),
)


def test_a_gradient_is_written_or_added_and_marked_as_new():
    param = ready(shape=(2,), ctx=TWO)
    param.set_grad(np.ones(2, "float32"), jfit.cpu(1))
    assert [getattr(c, "_fresh_grad", False) for c in param._data] == [False, True]
    assert [g.tolist() for g in param.list_grad()] == [[0.0, 0.0], [1.0, 1.0]]
    param.grad_req = "add"
    for _ in range(2):
        param.set_grad(jnp.ones(2), jfit.cpu(1))
    assert param.grad(jfit.cpu(1)).tolist() == [2.0, 2.0]
    param.zero_grad()
    assert param.grad(jfit.cpu(1)).tolist() == [0.0, 0.0]


def test_grad_req_can_be_switched_off_and_on():
    param = ready()
    param.grad_req = "null"
    with pytest.raises(RuntimeError, match="has no gradient"):
        param.list_grad()
    param.zero_grad()
    param.grad_req = "write"
    assert param.grad().shape == (2, 3)
    assert ready(differentiable=False).grad_req == "null"


def test_set_data_copies_the_array():
    param, mine = ready(shape=(4096,)), np.ones(4096, "float32")
    param.set_data(mine)
    mine[:] = 7
    assert float(param.data()[0]) == 1.0


def test_reset_ctx_uses_the_mean_over_contexts():
    param = ready(shape=(2,), ctx=TWO)
    param._data[1][:] = 3.0
    param.reset_ctx(jfit.cpu(4))
    assert param.data().tolist() == [2.0, 2.0] and param.data().devices() == {DEVICES[4]}


def test_a_cast_changes_data_and_gradient():
    param = ready()
    param.dtype = "float16"
    assert param.data().dtype == jnp.float16 and param.grad().dtype == jnp.float16


def test_a_parameter_has_a_variable():
    assert ready(shape=(2, 0), allow_deferred_init=True).var().name == "w"


def test_get_creates_or_returns_a_parameter_and_infers_missing_sizes():
    params = ParameterDict("net_")
    weight = params.get("w", shape=(2, 0), allow_deferred_init=True)
    assert params.get("w", shape=(0, 3)) is weight and weight.shape == (2, 3)
    assert list(params.keys()) == ["net_w"] and "net_w" in params and len(params) == 1
    assert len({params, ParameterDict(), ParameterDict()}) == 3 and ParameterDict() != ParameterDict()
    for clash in ({"shape": (4, 3)}, {"lr_mult": 2.0}):
        with pytest.raises(AssertionError, match="'net_w' exists with"):
            params.get("w", **clash)
    assert params.get("w", dtype="float32") is weight
    assert ParameterDict("net_", shared=params).get("w") is weight
    assert repr(params).startswith("net_ (\n  Parameter net_w (shape=(2, 3)")


def test_constants_keep_their_value():
    params = ParameterDict()
    scale = params.get_constant("scale", [1.0, 2.0])
    params.initialize()
    assert scale.data().tolist() == [1.0, 2.0] and scale.grad_req == "null"
    scale.grad_req = "write"
    assert scale.grad_req == "null"
    assert params.get_constant("scale", np.float32([1, 2])) is scale
    with pytest.raises(AssertionError, match="not as a constant with this value"):
        params.get_constant("scale", [3.0, 2.0])
    with pytest.raises(KeyError, match="no constant 'other'"):
        params.get_constant("other")
    assert isinstance(scale, Constant)


def test_setattr_of_the_dict_applies_to_all_parameters():
    params = ParameterDict()
    for name in ("b", "a"):
        params.get(name, shape=(2,))
    params.initialize("one", TWO)
    params.setattr("lr_mult", 0.5)
    assert [p.lr_mult for p in params.values()] == [0.5, 0.5] and list(params) == ["b", "a"]
    params["a"].set_grad(np.ones(2, "float32"), TWO[1])
    params.zero_grad()
    assert params["a"].grad(TWO[1]).tolist() == [0.0, 0.0]
    assert params.list_ctx() == TWO
    params.reset_ctx(jfit.cpu(2))
    assert params.list_ctx() == [jfit.cpu(2)]
    other = ParameterDict()
    other.update(params)
    assert other["a"] is params["a"]
    clash = ParameterDict()
    clash.get("a", shape=(2,))
    with pytest.raises(AssertionError, match="both dicts have a parameter 'a'"):
        clash.update(params)


def test_files_contain_the_mean_over_contexts_and_load_matching_parameters(tmp_path):
    params, path = ParameterDict("net_"), tmp_path / "x.params"
    params.get("w", shape=(2,), init="one")
    params.get("b", shape=(1,), init="zero")
    params.initialize(ctx=TWO)
    params["net_w"]._data[1][:] = 2.0
    params.save(path, strip_prefix="net_")
    with pytest.raises(ValueError, match="does not start with 'other_'"):
        params.save(path, strip_prefix="other_")
    assert load_arrays(path)["w"].tolist() == [1.5, 1.5]
    fresh = ParameterDict("net_")
    fresh.get("w", shape=(0,))
    fresh.get("b")
    fresh.load(path, ctx=jfit.cpu(2), restore_prefix="net_")
    assert fresh["net_w"].data().tolist() == [1.5, 1.5] and fresh["net_w"].data().devices() == {DEVICES[2]}
    params.load(path, restore_prefix="net_")
    assert [d.tolist() for d in params["net_w"].list_data()] == [[1.5, 1.5]] * 2


@pytest.mark.parametrize(
    ("saved", "kwargs", "message"),
    [
        ({"b": np.ones(2, "float32")}, {}, "'w' is missing in .*allow_missing=True"),
        ({"w": np.ones(2, "float32"), "x": np.ones(2, "float32")}, {}, "has 'x', which is not a parameter of this dict"),
        ({"w": np.ones(3, "float32")}, {}, r"has shape \(2,\), the saved array has \(3,\)"),
        ({"w": np.ones(2, "float16")}, {}, "the saved array float16; pass cast_dtype=True"),
        ({"w": np.ones(2, "float32")}, {"ctx": jfit.cpu(1)}, "it cannot be loaded on"),
        ([np.ones(2, "float32")], {}, "without names"),
    ],
)
def test_a_mismatched_file_raises(tmp_path, saved, kwargs, message):
    params, path = ParameterDict(), tmp_path / "x.params"
    params.get("w", shape=(2,))
    params.initialize()
    save_arrays(path, saved)
    with pytest.raises(AssertionError, match=message):
        params.load(path, **kwargs)


def test_prefixes_missing_extra_and_other_dtypes_load_with_their_options(tmp_path):
    params, path = ParameterDict(), tmp_path / "x.params"
    params.get("w", shape=(2,), init="zero")
    params.get("v", shape=(2,), init="zero")
    params.initialize()
    save_arrays(path, {"arg:w": np.ones(2, "float16"), "aux:x": np.ones(1, "float32")})
    params.load(path, allow_missing=True, ignore_extra=True, cast_dtype=True)
    assert params["w"].data().tolist() == [1.0, 1.0] and params["w"].data().dtype == jnp.float32
    params.load(path, allow_missing=True, ignore_extra=True, cast_dtype=True, dtype_source="saved")
    assert params["w"].data().dtype == jnp.float16


def test_mx_gluon_parameter_returns_writable_ndarrays():
    weight = gluon.Parameter("w", shape=(2,), init=initializer.One())
    weight.initialize(ctx=[context.cpu(0), context.cpu(1)])
    cell = weight.data(context.cpu(1))
    assert isinstance(cell, NDArray) and weight.data(context.cpu(1)) is cell and not cell._fresh_grad
    cell[:] = 5
    assert weight.data(context.cpu(1)).asnumpy().tolist() == [5.0, 5.0]
    with context.cpu(1):
        assert weight.data() is cell
    weight.set_data(NDArray(np.full(2, 3.0, "float32")))
    assert cell.asnumpy().tolist() == [3.0, 3.0] and cell.context == context.cpu(1)
    weight.grad(context.cpu(0))[:] = 1
    weight.zero_grad()
    assert weight.grad(context.cpu(0)).asnumpy().tolist() == [0.0, 0.0]


def test_mx_gluon_initializes_a_dict_and_splits_batches():
    params = gluon.ParameterDict("net_")
    params.get("bias", shape=(3,))
    params.initialize(initializer.One())
    assert params["net_bias"].data().asnumpy().tolist() == [1.0] * 3
    parts = gluon.utils.split_and_load(np.arange(10), [context.cpu(i) for i in range(3)], even_split=False)
    assert [p.shape for p in parts] == [(4,), (3,), (3,)] and [p.context.device_id for p in parts] == [0, 1, 2]
    assert [p.shape for p in gluon.utils.split_data(NDArray(np.ones((2, 1))), 3, even_split=False)] == [(1, 1), (1, 1), (0, 1)]
    assert [p.shape for p in gluon.utils.split_data(NDArray(np.ones((3, 10))), 2, batch_axis=1)] == [(3, 5), (3, 5)]
    with pytest.raises(ValueError, match="cannot be split evenly into 3"):
        gluon.utils.split_data(NDArray(np.ones(10)), 3)


def test_gradients_are_clipped_by_their_common_norm():
    grads = [NDArray(jax.device_put(np.float32([3.0 * (i + 1)]), DEVICES[i])) for i in range(2)]
    norm = gluon.utils.clip_global_norm(grads, 1.0)
    assert norm == pytest.approx(45**0.5)
    assert sum(g.asscalar() ** 2 for g in grads) == pytest.approx(1.0, rel=1e-5)
    assert gluon.utils.clip_global_norm(grads, 9.0, check_isfinite=False).shape == (1,)
    with pytest.warns(UserWarning, match="not usable"):
        gluon.utils.clip_global_norm([NDArray(np.float32([np.inf]))], 1.0)


def test_mx_gluon_trainer_accepts_only_parameters():
    with pytest.raises(ValueError, match="found ArrayImpl in it"):
        gluon.Trainer({"w": jnp.ones(1)}, "sgd")


@pytest.mark.parametrize("make", [np.zeros, jnp.zeros])
def test_surplus_leading_axes_of_size_one_are_dropped_in_a_write(make):
    cell = MutableArray(make((2, 2)))
    cell[0, 1] = np.array([5.0])
    cell[1] = np.array([[7.0, 8.0]])
    assert cell.asnumpy().tolist() == [[0, 5], [7, 8]]
    cell[:] = np.ones((1, 2, 2))
    cell[0] = np.array([[[3.0]]])
    assert cell.asnumpy().tolist() == [[3, 3], [1, 1]]
    with pytest.raises(ValueError):
        cell[0] = np.ones((2, 2))


def donate(array):
    return jax.jit(lambda x: x + 1, donate_argnums=0)(array)


def test_values_passed_in_may_be_donated_afterwards():
    param, first, second = ready((2,)), jnp.ones(2), jnp.full(2, 3.0)
    late = Parameter("late", shape=(0,), allow_deferred_init=True)
    late.initialize()
    late.set_data(first)
    param.set_data(second)
    donate(first), donate(second)
    assert late.data().tolist() == [1, 1] and param.data().tolist() == [3, 3]


def test_a_failed_initializer_keeps_the_values():
    param = ready((2,))
    with pytest.raises(ValueError, match="nosuch"):
        param.initialize(init="nosuch", ctx=jfit.cpu(1), force_reinit=True)
    assert param.data().tolist() == [1, 1] and param.grad().tolist() == [0, 0] and len(param.list_ctx()) == 1


def test_saving_a_row_sparse_parameter_without_a_trainer_raises(tmp_path):
    params = ParameterDict()
    params.get("w", shape=(2, 2), stype="row_sparse", init="one")
    params.initialize()
    with pytest.raises(RuntimeError, match="create a Trainer first"):
        params.save(tmp_path / "a.params")
