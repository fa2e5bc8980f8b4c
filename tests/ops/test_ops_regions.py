"""Pooling of regions and deformable convolutions: MXNet's recorded results, NumPy loops, numeric gradients."""

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
from detection_support import call
from golden_ops import case_id, load_cases, run_case, spread_out

from jfit.ops import LOST, RowLayout, lookup

DRAW = np.random.default_rng(0)
ROIS = np.array([[0, 1, 2, 9, 12], [1, -6, -4, 8, 9.5], [1, 5, 6, 5, 6], [0, 40, 40, 44, 48], [1, 0.5, 1.5, 15, 13]], "float32")


@pytest.mark.parametrize(("case", "arrays"), spread_out(load_cases("regions"), each=1), ids=case_id)
def test_recorded_case(case, arrays):
    run_case(case, arrays)


# ------------------------------------------------------------------------------------------ plain loops
def away(x):
    """Round halves away from 0."""
    return np.floor(abs(x) + 0.5) * np.sign(x)


def edges(roi, scale, shift):
    left, top = away(roi[1]) * scale - shift, away(roi[2]) * scale - shift
    right, bottom = (away(roi[3]) + 1) * scale - shift, (away(roi[4]) + 1) * scale - shift
    return left, top, max(right - left, 0.1), max(bottom - top, 0.1)


def psroi_loop(data, rois, scale, dim, bins, group):
    out = np.zeros((len(rois), dim, bins, bins))
    for r, c, p, q in np.ndindex(out.shape):
        left, top, width, height = edges(rois[r], scale, 0)
        rows = [np.floor(top + p * height / bins), np.ceil(top + (p + 1) * height / bins)]
        columns = [np.floor(left + q * width / bins), np.ceil(left + (q + 1) * width / bins)]
        y0, y1 = np.clip(rows, 0, data.shape[2]).astype(int)
        x0, x1 = np.clip(columns, 0, data.shape[3]).astype(int)
        maps = data[int(rois[r, 0]), (c * group + p * group // bins) * group + q * group // bins]
        if y1 > y0 and x1 > x0:
            out[r, c, p, q] = maps[y0:y1, x0:x1].mean()
    return out


def deformed_loop(data, rois, trans, scale, dim, group, bins, part, samples, std):
    out = np.zeros((len(rois), dim, bins, bins))
    high, wide = data.shape[2:]
    for r, c, p, q in np.ndindex(out.shape):
        left, top, width, height = edges(rois[r], scale, 0.5)
        kind = c * (trans.shape[1] // 2) // dim
        dx, dy = trans[r, 2 * kind : 2 * kind + 2, p * part // bins, q * part // bins] * std
        maps = data[int(rois[r, 0]), (c * group + p * group // bins) * group + q * group // bins]
        seen = []
        for i, j in np.ndindex(samples, samples):
            x = left + (q + j / samples) * width / bins + dx * width
            y = top + (p + i / samples) * height / bins + dy * height
            if -0.5 <= x <= wide - 0.5 and -0.5 <= y <= high - 0.5:
                x, y = min(max(x, 0), wide - 1), min(max(y, 0), high - 1)
                hats = np.outer(np.maximum(0, 1 - abs(np.arange(high) - y)), np.maximum(0, 1 - abs(np.arange(wide) - x)))
                seen.append((maps * hats).sum())
        out[r, c, p, q] = np.mean(seen) if seen else 0
    return out


@pytest.mark.parametrize(("dim", "bins", "group"), [(2, 3, 3), (1, 4, 2), (2, 2, 3)])
def test_position_sensitive_pooling_is_the_mean_over_each_bin(dim, bins, group):
    data = DRAW.normal(size=(2, dim * group * group, 7, 8)).astype("float32")
    attrs = {"spatial_scale": 0.5, "output_dim": dim, "pooled_size": bins, "group_size": 0 if group == bins else group}
    got = call("_contrib_PSROIPooling", attrs, data, ROIS)
    np.testing.assert_allclose(got, psroi_loop(data, ROIS, 0.5, dim, bins, group), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("group", "bins", "part", "classes", "samples"), [(2, 2, 0, 1, 2), (2, 4, 2, 2, 3), (3, 3, 1, 1, 1)])
def test_deformable_pooling_is_the_mean_of_shifted_samples(group, bins, part, classes, samples):
    dim, size = 2, part or bins
    data = DRAW.normal(size=(2, dim * group * group, 7, 8)).astype("float32")
    trans = DRAW.normal(size=(len(ROIS), 2 * classes, size, size)).astype("float32")
    attrs = {"spatial_scale": 0.5, "output_dim": dim, "pooled_size": bins, "group_size": group, "part_size": part}
    attrs |= {"sample_per_part": samples, "trans_std": 0.2}
    got = call("_contrib_DeformablePSROIPooling", attrs, data, ROIS, trans)
    want = deformed_loop(data, ROIS, trans, 0.5, dim, group, bins, size, samples, 0.2)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    still = call("_contrib_DeformablePSROIPooling", attrs | {"no_trans": True}, data, ROIS)
    want = deformed_loop(data, ROIS, trans, 0.5, dim, group, bins, size, samples, 0.0)
    np.testing.assert_allclose(still, want, rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------------------ gradients
CONV = {"kernel": (2, 2), "num_filter": 2, "pad": (1, 1), "stride": (2, 2), "num_group": 2, "num_deformable_group": 2}
POOL = {"spatial_scale": 0.5, "output_dim": 1, "pooled_size": 2, "group_size": 2}
GRADIENTS = [
    ("_contrib_PSROIPooling", POOL, [(2, 4, 6, 6), ROIS[:3]], 1),
    (
        "_contrib_DeformablePSROIPooling",
        {**POOL, "trans_std": 0.1, "sample_per_part": 2},
        [(2, 4, 6, 6), ROIS[:2], (2, 2, 2, 2)],
        (0, 2),
    ),
]


@pytest.mark.repetitions(1)
@pytest.mark.parametrize(("name", "attrs", "inputs", "moved"), GRADIENTS, ids=[g[0] for g in GRADIENTS])
def test_gradients_equal_finite_differences(name, attrs, inputs, moved):
    draw = np.random.default_rng(5)
    moved = range(moved) if isinstance(moved, int) else moved
    with jax.enable_x64(True):
        values = [jnp.asarray(draw.normal(size=i) if isinstance(i, tuple) else i, jnp.float64) for i in inputs]

        @jax.jit
        def total(*some):
            full = list(values)
            for k, value in zip(moved, some, strict=True):
                full[k] = value
            out = call(name, attrs, *full)
            return jnp.sum(out * jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape))

        jax.test_util.check_grads(total, [values[k] for k in moved], order=1, modes=["rev"], eps=1e-5, rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------------------------------ half precision, rows, refusals
HALF = [
    ("_contrib_ROIAlign", {"pooled_size": (2, 2), "spatial_scale": 0.5}, [(2, 2, 7, 8), ROIS]),
    ("_contrib_RROIAlign", {"pooled_size": (1, 2), "spatial_scale": 0.5}, [(2, 2, 7, 8), np.c_[ROIS, ROIS[:, 1]]]),
    ("_contrib_DeformablePSROIPooling", {**POOL, "no_trans": True}, [(2, 4, 7, 8), ROIS]),
    ("_contrib_PSROIPooling", POOL, [(2, 4, 7, 8), ROIS]),
    ("_contrib_DeformableConvolution", {"kernel": (2, 2), "num_filter": 2}, [(1, 1, 4, 4), (1, 8, 3, 3), (2, 1, 2, 2), (2,)]),
]


def test_pooled_regions_have_the_rows_of_their_regions():
    op = lookup("_contrib_ROIAlign")
    attrs, shapes, outs = op.parse(HALF[0][1]), [(2, 2, 7, 8), (6, 5)], [(6, 2, 2, 2)]
    pictures, regions = RowLayout(0, 1, 2, 1), RowLayout(0, 1, 2, 3)
    assert op.rows(attrs, (pictures, regions), shapes, outs) == [regions]
    assert op.rows(attrs, (pictures, None), shapes, outs) == [LOST]
    assert op.rows(attrs, (None, None), shapes, outs) == [None]
    assert op.rows(attrs, (pictures, LOST), shapes, outs) == [LOST]


def test_a_region_of_an_invalid_image_is_zero():
    rois = np.array([[-1, 0, 0, 3, 3], [0, 0, 0, 3, 3]], "float32")
    got = call("_contrib_ROIAlign", HALF[0][1], np.ones((1, 1, 4, 4), "float32"), rois)
    assert not got[0].any() and got[1].all()


ONES = np.ones
REFUSED = [
    (
        "_contrib_ROIAlign",
        HALF[0][1],
        [(2, 2, 7, 8), (3, 4)],
        r"rois have shape \(3, 4\), expected .regions, 5",
    ),
    ("_contrib_RROIAlign", HALF[1][1], [(2, 2, 7, 8), (3, 5)], "expected .regions, 6"),
    (
        "_contrib_DeformableConvolution",
        HALF[4][1],
        [(1, 1, 4, 4), (1, 9, 3, 3), (2, 1, 2, 2), (2,)],
        "inputs have shapes .*expected",
    ),
]


@pytest.mark.parametrize(("name", "attrs", "shapes", "sentence"), REFUSED)
def test_invalid_inputs_raise(name, attrs, shapes, sentence):
    with pytest.raises(ValueError, match=sentence):
        call(name, attrs, *(ONES(s, "float32") for s in shapes))


def test_weight_shapes_of_deformable_convolutions_are_inferred_from_data():
    op = lookup("_contrib_ModulatedDeformableConvolution")
    attrs = op.parse({**CONV, "num_filter": 6})
    wanted = [(2, 4, 5, 5), (2, 16, 3, 3), (2, 8, 3, 3), (6, 2, 2, 2), (6,)]
    assert op.fill is not None and op.fill(attrs, [(2, 4, 5, 5), None, None, None, None], [None]) == wanted
