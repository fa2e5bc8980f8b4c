"""The forms of convolutions in `jfit.ops.conv_forms` equal `lax.conv_general_dilated`, forward and in both gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfit
from jfit.graph.nodes import GraphError
from jfit.ops import Ctx, conv_forms, lookup


def function(op, **attrs):
    """The operator as a function of arrays and of whether convolutions run by definition."""
    record = lookup(op)
    params = record.parse({"no_bias": True, **attrs})
    return lambda *arrays, plain=False: record.fn(Ctx(plain=plain), params, *arrays)


def draw(*size, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(size), jnp.float32)


def check(op, size, filters, groups, kernel, attrs):
    """Compare output and gradients of the operator with those by definition (plain=True)."""
    f = function(op, num_filter=filters, num_group=groups, kernel=kernel, **attrs)
    first = (filters, size[1] // groups) if op == "Convolution" else (size[1], filters // groups)
    data, weight = draw(*size), draw(*first, *kernel, seed=1)

    def run(plain):
        out, gradient = jax.vjp(lambda x, w: f(x, w, plain=plain), data, weight)
        return out, *gradient(jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape))

    for actual, expected in zip(jax.jit(run, static_argnums=0)(False), jax.jit(run, static_argnums=0)(True), strict=True):
        assert actual.shape == expected.shape
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5 * max(1.0, float(jnp.abs(expected).max())))


# name -> operator, size of the data, filters, groups, kernel, other attributes
FORMS = {
    "an axis folds": ("Convolution", (3, 2, 6, 5), 4, 1, (3, 5), {}),
    "a dilated axis with a stride folds": ("Convolution", (3, 4, 6, 6), 4, 2, (3, 3), {"dilate": (1, 2), "stride": (1, 4)}),
    "an axis folds in 1-D": ("Convolution", (3, 4, 5), 2, 1, (5,), {}),
    "all axes fold": ("Convolution", (3, 4, 3, 3), 6, 2, (3, 3), {}),
    "an axis folds in 3-D": ("Convolution", (2, 2, 4, 4, 3), 4, 1, (2, 2, 3), {}),
    "padding beyond the data": ("Convolution", (3, 4, 1, 1), 2, 1, (3, 3), {"pad": (1, 1)}),
    "1x1 with a stride": ("Convolution", (3, 4, 5, 6), 2, 1, (1, 1), {"stride": (2, 2)}),
    "sliced weight gradient": ("Convolution", (16, 2, 9, 8), 3, 1, (3, 2), {"stride": (1, 2), "pad": (1, 0)}),
    "few channels": ("Convolution", (2, 3, 11, 9), 4, 1, (5, 3), {"stride": (2, 3), "pad": (2, 1)}),
    "columns as filters": ("Convolution", (16, 3, 9, 8), 12, 1, (3, 4), {"pad": (1, 1), "stride": (2, 1)}),
    "columns as filters, with a stride": ("Convolution", (2, 5, 6, 15), 6, 1, (3, 3), {"pad": (0, 1), "stride": (1, 2)}),
    "columns as filters, without padding": ("Convolution", (16, 12, 11, 12), 16, 1, (5, 5), {}),
    "no padding": ("Convolution", (16, 20, 9, 9), 18, 1, (3, 2), {"dilate": (2, 1)}),
    "no padding, one row": ("Convolution", (2, 20, 5, 9), 18, 1, (1, 3), {"stride": (1, 3)}),
    "spare filters": ("Convolution", (2, 50, 6, 6), 51, 1, (3, 3), {"pad": (0, 1)}),
    "3-D": ("Convolution", (2, 3, 5, 6, 4), 4, 1, (3, 2, 3), {"stride": (2, 1, 1), "pad": (1, 0, 2)}),
    "3-D groups": ("Convolution", (2, 4, 5, 6, 4), 4, 2, (2, 2, 2), {"dilate": (2, 1, 1)}),
    "blocks of groups": ("Convolution", (2, 36, 4, 4), 54, 18, (3, 3), {"pad": (1, 1)}),
    "depthwise": ("Convolution", (2, 6, 7, 6), 12, 6, (3, 2), {"stride": (2, 1), "pad": (1, 1)}),
    "depthwise 1-D": ("Convolution", (2, 3, 9), 3, 3, (4,), {"dilate": (2,), "pad": (3,)}),
    "transposed": ("Deconvolution", (2, 4, 4, 5), 3, 1, (4, 3), {"stride": (2, 3), "pad": (1, 0), "adj": (1, 2)}),
    "transposed to a target shape": ("Deconvolution", (2, 3, 4, 4), 2, 1, (4, 4), {"target_shape": (6, 6)}),
    "transposed groups": ("Deconvolution", (2, 4, 3), 6, 2, (2,), {"stride": (2,), "adj": (1,)}),
    "transposed depthwise": ("Deconvolution", (2, 3, 4, 4), 3, 3, (4, 4), {"stride": (2, 2)}),
    "transposed of one pixel": ("Deconvolution", (2, 5, 1, 1), 3, 1, (4, 4), {}),
    # XLA aborts the process when it compiles these gradients, unless the data are padded before
    "a gradient without padding": ("Convolution", (1, 3, 4, 1), 2, 1, (2, 2), {"stride": (2, 3), "pad": (1, 1)}),
    "dilated": ("Convolution", (4, 2, 4, 2), 3, 1, (2, 3), {"stride": (2, 1), "pad": (1, 2), "dilate": (1, 2)}),
    "in 3-D": ("Convolution", (8, 1, 3, 1, 4), 2, 1, (2, 2, 2), {"stride": (2, 2, 2), "pad": (1, 1, 1), "dilate": (1, 2, 1)}),
    "transposed without padding": ("Deconvolution", (2, 3, 3, 1), 2, 1, (2, 3), {"stride": (2, 2), "pad": (1, 1)}),
    "transposed 3-D": ("Deconvolution", (2, 4, 2, 3, 2), 2, 1, (2, 3, 2), {"stride": (2, 1, 2)}),
}


@pytest.mark.repetitions(5)
@pytest.mark.parametrize("form", FORMS)
def test_a_form_equals_the_definition(form):
    check(*FORMS[form])


@pytest.mark.repetitions(2, slow=8)
@pytest.mark.parametrize("seed", range(40))
def test_any_dense_convolution_equals_the_definition(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    if seed % 2:  # as on a machine of many cores, for convolutions of any size
        monkeypatch.setattr(conv_forms, "threads", lambda: 64)
        monkeypatch.setattr(conv_forms, "MIN_SHARED", 0)

    def pair(least, most):
        return tuple(map(int, rng.integers(least, most + 1, 2)))

    kernel, ((rows, height), (_, width)) = pair(1, 5), (pair(1, 20), pair(5, 15))
    channels, filters = rng.choice([1, 3, 8, 16, 20, 50], 2)
    window = {
        "pad": pair(0, 2),
        **({"stride": pair(1, 2)} if seed % 3 == 0 else {}),
        **({"dilate": (1, 2)} if seed % 5 == 0 else {}),
    }
    check("Convolution", (rows, int(channels), max(height, 5), max(width, 9)), int(filters), 1, kernel, window)


def test_a_convolution_of_few_channels_computes_columns_as_filters_and_reads_its_data_as_they_are():
    f = function("Convolution", kernel=(3, 3), pad=(1, 1), num_filter=16, layout="NHWC")
    data, weight = draw(32, 16, 16, 16), draw(16, 3, 3, 16, seed=1)
    program = str(jax.make_jaxpr(jax.grad(lambda x, w: f(x, w).sum(), (0, 1)))(data, weight))
    assert "f32[3,4,16,32]" in program  # (rows and columns of the kernel, channels, two columns of filters)
    # Reshaped data or slices of another shape would be computed a second time, with all that computes the data.
    assert "f32[4,8,16,16,16]" not in program
    assert "f32[8,16,16,16]" in program


@pytest.mark.skipif(jax.__version_info__ >= (0, 11), reason="XLA does not use YNNPACK for convolutions")
@pytest.mark.parametrize("threads", [1, 2])
def test_threads_share_a_large_convolution_with_eigen_instead_of_ynnpack(threads, monkeypatch):
    monkeypatch.setattr(conv_forms, "threads", lambda: threads)
    f = function("Convolution", kernel=(3, 3), pad=(1, 1), num_filter=32, layout="NHWC")
    text = jax.jit(f).lower(draw(32, 16, 16, 32), draw(32, 3, 3, 32)).compile().as_text()
    assert ("__ynn_fusion" in text) == (threads == 1)


def test_rows_of_the_kernel_are_filters_where_the_data_gradient_has_more_rows_than_the_gradient():
    f = function("Convolution", kernel=(5, 3), num_filter=20, layout="NHWC")
    data, weight = draw(2, 8, 8, 18), draw(20, 5, 3, 18, seed=1)
    assert "f32[1,3,20,90]" in str(jax.make_jaxpr(jax.grad(lambda x: f(x, weight).sum()))(data))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_text_convolution_has_one_spatial_axis_and_a_whole_one_is_a_product(layout):
    text = function("Convolution", kernel=(3, 30), num_filter=4, layout=layout)
    whole = function("Convolution", kernel=(7, 30), num_filter=4, layout=layout)
    last = layout == "NHWC"
    data, weight, whole_weight = (draw(n, *((k, 30, 1) if last else (1, k, 30))) for n, k in ((2, 7), (4, 3), (4, 7)))
    assert text(data, weight).shape == ((2, 5, 1, 4) if last else (2, 4, 5, 1))
    assert "f32[3,30,4]" in str(jax.make_jaxpr(text)(data, weight))  # (kernel, channels, filters)
    gradients = jax.grad(lambda x, w: whole(x, w).sum(), (0, 1))
    assert "conv_general_dilated" not in str(jax.make_jaxpr(gradients)(data, whole_weight))


@pytest.mark.slow
@pytest.mark.repetitions(1)
@pytest.mark.parametrize("groups", [4, 1])
def test_gradients_of_gradients(groups):
    f = function("Convolution", kernel=(3, 3), stride=(2, 2), num_filter=4, num_group=groups)
    data, weight = draw(2, 4, 6, 6), draw(4, 4 // groups, 3, 3, seed=1)

    def penalty(weight, plain):
        return (jax.grad(lambda x: (f(x, weight, plain=plain) ** 3).sum())(data) ** 2).sum()

    np.testing.assert_allclose(jax.grad(penalty)(weight, False), jax.grad(penalty)(weight, True), rtol=2e-4)


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("op", ["Convolution", "Deconvolution"])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_gradients_inside_shard_map(op, groups):
    """The weight is the same on all devices, the data is not: JAX checks that, and sums the gradients of the weight."""
    f, data, weight = function(op, num_filter=4, num_group=groups, kernel=(3, 3)), draw(4, 4, 6, 6), draw(4, 4 // groups, 3, 3)
    grad = jax.grad(lambda w, x: jnp.sum(jnp.sin(f(x, w))))
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("d",))
    spec = jax.sharding.PartitionSpec
    split = jax.shard_map(grad, mesh=mesh, in_specs=(spec(), spec("d")), out_specs=spec())
    np.testing.assert_allclose(jax.jit(split)(weight, data), jax.jit(grad)(weight, data), rtol=1e-5, atol=1e-4)


def test_forward_mode_needs_the_definition(monkeypatch):
    model = jfit.lower(jfit.sym.Convolution(jfit.sym.Variable("data"), kernel=(3, 3), num_filter=2, no_bias=True, name="c"))
    weight, x = {"c_weight": draw(2, 3, 3, 3)}, draw(2, 3, 5, 5)
    run = lambda x: model.apply(weight, {}, {"data": x})[0][0]  # noqa: E731
    with pytest.raises(GraphError, match=r"c: Convolution cannot .*forward-mode.*; convolutions need JFIT_CONV_FORMS=0"):
        jax.jvp(run, (x,), (x,))
    monkeypatch.setenv("JFIT_CONV_FORMS", "0")
    value, tangent = jax.jvp(run, (x,), (x,))
    np.testing.assert_allclose(value, tangent, rtol=1e-5)  # a convolution is linear


def test_a_kernel_that_does_not_fit_raises_in_each_form():
    f = function("Convolution", num_filter=8, num_group=8, kernel=(4, 1, 4))
    data, weight = draw(3, 8, 4, 2, 2), draw(8, 1, 4, 1, 4)
    for plain in (False, True):
        with pytest.raises(ValueError, match=r"kernel \(4, 1, 4\) does not fit \(4, 2, 2\) entries"):
            f(data, weight, plain=plain)


def test_symbolic_batch_sizes_fold_too():
    f = function("Convolution", kernel=(3, 5), num_filter=4)
    (batch,) = jax.export.symbolic_shape("b")
    spec = jax.ShapeDtypeStruct((batch, 2, 6, 5), jnp.float32)
    exported = jax.export.export(jax.jit(lambda x: f(x, draw(4, 2, 3, 5))))(spec)
    np.testing.assert_allclose(exported.call(draw(3, 2, 6, 5)), f(draw(3, 2, 6, 5), draw(4, 2, 3, 5)), rtol=1e-5, atol=1e-5)
