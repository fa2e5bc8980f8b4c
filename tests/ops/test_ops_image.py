"""Image operators: recorded MXNet cases, random augmentations, batches, rows, errors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_ops import case_id, load_cases, run_case, spread_out

import jfit.mx as mx
from jfit.ops import LOST, Ctx, RowLayout, lookup

DRAW = np.random.default_rng(0)
BYTES = DRAW.integers(0, 256, (4, 6, 3)).astype(np.uint8)


@pytest.mark.parametrize(("case", "arrays"), spread_out(load_cases("image"), each=1), ids=case_id)
def test_recorded_case(case, arrays):
    run_case(case, arrays)


def _run(name, data, seed=0, rows=None, row_ids=None, **attrs):
    op = lookup(name)
    ctx = Ctx(key=jax.random.key(seed), rows=(rows,), row_ids=row_ids, node="i")
    return op.fn(ctx, op.parse(attrs), jnp.asarray(data))


# ------------------------------------------------------------------------------------------ drawn changes
def test_factors_are_drawn_from_their_range():
    white = np.full((200, 1, 1, 3), 100, np.float32)
    found = np.asarray(_run("_image_random_brightness", white, min_factor=0.5, max_factor=1.5))[:, 0, 0, 0] / 100
    assert 0.5 <= found.min() < 0.55 and 1.45 < found.max() <= 1.5
    assert abs(found.mean() - 1) < 0.06 and len(set(found.tolist())) > 150


@pytest.mark.parametrize("name", ["left_right", "top_bottom"])
def test_flips_have_probability_one_half(name):
    batch = np.tile(np.arange(12, dtype=np.float32).reshape(1, 2, 2, 3), (200, 1, 1, 1))
    flipped = np.asarray(_run(f"_image_flip_{name}", batch))
    out = np.asarray(_run(f"_image_random_flip_{name}", batch))
    changed = (out == flipped).all((1, 2, 3))
    assert 70 < changed.sum() < 130
    assert ((out == batch).all((1, 2, 3)) | changed).all()
    assert _run(f"_image_random_flip_{name}", batch[0]).shape == (2, 2, 3)


def test_odd_widths_flip_too():
    # MXNet leaves the middle column of an odd width undefined
    np.testing.assert_array_equal(_run("_image_flip_left_right", BYTES[:, :5]), BYTES[:, 4::-1])
    np.testing.assert_array_equal(_run("_image_flip_top_bottom", BYTES[:3]), BYTES[2::-1])


def test_lighting_is_random():
    floats = np.zeros((300, 1, 1, 3), np.float32)
    drawn = np.asarray(_run("_image_random_lighting", floats, alpha_std=0.1)).reshape(300, 3)
    colours = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])
    alpha = np.linalg.solve(colours * [55.46, 4.794, 1.148], drawn.T)
    np.testing.assert_allclose(alpha.std(axis=1), 0.1, rtol=0.2)
    np.testing.assert_array_equal(_run("_image_random_lighting", BYTES[:, :, :1]), BYTES[:, :, :1])


@pytest.mark.slow
def test_colour_jitter():
    same = _run("_image_random_color_jitter", BYTES, brightness=0, contrast=0, saturation=0, hue=0)
    np.testing.assert_array_equal(same, BYTES)
    how = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.2}
    batch = np.stack([BYTES] * 6)
    out = np.asarray(_run("_image_random_color_jitter", batch, **how))
    assert out.dtype == np.uint8 and len(np.unique(out.reshape(6, -1), axis=0)) == 6
    only = np.asarray(
        _run("_image_random_color_jitter", batch.astype("f"), **(how | {"contrast": 0, "saturation": 0, "hue": 0}))
    )
    np.testing.assert_allclose(np.ptp((only / np.maximum(batch, 1))[batch > 0].reshape(6, -1), axis=1), 0, atol=1e-5)


@pytest.mark.slow
def test_hue_of_bytes_is_within_one_step():
    floats = np.asarray(_run("_image_random_hue", BYTES.astype("f"), min_factor=0.3, max_factor=0.3))
    out = _run("_image_random_hue", BYTES, min_factor=0.3, max_factor=0.3)
    assert out.dtype == jnp.uint8
    assert np.abs(np.asarray(out, np.float32) - floats).max() <= 1.001
    np.testing.assert_allclose(floats.max(-1) + floats.min(-1), BYTES.max(-1).astype("f") + BYTES.min(-1), atol=1e-3)


@pytest.mark.slow
def test_the_augmentation_of_a_row_does_not_depend_on_its_position():
    batch = np.stack([BYTES] * 4).astype("f")

    def part(low, high):
        rows = RowLayout(0, 1, high - low, 1)
        cut = batch[low:high]
        return _run("_image_random_contrast", cut, rows=rows, row_ids=jnp.arange(low, high), min_factor=0.1, max_factor=2)

    np.testing.assert_array_equal(np.concatenate([part(0, 3), part(3, 4)]), part(0, 4))


# ------------------------------------------------------------------------------------------ the rest
def test_rows():
    op, rows = lookup("_image_to_tensor"), RowLayout(0, 1, 2, 1)
    assert op.rows({}, [rows], [(2, 4, 6, 3)], [(2, 3, 4, 6)]) == [rows]
    assert op.rows({}, [RowLayout(0, 1, 4, 1)], [(4, 6, 3)], [(3, 4, 6)]) == [LOST]
    assert op.rows({}, [None], [(4, 6, 3)], [(3, 4, 6)]) == [None]


def test_namespaces():
    picture = mx.nd.array(BYTES, dtype="uint8")
    assert mx.nd.image.to_tensor(picture).shape == (3, 4, 6)
    net = mx.sym.image.normalize(mx.sym.image.to_tensor(mx.sym.Variable("x")), mean=(0.5,) * 3, std=(0.5,) * 3)
    assert net.infer_shape(x=(2, 4, 6, 3))[1] == [(2, 3, 4, 6)]
    assert mx.nd.image.resize(picture, size=(3, 2)).shape == (2, 3, 3)


def test_border_and_resize_of_opencv():
    data = np.arange(6, dtype=np.uint8).reshape(2, 3, 1)
    sides = {"top": 1, "bot": 0, "left": 2, "right": 1}
    for kind, mode in ((1, "edge"), (2, "symmetric"), (3, "wrap"), (4, "reflect")):
        want = np.pad(data, ((1, 0), (2, 1), (0, 0)), mode=mode)
        np.testing.assert_array_equal(_run("_cvcopyMakeBorder", data, type=kind, **sides), want)
    want = np.pad(data, ((1, 0), (2, 1), (0, 0)), constant_values=7)
    np.testing.assert_array_equal(_run("_cvcopyMakeBorder", data, value=7, **sides), want)
    colours = _run("_cvcopyMakeBorder", BYTES, values=(1, 2, 3), **sides)
    assert colours[0, 0].tolist() == [1, 2, 3] and colours[1, 2].tolist() == BYTES[0, 0].tolist()
    np.testing.assert_array_equal(_run("_cvimresize", BYTES, w=3, h=2), _run("_image_resize", BYTES, size=(3, 2)))


def test_invalid_shapes_and_dtypes_raise():
    with pytest.raises(TypeError, match="limit_indices must be less than or equal to operand shape"):
        _run("_image_crop", BYTES, x=5, y=0, width=3, height=2)
    with pytest.raises(ValueError, match="interp is 9"):
        _run("_image_resize", BYTES, size=3, interp=9)
    with pytest.raises(ValueError, match="expected an image"):
        _run("_image_to_tensor", BYTES[0])
    with pytest.raises(ValueError, match="expected uint8 or floats"):
        _run("_image_resize", BYTES.astype(np.int32), size=3)
