"""Rules for the reduction of gradients in Module, Trainer and KVStore: reduce="ordered", compression to 2 bits and bfloat16."""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfit
from jfit import mx, sym
from jfit.mxnet.errors import MXNetError
from jfit.mxnet.gluon.tree import PytreeParams
from jfit.mxnet.kvstore import KVStore, create
from jfit.step import reduce as rules
from jfit.step.reduce import ordered

ROWS = 8


def net():
    hidden = sym.Activation(sym.FullyConnected(sym.Variable("data"), num_hidden=6, name="fc1"), act_type="relu")
    hidden = sym.BatchNorm(sym.Dropout(hidden, p=0.3, name="drop"), fix_gamma=False, name="bn")
    return sym.SoftmaxOutput(sym.FullyConnected(hidden, num_hidden=3, name="fc2"), name="softmax")


def data(rows=3 * ROWS, batch_size=ROWS):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(rows, 5)).astype("float32"), rng.integers(0, 3, rows).astype("float32")
    return jfit.NDArrayIter(x, y, batch_size=batch_size)


def start(optimizer="sgd", rows=ROWS):
    batch = {"data": np.zeros((rows, 5), "float32"), "softmax_label": np.zeros(rows, "float32")}
    return jfit.init_state(jfit.lower(net()), optimizer, batch, seed=7, learning_rate=0.05)


def ready(contexts, store=None, optimizer="adam", rows=ROWS, **options):
    module = jfit.Module(net(), context=[jfit.cpu(i) for i in range(contexts)], **options)
    module.bind(data(batch_size=rows).provide_data, data(batch_size=rows).provide_label)
    state = start(rows=rows)
    module.init_params(arg_params=state.params, aux_params=state.aux)
    old = module.parameters.state
    module.parameters.state = old._replace(key=jax.device_put(state.key, old.key.sharding))
    module.init_optimizer(KVStore("device", ordered(4)) if store is None else store, optimizer, {"learning_rate": 0.05})
    return module


def digest(state):
    result = hashlib.sha256()
    for leaf in jax.tree.leaves((state.step, state.params, state.aux, state.opt_state)):
        result.update(np.asarray(leaf).tobytes())
    return result.hexdigest()


def fitted(module, callback=True):
    values, rows = [], module.binding.rows
    log = lambda param: values.append(dict(param.eval_metric.get_name_value()))  # noqa: E731
    module.fit(data(batch_size=rows), num_epoch=1, batch_end_callback=log if callback else None)
    return digest(module.parameters.state), values


def of_data_parallel(optimizer, rule, devices, rows=ROWS):
    step = jfit.data_parallel(jfit.train_step(jfit.lower(net()), optimizer), devices, reduce=rule)
    state = step.place(start(optimizer, rows))
    for batch in data(batch_size=rows):
        state, _ = step(state, {"data": np.asarray(batch.data[0]), "softmax_label": np.asarray(batch.label[0])})
    return state


def assert_same(one, other):
    for a, b in ((one.params, other.params), (one.aux, other.aux), (one.opt_state.slots, other.opt_state.slots)):
        jax.tree.map(np.testing.assert_array_equal, dict(a), dict(b))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [ROWS, pytest.param(6, marks=pytest.mark.slow)])  # 6 rows are padded to 4 slices of 2 rows
def test_fit_has_the_same_bits_on_any_number_of_contexts_and_as_data_parallel(rows):
    modules = {n: ready(n, rows=rows) for n in (1, 2)}
    results = {n: fitted(module, callback=n == 1) for n, module in modules.items()}  # without callbacks: one program an epoch
    assert results[1][0] == results[2][0] and len(results[1][1]) == 24 // rows
    assert_same(of_data_parallel("adam", ordered(4), 1, rows), modules[2].parameters.state)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["nadam", "lamb"])
def test_four_contexts_and_fit_have_the_same_bits(optimizer):
    modules = [ready(n, optimizer=optimizer) for n in (1, 4)]
    assert fitted(modules[0]) == fitted(modules[1])


@pytest.mark.slow
def test_a_module_continues_on_another_number_of_contexts_with_the_same_bits(tmp_path):
    whole, first, second = ready(1), ready(4), ready(2)
    for module in (whole, whole, first):
        fitted(module)
    first.save_optimizer_states(str(tmp_path / "states"))
    second.set_params(*first.get_params())
    second.load_optimizer_states(str(tmp_path / "states"))
    old = second.parameters.state
    second.parameters.state = old._replace(key=jax.device_put(np.asarray(first.parameters.state.key), old.key.sharding))
    fitted(second)
    jax.tree.map(np.testing.assert_array_equal, second.get_params(), whole.get_params())


def test_uses_that_cannot_be_ordered_raise_errors():
    module, batch = ready(2), next(iter(data()))
    module.forward_backward(batch)
    with pytest.raises(NotImplementedError, match=r"gradients are needed without update.* call forward_backward"):
        module.gradients()
    module.forward(batch, is_train=True)
    with pytest.raises(NotImplementedError, match="outputs or gradients are needed without update"):
        module.get_outputs()
    with pytest.raises(NotImplementedError, match="cannot be part of one step"):
        module.update()
    module.set_params(*module.get_params())  # drops the training pass
    module.forward(batch, is_train=False)
    assert module.get_outputs()[0].shape == (ROWS, 3)
    monitored = ready(2)
    monitored.install_monitor(mx.monitor.Monitor(1))
    monitored._monitor.tic()
    with pytest.raises(NotImplementedError, match="needed without update"):
        monitored.forward(batch, is_train=True)
    for rule, words in (("sharded", "use jfit.fit"), (rules.unreduced(), "use kvstore=None")):
        with pytest.raises(ValueError, match=words):
            KVStore("device", rule)
    with pytest.raises(ValueError, match="leave one of them out"):
        ready(2, compression_params={"type": "2bit"})
    with pytest.raises(ValueError, match="leave one of them out"):
        KVStore("device", "ordered").set_gradient_compression({"type": "2bit"})


def test_a_user_defined_optimizer_cannot_be_ordered():
    class Mine(jfit.mxnet.optimizer.Optimizer):
        def update(self, index, weight, grad, state):
            weight[:] = weight.value - grad.value

    with pytest.raises(NotImplementedError, match="a user-defined optimizer class updates parameters on the host"), \
            pytest.warns(UserWarning, match="rescale_grad"):  # fmt: skip
        ready(2, optimizer=Mine())


@pytest.mark.slow
def test_outputs_after_an_ordered_step_are_those_of_the_whole_batch():
    module, batch = ready(2, rows=6), next(iter(data(batch_size=6)))
    module.forward_backward(batch)
    module.update()
    (outputs,) = module.get_outputs()
    assert outputs.shape == (6, 3) and np.allclose(np.asarray(outputs).sum(axis=1), 1)
    with pytest.raises(NotImplementedError, match="needed without update"):
        module.gradients()


def test_compression_of_a_module_is_the_rule_of_data_parallel():
    module = ready(2, store="device", optimizer="sgd", compression_params={"type": "bfloat16"})
    assert module.parameters.reduce is rules.get("bfloat16")
    store = KVStore("device")
    store.set_gradient_compression({"type": "2bit"})
    assert ready(2, store=store).parameters.reduce is rules.two_bit(0.5)


def test_compressed_pushes_have_the_numbers_of_the_rules():
    rng, rule = np.random.default_rng(0), rules.two_bit()
    pushes = [[rng.normal(size=(3, 4)).astype("float32") for _ in range(2)] for _ in range(3)]
    store = create("device")
    store.set_gradient_compression({"type": "2bit"})
    store.init("w", np.zeros((3, 4), "float32"))
    residuals = [rule.init({"w": jnp.zeros((3, 4))})] * 2
    for push in pushes:
        store.push("w", push)
        sent = []
        for i, gradient in enumerate(push):
            result, _, residuals[i] = rule.apply({"w": jnp.asarray(gradient)}, (), residuals[i], None)
            sent.append(result["w"])
        np.testing.assert_allclose(store.pull("w"), sent[0] + sent[1], rtol=1e-6)
    store = create("device")
    store.set_gradient_compression({"type": "bfloat16"})
    store.init("w", np.zeros(1, "float32"))
    store.push("w", [np.float32([1 + 2**-12]), np.float32([2**-12])])
    assert store.pull("w").tolist() == [1 + 2**-12]  # the first was rounded to 1, the sum was not
    tree = PytreeParams({"w": jnp.zeros(2)}, {"type": "2bit"})
    assert tree.sum_over_devices([{"w": jnp.array([0.75, -0.25])}])["w"].tolist() == [0.5, 0.0]


def test_a_store_with_a_rule_is_for_modules():
    store = mx.kv.create("device", reduce="ordered")
    assert store.reduce is rules.ordered() and KVStore().reduce is None
    store.init("w", mx.nd.zeros(2))
    with pytest.raises(NotImplementedError, match="push sums the gradients of each parameter"):
        store.push("w", mx.nd.ones(2))
    plain = KVStore("device", "psum")
    plain.init("w", np.zeros(1, "float32"))
    plain.push("w", np.ones(1, "float32"))
    parameter = jfit.mxnet.gluon.parameter.Parameter("w", shape=(2,))
    parameter.initialize(ctx=[jfit.cpu(0), jfit.cpu(1)])
    trainer = jfit.Trainer([parameter], "sgd", kvstore=KVStore("device", "ordered"))
    with pytest.raises(NotImplementedError, match="a Trainer sums the gradients"):
        trainer.step(1, ignore_stale_grad=True)
    with pytest.raises(MXNetError, match="the supported types are"):
        create("device").set_gradient_compression({"type": "8bit"})


# ------------------------------------------------------------------------------------------------ other classes
def bucketed(contexts, store):
    """Parameters and outputs after batches of two buckets."""

    def sym_gen(length):
        hidden = sym.sum(sym.Variable("data"), axis=1, keepdims=True)
        hidden = sym.Dropout(sym.FullyConnected(hidden, num_hidden=4, name="fc1"), p=0.3, name=f"drop{length}")
        out = hidden if length == 3 else sym.FullyConnected(hidden, num_hidden=4, name="fc2")  # fewer parameters
        return sym.SoftmaxOutput(out, name="softmax"), ("data",), ("softmax_label",)

    module = jfit.BucketingModule(sym_gen, default_bucket_key=5, context=[jfit.cpu(i) for i in range(contexts)])
    module.bind([("data", (ROWS, 5))], [("softmax_label", (ROWS,))])
    module.init_params(jfit.init.Xavier())
    module.init_optimizer(store, "adam")
    outputs = []
    for key in (5, 3, 3, 5):
        values = np.linspace(0, 1, ROWS * key, dtype="float32").reshape(ROWS, key)
        labels = np.resize([0.0, 1.0], ROWS)
        shapes = {"provide_data": [("data", (ROWS, key))], "provide_label": [("softmax_label", (ROWS,))]}
        module.forward_backward(jfit.data.DataBatch([values], [labels], bucket_key=key, **shapes))
        module.update()
        outputs.append(np.asarray(module.get_outputs()[0]))
    return module.get_params(), outputs


def by_feedforward(contexts, store):
    model = jfit.FeedForward(net(), ctx=[jfit.cpu(i) for i in range(contexts)], num_epoch=2, optimizer="adam")
    model.fit(data(rows=20), kvstore=store)
    return model.arg_params, model.aux_params


def chain(contexts, store, count=2):
    result = jfit.SequentialModule()
    places = {"context": [jfit.cpu(i) for i in range(contexts)]}
    if count == 2:
        first = sym.FullyConnected(sym.Variable("data"), num_hidden=5, name="fc0")
        result.add(jfit.Module(first, label_names=None, **places))
    result.add(jfit.Module(net(), **places), take_labels=True, auto_wiring=True)
    result.fit(data(), num_epoch=1, kvstore=store, optimizer="adam", initializer=jfit.init.Xavier())
    return result.get_params()


@pytest.mark.parametrize(
    "train",
    [
        pytest.param(bucketed, marks=pytest.mark.slow),
        pytest.param(by_feedforward, marks=pytest.mark.slow),
        lambda *args: chain(*args, count=1),
    ],
    ids=["buckets", "FeedForward", "chain of one"],
)
def test_buckets_feedforward_and_a_chain_of_one_module_have_the_same_bits_on_any_number_of_contexts(train):
    results = []
    for contexts in (1, 2):
        jfit.mx.random.seed(4)
        results.append(train(contexts, KVStore("device", ordered(2))))
    jax.tree.map(np.testing.assert_array_equal, *results)


def test_a_chain_of_modules_cannot_be_ordered():
    with pytest.raises(NotImplementedError, match="the modules of a SequentialModule pass outputs and gradients"):
        chain(2, KVStore("device", "ordered"))
