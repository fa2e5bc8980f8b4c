"""Recurrent cells: graphs, values and packed weights equal to MXNet's; errors; a language model over buckets."""

import json
from pathlib import Path

import numpy as np
import pytest
from cases.rnn_cells import CASES, NUMBERS, PACKED, batches, expanded, graph, named, numbers, packing, trained

import jfit.mx as mx
from jfit import counters

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "rnn_cells.json").read_text())


@pytest.mark.parametrize("name", CASES)
def test_the_graph_equals_mxnets_node_by_node(name):
    found, wanted = graph(named(mx, CASES[name])), expanded(GOLDEN, name)
    for have, want in zip(found["nodes"], wanted["nodes"], strict=True):
        assert have == want
    assert found["heads"] == wanted["heads"]


SLOW = {
    *("fused_gru_both", "fused_rnn_relu_both", "fused_rnn_tanh_both", "unfused_gru_both"),
    *("residual_stack", "bidirectional_True", "ConvRNN", "ConvLSTM"),
}


@pytest.mark.repetitions(2)
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in NUMBERS])
def test_outputs_and_gradients_are_those_of_mxnet(name):
    found, wanted = numbers(mx, named(mx, CASES[name]), NUMBERS[name]), GOLDEN["numbers"][name]
    for have, want in zip(found["outputs"], wanted["outputs"], strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)
    assert found["grads"].keys() == wanted["grads"].keys()
    for key, want in wanted["grads"].items():
        np.testing.assert_allclose(found["grads"][key], want, rtol=1e-4, atol=1e-5, err_msg=key)


@pytest.mark.parametrize("name", PACKED)
def test_weights_are_packed_and_unpacked_as_in_mxnet(name):
    assert packing(mx, *PACKED[name]) == GOLDEN["packing"][name]


# ------------------------------------------------------------------------------------------------ weights and files
def evaluated(symbol, args, **inputs):
    arrays = {k: mx.nd.array(v) for k, v in {**args, **inputs}.items() if k in symbol.list_arguments()}
    return [o.asnumpy() for o in symbol.bind(mx.cpu(), arrays).forward()]


def test_weights_of_wrong_size_or_name_raise():
    cell = mx.rnn.FusedRNNCell(3, prefix="f_")
    with pytest.raises(KeyError, match="f_parameters"):
        cell.unpack_weights({})
    with pytest.raises(ValueError, match=r"f_parameters has 71 values, which no input size .* mode lstm"):
        cell.unpack_weights({"f_parameters": mx.nd.zeros(71)})
    with pytest.raises(KeyError, match="f_l0_i2h_i_weight"):
        cell.pack_weights({})
    with pytest.raises(KeyError, match="lstm_i2h_weight"):
        mx.rnn.LSTMCell(3).unpack_weights({"lstm_h2h_weight": mx.nd.zeros((12, 3))})
    with pytest.raises(ValueError, match="mode is 'elman'; expected one of 'rnn_relu'"):
        mx.rnn.FusedRNNCell(3, mode="elman")


def test_checkpoints_store_weights_per_gate_and_load_into_other_cells(tmp_path):
    cell = mx.rnn.FusedRNNCell(2, num_layers=1, mode="lstm")
    net = cell.unroll(2, mx.sym.Variable("data"), merge_outputs=True)[0]
    size = net.infer_shape(data=(1, 2, 3))[0][1]
    args = {"lstm_parameters": mx.nd.arange(size[0]), "w": mx.nd.ones(1)}
    prefix = str(tmp_path / "net")
    save = mx.rnn.do_rnn_checkpoint(cell, prefix, period=2)
    save(0, net, args, {})
    assert not list(tmp_path.iterdir())
    save(1, net, args, {})
    assert "lstm_l0_i2h_f_bias" in mx.model.load_checkpoint(prefix, 2)[1]
    symbol, loaded, aux = mx.rnn.load_rnn_checkpoint([cell], prefix, 2)
    assert symbol.tojson() == net.tojson() and aux == {} and loaded.keys() == args.keys()
    np.testing.assert_array_equal(loaded["lstm_parameters"].asnumpy(), args["lstm_parameters"].asnumpy())
    assert mx.rnn.load_rnn_checkpoint(cell.unfuse(), prefix, 2)[1]["lstm_l0_h2h_weight"].shape == (8, 2)


# ------------------------------------------------------------------------------------------------ what cells refuse
def test_unsupported_use_of_a_cell_raises():
    data, lstm = mx.sym.Variable("data"), mx.rnn.LSTMCell(3)
    both = mx.rnn.BidirectionalCell(mx.rnn.RNNCell(2, prefix="l_"), mx.rnn.RNNCell(2, prefix="r_"))
    for cell in (both, mx.rnn.FusedRNNCell(3)):
        with pytest.raises(NotImplementedError, match="has no single time step; call unroll"):
            cell(data, [])
        with pytest.raises(ValueError, match="zoneout works step by step"):
            mx.rnn.ZoneoutCell(cell, 0.5)
    with pytest.raises(ValueError, match="inputs has 1 steps, length is 2"):
        lstm.unroll(2, [data])
    with pytest.raises(ValueError, match="layout is 'NC', expected one with a T"):
        lstm.unroll(2, data, layout="NC")
    with pytest.raises(ValueError, match="a fused cell accepts TNC or NTC"):
        mx.rnn.FusedRNNCell(3).unroll(2, data, layout="NCT")
    with pytest.raises(mx.MXNetError, match="a symbol with 2 outputs; pass one"):
        lstm.unroll(2, mx.sym.Group([data, data]))
    with pytest.raises(ValueError, match="found 3 states, the 2 cells have 4"):
        stack = mx.rnn.SequentialRNNCell()
        stack.add(mx.rnn.LSTMCell(2, prefix="a_"))
        stack.add(mx.rnn.LSTMCell(2, prefix="b_"))
        stack(data, lstm.begin_state() + lstm.begin_state()[:1])
    with pytest.raises(ValueError, match=r"h2h_kernel is \(2, 3\); only odd sizes"):
        mx.rnn.ConvRNNCell((1, 1, 4, 4), 2, h2h_kernel=(2, 3))
    with pytest.raises(NotImplementedError, match="does not implement state_info"):
        mx.rnn.BaseRNNCell().begin_state()


def test_a_wrapped_cell_can_only_be_called_through_its_modifier():
    cell = mx.rnn.RNNCell(3)
    around = mx.rnn.ResidualCell(cell)
    with pytest.raises(ValueError, match=r"inside a modifier cell, .* call the modifier"):
        cell.begin_state()
    assert around.begin_state(func=mx.sym.Variable)[0].name == "rnn_begin_state_0"
    assert around.state_shape == [(0, 3)] and around.params is cell.params
    arrays = {"rnn_i2h_weight": mx.nd.ones((3, 3)), "rnn_i2h_bias": mx.nd.ones(3)}
    arrays |= {"rnn_h2h_weight": mx.nd.ones((3, 3)), "rnn_h2h_bias": mx.nd.ones(3)}
    assert around.pack_weights(around.unpack_weights(arrays)).keys() == arrays.keys()


def test_shared_weights_belong_to_the_composite_cell_or_to_its_children():
    params = mx.rnn.RNNParams("all_")
    shared = mx.rnn.SequentialRNNCell(params=params)
    part = mx.rnn.RNNCell(3, prefix="a_")
    shared.add(part)
    assert set(shared.params._params) == {"a_i2h_weight", "a_i2h_bias", "a_h2h_weight", "a_h2h_bias"}
    with pytest.raises(ValueError, match="both this cell and its child were created with params="):
        shared.add(mx.rnn.RNNCell(3, prefix="b_", params=params))


def test_zoneout_is_the_identity_in_evaluation_and_keeps_previous_values_in_training():
    def net(cell):
        return cell.unroll(2, mx.sym.Variable("data"), merge_outputs=True)[0]

    plain, zoned = net(mx.rnn.RNNCell(50)), net(mx.rnn.ZoneoutCell(mx.rnn.RNNCell(50), zoneout_outputs=0.5))
    draw = np.random.default_rng(0)
    shapes = dict(zip(plain.list_arguments(), plain.infer_shape(data=(4, 2, 3))[0], strict=True))
    args = {n: draw.normal(size=s) for n, s in shapes.items()}
    np.testing.assert_array_equal(evaluated(zoned, args)[0], evaluated(plain, args)[0])
    bound = zoned.bind(mx.cpu(), {n: mx.nd.array(a) for n, a in args.items()})
    first = bound.forward(is_train=True)[0].asnumpy()[:, 0]
    kept = first == 0
    assert 0.3 < kept.mean() < 0.7
    np.testing.assert_allclose(first[~kept], evaluated(plain, args)[0][:, 0][~kept], rtol=1e-5)


def test_rnn_unroll_is_deprecated():
    with pytest.warns(UserWarning, match="rnn_unroll is deprecated; call cell.unroll"):
        outputs, _ = mx.rnn.rnn_unroll(mx.rnn.RNNCell(3), 2, mx.sym.Variable("data"))
    assert len(outputs) == 2


# ------------------------------------------------------------------------------------------------ sentences
@pytest.mark.parametrize("layout", ["NT", "TN"])
def test_batches_of_sentences_are_those_of_mxnet_for_the_same_seeds(layout):
    assert batches(mx, layout) == GOLDEN["batches"][layout]


def test_sentences_that_fit_no_bucket_raise_or_are_dropped(capsys):
    mx.rnn.BucketSentenceIter([[1, 2], [1, 2, 3]], 1, buckets=[2])
    assert "discarded 1 sentences longer than the largest bucket" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"no bucket has a sentence: buckets are \[1\], sentences have up to 3 words"):
        mx.rnn.BucketSentenceIter([[1, 2], [1, 2, 3]], 1, buckets=[1])
    with pytest.raises(ValueError, match="layout is 'NTC'; expected one of 'NT'"):
        mx.rnn.BucketSentenceIter([[1, 2]], 1, layout="NTC")


def test_words_are_encoded_as_integers():
    coded, vocab = mx.rnn.encode_sentences([["a", "b"], ["b", "c", "a"]], start_label=1, invalid_label=0)
    assert coded == [[1, 2], [2, 3, 1]] and vocab == {"\n": 0, "a": 1, "b": 2, "c": 3}
    with pytest.raises(ValueError, match="the word 'z' is not in the vocabulary"):
        mx.rnn.encode_sentences([["z"]], vocab=dict(vocab))
    # one number for all unknown words, which no other word has
    coded, grown = mx.rnn.encode_sentences([["z", "a", "y"]], vocab=dict(vocab), unknown_token="?", start_label=1)
    assert coded == [[4, 1, 4]] and grown["?"] == 4


@pytest.mark.slow
def test_a_language_model_over_buckets_trains_as_in_mxnet():
    found, wanted = trained(mx), GOLDEN["trained"]
    np.testing.assert_allclose(found["score"]["perplexity"], wanted["score"]["perplexity"], rtol=1e-4)
    assert found["args"].keys() == wanted["args"].keys()
    for name, want in wanted["args"].items():
        np.testing.assert_allclose(found["args"][name], want, rtol=1e-4, atol=1e-5, err_msg=name)


def test_cells_start_with_their_forget_bias():
    images = mx.rnn.ConvLSTMCell((1, 1, 4, 4), 2, h2h_bias_initializer="ones", prefix="c_")
    outputs, _ = images.unroll(1, mx.sym.Variable("data"), layout="NTCHW", merge_outputs=True)
    words, _ = mx.rnn.LSTMCell(2, forget_bias=3.0, prefix="l_").unroll(1, mx.sym.Flatten(outputs).reshape((0, 1, -1)))
    module = mx.mod.Module(mx.sym.SoftmaxOutput(words[0], name="softmax"), context=mx.cpu())
    module.bind([("data", (2, 1, 1, 4, 4))], [("softmax_label", (2,))])
    module.init_params(mx.init.Uniform())
    args = {n: a.asnumpy() for n, a in module.get_params()[0].items()}
    assert (args["c_i2h_bias"] == 0).all() and (args["c_h2h_bias"] == 1).all()
    assert args["l_i2h_bias"].tolist() == [0, 0, 3, 3, 0, 0, 0, 0]


@pytest.mark.parametrize("layout", ["NT", "TN"])
def test_batches_of_buckets_compile_nothing(layout):
    sentences = [[1] * n for n in (5, 7, 9) for _ in range(4)]
    with counters.counted() as counts:
        data = mx.rnn.BucketSentenceIter(sentences, 2, buckets=[5, 7, 9], invalid_label=0, layout=layout)
        shapes = sorted(batch.data[0].shape for batch in data)
    assert shapes == sorted((2, n) if layout == "NT" else (n, 2) for n in (5, 7, 9) for _ in range(2))
    assert counts["compiles"] == 0


def test_batches_of_buckets_are_those_of_nddata_that_a_subclass_or_the_user_sets():
    class Reversed(mx.rnn.BucketSentenceIter):
        def reset(self):  # as in MXNet: a subclass fills the lists
            self.curr_idx = 0
            self.nddata = [mx.nd.array(rows[::-1].copy()) for rows in self.data]
            self.ndlabel = [array + 10 for array in self.nddata]

    data = Reversed([[1, 2, 3], [4, 5, 6], [7, 8, 9], [2, 4, 6]], 2, buckets=[3], invalid_label=0)
    first = next(data)
    assert first.data[0].asnumpy().tolist() == [[2, 4, 6], [7, 8, 9]]
    assert first.label[0].asnumpy().tolist() == [[12, 14, 16], [17, 18, 19]]
    data.nddata[0][:] = 5
    assert next(data).data[0].asnumpy().tolist() == [[5, 5, 5], [5, 5, 5]]
