"""Detectors in MXNet's spelling: what MXNet 1.9.1 computed and learned in a few steps, and what their graphs say."""


import detection_nets as nets
import pytest
from golden_mx import arrays_of, assert_close, host, under

import jfit.mx as mx

NAMES = sorted(nets.TRAININGS)


@pytest.fixture(scope="module")
def trained():
    """What jfit computes, once for all tests."""
    return {name: nets.run(mx, name, host) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_outputs_and_parameters_of_a_training_are_mxnets(name, trained):
    for key, want in arrays_of("detection", f"{name}.npz").items():
        if key != "detected":
            assert_close(f"{name} {key}", trained[name][key], want, floor=1e-2)


def test_detections_without_labels_are_mxnets():
    recorded = arrays_of("detection", "ssd.npz")
    found = nets.detect(mx, under(recorded, "param/"), host)
    assert (recorded["detected"][:, :, 0] >= 0).any()
    assert_close("detections", found, recorded["detected"])
