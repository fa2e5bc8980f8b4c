"""Cases of region pooling and deformable convolutions.

Position-sensitive pooling does nothing in MXNet's CPU build, so the tests compare it with a Python loop; MXNet has no
gradient of rotated regions, and one of modulated convolution only on GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np

CASES: list[dict[str, Any]] = []


def _case(op: str, inputs: dict[str, np.ndarray], attrs: dict[str, Any], **more: Any) -> None:
    CASES.append({"op": op, "inputs": {k: np.asarray(a, np.float32) for k, a in inputs.items()}, "attrs": attrs, **more})


# regions: inside, reaching out on both sides, tiny, far outside, large
ROIS = [
    [0, 1.2, 1.7, 9.4, 12.1],
    [1, -6, -4, 8, 9.5],
    [1, 5, 6, 5.1, 6.2],
    [0, 60, 60, 70, 80],
    [1, 0, 0, 15, 13],
    [0, 8, 3, 40, 30],
]
draw = np.random.RandomState(1)
for attrs, channels in (
    ({"pooled_size": (2, 3), "spatial_scale": 0.5}, 2),
    ({"pooled_size": (2, 2), "spatial_scale": 0.5, "sample_ratio": 2}, 2),
    ({"pooled_size": (3, 2), "spatial_scale": 1.0, "sample_ratio": 1, "aligned": True}, 1),
    ({"pooled_size": (1, 2), "spatial_scale": 0.7, "aligned": True}, 2),
    ({"pooled_size": (2, 2), "spatial_scale": 0.5, "position_sensitive": True}, 8),
):
    _case("_contrib_ROIAlign", {"data": draw.randn(2, channels, 7, 8), "rois": ROIS}, attrs)

TURNED = [[0, 6, 7, 8, 5, 30], [1, 3, 3, 12, 9, -75], [1, 8, 8, 0.5, 0.5, 0], [0, 50, 50, 6, 6, 10], [0, 7, 6, 20, 4, 180]]
for attrs in (
    {"pooled_size": (2, 3), "spatial_scale": 0.5},
    {"pooled_size": (2, 2), "spatial_scale": 0.8, "sampling_ratio": 2},
):
    _case(
        "_contrib_RROIAlign",
        {"data": draw.randn(2, 2, 7, 8), "rois": TURNED},
        attrs,
        req={"data": "null", "rois": "null"},
        note="MXNet has no gradient",
    )


def _deformable(attrs: dict[str, Any], size: tuple[int, int], out: tuple[int, int], reach: float, masked: bool = False) -> None:
    """Offsets up to `reach` pixels: 0 leaves every sample on a pixel."""
    attrs = {"num_filter": 4, **attrs}
    groups, parts = attrs.get("num_group", 1), attrs.get("num_deformable_group", 1)
    taps = attrs["kernel"][0] * attrs["kernel"][1] * parts
    inputs = {"data": draw.randn(2, 4, *size), "offset": draw.uniform(-reach, reach, (2, 2 * taps, *out))}
    if masked:
        inputs["mask"] = draw.rand(2, taps, *out)
    inputs["weight"] = draw.randn(4, 4 // groups, *attrs["kernel"])
    if not attrs.get("no_bias"):
        inputs["bias"] = draw.randn(4)
    op = "_contrib_ModulatedDeformableConvolution" if masked else "_contrib_DeformableConvolution"
    req = {"req": dict.fromkeys(inputs, "null"), "note": "MXNet has a gradient on GPU only"} if masked else {}
    _case(op, inputs, attrs, **req)


for masked in (False, True):
    _deformable({"kernel": (3, 3), "pad": (1, 1)}, (5, 6), (5, 6), 0.9, masked)
    _deformable({"kernel": (3, 3), "pad": (1, 1), "no_bias": True}, (4, 4), (4, 4), 0.0, masked)
    _deformable({"kernel": (3, 2), "num_group": 2, "num_deformable_group": 2, "no_bias": True}, (6, 5), (4, 4), 1.5, masked)
    _deformable({"kernel": (2, 2), "stride": (2, 1), "dilate": (1, 2), "pad": (1, 0)}, (5, 6), (3, 4), 4.0, masked)
_deformable({"kernel": (1, 1), "num_deformable_group": 4, "layout": "NCHW"}, (3, 3), (3, 3), 0.7)
