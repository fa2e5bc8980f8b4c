"""gluon's blocks: what the recorded checks do not show: models of jfit.fit, copies, contexts, compiled programs."""

import copy

import numpy as np
import pytest
from recorded import is_computed

import jfit
import jfit.mx as mx
from jfit import counters

X = np.random.RandomState(0).normal(size=(64, 4)).astype("float32")
Y = (X.sum(1) > 0).astype("int32")


class Net(mx.gluon.HybridBlock):
    def __init__(self, norm=False, **kwargs):
        super().__init__(**kwargs)
        self._norm = norm
        with self.name_scope():
            self.w = self.params.get("w", shape=(3, 0), allow_deferred_init=True)
            self.v = self.params.get("v", shape=(2, 3))
            for name in ("mean", "var") if norm else ():
                options = {"grad_req": "null", "differentiable": False, "init": mx.init.One()}
                setattr(self, name, self.params.get(name, shape=(3,), **options))

    def hybrid_forward(self, F, x, w, v, mean=None, var=None):
        y = F.FullyConnected(x, w, num_hidden=3, no_bias=True, name="one")
        if self._norm:
            y = F.BatchNorm(y, F.ones(3), F.zeros(3), mean, var, fix_gamma=False, name="norm")
        return F.FullyConnected(F.relu(y), v, num_hidden=2, no_bias=True, name="two")


def made(norm=False, known=True, **kwargs):
    mx.random.seed(3)
    net = Net(norm, **kwargs)
    net.initialize(mx.init.Xavier())
    if known:
        net(mx.nd.array(X))
    return net


OPTIONS = {"loss": "cross_entropy", "batch_size": 16, "num_epoch": 4, "optimizer": "adam"}
OPTIONS["optimizer_params"] = {"learning_rate": 0.05}


@pytest.mark.parametrize("norm", [False, True])
def test_fit_trains_a_block_and_leaves_it_as_it_was(norm):
    net = made(norm, prefix="net_")
    before = {n: p.data().asnumpy() for n, p in net.collect_params().items()}
    run = jfit.fit(net, (X, Y), **OPTIONS)
    losses = run.history.column("loss")
    assert losses[-1] < losses[0]
    assert set(run.params) == {"net_w", "net_v"} and set(run.aux) == ({"net_mean", "net_var"} if norm else set())
    assert all(np.array_equal(before[n], p.data().asnumpy()) for n, p in net.collect_params().items())
    trained = run.model
    assert type(trained) is Net and list(trained.collect_params()) == list(net.collect_params())
    np.testing.assert_allclose(trained(mx.nd.array(X)).asnumpy(), run.predict(X), rtol=1e-6, atol=1e-6)


def test_parameters_of_unknown_shape_get_their_values_from_the_data():
    runs = [jfit.fit(made(known=known, prefix="net_"), (X, Y), **OPTIONS) for known in (True, False)]
    assert runs[0].history.column("loss") == runs[1].history.column("loss")


def test_parameters_without_gradients_are_not_trained():
    net = made(prefix="net_")
    net.v.grad_req = "null"
    run = jfit.fit(net, (X, Y), **OPTIONS)
    assert set(run.params) == {"net_w"}
    assert np.array_equal(run.aux["net_v"], net.v.data().asnumpy())


def test_errors_of_fit_name_what_to_do():
    with pytest.raises(RuntimeError, match="call initialize"):
        jfit.fit(Net(), (X, Y), **OPTIONS)
    with pytest.raises(TypeError, match="HybridBlock"):
        jfit.fit(mx.gluon.Block(), (X, Y), **OPTIONS)
    with pytest.raises(TypeError, match="loss"):
        jfit.fit(made(), (X, Y))


def test_lower_makes_a_model_of_the_graph_of_a_block():
    net = made(prefix="net_")
    model = jfit.lower(net)
    values = {n: p.data().value for n, p in net.collect_params().items()}
    assert model.inputs == ("data",)
    (out,), _ = model.apply(values, {}, {"data": X})
    np.testing.assert_allclose(out, net(mx.nd.array(X)).asnumpy(), rtol=1e-6)


def test_copies_have_their_own_values():
    net = made(prefix="net_")
    net.hybridize()
    out = net(mx.nd.array(X)).asnumpy()
    other = copy.deepcopy(net)
    other.w.set_data(mx.nd.zeros((3, 4)))
    assert np.array_equal(net(mx.nd.array(X)).asnumpy(), out)
    assert not other(mx.nd.array(X)).asnumpy().any()


@pytest.mark.parametrize("hybrid", [False, True])
def test_a_block_on_two_contexts_computes_where_its_input_is(hybrid):
    contexts = [mx.cpu(0), mx.cpu(1)]
    net = Net(prefix="net_")
    net.initialize(ctx=contexts)
    if hybrid:
        net.hybridize()
    outs = [net(mx.nd.array(X, ctx=ctx)) for ctx in contexts]
    assert [out.ctx for out in outs] == contexts
    assert np.array_equal(*(out.asnumpy() for out in outs))


def test_a_hybridized_block_compiles_once():
    net = made()
    net.hybridize()
    x = mx.nd.array(X)
    net(x).asnumpy()
    again = made(prefix=net.prefix)
    again.hybridize()
    with counters.counted() as seen:
        for each in (net, again):
            each(x).asnumpy()
    assert seen["compiles"] == 0 and seen["traces"] <= 1


def test_recorded_calls_of_blocks_compute_nothing_until_a_value_is_read():
    net = made()
    x = mx.nd.array(X, ctx=mx.cpu(1))
    net.collect_params().reset_ctx(mx.cpu(1))
    with mx.autograd.record():
        out = net(net(x)[:, :1] * x)
        assert out.ctx == mx.cpu(1) and out.shape == (64, 2) and not is_computed(out)
    out.backward()
    assert net.w.grad().asnumpy().any() and net.w.grad().ctx == mx.cpu(1)


class SquaredError(mx.gluon.HybridBlock):
    def hybrid_forward(self, F, pred, label):
        return F.mean(F.square(pred - F.reshape_like(label, pred)), axis=0, exclude=True)


def test_a_block_is_a_loss_of_fit():
    labels = np.stack([Y, 1 - Y], 1).astype("float32")
    options = OPTIONS | {"batch_size": 16}
    runs = [jfit.fit(made(prefix="net_"), (X, labels), **(options | {"loss": loss})) for loss in (SquaredError(), "mse")]
    assert runs[0].history.column("mse") == runs[1].history.column("mse")


def test_a_block_of_numpy_functions_is_not_exported(tmp_path):
    class Halves(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return F.np.concatenate([x[:, :2], F.npx.relu(x[:, 2:])], axis=1)

    block = Halves(prefix="halves_")
    block.hybridize()
    x = mx.np.array([[1.0, -2, 3, -4]])
    assert block(x).asnumpy().tolist() == [[1, -2, 3, 0]]
    with pytest.raises(NotImplementedError, match=r"halves_?\w* cannot be exported: node '\w+' is a function, an operator"):
        block.export(str(tmp_path / "halves"))
    assert not list(tmp_path.iterdir())


def test_random_arrays_beside_numpy_symbols_raise():
    class Noisy(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return x + F.np.random.uniform(size=(2,))

    block, x = Noisy(prefix="noisy_"), mx.np.array([1.0, 2.0])
    assert (block(x) >= x).all()
    block.hybridize()
    with pytest.raises(TypeError, match=r"add got arrays beside symbols; .* pass others, also random ones, as inputs"):
        block(x)


def test_a_block_with_a_custom_operator_is_exported_and_imported(tmp_path):
    class Square(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            self.assign(out_data[0], req[0], in_data[0] * in_data[0])

    @mx.operator.register("exported_square")
    class SquareProp(mx.operator.CustomOpProp):
        def create_operator(self, ctx, shapes, dtypes):
            return Square()

    class Squares(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return F.Custom(x, op_type="exported_square") + 1

    block, x = Squares(), mx.nd.array([1.0, 3.0])
    block.hybridize()
    assert block(x).asnumpy().tolist() == [2, 10]
    block.export(str(tmp_path / "squares"))
    read = mx.gluon.SymbolBlock.imports(str(tmp_path / "squares-symbol.json"), ["data"])
    assert read(x).asnumpy().tolist() == [2, 10]
