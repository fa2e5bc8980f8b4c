"""Every differentiable operator against numeric gradients in float64 and in half precision, at the recorded inputs."""

from __future__ import annotations

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_ops import GOLDEN, load_cases

from jfit.ops.context import Ctx
from jfit.ops.registry import REGISTRY, lookup

CASES_EACH = 2  # recorded cases of each operator that are checked
STEP = 1e-6
# Operators whose gradient is not the derivative of their value, as MXNet has it.
OWN_GRADIENT = {
    "BlockGrad": "stops the gradient",
    "IdentityAttachKLSparseReg": "adds the gradient of a penalty that its value does not show",
    "_contrib_gradientmultiplier": "multiplies the gradient",
    **dict.fromkeys(
        ["_contrib_Proposal", "_contrib_MultiProposal", "_contrib_MultiBoxDetection"], "is 0: boxes that were chosen"
    ),
    **dict.fromkeys(
        ["_contrib_MultiBoxTarget", "_contrib_box_encode", "_contrib_box_decode", "_contrib_box_iou"],
        "is 0: boxes are no parameters",
    ),
    **dict.fromkeys(["_image_adjust_lighting", "_image_flip_left_right", "_image_flip_top_bottom"], "passes straight through"),
    **dict.fromkeys(["_image_random_contrast", "_image_random_brightness", "_image_random_hue"], "passes straight through"),
    "_image_random_saturation": "reads blue only",
    "_contrib_hawkesll": "gives the state no gradient",
    "_contrib_index_copy": "reads the gradient back also where a later row overwrote",
    "_contrib_round_ste": "passes the gradient straight through",
    "_contrib_sign_ste": "passes the gradient straight through",
    "_linalg_potrf": "is symmetric, the value reads one half",
    "_linalg_slogdet": "is 0 for singular matrices",
    "_linalg_syevd": "is symmetric, the value reads one half",
    "_mod": "is 1 where the divisor is 0",
    "_mod_scalar": "is 1 where the divisor is 0",
    **dict.fromkeys(["argmax", "argmin", "_ravel_multi_index"], "is 0: numbers of places"),
    "_rmod_scalar": "is infinite where the divisor is 0",
    "_unravel_index": "is 0: numbers of places",
    "broadcast_mod": "is 1 where the divisor is 0",
    "scatter_nd": "reads the gradient back also where a later entry overwrote",
}
# Inputs that choose and do not weigh: MXNet gives them a gradient of zero, and a step on them is no small one.
CHOOSING = {"index", "indices", "index_vector", "label", "sequence_length", "condition", "rois"}
COUNTED = ("poisson", "binomial")  # densities of counts, whose `sample` has none either
# Cases recorded on purpose where the value has a bend or a jump: the derivative is one-sided there.
BENDS = {
    "BilinearSampler.6": "the grid lies on pixels",
    "SpatialTransformer.8": "the grid lies on pixels",
    "_contrib_DeformableConvolution.8": "offsets of 0 lie on pixels",
    **dict.fromkeys([*(f"ROIPooling.{n}" for n in range(11, 20)), *(f"max.{n}" for n in range(47, 60))], "maxima are equal"),
}
HALF = [jnp.float16, jnp.bfloat16]


@functools.cache
def recorded() -> dict[str, list[str]]:
    """Operator -> files that hold cases of it."""
    found: dict[str, list[str]] = {}
    for path in sorted(GOLDEN.glob("*.json")):
        for case in json.loads(path.read_text()):
            files = found.setdefault(lookup(case["op"]).name, [])
            if path.stem not in files:
                files.append(path.stem)
    return found


def differentiable(name: str) -> bool:
    return REGISTRY[name].kind == "plain" and name not in OWN_GRADIENT


def cases_of(name: str):
    """(attributes, inputs, auxiliary states) of the first few recorded cases of an operator that take floats."""
    op, count = lookup(name), 0
    for case, arrays in load_cases(*recorded().get(name, ())):
        if lookup(case["op"]).name != name or not case["has_grad"] or case["id"] in BENDS:
            continue
        if not all(np.isfinite(a).all() for k, a in arrays.items() if k.startswith("in/") and a.dtype.kind == "f"):
            continue  # nan has no derivative
        given = [i["name"] for i in case["inputs"] if i["name"] not in case["list_auxiliary_states"]]
        attrs = op.parse(({op.variadic: len(given)} if op.variadic else {}) | case["attrs"])
        names = op.input_names(attrs)
        order = names if set(names) == set(given) else given
        learned = [
            i["name"] for i in case["inputs"] if i["grad_req"] and f"grad/{i['name']}" not in (case.get("skip_compare") or ())
        ]
        yield (
            case["id"],
            attrs,
            {n: arrays[f"in/{n}"] for n in order},
            learned,
            [arrays[f"aux/{n}"] for n in case["list_auxiliary_states"]],
        )
        count += 1
        if count == CASES_EACH:
            return


def outputs_of(op, attrs, inputs, aux, train=True):
    result = op.fn(Ctx(train=train, key=jax.random.key(0), rows=(None,) * len(inputs), node="op0"), attrs, *inputs, *aux)
    outputs = result[0] if op.aux else result
    return (outputs if isinstance(outputs, tuple) else (outputs,))[: op.num_visible(attrs)]


def as_kind(array: np.ndarray, dtype) -> jax.Array:
    return jnp.asarray(array, dtype) if np.issubdtype(array.dtype, np.floating) else jnp.asarray(array)


@pytest.mark.repetitions(2)
@pytest.mark.parametrize("name", [n for n in sorted(recorded()) if differentiable(n)])
def test_numeric_gradient_in_float64(name):
    op, chosen = lookup(name), CHOOSING | ({"sample"} if name.endswith(COUNTED) else set())
    with jax.enable_x64(True):
        for case, attrs, inputs, learned, aux in cases_of(name):
            if "dtype" in attrs and attrs.dtype is not None and attrs.dtype != "float64":
                continue  # computes or answers in another precision
            draw = np.random.RandomState(0)
            wide = {n: as_kind(a, np.float64) for n, a in inputs.items()}
            states = [as_kind(a, np.float64) for a in aux]
            moved = {
                n: jnp.asarray(draw.standard_normal(wide[n].shape))
                for n in learned
                if wide[n].dtype == np.float64 and n not in chosen
            }

            def values(at, wide=wide, attrs=attrs, states=states, moved=moved):
                full = [wide[n] + at * moved[n] if n in moved else wide[n] for n in wide]
                found = outputs_of(op, attrs, full, states)
                if attrs.get("output_mean_var"):
                    found = found[:1]  # the statistics are for looking at: no gradient comes from them, as in MXNet
                return [o for o in found if jnp.issubdtype(o.dtype, jnp.floating)]

            heads = [jnp.asarray(draw.standard_normal(o.shape)) for o in jax.eval_shape(values, 0.0)]

            def total(at, heads=heads, values=values):
                return sum((jnp.sum(o * h) for o, h in zip(values(at), heads, strict=True)), start=jnp.zeros((), np.float64))

            run = jax.jit(jax.value_and_grad(total))  # one program: a gradient without jit compiles dozens
            exact = float(run(0.0)[1])
            numeric = (float(run(STEP)[0]) - float(run(-STEP)[0])) / (2 * STEP)
            assert exact == pytest.approx(numeric, rel=1e-5, abs=1e-6), case


@pytest.mark.repetitions(5, slow=len(recorded()))
@pytest.mark.parametrize("dtype", HALF, ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name", sorted(recorded()))
def test_half_precision_compiles_and_keeps_its_dtype(name, dtype):
    op, cases = lookup(name), list(cases_of(name))
    for case, attrs, inputs, _, aux in cases[HALF.index(dtype) :: 2] or cases:  # every second case in each dtype
        small = [as_kind(a, dtype) for a in inputs.values()]
        floats = [i for i, a in enumerate(small) if a.dtype == dtype]

        def run(*given, attrs=attrs, small=small, floats=floats, aux=aux):
            full = list(small)
            for i, array in zip(floats, given, strict=True):
                full[i] = array
            return outputs_of(op, attrs, full, [jnp.asarray(a) for a in aux])

        def pulled(*given, run=run):
            outputs, pull = jax.vjp(run, *given)
            ones = [
                jnp.ones(o.shape, o.dtype) if jnp.issubdtype(o.dtype, jnp.inexact) else np.zeros(o.shape, jax.dtypes.float0)
                for o in outputs
            ]
            return outputs, pull(tuple(ones))

        given = [small[i] for i in floats]
        outputs, grads = jax.jit(pulled)(*given)
        said = (
            [dtype] * len(outputs)
            if op.types is None
            else op.types(attrs, [a.dtype for a in (*small, *map(np.asarray, aux))])[1]
        )
        assert [o.dtype for o in outputs] == [jax.dtypes.canonicalize_dtype(t) for t in said][: len(outputs)], case
        assert [g.dtype for g in grads] == [dtype] * len(given), case
