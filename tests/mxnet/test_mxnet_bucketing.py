"""BucketingModule: one compilation per bucket, buckets with fewer parameters, files, layouts."""

import numpy as np
import pytest
from refusals import refused

import jfit
from jfit.data import DataBatch
from jfit.data.ndarray_iter import DataDesc
from jfit.mxnet.module.bucketing import BucketingModule
from jfit.mxnet.module.module import Module
from jfit.mxnet.monitor.monitor import Monitor
from jfit.mxnet.optimizer.lr_scheduler import FactorScheduler

sym = jfit.sym
WORDS, BATCH = 7, 4


def sym_gen(length):
    """A recurrent network over `length` words: next word at each of them."""
    wx, wh, wy = (sym.Variable(name) for name in ("x2h_weight", "h2h_weight", "h2y_weight"))
    words = sym.Embedding(sym.Variable("data"), input_dim=WORDS, output_dim=5, name="embed")
    steps = list(sym.split(words, num_outputs=length, axis=1, squeeze_axis=True)) if length > 1 else [sym.Flatten(words)]
    hidden, found = None, []
    for step in steps:
        new = sym.FullyConnected(step, weight=wx, no_bias=True, num_hidden=6)
        if hidden is not None:
            new = new + sym.FullyConnected(hidden, weight=wh, no_bias=True, num_hidden=6)
        hidden = sym.Activation(new, act_type="tanh")
        found.append(hidden)
    out = sym.Reshape(sym.stack(*found, axis=1), shape=(-1, 6))
    scores = sym.FullyConnected(out, weight=wy, no_bias=True, num_hidden=WORDS, name="scores")
    label = sym.Reshape(sym.Variable("softmax_label"), shape=(-1,))
    return sym.SoftmaxOutput(scores, label, name="softmax"), ("data",), ("softmax_label",)


def shapes(length, rows=BATCH):
    return [("data", (rows, length))], [("softmax_label", (rows, length))]


def batch_of(length, seed=0, rows=BATCH):
    """Rows that count on from a random word."""
    first = np.random.default_rng([seed, length]).integers(0, WORDS, (rows, 1))
    words = ((first + np.arange(length + 1)) % WORDS).astype("float32")
    data, label = shapes(length, rows)
    return DataBatch([words[:, :-1]], [words[:, 1:]], 0, None, length, data, label)


class Sentences(jfit.data.DataIter):
    """Batches of changing length."""

    def __init__(self, lengths, default):
        super().__init__(BATCH)
        self.provide_data, self.provide_label = shapes(default)
        self.batches, self.at = [batch_of(n, i) for i, n in enumerate(lengths)], 0

    def reset(self):
        self.at = 0

    def next(self):
        if self.at == len(self.batches):
            raise StopIteration
        self.at += 1
        return self.batches[self.at - 1]


def ready(gen=sym_gen, default=5, optimizer="sgd", params=(("learning_rate", 0.1), ("momentum", 0.9)), values=None, **kwargs):
    module = BucketingModule(gen, default, **kwargs)
    module.bind(*shapes(default))
    module.init_params(jfit.init.Xavier(), arg_params=values, allow_missing=values is not None)
    module.init_optimizer(optimizer=optimizer, optimizer_params=params)
    return module


def step(module, batch):
    module.forward(batch, is_train=True)
    module.backward()
    module.update()


def same_params(a, b, tolerance=0.0):
    first, second = a.get_params()[0], b.get_params()[0]
    assert sorted(first) == sorted(second)
    for name in first:
        np.testing.assert_allclose(
            np.asarray(first[name]), np.asarray(second[name]), rtol=tolerance, atol=tolerance, err_msg=name
        )


# ------------------------------------------------------------------------------------------------ training
@pytest.mark.repetitions(1)
@pytest.mark.parametrize(("optimizer", "lengths"), [("sgd", [5, 2, 3, 5]), ("adam", [5, 2, 1, 3])])
def test_a_bucket_compiles_once_and_never_again(optimizer, lengths):
    module, metric = ready(optimizer=optimizer, params={"learning_rate": 0.1}), jfit.mxnet.metric.create("acc")

    def one_pass(seed):
        for length in lengths:
            batch = batch_of(length, seed)
            module.forward_backward(batch)
            module.update()
            module.update_metric(metric, batch.label)
            module.forward(batch, is_train=False)
            module.get_outputs()

    one_pass(0)
    with jfit.counters.counted() as seen:
        one_pass(1)
        one_pass(2)
    assert not seen["compiles"] and not seen["traces"] and not seen["host_syncs"], dict(seen)


def test_prepare_binds_the_next_bucket_and_returns_to_the_current_one():
    module = ready()
    step(module, batch_of(5))
    before = module.symbol
    module.prepare(batch_of(3))
    assert module.symbol is before and sorted(module._buckets) == [3, 5]
    assert module.data_shapes[0].shape == (BATCH, 5)
    assert module.get_outputs()[0].shape == (BATCH * 5, WORDS)


def test_one_scheduler_counts_the_steps_of_all_buckets():
    scheduler = FactorScheduler(step=2, factor=0.5)
    module = ready(params={"learning_rate": 1.0, "lr_scheduler": scheduler})
    for length in (5, 3, 2, 3, 5):
        step(module, batch_of(length))
    assert module._curr_module._optimizer.num_update == 5
    assert scheduler.base_lr == 0.25


def test_grad_req_add_accumulates_over_buckets():
    module = BucketingModule(sym_gen, 5)
    module.bind(*shapes(5), grad_req="add")
    module.init_params(jfit.init.Xavier())
    alone = []
    for length in (5, 3, 5):
        single = Module(sym_gen(length)[0])
        single.bind(*shapes(length))
        single.init_params(None, *module.get_params(), allow_extra=True)
        single.forward_backward(batch_of(length))
        alone.append(np.asarray(single.gradients()["h2y_weight"]))
        module.forward_backward(batch_of(length))
        found = np.asarray(module._curr_module.gradients()["h2y_weight"])
        np.testing.assert_allclose(found, sum(alone), rtol=1e-5, atol=1e-6)


def test_a_second_fit_keeps_parameters_and_update_counts(caplog):
    data = Sentences([5, 3], 5)
    module = BucketingModule(sym_gen, 5)
    module.fit(data, num_epoch=1)
    module.fit(data, num_epoch=1)
    assert module._curr_module._optimizer.num_update == 4
    module.fit(data, num_epoch=1, force_rebind=True)
    assert module._curr_module._optimizer.num_update == 6


# ------------------------------------------------------------------------------------------------ other parameters
@pytest.mark.repetitions(1)
@pytest.mark.parametrize("kvstore", ["local", None])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_parameters_missing_in_a_bucket_are_unchanged_by_it(optimizer, kvstore):
    module = ready(
        optimizer=optimizer, params={"learning_rate": 0.1}, context=[jfit.cpu(0), jfit.cpu(1)][: 2 if kvstore else 1]
    )
    module.init_optimizer(kvstore, optimizer, {"learning_rate": 0.1}, force_init=True)
    step(module, batch_of(3))
    before, _ = module.get_params()
    step(module, batch_of(1))  # one word: no h2h_weight
    assert "h2h_weight" not in module._curr_module._param_names
    after, _ = module.get_params()
    changed = {n for n in after if not np.array_equal(np.asarray(before[n]), np.asarray(after[n]))}
    assert changed == {"embed_weight", "x2h_weight", "h2y_weight"}
    step(module, batch_of(3))
    counts = module._default._optimizer.counts()
    assert sorted(set(counts.values())) == [2, 3]


def test_a_bucket_with_an_additional_parameter_raises_with_its_name():
    module = ready(default=1)
    with pytest.raises(ValueError, match=r"bucket 3 \(default bucket 1, .*: parameter 'h2h_weight' .* does not have it"):
        module.forward(batch_of(3))


def test_a_parameter_whose_shape_depends_on_the_bucket_raises_with_its_name():
    def flat(key):
        net = sym.FullyConnected(sym.Variable("data"), num_hidden=2, name="fc")
        return sym.SoftmaxOutput(net, name="softmax"), ("data",), ("softmax_label",)

    module = BucketingModule(flat, 5)
    module.bind([("data", (4, 5))], [("softmax_label", (4,))])
    module.init_params()
    with pytest.raises(ValueError, match=r"bucket 3 .*: parameter 'fc_weight' has shape \(2, 3\) here, .* \(2, 5\)"):
        module.switch_bucket(3, [("data", (4, 3))], [("softmax_label", (4,))])


# ------------------------------------------------------------------------------------------------ layouts, states, batches
def time_major(length):
    """(time, batch) inputs through the fused recurrent operator."""
    words = sym.Embedding(sym.Variable("data"), input_dim=WORDS, output_dim=4, name="embed")
    start = sym.Variable("start", shape=(1, BATCH, 5))
    weights = sym.Variable("rnn_parameters", init="uniform")
    out = sym.RNN(words, weights, start, state_size=5, num_layers=1, mode="rnn_tanh", name="rnn")
    scores = sym.FullyConnected(sym.Reshape(out, shape=(-1, 5)), num_hidden=WORDS, name="scores")
    label = sym.Reshape(sym.Variable("softmax_label"), shape=(-1,))
    return sym.SoftmaxOutput(scores, label, name="softmax"), ("data",), ("softmax_label",)


def time_major_shapes(length):
    return [DataDesc("data", (length, BATCH), layout="TN")], [DataDesc("softmax_label", (length, BATCH), layout="TN")]


def time_major_batch(length):
    batch = batch_of(length)
    data, label = time_major_shapes(length)
    return DataBatch([batch.data[0].T.copy()], [batch.label[0].T.copy()], 0, None, length, data, label)


def test_time_major_batches_train_and_share_their_states():
    module = BucketingModule(time_major, 4, state_names=["start"])
    module.bind(*time_major_shapes(4))
    module.init_params(jfit.init.Xavier())
    module.init_optimizer(optimizer_params={"learning_rate": 0.5})
    assert module._curr_module._optimizer.rescale_grad == 1 / BATCH
    module.set_states(value=0.5)
    outputs = {}
    for length in (4, 2, 4):
        step(module, time_major_batch(length))
        outputs[length] = np.asarray(module.get_outputs()[0])
        assert outputs[length].shape == (length * BATCH, WORDS)
        assert float(np.asarray(module.get_states()[0]).min()) == 0.5
    module.set_states(value=-3.0)
    module.forward(time_major_batch(2), is_train=False)
    assert float(np.asarray(module.get_states()[0]).max()) == -3.0
    assert not np.allclose(np.asarray(module.get_outputs()[0]), outputs[2])


def test_a_batch_without_bucket_key_raises():
    with pytest.raises(ValueError, match="the batch has no bucket_key"):
        ready().forward(DataBatch([np.zeros((BATCH, 5), "float32")]))


def test_names_before_and_after_binding():
    module = BucketingModule(sym_gen, 5)
    assert module.data_names == ["data"] and module.label_names == ["softmax_label"]
    assert module.output_names == ["softmax_output"]
    module.bind(*shapes(5))
    assert module.output_shapes == [("softmax_output", (BATCH * 5, WORDS))]
    assert [d.shape for d in module.label_shapes] == [(BATCH, 5)]


def test_sym_gen_is_called_once_per_key_and_automatic_names_start_at_zero():
    called = []

    def gen(key):
        called.append(key)
        net = sym.FullyConnected(sym.sum(sym.Variable("data"), axis=1, keepdims=True), num_hidden=2)
        return sym.SoftmaxOutput(net, name="softmax"), ("data",), ("softmax_label",)

    module = BucketingModule(gen, 5)
    module.bind([("data", (4, 5))], [("softmax_label", (4,))])
    module.init_params()
    for key in (3, 5, 3):
        module.switch_bucket(key, [("data", (4, key))], [("softmax_label", (4,))])
    assert called == [5, 3]
    assert module.get_params()[0].keys() == {"fullyconnected0_weight", "fullyconnected0_bias"}


test_invalid_constructor_arguments_raise = refused(
    (lambda: BucketingModule(sym_gen), AssertionError, "needs default_bucket_key"),
    (lambda: BucketingModule(sym_gen, 5, fixed_param_names=["nope"]), "nope"),
)


@pytest.mark.slow
def test_a_monitor_sees_every_bucket():
    module = ready()
    monitor = Monitor(1, pattern="softmax_output")
    module.install_monitor(monitor)
    for length in (5, 3):
        monitor.tic()
        step(module, batch_of(length))
        assert [name for _, name, _ in monitor.toc()] == ["softmax_output"]


# ------------------------------------------------------------------------------------------------ files
def test_a_checkpoint_has_mxnets_files_and_can_be_loaded(tmp_path):
    module = ready()
    for length in (5, 3):
        step(module, batch_of(length))
    prefix = str(tmp_path / "rnn")
    module.save_checkpoint(prefix, 7)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "rnn-0007.params",
        "rnn-3-symbol.json",
        "rnn-5-symbol.json",
        "rnn.buckets",
    ]
    header, record = "1201000000000000" + "00" * 8 + "01" + "00" * 7, "c9fa93f9" + "00000000" + "01000000" + "02" + "00" * 7
    keys = "01000000" + "00000000" + "04000000" + "05000000" + "03000000" + "00" * 8
    assert (tmp_path / "rnn.buckets").read_bytes().hex() == header + record + keys  # as MXNet 1.9.1 wrote it
    again = BucketingModule.load(prefix, 7, sym_gen, 5)
    again.bind(*shapes(5))
    same_params(module, again)
    for length in (3, 2, 5):  # 2 is in no file: sym_gen makes it
        module.forward(batch_of(length), is_train=False)
        again.forward(batch_of(length), is_train=False)
        np.testing.assert_array_equal(np.asarray(module.get_outputs()[0]), np.asarray(again.get_outputs()[0]))


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_resuming_with_optimizer_states_equals_continuing(tmp_path, optimizer):
    params = {"learning_rate": 0.1, **({"momentum": 0.9} if optimizer == "sgd" else {})}
    module = ready(optimizer=optimizer, params=params)
    for length in (5, 1, 3):
        step(module, batch_of(length))
    module.save_checkpoint(str(tmp_path / "rnn"), 1)
    module.save_optimizer_states(str(tmp_path / "rnn.states"))
    again = BucketingModule.load(str(tmp_path / "rnn"), 1, sym_gen, 5)
    again.fit(Sentences([], 5), num_epoch=0, optimizer=optimizer, optimizer_params=params)
    again.load_optimizer_states(str(tmp_path / "rnn.states"))
    for t, length in enumerate((3, 5, 1)):
        step(module, batch_of(length, t))
        step(again, batch_of(length, t))
    same_params(module, again)


def test_graphs_and_parameters_can_be_passed_as_dicts():
    module = ready()
    again = BucketingModule.load_dict({5: sym_gen(5)[0], 3: sym_gen(3)[0]}, sym_gen, 5, *module.get_params())
    assert sorted(again.get_params()[0]) == sorted(module.get_params()[0])
    again.bind(*shapes(5), for_training=False)
    again.forward(batch_of(3))
    module.forward(batch_of(3), is_train=False)
    np.testing.assert_array_equal(np.asarray(module.get_outputs()[0]), np.asarray(again.get_outputs()[0]))
    with pytest.raises(AssertionError, match="sym_gen is required"):
        BucketingModule.load_dict({}, None, 5, {}, {})


def test_unsupported_bucket_keys_raise_before_a_file_is_written(tmp_path):
    module = BucketingModule(lambda key: sym_gen(key[0]), (5, 1))
    module.bind(*shapes(5))
    module.init_params()
    with pytest.raises(ValueError, match=r"bucket key \(5, 1\) is not an integer"):
        module.save_checkpoint(str(tmp_path / "rnn"), 1)
    assert not list(tmp_path.iterdir())


def test_a_damaged_list_of_buckets_raises(tmp_path):
    module = ready()
    module.save_checkpoint(str(tmp_path / "rnn"), 1)
    jfit.formats.mxnet_arrays.save_arrays(tmp_path / "rnn.buckets", {"keys": np.zeros(2, "int32")})
    with pytest.raises(ValueError, match=r"rnn.buckets.*integer bucket keys"):
        BucketingModule.load(str(tmp_path / "rnn"), 1, sym_gen, 5)
