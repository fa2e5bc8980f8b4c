"""Cases of _random_pdf_*, the densities of samples, with gradients."""

import numpy as np

DRAW = np.random.RandomState(0)


def _f(*shape, low=0.2, high=2.0, dtype="float32"):
    return DRAW.uniform(low, high, shape).astype(dtype)


def _counts(*shape):
    return DRAW.randint(0, 6, shape).astype("float32")


CASES = []
for log in (False, True):
    for sample, lead in (((2, 3), (2,)), ((2, 2, 3), (2, 2)), ((4,), (4,))):
        given = {"is_log": log}
        CASES += [
            {
                "op": "_random_pdf_uniform",
                "attrs": given,
                "inputs": {"sample": _f(*sample), "low": _f(*lead, high=0.5), "high": _f(*lead, low=1.0)},
            },
            {
                "op": "_random_pdf_normal",
                "attrs": given,
                "inputs": {"sample": _f(*sample, low=-2), "mu": _f(*lead, low=-1), "sigma": _f(*lead)},
            },
            {
                "op": "_random_pdf_gamma",
                "attrs": given,
                "inputs": {"sample": _f(*sample), "alpha": _f(*lead), "beta": _f(*lead)},
            },
            {"op": "_random_pdf_exponential", "attrs": given, "inputs": {"sample": _f(*sample), "lam": _f(*lead)}},
            {"op": "_random_pdf_poisson", "attrs": given, "inputs": {"sample": _counts(*sample), "lam": _f(*lead)}},
            {
                "op": "_random_pdf_negative_binomial",
                "attrs": given,
                "inputs": {"sample": _counts(*sample), "k": _f(*lead, low=1, high=4), "p": _f(*lead, high=0.9)},
            },
            {
                "op": "_random_pdf_generalized_negative_binomial",
                "attrs": given,
                "inputs": {"sample": _counts(*sample), "mu": _f(*lead), "alpha": _f(*lead)},
            },
        ]
    for sample, lead in (((2, 3, 4), (2, 4)), ((3, 4), (3, 4)), ((2, 4), (4,))):
        inputs = {"sample": _f(*sample, high=0.6), "alpha": _f(*lead)}
        CASES.append({"op": "_random_pdf_dirichlet", "attrs": {"is_log": log}, "inputs": inputs})
