"""The devices of `ctx_group`s: the arguments `group2ctx` of executors and `group2ctxs` of modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jfit.graph.nodes import Graph
from jfit.lowering.groups import has_groups
from jfit.parallel.contexts import Context

SYNC_BATCH_NORM = "_contrib_SyncBatchNorm"


def group_devices(graph: Graph, groups: Any, home: Any) -> dict[str, Any]:
    """Return `ctx_group` -> device; empty if the whole graph runs on `home`.

    Args:
        graph: the network.
        groups: name of a group -> context or device, or a list with one of them; or a list with one such dict; or None.
        home: the device of nodes without a group.

    Raises:
        ValueError: a group has several contexts.

    Example:
        >>> import jax, jfit
        >>> with jfit.sym.AttrScope(ctx_group="dev1"):
        ...     net = jfit.sym.relu(jfit.sym.Variable("x"))
        >>> group_devices(net, {"dev2": jfit.cpu(0)}, jax.devices()[0])
        {}
    """
    several = replica_groups(graph, groups, [home])
    return several[0] if several else {}


def replica_groups(graph: Graph, groups: Any, contexts: Sequence[Any]) -> list[dict[str, Any]]:
    """Return a dict of `ctx_group` -> JAX device for each context: the devices of the replica that computes its rows.

    Args:
        graph: the network.
        groups: a dict, name of a group -> context or device, or a list with 1 of them (for all of `contexts`) or with one per
            context; or a list with one dict of name -> context or device per context; or None.
        contexts: the contexts or devices over which the rows of a batch are split.

    Returns:
        List of dicts, one per context; [] if no group is on a device other than its context.

    Raises:
        ValueError: the list of a group has neither 1 entry nor one per context, or the list of dicts has not one per context.
        NotImplementedError: there are several contexts, and the network has a SyncBatchNorm.

    Example:
        >>> import jfit
        >>> with jfit.sym.AttrScope(ctx_group="dev1"):
        ...     net = jfit.sym.relu(jfit.sym.Variable("x"))
        >>> replica_groups(net, {"dev1": jfit.cpu(0)}, [jfit.cpu(0)])
        []
    """
    by_context = _by_context(groups, contexts)
    used = [{g: _device(c) for g, c in each.items() if has_groups(graph, {g: c})} for each in by_context]
    homes = [_device(c) for c in contexts]
    if not any(d != home for each, home in zip(used, homes, strict=True) for d in each.values()):
        return []
    synchronized = [n.name for n in graph.nodes() if n.op is not None and n.op.name == SYNC_BATCH_NORM]
    if len(contexts) > 1 and synchronized:
        problem = f"{synchronized[0]!r} is a SyncBatchNorm, which group2ctxs supports on one context only"
        raise NotImplementedError(f"{problem}, found {len(contexts)}; use BatchNorm")
    return used


def _by_context(groups: Any, contexts: Sequence[Any]) -> list[Mapping[str, Any]]:
    """Return a dict of group -> context for each of the contexts."""
    if not isinstance(groups, (list, tuple)):
        columns = {g: _column(g, c, len(contexts)) for g, c in (groups or {}).items()}
        return [{g: column[i] for g, column in columns.items()} for i in range(len(contexts))]
    if len(groups) != len(contexts):
        raise ValueError(f"group2ctxs is a list of {len(groups)} dicts for {len(contexts)} contexts; pass one for each")
    return [{g: _column(g, c, 1)[0] for g, c in each.items()} for each in groups]


def _column(group: str, value: Any, count: int) -> list[Any]:
    """Return the context of a group for each of `count` contexts of the module."""
    several = isinstance(value, (list, tuple)) and not isinstance(value, Context)  # a Context is a tuple, too
    column = list(value) if several else [value]
    if len(column) not in (1, count):
        each = f", or {count}, one for each of the contexts" if count > 1 else ""
        raise ValueError(f"ctx_group {group!r} has {len(column)} contexts, {column}; pass one{each}")
    return column if len(column) == count else column * count


def _device(context: Any) -> Any:
    return context.device if isinstance(context, Context) else context
