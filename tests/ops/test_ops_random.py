"""Random operators (_random_*, _random_*_like, _sample_*): distributions, shapes, dtypes, rows, errors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused
from scipy import stats

import jfit
from jfit.graph.nodes import GraphError
from jfit.ops import LOST, Ctx, RowLayout, lookup

COUNT = 4000
# largest distance of distribution functions: one draw in a hundred passes 1.63 / √n, and the seeds fix which
FAR = 1.63 / np.sqrt(COUNT)


def run(name, *arrays, seed=0, rows=None, row_ids=None, **attrs):
    op = lookup(name)
    ctx = Ctx(key=jax.random.key(seed), rows=rows or (None,) * len(arrays), row_ids=row_ids, node="r")
    return op.fn(ctx, op.parse(attrs), *arrays)


SLOW = pytest.mark.slow
CONTINUOUS = [
    ("uniform", {"low": -1.0, "high": 3.0}, stats.uniform(-1, 4)),
    ("normal", {"loc": 2.0, "scale": 0.5}, stats.norm(2, 0.5)),
    ("gamma", {"alpha": 2.5, "beta": 0.5}, stats.gamma(2.5, scale=0.5)),
    ("gamma", {"alpha": 0.3, "beta": 2.0}, stats.gamma(0.3, scale=2)),
    ("exponential", {"lam": 4.0}, stats.expon(scale=0.25)),
]
COUNTING = [
    ("poisson", {"lam": 3.5}, stats.poisson(3.5)),
    ("negative_binomial", {"k": 3, "p": 0.4}, stats.nbinom(3, 0.4)),
    ("generalized_negative_binomial", {"mu": 2.0, "alpha": 0.5}, stats.nbinom(2, 0.5)),
    ("generalized_negative_binomial", {"mu": 2.0, "alpha": 0.0}, stats.poisson(2)),
]


def _distance(drawn, law):
    """Largest difference between the distribution functions."""
    values = np.sort(np.asarray(drawn, np.float64).ravel())
    at = np.unique(values)
    own = np.searchsorted(values, at, side="right") / values.size
    return np.abs(own - law.cdf(at)).max()


@pytest.mark.parametrize(
    ("name", "attrs", "law"),
    [*CONTINUOUS[:2], COUNTING[0], *(pytest.param(*c, marks=SLOW) for c in CONTINUOUS[2:] + COUNTING[1:])],
)
def test_draws_have_the_declared_distribution(name, attrs, law):
    drawn = run(f"_random_{name}", shape=(COUNT,), **attrs)
    assert drawn.shape == (COUNT,) and drawn.dtype == jnp.float32
    assert _distance(drawn, law) < FAR


@pytest.mark.repetitions(1)
@pytest.mark.parametrize(("name", "attrs", "law"), [*CONTINUOUS[:3], CONTINUOUS[4], COUNTING[0]])
def test_samples_have_the_declared_distribution(name, attrs, law):
    parameters = [jnp.full(2, v, jnp.float32) for v in attrs.values()]
    sampled = run(f"_sample_{name}", *parameters, seed=2, shape=(COUNT,))
    assert sampled.shape == (2, COUNT)
    assert _distance(sampled[0], law) < FAR
    assert _distance(sampled[1], law) < FAR
    assert not np.array_equal(sampled[0], sampled[1])


@pytest.mark.parametrize(("name", "attrs", "law"), [*CONTINUOUS[:2], CONTINUOUS[4]])
def test_draws_like_an_array_have_its_shape_and_distribution(name, attrs, law):
    like = run(f"_random_{name}_like", jnp.zeros((COUNT // 4, 4), jnp.float32), seed=1, **attrs)
    assert like.shape == (COUNT // 4, 4)
    assert _distance(like, law) < FAR


@pytest.mark.slow
def test_each_parameter_entry_has_its_own_distribution():
    mean = jnp.array([[0.0, 100.0], [1000.0, 5.0]])
    drawn = run("sample_normal", mean, jnp.full((2, 2), 0.1), shape=(3, 2))
    assert drawn.shape == (2, 2, 3, 2)
    np.testing.assert_allclose(drawn, jnp.broadcast_to(mean[:, :, None, None], drawn.shape), atol=1)
    assert run("sample_poisson", mean).shape == (2, 2)


def test_randint():
    drawn = np.asarray(run("random_randint", low=-2, high=3, shape=(COUNT,)))
    assert drawn.dtype == np.int32
    counts = np.bincount(drawn + 2, minlength=5)
    assert counts.size == 5 and stats.chisquare(counts).pvalue > 1e-3


def test_draws_without_rows_differ_between_micro_batches():
    op = lookup("_random_uniform")
    draws = [op.fn(Ctx(key=jax.random.key(0), micro_batch=n), op.parse({"shape": (3,)})) for n in (0, 1)]
    assert not np.array_equal(*draws)


def test_multinomial():
    p = jnp.array([[0.1, 0.2, 0.7], [0.0, 1.0, 0.0]])
    ids = np.asarray(run("_sample_multinomial", p, shape=COUNT))
    assert ids.shape == (2, COUNT) and ids.dtype == np.int32
    assert stats.chisquare(np.bincount(ids[0], minlength=3), COUNT * np.asarray(p[0], np.float64)).pvalue > 1e-3
    assert (ids[1] == 1).all()
    assert run("sample_multinomial", p).shape == (2,)
    assert run("sample_multinomial", p[0], dtype="uint8").shape == (1,)
    assert run("sample_multinomial", p[0], shape=(2, 2), dtype="uint8").dtype == jnp.uint8


def test_multinomial_with_probabilities_along_the_batch_axis():
    ctx = Ctx(key=jax.random.key(0), rows=(RowLayout(0, 1, 4, 1),), row_ids=jnp.arange(4))
    op = lookup("_sample_multinomial")
    assert op.fn(ctx, op.parse({"shape": 3}), jnp.ones(4) / 4).shape == (3,)
    assert op.rows(op.parse({}), ctx.rows, [(4,)], [(1,)]) == [LOST]


def test_multinomial_log_probability_and_its_gradient():
    p = jnp.array([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]])
    heads = jnp.array([[1.0, 2.0], [3.0, 4.0]])

    def logs(p):
        ids, chance = run("_sample_multinomial", p, shape=2, get_prob=True)
        return jnp.sum(chance * heads), (ids, chance)

    grad, (ids, chance) = jax.grad(logs, has_aux=True)(p)
    np.testing.assert_allclose(chance, np.log(np.take_along_axis(np.asarray(p), np.asarray(ids), 1)), rtol=1e-6)
    want = np.zeros((2, 3))
    for i, j in np.ndindex(2, 2):  # as MXNet: head gradient over probability, added up
        want[i, ids[i, j]] += heads[i, j] / p[i, ids[i, j]]
    np.testing.assert_allclose(grad, want, rtol=1e-6)


def test_multinomial_probabilities_need_not_sum_to_one():
    # MXNet compares a uniform number with running sums: what lies beyond one is never drawn, what is left falls to the last
    assert (np.asarray(run("_sample_multinomial", jnp.array([1.0, 1.0, 20.0]), shape=50)) == 0).all()
    few = np.asarray(run("_sample_multinomial", jnp.array([0.0, 0.1, 0.0]), shape=200))
    assert set(few) == {1, 2}


@pytest.mark.slow
def test_unique_zipfian():
    ids, tries = (np.asarray(a) for a in run("_sample_unique_zipfian", range_max=20, shape=(COUNT, 3)))
    edges = np.clip(np.arange(21) - 0.5, 0, None) + 1
    edges[-1] = 20
    want = np.log(edges[1:] / edges[:-1]) / np.log(20)
    assert stats.chisquare(np.bincount(ids[:, 0], minlength=20), COUNT * want).pvalue > 1e-3
    assert all(len(set(row)) == 3 for row in ids[:200])
    # MXNet itself, 20000 rows: 15343, 3598, 821, 184, 40 and 14 rows took 3, 4, 5, 6, 7 and more tries
    found = np.bincount(np.minimum(tries, 8), minlength=9)[3:]
    assert stats.chisquare(found, COUNT / 20000 * np.array([15343, 3598, 821, 184, 40, 14])).pvalue > 1e-3
    assert tries.mean() == pytest.approx(3.30, abs=0.03)


def test_shuffle():
    data = jnp.arange(12.0).reshape(6, 2)
    out = np.asarray(run("_shuffle", data, seed=3))
    assert sorted(map(tuple, out)) == sorted(map(tuple, np.asarray(data)))
    assert not np.array_equal(out, data)
    firsts = np.asarray(
        jax.vmap(lambda k: lookup("shuffle").fn(Ctx(key=k), None, jnp.arange(3))[0])(jax.random.split(jax.random.key(0), 900))
    )
    assert stats.chisquare(np.bincount(firsts)).pvalue > 1e-3


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dtypes(dtype):
    assert run("_random_normal", shape=3, dtype=dtype).dtype == dtype
    assert run("_random_exponential_like", jnp.ones(3, dtype)).dtype == dtype
    assert run("_sample_uniform", jnp.zeros(2, dtype), jnp.ones(2, dtype)).dtype == jnp.float32
    assert run("_sample_uniform", jnp.zeros(2), jnp.ones(2), dtype=dtype).dtype == dtype
    assert run("_sample_multinomial", jnp.ones(2, dtype), get_prob=True)[1].dtype == dtype


def test_random_operators_have_no_gradient():
    grad = jax.grad(lambda m: jnp.sum(run("_sample_normal", m, jnp.ones(3))))(jnp.ones(3))
    assert (np.asarray(grad) == 0).all()
    assert (np.asarray(jax.grad(lambda m: jnp.sum(run("_random_normal_like", m)))(jnp.ones(3))) == 0).all()


# ------------------------------------------------------------------------------------------ rows
@pytest.mark.repetitions(1)
@pytest.mark.parametrize(
    ("name", "arrays", "attrs"),
    [
        ("_random_normal_like", [jnp.zeros((4, 3))], {}),
        ("_sample_exponential", [jnp.ones((4, 3))], {"shape": 2}),
        ("_sample_multinomial", [jnp.full((4, 3), 1 / 3)], {"shape": 5}),
    ],
)
def test_the_random_numbers_of_a_row_do_not_depend_on_its_position(name, arrays, attrs):
    def part(low, high):
        rows = RowLayout(0, 1, high - low, 1)
        cut = [a[low:high] for a in arrays]
        assert lookup(name).rows(lookup(name).parse(attrs), [rows] * len(cut), [c.shape for c in cut], [cut[0].shape]) == [rows]
        return run(name, *cut, rows=(rows,) * len(cut), row_ids=jnp.arange(low, high), **attrs)

    whole = part(0, 4)
    np.testing.assert_array_equal(np.concatenate([part(0, 2), part(2, 4)]), whole)
    assert len(np.unique(np.asarray(whole).reshape(4, -1), axis=0)) > 1


def test_rows_of_the_other_operators_are_tracked():
    rows = RowLayout(0, 1, 4, 1)
    assert lookup("_shuffle").rows({}, [rows], [(4, 2)], [(4, 2)]) == [LOST]
    assert lookup("_random_normal").rows({}, [], [], [(4, 2)]) == [None]
    multinomial = lookup("_sample_multinomial")
    assert multinomial.rows({}, [RowLayout(1, 1, 3, 1)], [(4, 3)], [(4,)]) == [LOST]


# ------------------------------------------------------------------------------------------ in graphs
def _noisy():
    data = jfit.sym.Variable("data")
    net = jfit.sym.FullyConnected(data + jfit.sym._random_normal_like(data, name="noise"), num_hidden=2, name="fc")
    return jfit.sym.SoftmaxOutput(net, name="softmax")


@pytest.mark.slow
def test_prediction_and_score_draw_the_same_numbers_again():
    x, y = np.ones((10, 3), np.float32), np.zeros(10, np.float32)
    params = {"fc_weight": np.eye(2, 3, dtype=np.float32), "fc_bias": np.zeros(2, np.float32)}
    first = jfit.predict(_noisy(), x, params=params, batch_size=4)
    np.testing.assert_array_equal(first, jfit.predict(_noisy(), x, params=params, batch_size=4))
    two = [jfit.cpu(0), jfit.cpu(1)]
    np.testing.assert_array_equal(first, jfit.predict(_noisy(), x, params=params, batch_size=4, devices=two))
    assert len(np.unique(first[:, 0])) == 10  # no batch repeats the numbers of another
    scores = [jfit.score(_noisy(), (x, y), params=params, batch_size=4) for _ in range(2)]
    assert scores[0] == scores[1]


def test_the_shape_of_a_draw_is_inferred_from_the_graph():
    noise = jfit.sym.random_normal(shape=(0, 3), name="noise")
    net = jfit.sym.elemwise_add(jfit.sym.Variable("data"), noise)
    assert net.infer_shape(data=(4, 3))[1] == [(4, 3)]
    assert jfit.predict(net, np.zeros((4, 3), np.float32), params={}).shape == (4, 3)
    net = jfit.sym.elemwise_add(jfit.sym.Variable("data"), jfit.sym.random_uniform(name="noise"))
    assert net.infer_shape(data=(4, 3))[1] == [(4, 3)]
    assert jfit.predict(net, np.zeros((4, 3), np.float32), params={}).shape == (4, 3)


def test_parameter_shapes_of_samples():
    net = jfit.sym.sample_normal(jfit.sym.Variable("mu"), jfit.sym.Variable("sigma"), shape=(5,))
    assert net.infer_shape(mu=(2, 3)) == ([(2, 3), (2, 3)], [(2, 3, 5)], [])
    assert [np.dtype(t).name for t in net.infer_type(mu="float16")[1]] == ["float32"]
    chosen = jfit.sym.sample_multinomial(jfit.sym.Variable("p"), get_prob=True, name="m")
    assert chosen.list_outputs() == ["m_output0", "m_output1"]


# ------------------------------------------------------------------------------------------ errors
@pytest.mark.parametrize(
    ("name", "attrs", "need"),
    [
        ("_random_uniform", {"low": 2, "high": 1}, "low <= high"),
        ("_random_normal", {"scale": 0}, "scale > 0"),
        ("_random_randint", {"low": 3, "high": 3}, "low < high"),
        ("_sample_unique_zipfian", {"range_max": 2}, "no larger than size along axis"),
    ],
)
def test_invalid_distribution_parameters_raise(name, attrs, need):
    with pytest.raises(ValueError, match=need):
        run(name, shape=(2, 3), **attrs)


NOISE = jfit.lower(jfit.sym._random_normal_like(jfit.sym.Variable("data"), name="noise"))
test_other_errors = refused(
    (lambda: run("_random_normal"), "has no shape"),
    (lambda: run("_sample_normal", jnp.ones(2), jnp.ones(3)), "sigma has shape"),
    (lambda: NOISE.apply({}, {}, {"data": jnp.ones(2)}), GraphError, r"noise.*draws random numbers; pass key="),
)
