"""Object detectors built with jfit.mx: outputs and training steps recorded from MXNet 1.9.1, and row tracking in them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import detection_nets as nets
from golden_mx import arrays_of, assert_close, host, under

import jfit
import jfit.mx as mx
from jfit.graph.nodes import GraphError
from jfit.ops import RowLayout

SLOW = {"aligned", "position_sensitive"}  # their parts are in the tests of the operators too
NAMES = [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in sorted(nets.TRAININGS)]


def lowered(name):
    """(model, inputs of the first step)."""
    inputs = nets.inputs_of(name, 0)
    return jfit.lower(nets.TRAININGS[name]["symbol"](mx), inputs=list(inputs)), inputs


@pytest.mark.slow
@pytest.mark.repetitions(1)
@pytest.mark.parametrize("name", NAMES)
def test_outputs_and_parameters_of_a_training_are_mxnets(name):
    found = nets.run(mx, name, host)
    for key, want in arrays_of("detection", f"{name}.npz").items():
        if key != "detected":
            assert_close(f"{name} {key}", found[key], want, floor=1e-2)


def test_detections_without_labels_are_mxnets():
    recorded = arrays_of("detection", "ssd.npz")
    found = nets.detect(mx, under(recorded, "param/"), host)
    assert (recorded["detected"][:, :, 0] >= 0).any()
    assert_close("detections", found, recorded["detected"])


@pytest.mark.parametrize(("name", "images", "repeats"), [("ssd", 4, (1, 1, 1, 1)), ("aligned", 2, (1, 8, 8, 8))])
def test_rows_are_tracked_from_anchors_to_detections_and_from_images_to_regions(name, images, repeats):
    model, inputs = lowered(name)
    plan = model.plan(jfit.lowering.model.specs_of(inputs))
    assert plan.paddable
    assert plan.rows == tuple(RowLayout(0, 1, images, after) for after in repeats)


def test_targets_computed_by_the_network_do_not_change_which_variables_are_parameters():
    model = jfit.lower(nets.ssd_train(mx))
    assert (model.inputs, model.labels) == (("data",), ("label",))
    with pytest.raises(GraphError, match="input 'label' is missing; pass it in inputs"):
        model.plan({"data": jax.ShapeDtypeStruct((2, 3, 32, 32), "float32")})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ssd", pytest.param("aligned", marks=pytest.mark.slow)])
def test_a_zero_weight_image_has_no_effect(name):
    model, inputs = lowered(name)
    params, aux = model.init(jax.random.key(1), jfit.lowering.model.specs_of(inputs))
    count = len(inputs["data"])
    weight = jnp.ones(count).at[-1].set(0)

    @jax.jit
    def gradient(fed):
        def total(p):
            return jfit.lowering.model.objective(model, model.apply(p, aux, fed, train=True, weight=weight)[0], fed, weight)

        return jax.grad(total)(params)

    other = {k: v.copy() for k, v in inputs.items()}
    for key, value in nets.inputs_of(name, 1).items():
        if key != "im_info":
            other[key][-1] = value[0]
    one, two = gradient(inputs), gradient(other)
    assert any(np.abs(g).max() > 1e-4 for g in one.values())
    for key in one:
        np.testing.assert_allclose(one[key], two[key], rtol=1e-5, atol=1e-7, err_msg=key)
