"""One injection for each other fault: stalled loaders, nan, a full disk, two runs in one folder, changed arguments.

Each is a function of an empty folder that raises `Missed` if the fault was not noticed, or if what follows is not right.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jfit
from benchmarks.faults.victims import SGD, SIZE, X, Y, digest, network
from jfit.callbacks import lambda_callback
from jfit.data import DataTimeout

BAD = X.copy()
BAD[19, 2] = np.nan  # in batch 2
_STALL_SECONDS, _CTRL_C_SECONDS = 0.3, 2.0


class Missed(AssertionError):
    """A fault was not noticed, or what followed is not right."""


def inject(name: str, folder: str) -> dict[str, Any]:
    """Inject a fault.

    Args:
        name: key of `INJECTIONS`.
        folder: folder for files, created if necessary.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        INJECTIONS[name](Path(folder))
    return {}


def _train(data: Any = (X, Y), **options: Any) -> jfit.Run:
    common = {"batch_size": SIZE, "num_epoch": 2, "optimizer_params": SGD, "steps_per_call": 1, "progress": False}
    return jfit.fit(options.pop("model", network()), data, **common | options)


def _bits(run: jfit.Run) -> str:
    return digest(run.snapshot())


def _require(condition: Any, problem: str) -> None:
    if not condition:
        raise Missed(problem)


@contextlib.contextmanager
def _raises(kind: type[BaseException], *words: str) -> Iterator[None]:
    try:
        yield
    except kind as error:
        _require(all(word in str(error) for word in words), f"{kind.__name__} without {words}: {error}")
    else:
        raise Missed(f"expected {kind.__name__}")


# ------------------------------------------------------------------------------------------------ loaders that stall
class _Stalling:
    """A source of batches that waits for `gate` before batch 3 of the first epoch."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def __call__(self, epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, len(X), SIZE):
            if start == 3 * SIZE:
                self.gate.wait(60)
            yield X[start : start + SIZE], Y[start : start + SIZE]

    def whole(self) -> str:
        """Open the gate, and train without faults."""
        self.gate.set()
        return _bits(_train(self))


def _stalled_with_limit(folder: Path) -> None:
    source = _Stalling()
    with _raises(DataTimeout, "batch 3 of epoch 0"):
        _train(source, checkpoint=folder, data_timeout=_STALL_SECONDS)
    expected = source.whole()
    resumed = _train(source, checkpoint=folder, data_timeout=60, resume=True)
    _require(_bits(resumed) == expected, "the resumed run has other bits")


def _stalled_and_stopped(number: int) -> Callable[[Path], None]:
    def stalled(folder: Path) -> None:
        source, sent = _Stalling(), []

        def press() -> None:
            time.sleep(_STALL_SECONDS)
            sent.append(time.monotonic())
            os.kill(os.getpid(), number)

        begin = lambda_callback(every=3, step=lambda event: None if sent else threading.Thread(target=press).start())
        code = None
        try:
            _require(_train(source, checkpoint=folder, callbacks=[begin]).interrupted, "the signal was not noticed")
        except SystemExit as error:
            code = error.code
        seconds = time.monotonic() - sent[0]
        _require(seconds < _CTRL_C_SECONDS, f"the run ended {seconds:.1f} s after the signal")
        _require(code == (143 if number == signal.SIGTERM else None), f"the exit code is {code}")
        expected = source.whole()
        _require(_bits(_train(source, checkpoint=folder, resume=True)) == expected, "the resumed run has other bits")

    return stalled


# ------------------------------------------------------------------------------------------------ nan
def _nan(policy: str) -> Callable[[Path], None]:
    def injected(folder: Path) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run = _train((BAD, Y), shuffle=False, nan=policy, checkpoint=folder, checkpoint_every=1)
        texts = [str(w.message) for w in caught if w.category.__name__ == "NonFiniteLoss"]
        _require(any("step 2" in text for text in texts), f"no warning names step 2: {texts}")
        finite = all(np.isfinite(v).all() for v in jax.tree.leaves(run.snapshot().params))
        kept = [jfit.checkpoint.load_arrays(path)["params/fc1_weight"] for path in folder.glob("step-*")]
        _require(any(np.isfinite(array).all() for array in kept), "no checkpoint is finite")
        if policy == "warn":
            _require(not finite, "the parameters are finite, although the step was not skipped")
            return
        _require(finite, "the parameters are not finite")
        if policy == "stop":
            _require(run.position["step"] == 2 == int(run.state.step), f"the run is at {run.position}, expected step 2")
        else:
            _require(run.position["epoch"] == 2, f"the run is at {run.position}, expected the end of epoch 2")
        if policy == "skip":
            _require("'data'" in texts[0] and "row 3" in texts[0], f"the input is not named: {texts[0]}")

    return injected


# ------------------------------------------------------------------------------------------------ files
def _full_disk(folder: Path) -> None:
    """Files cannot grow beyond 64 bytes while the checkpoint of step 4 is saved."""
    expected = _bits(_train())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(event: Any) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]) if event.step in (3, 4) else before)

    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run = _train(checkpoint=folder, checkpoint_every=2, callbacks=[lambda_callback(every=1, step=limit)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    text = " ".join(str(w.message) for w in caught)
    _require("step 4 could not be saved" in text and str(folder) in text, f"no warning names the folder: {text}")
    _require(_bits(run) == expected, "the run has other bits")
    names = sorted(os.listdir(folder))
    _require(names == ["step-00000006", "step-00000008", "step-00000010"], f"the folder has {names}")


def _two_runs(folder: Path) -> None:
    refused: list[str] = []

    def second(event: Any) -> None:
        try:
            _train(checkpoint=folder)
        except jfit.checkpoint.FolderInUse as error:
            refused.append(str(error))

    run = _train(checkpoint=folder, callbacks=[lambda_callback(every=3, step=second)])
    _require(refused and all(str(folder) in text for text in refused), "the second run was not refused")
    _require(_bits(run) == _bits(_train()), "the first run has other bits")
    _train(checkpoint=folder)  # the lock has been released


class _Death(BaseException):
    """The process ends here."""


def _death_between_renames(folder: Path) -> None:
    run = _train(num_epoch=1, checkpoint=folder)
    rename, calls = os.rename, []

    def dying(source: Any, target: Any) -> None:
        calls.append(target)
        if len(calls) > 1:
            raise _Death
        rename(source, target)

    os.rename = dying
    try:
        jfit.checkpoint.save(folder, run.snapshot(), meta={"position": 0})
    except _Death:
        pass
    finally:
        os.rename = rename
    _require(not list(folder.glob("step-*")), "the checkpoint was not being replaced")
    resumed = _train(checkpoint=folder, resume=True)
    _require(_bits(resumed) == _bits(_train()), "the resumed run has other bits")
    _require(all(name.startswith("step-") for name in os.listdir(folder)), f"the folder has {os.listdir(folder)}")


# ------------------------------------------------------------------------------------------------ threads and processes
def _second_thread(folder: Path) -> None:
    """Another thread predicts with a run that trains, which works, and trains it, which is refused."""
    refused: list[str] = []
    predicted: list[Any] = []
    threads: list[threading.Thread] = []

    def train_too(run: Any) -> None:
        try:
            run.train(1)
        except RuntimeError as error:
            refused.append(str(error))

    def begin(event: Any) -> None:
        if event.step == 3:
            threads.append(threading.Thread(target=lambda: predicted.append(event.run.predict(X))))
            threads[0].start()
            second = threading.Thread(target=train_too, args=(event.run,))
            second.start()
            second.join(20)

    run = _train(callbacks=[lambda_callback(every=3, step=begin)])
    threads[0].join()
    _require(refused and predicted, f"the second thread was not refused, or could not predict: {refused}")
    _require(_bits(run) == _bits(_train()), "the run has other bits")


def _forked_child(folder: Path) -> None:
    _train()
    child = os.fork()
    if not child:
        try:
            _train()
        except RuntimeError as error:
            os._exit(0 if "forked" in str(error) else 2)
        os._exit(1)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            _require(status == 0, f"the child ended with status {os.waitstatus_to_exitcode(status)}")
            return
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise Missed("the forked child hangs")


# ------------------------------------------------------------------------------------------------ other arguments
def _changed(name: str, **options: Any) -> Callable[[Path], None]:
    def injected(folder: Path) -> None:
        _train(checkpoint=folder, num_epoch=1)
        before = sorted(os.listdir(folder))
        with _raises(ValueError, "was trained with other settings", name):
            _train(checkpoint=folder, resume=True, **options)
        _require(sorted(os.listdir(folder)) == before, "the folder was changed")
        run = _train(checkpoint=folder, resume=True, resume_with="any", **options)
        _require(run.position["epoch"] == 2, "resume_with does not allow the change")

    return injected


def _other_graph() -> Any:
    net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=5, name="fc1")
    net = jfit.sym.Activation(net, act_type="tanh", name="relu")
    return jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(net, num_hidden=2, name="fc2"), name="softmax")


INJECTIONS: dict[str, Callable[[Path], None]] = {
    "stalled loader, data_timeout=": _stalled_with_limit,
    "stalled loader, Ctrl-C": _stalled_and_stopped(signal.SIGINT),
    "stalled loader, SIGTERM": _stalled_and_stopped(signal.SIGTERM),
    'nan in step 2, nan="warn"': _nan("warn"),
    'nan in step 2, nan="stop"': _nan("stop"),
    'nan in step 2, nan="skip"': _nan("skip"),
    'nan in step 2, nan="rollback"': _nan("rollback"),
    "disk full during a save": _full_disk,
    "two runs in one folder": _two_runs,
    "death between the renames of a save": _death_between_renames,
    "a second thread trains the run": _second_thread,
    "fit in a forked child": _forked_child,
    "resume with another seed": _changed("seed", seed=1),
    "resume with other data": _changed("data", data=(X + 1, Y)),
    "resume with another graph": _changed("model", model=_other_graph()),
}
