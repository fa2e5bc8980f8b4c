"""Before a job of several processes trains, scores or predicts: an error if their code, settings or data differ."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jfit.checkpoints.fingerprint import named_leaves, short
from jfit.distributed import RanksDiffer, exchange, is_main, job

_MAY_DIFFER = ("cores", "devices", "processes")  # hosts may have other numbers of cores
_LOGGED = ("numpy", "optax", "python")  # versions that can differ without other numbers
_MOST = 4  # differences of one process in a message


def check_same(describe: Callable[[], dict[str, Any]], verb: str = "train") -> None:
    """Compare what the processes of a job are about to do.

    Args:
        describe: function that returns what must be equal, JSON-serializable.
        verb: what they do, for messages.

    Raises:
        RanksDiffer: in all processes, if two differ.
    """
    descriptions = exchange(describe(), f"what the processes {verb}")
    problems, logged = differences(descriptions)
    if logged and is_main():
        logging.getLogger("jfit").warning("the processes of this job differ: %s", "; ".join(logged))
    if problems:
        raise RanksDiffer(
            f"the processes of this job would not {verb} the same: {'; '.join(problems)}. "
            "Start all of them with the same script, arguments, data and versions"
        )


def differences(descriptions: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Compare descriptions by rank with the most frequent one, or with that of rank 0 if there are several of these.

    Returns:
        (texts of differences that are errors, one per process; texts of those that are only logged).
    """
    compared = [{name: value for name, value in each.items() if name not in _MAY_DIFFER} for each in descriptions]
    flat = [dict(named_leaves(each, " ")) for each in compared]
    keys = [json.dumps(values, sort_keys=True) for values in flat]
    counts = Counter(keys)
    usual = max(range(len(keys)), key=lambda i: (counts[keys[i]], -i))
    problems, logged = [], []
    for rank, values in enumerate(flat):
        names = [name for name in {**flat[usual], **values} if values.get(name) != flat[usual].get(name)]
        texts = {k: f"{k} {short(values.get(k))} (rank {usual}: {short(flat[usual].get(k))})" for k in names}
        if "learning_rate" in texts or any(name.startswith(("optimizer_params", "schedule_params")) for name in texts):
            texts = {k: text for k, text in texts.items() if k not in ("optimizer", "schedule")}  # their digests
        for name in [name for name in texts if name.removeprefix("versions ") in _LOGGED]:
            logged.append(f"{_who(rank)} has {texts.pop(name)}")
        if texts:
            more = f", and {len(texts) - _MOST} more" if len(texts) > _MOST else ""
            problems.append(f"{_who(rank)} has {', '.join(list(texts.values())[:_MOST])}{more}")
    return problems[:8] + ([f"and {len(problems) - 8} more processes"] if len(problems) > 8 else []), logged


def _who(rank: int) -> str:
    current = job.current()
    return f"rank {rank}" if current is None else str(current.peers[rank])
