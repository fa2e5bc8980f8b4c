"""`mx.random`, `mx.nd.random`, `mx.sym.random`, `mx.nd.image` and `mx.sym.image`: MXNet's signatures of the operators."""

from __future__ import annotations

import numpy as np
import pytest

import jfit.mx as mx

LAWS = {
    "uniform": (0, 1),
    "normal": (0, 1),
    "poisson": (1,),
    "exponential": (1,),
    "gamma": (1, 1),
    "negative_binomial": (1, 0.5),
    "generalized_negative_binomial": (1, 1),
}


SLOW = set(LAWS) - {"uniform", "normal", "poisson"}  # to compile


@pytest.mark.repetitions(1)
@pytest.mark.parametrize(
    ("name", "parameters"), [pytest.param(*law, marks=[pytest.mark.slow] if law[0] in SLOW else []) for law in LAWS.items()]
)
def test_parameters_may_be_numbers_or_arrays(name, parameters):
    eager, built = getattr(mx.nd.random, name), getattr(mx.sym.random, name)
    assert eager(*parameters, shape=(2, 3), dtype="float16").dtype == np.float16
    arrays = [mx.nd.array([p, p]) for p in parameters]
    assert eager(*arrays, shape=4).shape == (2, 4)
    assert built(*parameters, shape=(2, 3)).infer_shape()[1] == [(2, 3)]
    symbols = [mx.sym.Variable(f"p{i}") for i in range(len(parameters))]
    assert built(*symbols, shape=5).infer_shape(p0=(3,))[1] == [(3, 5)]
    if name != "exponential":
        with pytest.raises(ValueError, match="expected only numbers"):
            eager(*["a" for _ in parameters])


def test_shapes_dtypes_and_out():
    assert mx.nd.random.uniform(0, 1).shape == (1,)
    assert mx.nd.random.uniform(mx.nd.zeros(2), mx.nd.ones(2)).shape == (2,)
    assert mx.nd.random.uniform(shape=3, dtype="float64").dtype == np.float64
    out = mx.nd.zeros((50,))
    assert mx.nd.random.normal(out=out) is out
    assert len(set(out.asnumpy().tolist())) > 1
    assert mx.sym.random.normal(shape=(2, 3)).eval()[0].shape == (2, 3)


def test_invalid_dtypes_and_seeds_raise():
    with pytest.raises(mx.MXNetError, match="attribute dtype is 'int32', expected one of float16"):
        mx.nd.random.uniform(dtype="int32")
    with pytest.raises(ValueError, match=r"seed_state is 1.5; expected an integer"):
        mx.random.seed(1.5)


def test_seed_repeats_the_sequence_and_draws_differ():
    mx.random.seed(3)
    first, second = mx.nd.random.exponential(2, shape=5).asnumpy(), mx.nd.random.exponential(2, shape=5).asnumpy()
    mx.random.seed(3)
    np.testing.assert_array_equal(mx.random.exponential(2, shape=5).asnumpy(), first)
    assert not np.array_equal(first, second)


def test_exponential_takes_the_mean():
    assert mx.nd.random.exponential(5.0, shape=4000).asnumpy().mean() == pytest.approx(5, rel=0.1)
    means = mx.nd.random.exponential(mx.nd.array([1, 10]), shape=4000).asnumpy().mean(axis=1)
    np.testing.assert_allclose(means, [1, 10], rtol=0.1)
    assert mx.sym.random.exponential(2.0, shape=3, name="e").attr_dict()["e"]["lam"] == "0.5"


def test_multinomial_randint_randn_shuffle():
    p = mx.nd.array([[0.25, 0.75], [1, 0]])
    assert mx.nd.random.multinomial(p, shape=3).shape == (2, 3)
    ids, chance = mx.nd.random.multinomial(p, get_prob=True, dtype=np.float32)
    assert ids.dtype == np.float32 and chance.asnumpy()[1] == 0
    assert mx.sym.random.multinomial(mx.sym.Variable("p"), name="m").list_outputs() == ["m_output0", "m_output1"]
    assert set(mx.nd.random.randint(2, 4, shape=100).asnumpy().tolist()) == {2, 3}
    assert mx.nd.random.randint(0, 5, shape=2, dtype="int64").dtype == np.int64
    assert mx.sym.random.randint(0, 5, shape=2).infer_type()[1] == [np.int32]
    assert mx.nd.random.randn(2, 3, loc=100).asnumpy().min() > 50
    assert mx.sym.random.randn(2, 3).infer_shape()[1] == [(2, 3)]
    data = mx.nd.array(np.arange(6).reshape(3, 2))
    np.testing.assert_array_equal(np.sort(mx.nd.random.shuffle(data).asnumpy(), axis=0), data.asnumpy())
    assert mx.sym.random.shuffle(mx.sym.Variable("x")).infer_shape(x=(3, 2))[1] == [(3, 2)]


def test_like_operators_and_mixed_parameters():
    assert mx.nd.random.normal_like(mx.nd.zeros((2, 3))).shape == (2, 3)
    assert mx.sym.random.uniform_like(mx.sym.Variable("x"), low=2, high=3).eval(x=mx.nd.zeros(4))[0].asnumpy().min() >= 2
    with pytest.raises(ValueError, match="only numbers or only NDArrays"):
        mx.nd.random.normal(mx.nd.zeros(2), 1)
    with pytest.raises(ValueError, match="numbers only or Symbols only"):
        mx.sym.random.normal(mx.sym.Variable("x"), 1)
    with pytest.raises(AttributeError, match="nearest names"):
        _ = mx.nd.random.normall
    with pytest.raises(AttributeError, match="nearest names"):
        _ = mx.sym.random.normall
