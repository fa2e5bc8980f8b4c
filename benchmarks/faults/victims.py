"""Small training scripts, as users write them, which the benchmark interrupts: `fit`, Module, FeedForward and own loops.

A script trains `EPOCHS` epochs of `BATCHES` batches in a folder, in which it saves; called again with resume=True, it continues
from what it finds there.  It returns a digest of the final state: equal digests mean the same bits.
"""

from __future__ import annotations

import hashlib
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import jfit
from jfit.callbacks import lambda_callback

ROWS, SIZE, EPOCHS = 40, 8, 3
BATCHES = ROWS // SIZE
STEPS = EPOCHS * BATCHES
X = np.random.default_rng(0).normal(size=(ROWS, 6)).astype("float32")
Y = (X[:, 0] > 0).astype("float32")
SGD = {"learning_rate": 0.1, "momentum": 0.9}


class Victim(NamedTuple):
    """A script.

    Attributes:
        train: `train(folder, resume) -> digest`, raises SystemExit or KeyboardInterrupt as the script would.
        go_on: continues after Ctrl-C in the same process with what the script left in `Left`; returns the digest, or None if
            the script was interrupted before there was anything to continue.
        tidies: whether saving removes temporary files that killed processes left.
    """

    train: Callable[[Path, bool], str]
    go_on: Callable[[], str | None]
    tidies: bool


class Left:
    """What an interrupted script left in this process: its run or module, and how often callbacks were opened and closed."""

    run: Any = None
    module: Any = None
    opened = closed = 0

    @classmethod
    def clear(cls) -> None:
        cls.run = cls.module = None
        cls.opened = cls.closed = 0


class Interrupted(Exception):
    """`fit` returned early, after Ctrl-C."""


# ------------------------------------------------------------------------------------------------ networks, digests
def network(dropout: float = 0.0) -> Any:
    """An MLP 6-5-2 with softmax."""
    net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=5, name="fc1")
    net = jfit.sym.Activation(net, act_type="relu", name="relu")
    if dropout:
        net = jfit.sym.Dropout(net, p=dropout, name="drop")
    return jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(net, num_hidden=2, name="fc2"), name="softmax")


def initial() -> dict[str, np.ndarray]:
    """Initial parameters of `network`."""
    draw = np.random.default_rng(1)
    shapes = {"fc1_weight": (5, 6), "fc1_bias": (5,), "fc2_weight": (2, 5), "fc2_bias": (2,)}
    return {name: draw.normal(size=shape, scale=0.3).astype("float32") for name, shape in shapes.items()}


def digest(tree: Any) -> str:
    """SHA-256 of names, shapes, dtypes and bits of the leaves of a pytree."""
    result = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        array = np.asarray(leaf)
        result.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}".encode() + array.tobytes())
    return result.hexdigest()[:16]


# ------------------------------------------------------------------------------------------------ fit
def _batches(epoch: int) -> Any:
    order = np.random.default_rng(epoch).permutation(ROWS).reshape(BATCHES, SIZE)
    return ((X[rows], Y[rows]) for rows in order)


def _fit(data: Any, every: int) -> Callable[[Path, bool], str]:
    def train(folder: Path, resume: bool) -> str:
        counts = lambda_callback(fit_start=lambda _: _count("opened"), fit_end=lambda _: _count("closed"))
        before = jfit.last_run()
        try:
            run = jfit.fit(
                network(dropout=0.3),
                data,
                (X, Y),
                batch_size=SIZE,
                num_epoch=EPOCHS,
                optimizer_params=SGD,
                checkpoint=folder,
                checkpoint_every=every,
                resume=resume or None,
                callbacks=[counts],
                progress=False,
                steps_per_call=1,
            )
        except KeyboardInterrupt:
            last = jfit.last_run()
            Left.run = None if last is before else last
            raise
        if run.interrupted:
            Left.run = run
            raise Interrupted
        return _of_run(run)

    return train


def _count(name: str) -> None:
    setattr(Left, name, getattr(Left, name) + 1)


def _of_run(run: Any) -> str:
    hidden = ("time", "compile_time", "data_time", "samples_per_second")
    history = [{k: np.float64(v) for k, v in row.items() if k not in hidden} for row in run.history.epochs]
    return digest((run.snapshot(), history))


def _fit_on() -> str | None:
    run = Left.run
    if run is None:
        return None
    if run.position["step"] != int(run.state.step):
        raise AssertionError(f"the run is at {run.position}, but its state is that of step {int(run.state.step)}")
    left = EPOCHS - run.position["epoch"]
    return _of_run(run.train(left) if left else run)


# ------------------------------------------------------------------------------------------------ Module
def _module(folder: Path, resume: bool) -> tuple[Any, int]:
    """A Module that is ready to train, and the number in the names of the files that it was read from, or 0."""
    number = max((int(path.stem.partition("-")[2]) for path in folder.glob("net-*.states")), default=0) if resume else 0
    module = jfit.Module.load(str(folder / "net"), number, load_optimizer_states=True) if number else jfit.Module(network())
    Left.module = None
    module.bind([("data", (SIZE, 6))], [("softmax_label", (SIZE,))])
    if not number:
        module.init_params(None, initial(), {})
    module.init_optimizer("local", "sgd", SGD)
    Left.module = module
    return module, number


def _of_module(module: Any) -> str:
    state = module.state
    return digest(({k: np.asarray(v) for k, v in module.get_params()[0].items()}, state.opt_state, state.step))


def _module_fit(folder: Path, resume: bool) -> str:
    with jfit.graceful_stop() as stop:
        module, epoch = _module(folder, resume)

        def save(epoch: int, *_: Any) -> None:
            module.save_checkpoint(str(folder / "net"), epoch + 1, save_optimizer_states=True)
            if stop:
                sys.exit(stop.exit_code)

        module.fit(jfit.NDArrayIter(X, Y, SIZE), begin_epoch=epoch, num_epoch=EPOCHS, epoch_end_callback=save)
        return _of_module(module)


def _module_loop(folder: Path, resume: bool) -> str:
    with jfit.graceful_stop() as stop:
        module, first = _module(folder, resume)
        for step in range(first, STEPS):
            _update(module, step)
            if stop or step % 4 == 3:
                module.save_checkpoint(str(folder / "net"), step + 1, save_optimizer_states=True)
            if stop:
                sys.exit(stop.exit_code)
        return _of_module(module)


def _update(module: Any, step: int) -> None:
    rows = slice(step % BATCHES * SIZE, (step % BATCHES + 1) * SIZE)
    module.forward_backward(jfit.data.DataBatch([X[rows]], [Y[rows]]))
    module.update()


def _module_on() -> str | None:
    module = Left.module
    if module is None:
        return None
    for step in range(module._optimizer.num_update, STEPS):  # the updates that were done, whatever the script counted
        _update(module, step)
    return _of_module(module)


# ------------------------------------------------------------------------------------------------ FeedForward
def _feedforward(folder: Path, resume: bool) -> str:
    prefix = str(folder / "net")
    epoch = max((int(path.stem.partition("-")[2]) for path in folder.glob("net-*.params")), default=0) if resume else 0
    options = {"num_epoch": EPOCHS, "learning_rate": 0.1}
    with jfit.graceful_stop() as stop:
        if epoch:
            model = jfit.FeedForward.load(prefix, epoch, **options)
        else:
            model = jfit.FeedForward(network(), arg_params=initial(), aux_params={}, **options)
        save = jfit.callback.do_checkpoint(prefix)

        def save_or_stop(*given: Any) -> None:
            save(*given)
            if stop:
                sys.exit(stop.exit_code)

        model.fit(jfit.NDArrayIter(X, Y, SIZE), epoch_end_callback=save_or_stop, kvstore=None)
        return digest({k: np.asarray(v) for k, v in model.arg_params.items()})


# ------------------------------------------------------------------------------------------------ pure steps
def _step_loop(folder: Path, resume: bool) -> str:
    model = jfit.lower(network(dropout=0.3))
    batch = {"data": X[:SIZE], "softmax_label": Y[:SIZE]}
    step = _compiled_step(model)
    with jfit.graceful_stop(interrupt=True) as stop:
        state = jfit.init_state(model, _optimizer(), batch)
        if resume and jfit.checkpoint.latest(folder):
            state = jfit.checkpoint.restore(folder, state)
        for number in range(int(state.step), STEPS):
            rows = slice(number % BATCHES * SIZE, (number % BATCHES + 1) * SIZE)
            state, _ = step(state, {"data": X[rows], "softmax_label": Y[rows]})
            if stop or number % 4 == 3:
                jfit.checkpoint.save(folder, state)
            if stop:
                sys.exit(stop.exit_code)
        return digest(state)


_steps: list[Any] = []  # a loop of one's own keeps its compiled step; one per process here


def _compiled_step(model: Any) -> Any:
    if not _steps:
        _steps.append(jax.jit(jfit.train_step(model, _optimizer())))
    return _steps[0]


def _optimizer() -> Any:
    return jfit.optim.get("sgd", learning_rate=0.1, momentum=0.9)


def _nothing() -> str | None:
    return None


VICTIMS = {
    "fit": Victim(_fit((X, Y), every=2), _fit_on, tidies=True),
    "fit, stream": Victim(_fit(_batches, every=3), _fit_on, tidies=True),
    "Module.fit": Victim(_module_fit, _module_on, tidies=False),
    "Module loop": Victim(_module_loop, _module_on, tidies=False),
    "FeedForward": Victim(_feedforward, _nothing, tidies=False),
    "step loop": Victim(_step_loop, _nothing, tidies=True),
}

SIGNALS = {"kill": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "Ctrl-C": signal.SIGINT}
