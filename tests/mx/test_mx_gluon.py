"""`mx.gluon.Trainer` reproduces MXNet's recorded trainings; gradients come from executors bound to the parameters."""

import re

import numpy as np
import pytest
from golden_mx import arrays_of, assert_close, host, manifest, under

import jfit.mx as mx

CASES = manifest("train", "gluon", "manifest.json")


def parameters(case, arrays, contexts):
    """A ParameterDict with the recorded first values on every context."""
    found = mx.gluon.ParameterDict("")
    for name, value in under(arrays, "init/").items():
        parameter = found.get(name, shape=value.shape, grad_req="write" if name in case["trainable"] else "null")
        parameter.initialize(init=mx.init.Zero(), ctx=contexts)
        parameter.set_data(mx.nd.array(value))
        for pattern, (rate, decay) in (case["mults"] or {}).items():
            if re.match(pattern, name):
                parameter.lr_mult, parameter.wd_mult = rate, decay
    return found


class Replica:
    """The loss network bound to the parameters on one context."""

    def __init__(self, symbol, params, context, x, y):
        weights = [name for name in symbol.list_arguments() if name not in ("data", "label")]
        arguments = {name: params[name].data(context) for name in weights} | {"data": x.copy(), "label": y.copy()}
        self.gradients = {name: params[name].grad(context) for name in weights}
        self.data = [params[name].data(context) for name in weights]
        aux = {name: params[name].data(context) for name in symbol.list_auxiliary_states()}
        requests = {name: "write" if name in weights else "null" for name in arguments}
        self.executor = symbol.bind(context, arguments, args_grad=self.gradients, grad_req=requests, aux_states=aux)

    def step(self, x, y):
        loss = self.executor.forward(is_train=True, data=x, label=y)[0]
        self.executor.backward([mx.nd.ones(loss.shape)])
        for array in self.data:
            array._fresh_grad = True  # as a backward pass of autograd does
        return loss


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_recorded_training_is_reproduced(case):
    arrays = arrays_of(*case["file"].split("/"))
    contexts = [mx.cpu(i) for i in range(case["n_ctx"])]
    params, symbol = parameters(case, arrays, contexts), mx.sym.load_json(case["loss_symbol_json"])
    rates = dict(case["optimizer_params"])
    if case["lr_scheduler"]:
        rates["lr_scheduler"] = getattr(mx.lr_scheduler, case["lr_scheduler"]["class"])(**case["lr_scheduler"]["kwargs"])
    on_store = case["update_on_kvstore"] if case["n_ctx"] > 1 else None
    trainer = mx.gluon.Trainer(params, case["optimizer"], rates, kvstore=case["kvstore"], update_on_kvstore=on_store)
    replicas = []
    for t in range(case["n_steps"]):
        parts = [mx.gluon.utils.split_data(mx.nd.array(arrays[k][t]), len(contexts), even_split=False) for k in "XY"]
        if not replicas:
            replicas = [Replica(symbol, params, *each) for each in zip(contexts, *parts, strict=True)]
        losses = [replica.step(x, y) for replica, x, y in zip(replicas, *parts, strict=True)]
        close = 1e-4 if t == 0 else 1e-3
        assert_close(f"loss[{t}]", np.concatenate([host(loss) for loss in losses]), arrays["loss"][t], close, 1e-2)
        trainer.step(case["step_batch_size"])
        recorded = t + 1 in (1, 5, 20)
        for name, want in under(arrays, f"step{t + 1}/").items() if recorded else ():
            assert_close(f"step {t + 1} {name}", params[name].data(contexts[0]), want, close, 1e-2)
    assert (trainer._kvstore is None) == case["kvstore_is_none"]
