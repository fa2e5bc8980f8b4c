"""Regression tests for defects and doubts that reviews of the code raised."""

import numpy as np
import pytest
from fit_support import blobs, mlp, same, train

import jfit
from jfit import sym


def test_a_stream_that_reuses_one_buffer_trains_on_the_right_rows():
    x, y = blobs(40)

    def refilled():
        buffer = np.empty((8, *x.shape[1:]), "float32")
        for low in range(0, 40, 8):
            buffer[:] = x[low : low + 8]
            yield buffer, y[low : low + 8]

    def fresh():
        for low in range(0, 40, 8):
            yield x[low : low + 8].copy(), y[low : low + 8]

    assert same(train(data=refilled), train(data=fresh))


def test_saving_a_run_into_a_checkpoint_folder_deletes_no_checkpoint(tmp_path):
    train(num_epoch=3, checkpoint=tmp_path)  # 7 steps an epoch
    before = {p.name for p in tmp_path.iterdir()}
    assert len(before) == 3, "as many as training keeps"
    train(num_epoch=4).save(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == before | {"step-00000028"}


def test_resuming_in_the_middle_of_an_epoch_needs_the_same_batch_size(tmp_path):
    stop = jfit.callbacks.lambda_callback(every=2, step=lambda event: event.run.stop())
    train(num_epoch=1, checkpoint=tmp_path, batch_size=8, callbacks=[stop])
    with pytest.raises(ValueError, match=r"middle of an epoch of batches of 8 rows, but this run has batch_size=16"):
        train(num_epoch=2, checkpoint=tmp_path, resume=True, batch_size=16)


def test_a_learning_rate_passed_by_the_user_is_not_donated():
    rate = jfit.optim.cosine(10)(1)
    state = jfit.init_state(
        jfit.lower(mlp()), "sgd", dict(zip(("data", "softmax_label"), blobs(8), strict=True)), learning_rate=rate
    )
    assert state.base_lr is not rate and state.base_lr.unsafe_buffer_pointer() != rate.unsafe_buffer_pointer()


def test_a_positional_none_before_another_input_raises():
    with pytest.raises(ValueError, match="got None before another input"):
        sym.FullyConnected(sym.Variable("x"), None, sym.Variable("b"), num_hidden=2)


def test_unsupported_multipliers_of_an_optimizer_raise():
    weight = sym.Variable("fc_weight", lr_mult=0.0)
    net = sym.SoftmaxOutput(sym.FullyConnected(sym.Variable("data"), weight, num_hidden=3, name="fc"), name="softmax")
    with pytest.warns(UserWarning, match="lr_mult attributes of fc_weight are ignored: only jfit optimizers"):
        train(net, optimizer="lion", optimizer_params={})
