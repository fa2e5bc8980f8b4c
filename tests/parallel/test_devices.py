"""Devices by kind and index, and the accepted values of `devices=`."""

import jax
import numpy as np
import pytest

import jfit
from jfit.parallel.contexts import resolve


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (None, [0]),
        (1, [0]),
        (3, [0, 1, 2]),
        (np.int64(2), [0, 1]),
        ("all", list(range(8))),
        (jfit.cpu(1), [1]),
        ([jfit.cpu(5), jfit.cpu(1)], [5, 1]),
        ((jfit.cpu(0),), [0]),
    ],
)
def test_devices_may_be_given_in_many_ways(given, wanted):
    assert [d.id for d in resolve(given)] == wanted


def test_jax_devices_are_accepted():
    devices = jax.devices()
    assert resolve(devices[3]) == [devices[3]]
    assert resolve([devices[3], jfit.cpu(0)]) == [devices[3], devices[0]]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            9,
            r"devices=9 is not available: this machine has 8 cpu devices; emulate more before jax starts: XLA_FLAGS=.*count=9",
        ),
        (0, r"devices=0 is not supported here; pass None, a number from 1, \"all\", a device such as jfit.cpu\(0\), or a list"),
        ("gpu", r"devices='gpu' is not supported here"),
        ([], r"devices=\[\] is not supported"),
        ([0, 1], r"devices=\[0, 1\] is not supported here; .* or a list of different devices"),
        ([jfit.cpu(0), jfit.cpu(0)], r"devices=\[cpu\(0\), cpu\(0\)\] is not supported"),
        (jfit.cpu(8), r"cpu\(8\) is not available: this machine has 8 cpu devices; emulate more .*=9"),
        (jfit.tpu(0), r"tpu\(0\) is not available: this machine has no tpu devices; pass fewer devices, or install jax"),
    ],
)
def test_an_invalid_device_raises(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        resolve(given)
