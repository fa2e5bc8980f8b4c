"""`mx.mod.BucketingModule` reproduces MXNet's recorded training over three buckets."""

import pytest
from golden_mx import arrays_of, assert_close, manifest, under

import jfit.mx as mx

CASE = manifest("train", "bucketing", "manifest.json")
ARRAYS = arrays_of("train", "bucketing", "bucket.npz")


def symbol_of(key):
    return mx.sym.load_json(CASE["symbols"][str(key)]), ("data",), ("softmax_label",)


def ready():
    module = mx.mod.BucketingModule(symbol_of, default_bucket_key=CASE["default_bucket_key"])
    shape = (CASE["batch_size"], CASE["default_bucket_key"])
    module.bind([("data", shape)], [("softmax_label", shape)])
    first = {name: mx.nd.array(value) for name, value in under(ARRAYS, "init/").items()}
    module.init_params(mx.init.Zero(), arg_params=first, aux_params={})
    module.init_optimizer(optimizer=CASE["optimizer"], optimizer_params=CASE["optimizer_params"])
    return module


def batch(t, key):
    shape = (CASE["batch_size"], key)
    return mx.io.DataBatch(
        [mx.nd.array(ARRAYS[f"x{t}"])],
        [mx.nd.array(ARRAYS[f"y{t}"])],
        bucket_key=key,
        provide_data=[mx.io.DataDesc("data", shape)],
        provide_label=[mx.io.DataDesc("softmax_label", shape)],
    )


def train(look):
    module = ready()
    for t, key in enumerate(CASE["keys"]):
        module.forward(batch(t, key), is_train=True)
        if look:
            assert_close(f"out{t}", module.get_outputs()[0], ARRAYS[f"out{t}"])
        module.backward()
        module.update()
        assert_close(f"out{t}", module.get_outputs()[0], ARRAYS[f"out{t}"])
    assert module._curr_module._optimizer.rescale_grad == CASE["rescale_grad"]
    final = under(ARRAYS, "final/")
    params, _ = module.get_params()
    assert set(params) == set(final)
    for name, want in final.items():
        assert_close(name, params[name], want)


def test_a_recorded_training_over_buckets_is_reproduced():
    train(look=True)


@pytest.mark.slow
def test_a_recorded_training_is_reproduced_with_one_program_per_step():
    train(look=False)
