"""Inputs and attributes that JAX alone would broadcast, wrap, cut off or ignore raise errors; results of rare attributes."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest
from op_support import compiled

from jfit.ops import Ctx, lookup

ROIS, SCALED = (1, 5), {"spatial_scale": 1}
BATCH_NORM = [(2, 3), (3,), (3,), (3,), (3,)]
MULTIPLE = {"scale": 1, "sample_type": "nearest", "num_args": 2, "multi_input_mode": "sum"}
AFFINE = {"transform_type": "affine", "sampler_type": "bilinear"}
INTEGERS, ENDS = np.ones((1, 2), "int8"), [np.ones(1, "float32")] * 2
CASES = [
    ("Crop", [(1, 1, 4, 4)], {"num_args": 1, "h_w": (5, 5), "center_crop": True}, "size (5, 5) at offset (-1, -1) is not"),
    ("Crop", [(1, 1, 4, 4), (1, 1, 5, 5)], {"num_args": 2, "center_crop": True}, "size (5, 5) at offset"),
    ("Crop", [(1, 1, 4, 4)], {"num_args": 1, "h_w": (1, 1), "offset": (-3, 0)}, "at offset (-3, 0)"),
    ("Crop", [(1, 1, 4, 4)], {"num_args": 1}, "size (0, 0)"),
    ("_image_crop", [(8, 8, 1)], {"x": -5, "y": 0, "width": 3, "height": 1}, "at offset (0, -5)"),
    ("_image_crop", [(8, 8, 1)], {"x": 0, "y": 0, "width": -2, "height": 1}, "size (1, -2)"),
    ("_image_normalize", [(1, 4, 4)], {"mean": (1, 2, 3)}, "expected one number or 1, one per channel"),
    ("_image_resize", [(4, 4, 1)], {"size": (3, 4, 5)}, "size is (3, 4, 5), expected one or two"),
    ("_cvcopyMakeBorder", [(2, 2, 1)], {"top": 1, "bot": 0, "left": 0, "right": 0, "type": 7}, "type is 7"),
    ("Pad", [(2, 3)], {"mode": "constant", "pad_width": (1, 1)}, "2 numbers, expected 4"),
    ("scatter_nd", [(1,), (1, 3)], {"shape": (3,)}, "data has shape (1,), expected (3,)"),
    ("scatter_nd", [(3,), (1, 3)], {"shape": (3, 3)}, "data has shape (3,), expected (3, 3)"),
    ("_linalg_potrf", [(1, 3)], {}, "expected square"),
    ("_linalg_syevd", [(1, 3)], {}, "expected square"),
    ("khatri_rao", [(2, 4), (3, 1)], {"num_args": 2}, "arg1 has shape (3, 1), expected (3, 4)"),
    ("khatri_rao", [(2, 1), (3, 4)], {"num_args": 2}, "arg1 has shape (3, 4), expected (3, 1)"),
    ("_linalg_gemm2", [(2, 2), (2, 2)], {"axis": -1}, "axis is -1, which holds the matrix columns"),
    ("_linalg_extractdiag", [(2, 2)], {"offset": 2}, "diagonals -1 to 1, but not 2"),
    ("_linalg_extracttrian", [(2, 2)], {"offset": -2}, "diagonals -1 to 1, but not -2"),
    ("diag", [(2, 3)], {"k": 3}, "diagonals -1 to 2, but not 3"),
    *(
        ("BatchNorm", [(1,) if k == i else s for k, s in enumerate(BATCH_NORM)], {}, f"{name} has shape (1,), expected (3,)")
        for i, name in enumerate(("gamma", "beta", "moving_mean", "moving_var"), 1)
    ),
    ("BilinearSampler", [(2, 1, 3, 3), (2, 1, 3, 3)], {}, "grid has shape (2, 1, 3, 3), expected (2, 2, 3, 3)"),
    ("BilinearSampler", [(2, 1, 3, 3), (2, 2, 3)], {}, "grid has shape"),
    ("GridGenerator", [(1, 1, 2, 2)], {"transform_type": "warp"}, "the flow has shape (1, 1, 2, 2), expected (1, 2, 2, 2)"),
    ("GridGenerator", [(2, 12)], {"transform_type": "affine", "target_shape": (2, 2)}, "matrices has shape (2, 12)"),
    ("SpatialTransformer", [(2, 1, 3, 3), (1, 12)], AFFINE | {"target_shape": (2, 2)}, "matrices has shape (1, 12)"),
    ("SpatialTransformer", [(2, 1, 3, 3), (1, 6)], AFFINE | {"target_shape": (2, 2)}, "grid has shape (1, 2, 2, 2)"),
    ("SpatialTransformer", [(1, 1, 3, 3), (1, 6)], AFFINE | {"target_shape": (-3, 2)}, "expected 2 entries of at least 1"),
    (
        "_contrib_interleaved_matmul_selfatt_valatt",
        [(2, 1, 3), (1, 2, 1)],
        {"heads": 1},
        "attention has shape (1, 2, 1), expected (1, 2, 2)",
    ),
    ("_sample_normal", [(2, 3), (3, 2)], {}, "sigma has shape (3, 2), expected (2, 3)"),
    ("_random_uniform_like", [np.ones(2, "int32")], {}, "expected a float dtype"),
    ("_random_pdf_normal", [(2,), (2, 1), (2,)], {}, "mu has shape (2, 1), expected (2,)"),
    ("_random_pdf_dirichlet", [(2, 3), (4, 1)], {}, "alpha has shape (4, 1), expected (2, 3)"),
    ("_random_pdf_dirichlet", [(3,), (3, 3)], {}, "alpha has shape (3, 3), expected (3,)"),
    ("_sample_unique_zipfian", [], {"range_max": 4, "shape": (2, 2, 2)}, "expected 2"),
    ("_contrib_count_sketch", [(1, 4), (4,), (1,)], {"out_dim": 2}, "s has shape (1,), expected (4,)"),
    ("UpSampling", [(1, 3, 1, 1), (1, 1, 1, 1)], MULTIPLE, "has shape (1, 1, 1, 1), expected (1, 3, 1, 1)"),
    ("UpSampling", [(1, 1, 1, 1)], MULTIPLE | {"scale": 0, "num_args": 1}, "scale is 0"),
    (
        "_contrib_DeformablePSROIPooling",
        [(1, 1, 4, 4), (2, 5), (2, 2, 1, 4)],
        SCALED | {"output_dim": 1, "group_size": 1, "pooled_size": 2, "part_size": 2},
        "trans has shape (2, 2, 1, 4), expected (2, 2, 2, 2)",
    ),
    ("ROIPooling", [(1, 1, 4, 4), ROIS], SCALED | {"pooled_size": (2, 2, 3)}, "pooled_size is (2, 2, 3), expected 2"),
    ("_contrib_ROIAlign", [(1, 1, 4, 4), ROIS], SCALED | {"pooled_size": (0, 2)}, "pooled_size is (0, 2), expected 2"),
    (
        "Deconvolution",
        [(1, 1, 2, 2), (1, 1, 2, 2)],
        {"kernel": (2, 2), "num_filter": 1, "target_shape": (9, 9)},
        "target_shape is (9, 9), but 2 entries with stride 1 produce at most 3",
    ),
    ("_contrib_AdaptiveAvgPooling2D", [(1, 1, 4, 4)], {"output_size": (2, 3, 4)}, "output_size is (2, 3, 4)"),
    ("Pooling", [(1, 1, 2, 2)], {"kernel": (1, 1), "pooling_convention": "same"}, "use 'valid' or 'full'"),
    ("Pooling_v1", [(1, 1, 2, 2)], {"kernel": (3, 3)}, "kernel 3 with pad 0 does not fit 2 entries"),
    ("im2col", [(1, 1, 2, 2)], {"kernel": (5, 5)}, "kernel (5, 5) does not fit (2, 2) entries"),
    (
        "Convolution",
        [(1, 1, 4, 2), (1, 1, 3, 3)],
        {"kernel": (3, 3), "num_filter": 1, "pad": (1, 0), "dilate": (2, 1)},
        "kernel (3, 3) does not fit (4, 2) entries with pad ((1, 1), (0, 0)) (before, after) and dilate (2, 1)",
    ),
    (
        "Deconvolution",
        [(1, 1, 2, 2), (1, 1, 2, 2)],
        {"kernel": (2, 2), "num_filter": 1, "pad": (2, 0)},
        "the output would have (-1, 3) entries",
    ),
    ("_contrib_MultiBoxPrior", [(1, 1, 2, 2)], {"sizes": ()}, "sizes is empty"),
    ("_contrib_BilinearResize2D", [(1, 1, 2, 2)], {"height": 0, "width": 1}, "2 pixels would become 0"),
    ("_contrib_BilinearResize2D", [(1, 1, 2, 2)], {"scale_height": 0.1, "scale_width": 1}, "2 pixels would become 0"),
    ("_contrib_dequantize", [(1, 2), *ENDS], {}, "dtype float32, expected int8 or uint8"),
    ("_contrib_requantize", [INTEGERS, *ENDS], {}, "dtype int8, expected int32"),
]


@pytest.mark.parametrize(("name", "inputs", "attrs", "words"), CASES, ids=[f"{c[0]}-{c[3]}" for c in CASES])
def test_values_that_would_be_broadcast_or_ignored_raise(name, inputs, attrs, words):
    record, arrays = lookup(name), [np.ones(i, "float32") if isinstance(i, tuple) else i for i in inputs]
    with pytest.raises(ValueError, match=re.escape(words)):
        record.fn(Ctx(key=jax.random.key(0), rows=(None,) * len(arrays)), record.parse(attrs), *map(jax.numpy.asarray, arrays))


RESULTS = [
    ("_split_v2", [(6, 1)], {"indices": (0, -2), "axis": 0}, [(4, 1), (2, 1)]),
    ("_split_v2", [(6, 1)], {"indices": (0, 2, 9), "axis": 0}, [(2, 1), (4, 1), (0, 1)]),
    ("Pooling", [(1, 1, 2, 2)], {"global_pool": True, "pooling_convention": "same"}, [(1, 1, 1, 1)]),
]


@pytest.mark.parametrize(("name", "inputs", "attrs", "want"), RESULTS, ids=[str(r[2]) for r in RESULTS])
def test_shapes_of_rare_attributes(name, inputs, attrs, want):
    out = compiled(lookup(name).fn, lookup(name).parse(attrs))(*(np.ones(s, "float32") for s in inputs))
    assert [o.shape for o in (out if isinstance(out, tuple) else (out,))] == want
