"""`sweep`: trains many runs with different settings, in as few compiled programs as possible."""

from __future__ import annotations

import collections
import math
import os
import sys
from typing import Any

from jfit import counters
from jfit.checks import positive_integer
from jfit.interrupts import StopFlag
from jfit.loop.threads import compiling_ahead
from jfit.parallel import check_entry, resolve
from jfit.tools.sweep.problem import Trial, listed_folds, prepare, share
from jfit.tools.sweep.result import Sweep
from jfit.tools.sweep.rules import halving_of
from jfit.tools.sweep.settings import member_settings
from jfit.tools.sweep.spaces import check_count, combinations
from jfit.tools.sweep.training import Group, nbytes
from jfit.tools.sweep.watch import Watch


def sweep(
    model: Any,
    train_data: Any,
    eval_data: Any = None,
    *,
    over: Any,
    n: int | None = None,
    sample_seed: int = 0,
    folds: Any = None,
    monitor: str | None = None,
    patience: int | None = None,
    halving: Any = None,
    members_per_call: int | None = None,
    devices: Any = None,
    progress: bool | str = "auto",
    **settings: Any,
) -> Sweep:
    """Train many runs (members) with different settings, in as few compiled programs as possible, and return a `Sweep`.

    Each member has the losses, metrics and parameters that `jfit.fit` with its settings computes, up to rounding.  Members that
    differ only in values that a compiled program takes as arguments train together: learning rate, weight decay, momentum,
    decay rates such as beta1 and other numbers of jfit's optimizers, gradient clipping (clip_norm, clip_value), seed (initial
    values, dropout and other random operators, order of the rows), initializer, initial parameters, folds.  Members that differ
    in anything else (batch size, widths, optimizer) are grouped, one program per group.  A number of the optimizer other than
    the learning rate, or a clipping limit, is a constant of the program if it is 0 or 1: members with momentum=0 are not in a
    group with members with momentum=0.9.  The program is `jax.vmap` over the training states; on a CPU, where that
    is not faster, it trains one member per device and call.  All members read one copy of the data on each device.

    Args:
        model: a model as for `jfit.fit`; or a function of swept settings that returns one, such as
            `lambda width: make_net(width)` with over={"width": [64, 128]}.  To sweep settings of a pure function, it returns a
            pair (function, initial parameters).
        train_data: training data in arrays, in the forms of `jfit.fit`: `(x, y)`, `(x, y, weight)`, a dict or a DataFrame.
        eval_data: evaluation data in arrays, likewise.  Default: no evaluation.
        over: what the members differ in: a dict name -> list of values, of which all combinations train; a dict of lists and
            distributions (`jfit.uniform`, `jfit.log_uniform`, `jfit.choice`) with `n`; or a list of dicts.  Names are arguments
            of `jfit.fit`, parameters of the optimizer ("learning_rate", "momentum", "wd"; "weight_decay" means "wd" where the
            optimizer has that name), and arguments of `model`, if it is a function that makes models.
        n: number of random combinations of `over`, in which each value of a list has the same probability.
        sample_seed: seed of the random combinations.
        folds: number of folds of a cross-validation, or a list of (training row indices, evaluation row indices).  Every
            combination is trained once per fold, and evaluated on the other rows; not with `eval_data`.  Each pair of a
            combination and a fold is a member; `best` is a member of the combination with the best mean score over folds.
        monitor: name of the logged value that is the score, such as "val_accuracy".  Default: "val_loss", without evaluation
            "loss".  Larger is better if the name contains acc, f1, mcc, pcc, auc, precision, recall, top_k, pearson or r2 and
            does not end like a loss or an error ("acc_loss"); for all other names, smaller is better.
        patience: number of epochs without a better `monitor` after which a member ends; each member then has the state of its
            best epoch, as with `jfit.callbacks.early_stopping`.  Default: all train to the end.
        halving: successive halving, (metric, factor) or (metric, factor, first): after first, first * factor,
            first * factor ** 2, ... epochs (default of first: 1), the best 1 / factor of the members train on.  `metric` is the
            name of a logged value, such as "val_accuracy"; which values are better is as for `monitor`.
        members_per_call: maximum number of members that train at once, in one call of a program; others train after them.
            Default: from an estimate of the memory; on a CPU, one per device.
        devices: None (the default device), the number of devices, "all" or a list of devices.  The members are split over them.
        progress: "auto" writes a line per epoch if standard error is a terminal, True always, False never.
        **settings: arguments of `jfit.fit` that all members share, such as batch_size, num_epoch, optimizer, loss, params.

    Returns:
        `Sweep`: the members with `table`, `best`, `predict()` (ensemble), `plot()` and `to_pandas()`.  After Ctrl-C it has the
        values of the last finished dispatches, and `interrupted` is True.

    Raises:
        ValueError: an unknown or unsupported setting, more than 100,000 members or more than the memory has room for, data that
            is not in arrays, metrics that run on the host, or an error of `jfit.fit` for one of the members.
        TypeError: `over` has another type.

    Example:
        >>> import jfit, numpy as np
        >>> x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
        >>> y = (x[:, 0] > 0).astype("float32")
        >>> net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2)
        >>> net = jfit.sym.SoftmaxOutput(net, name="softmax")
        >>> over = {"learning_rate": [0.01, 0.5], "seed": range(2)}
        >>> result = jfit.sweep(net, (x, y), over=over, folds=2, num_epoch=3, monitor="val_accuracy", progress=False)
        >>> len(result), result.best.settings["learning_rate"]
        (8, 0.5)
    """
    check_entry("jfit.sweep")
    if folds is not None and (eval_data is not None or settings.get("validation_split") is not None):
        raise ValueError("sweep: folds= evaluates on rows of train_data; leave out eval_data= and validation_split=, or folds=")
    if patience is not None:
        positive_integer(patience=patience)
    halve, (folds, fold_count), chosen = halving_of(halving), listed_folds(folds), list(resolve(devices))
    combined = combinations(over, n, sample_seed)
    check_count(len(combined) * max(fold_count, 1), f"{len(combined):,} combinations in {fold_count} folds")
    members = member_settings(model, combined, settings, fold_count, eval_data)
    keys, shared, trials, needed = [given.shared_key for given in members], {}, [], 0
    for given, key in zip(members, keys, strict=True):
        is_first = key not in shared
        try:
            if is_first:
                shared[key] = share(given, train_data, eval_data, folds, chosen)
            trials.append(prepare(given, shared[key]))
        except (ValueError, TypeError) as error:
            error.add_note(f"jfit: in member {given.number} of the sweep, with the settings {given.values}")
            raise
        if is_first:
            needed += keys.count(key) * nbytes(trials[-1].state)
            _check_memory(needed, len(members))
    monitor = monitor or ("val_loss" if any(trial.shared.evaluation for trial in trials) else "loss")
    by_program: dict[Any, list[Trial]] = collections.defaultdict(list)
    for trial in trials:
        by_program[trial.group].append(trial)
    shows = progress is True or (progress == "auto" and sys.stderr.isatty())
    last = max(trial.given.options.num_epoch for trial in trials)
    with StopFlag().watching() as stop, compiling_ahead() as ahead, counters.explained():
        watch = Watch(trials, monitor, patience, stop, ahead, shows)
        groups = [Group(group, chosen, members_per_call, patience is not None) for group in by_program.values()]
        for end in [*(halve.epochs(last) if halve else ()), last]:
            for group in groups:
                group.train(min(end, group.trials[0].given.options.num_epoch), watch)
            if halve is not None and end != last and not stop.set:
                watch.drop(halve)
    if shows:
        print(file=sys.stderr)
    return Sweep([watch.member(trial) for trial in trials], monitor, stop.set)


def _memory_of_host() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else math.inf


def _check_memory(needed: int, members: int) -> None:
    if needed > _memory_of_host():
        sizes = f"{needed / 1e9:,.1f} GB, more than the memory of this machine, {_memory_of_host() / 1e9:,.1f} GB"
        raise ValueError(f"sweep: the states of the {members:,} members have {sizes}; sweep fewer members, such as with n=")
