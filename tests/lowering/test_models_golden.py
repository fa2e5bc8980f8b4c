"""Whole models recorded from MXNet 1.9.1: outputs, gradients and moving statistics of the lowered graph agree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recorded_models import NOT_COMPARED, RECORDED, loaded, near


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_model_gives_mxnets_results(name):
    about, model, params, aux, inputs, arrays = loaded(name)
    evaluated, same = jax.jit(lambda p, a, x: model.apply(p, a, x, train=False))(params, aux, inputs)
    tolerance = max(1e-4, 10 * about.get("eval_f32_vs_f64", 1e-5))
    for i, out in enumerate(evaluated):
        near(f"eval/{i}", out, arrays[f"eval/{i}"], tolerance)
    assert all(np.array_equal(same[k], aux[k]) for k in aux), "evaluation moves nothing"
    learned = [k[len("grad/") :] for k in arrays if k.startswith("grad/")]
    cotangents = [jnp.asarray(arrays[f"og/{i}"]) if about["has_head_grad"] else None for i in range(about["n_outputs"])]

    @jax.jit
    def train(values):
        def forward(values):
            given = {k: values.get(k, v) for k, v in params.items()}
            fed = {k: values.get(k, v) for k, v in inputs.items()}
            outs, moved = model.apply(given, aux, fed, train=True, key=jax.random.key(0))
            return outs, moved

        outs, pull, moved = jax.vjp(forward, values, has_aux=True)
        heads = [jnp.ones_like(o) if c is None else c for o, c in zip(outs, cotangents, strict=True)]
        return outs, moved, pull(tuple(heads))[0]

    outs, moved, grads = train({k: params[k] if k in params else inputs[k] for k in learned})
    tolerance = max(tolerance, 10 * min(about.get("grad_f32_vs_f64_max") or 1e-5, 1e-3))
    for i, out in enumerate(outs):
        near(f"train/{i}", out, arrays[f"train/{i}"], tolerance)
    for k in aux:
        near(f"aux_train/{k}", moved[k], arrays[f"aux_train/{k}"], tolerance, 1e-3)
    floor = about.get("grad_err_floor", 1e-3 * max(np.abs(arrays[f"grad/{k}"]).max() for k in learned))
    spread = about.get("grad_f32_vs_f64") or {}
    for k in set(learned) - set(NOT_COMPARED.get(name, ())):
        near(f"grad/{k}", grads[k], arrays[f"grad/{k}"], max(1e-4, 10 * spread.get(k, 1e-4)), floor)
