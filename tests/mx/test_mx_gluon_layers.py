"""Layers that MXNet 1.9.1 computes on GPUs only; the others are in tests/mx/checks/gluon_nn.py."""

import numpy as np
import pytest

import jfit.mx as mx

nn = mx.gluon.nn


def images(*shape):
    return mx.nd.array(np.random.RandomState(0).randn(*shape))


@pytest.mark.parametrize("transposed", [False, True])
def test_channels_last_convolutions_compute_those_of_channels_first(transposed):
    kind = nn.Conv2DTranspose if transposed else nn.Conv2D
    first, last = (kind(4, (3, 2), strides=2, padding=1, layout=layout) for layout in ("NCHW", "NHWC"))
    x = images(2, 3, 6, 5)
    first.initialize(mx.init.Normal(1))
    last.initialize()
    expected, _ = first(x), last(x.transpose((0, 2, 3, 1)))
    last.weight.set_data(first.weight.data().transpose((0, 2, 3, 1)))
    out = last(x.transpose((0, 2, 3, 1))).transpose((0, 3, 1, 2))
    np.testing.assert_allclose(out.asnumpy(), expected.asnumpy(), rtol=1e-4, atol=1e-4)


def test_channels_last_pooling_computes_that_of_channels_first():
    x = images(2, 3, 6, 5)
    for kind in (nn.MaxPool2D, nn.AvgPool2D):
        out = kind(3, 2, 1, layout="NHWC")(x.transpose((0, 2, 3, 1))).transpose((0, 3, 1, 2))
        np.testing.assert_allclose(out.asnumpy(), kind(3, 2, 1)(x).asnumpy(), rtol=1e-6)
