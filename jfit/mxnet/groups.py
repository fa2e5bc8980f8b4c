"""The devices of `ctx_group`s: the arguments `group2ctx` of executors and `group2ctxs` of modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jfit.graph.nodes import Graph
from jfit.lowering.groups import has_groups
from jfit.parallel.contexts import Context


def group_devices(graph: Graph, groups: Any, home: Any) -> dict[str, Any]:
    """Return `ctx_group` -> device; empty if the whole graph runs on `home`.

    Args:
        graph: the network.
        groups: name of a group -> context or device, or a list with one of them; or a list with one such dict; or None.
        home: the device of nodes without a group.

    Raises:
        ValueError: a group has several contexts.
        TypeError: `groups` is no dict.

    Example:
        >>> import jax, jfit
        >>> with jfit.sym.AttrScope(ctx_group="dev1"):
        ...     net = jfit.sym.relu(jfit.sym.Variable("x"))
        >>> group_devices(net, {"dev2": jfit.cpu(0)}, jax.devices()[0])
        {}
    """
    if isinstance(groups, Sequence) and not isinstance(groups, str) and len(groups) == 1:
        groups = groups[0]
    if groups is None:
        return {}
    if not isinstance(groups, Mapping):
        raise TypeError(
            f"group2ctxs is {groups!r}, expected a dict of group name -> context, such as "
            "{'dev1': mx.cpu(0), 'dev2': mx.cpu(1)}"
        )
    contexts = {g: _single(g, c) for g, c in groups.items() if has_groups(graph, {g: c})}
    devices = {g: c.device if isinstance(c, Context) else c for g, c in contexts.items()}
    return devices if any(d != home for d in devices.values()) else {}


def _single(group: str, contexts: Any) -> Any:
    if isinstance(contexts, Context) or not isinstance(contexts, (list, tuple)):  # a Context is a tuple, too
        return contexts
    if len(contexts) != 1:
        raise ValueError(
            f"ctx_group {group!r} has {len(contexts)} contexts, {list(contexts)}: a group runs on one device; pass one "
            "context, or split batches over several devices without groups (context=[...])"
        )
    return contexts[0]
