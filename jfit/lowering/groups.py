"""Model parallelism: run the nodes of each `ctx_group` of a graph on the device of the group.

The graph is cut into stages.  A stage is a set of nodes of one device and is compiled as one program; between two stages,
arrays move to the device of the next one.  The whole function is never compiled, because one program cannot have arrays on
different devices: `jax.grad` of it differentiates the stages one by one, and moves gradients back.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit.counters import count_trace
from jfit.graph.in_place import in_place
from jfit.graph.nodes import Entry, Graph, GraphError, Node, aux_nodes, topological
from jfit.lowering.interpret import (
    InputNames,
    Interpretation,
    StageInput,
    attributes_with_shapes,
    batch_size,
    make_apply,
    open_constants,
    raise_missing,
)
from jfit.lowering.model import Aux, Inputs, Model, Params, Policy
from jfit.lowering.values import Value
from jfit.ops import Attrs
from jfit.ops.axis import Axis, VirtualSlice
from jfit.programs import kept, key_of, settings

GROUP = "__ctx_group__"
Device = Any


def has_groups(graph: Graph, groups: Mapping[str, Any]) -> bool:
    """Return whether a node of the graph is in one of the groups, by its attribute `ctx_group`.

    Example:
        >>> import jfit
        >>> with jfit.sym.AttrScope(ctx_group="dev1"):
        ...     net = jfit.sym.relu(jfit.sym.Variable("x"))
        >>> has_groups(net, {"dev1": None}), has_groups(net, {"dev2": None})
        (True, False)
    """
    return any(n.attrs.get(GROUP) in groups for n in graph.nodes())


def devices_of(order: Sequence[Node], groups: Mapping[str, Any], home: Any) -> dict[int, Any]:
    """Return the device of every node, by the id of the node.

    A node without a group runs on the device of its first input that has one, a variable without a group is on the device
    of the node that reads it, and what is left is on `home`.

    Args:
        order: nodes in topological order.
        groups: name of a group -> device (any object).
        home: the device of nodes that no group determines.
    """
    devices = {id(n): groups[n.attrs[GROUP]] for n in order if n.attrs.get(GROUP) in groups}
    for node in order:
        known = [devices[id(e.node)] for e in node.inputs if id(e.node) in devices]
        if node.op is not None and known:
            devices.setdefault(id(node), known[0])
    for node in reversed(order):
        if id(node) in devices:
            for entry in node.inputs:
                devices.setdefault(id(entry.node), devices[id(node)])
    return {id(n): devices.get(id(n), home) for n in order}


def variable_devices(graph: Graph, groups: Mapping[str, Any], home: Any) -> dict[str, Any]:
    """Return the device of every variable by name; arguments and rules as for `devices_of`.

    Example:
        >>> import jfit
        >>> with jfit.sym.AttrScope(ctx_group="dev1"):
        ...     net = jfit.sym.FullyConnected(jfit.sym.Variable("x"), num_hidden=2, no_bias=True, name="fc")
        >>> variable_devices(net, {"dev1": "the first device"}, "home")
        {'x': 'the first device', 'fc_weight': 'the first device'}
    """
    order = graph.nodes()
    devices = devices_of(order, groups, home)
    return {n.name: devices[id(n)] for n in order if n.op is None}


def cut(order: Sequence[Node], devices: Mapping[int, Device]) -> list[list[Node]]:
    """Cut the operators of a graph into stages of one device each, in an order in which they can run.

    A stage has all operators of its device whose inputs are computed: the time steps of an unrolled recurrent network whose
    layers are on different devices become one stage per layer, not one per layer and step.

    Args:
        order: nodes in topological order.
        devices: device of each node, by the id of the node.

    Returns:
        List of stages; each is a list of nodes in topological order.
    """
    left = [n for n in order if n.op is not None]
    done = {id(n) for n in order if n.op is None}
    stages = []
    while left:
        device, stage, rest = devices[id(left[0])], [], []
        for node in left:
            ready = devices[id(node)] == device and all(id(e.node) in done for e in node.inputs)
            (stage if ready else rest).append(node)
            if ready:
                done.add(id(node))
        stages.append(stage)
        left = rest
    return stages


@functools.partial(jax.tree_util.register_dataclass, data_fields=["array"], meta_fields=["rows", "channels_last"])
@dataclass
class _Crossing:
    """A `Value` between two programs: the array is their argument or result, the rest is static."""

    array: Any
    rows: Any = None
    channels_last: bool = False

    def value(self) -> Value:
        """Return the `Value`."""
        return Value(self.array, self.rows, self.channels_last)


class _Stage(NamedTuple):
    """A part of a graph that runs on one device.

    Attributes:
        device: number of the device on which it runs.
        variables: names of its variables.
        reads: outputs of other stages that it reads.
        writes: its outputs that other stages, or the caller, read.
        run: the compiled program.
    """

    device: int
    variables: frozenset[str]
    reads: tuple[Entry, ...]
    writes: tuple[Entry, ...]
    run: Callable[..., Any]


def _key(entry: Entry) -> tuple[int, int]:
    return id(entry.node), entry.index


def _isolated(nodes: Sequence[Node]) -> tuple[dict[int, Node], dict[tuple[int, int], Node]]:
    """Copy nodes so that they form a graph of their own; returns (copies by id, variables in place of other operators)."""
    copies: dict[int, Node] = {}
    outside: dict[tuple[int, int], Node] = {}

    def copied(entry: Entry) -> Entry:
        if id(entry.node) in copies:
            return Entry(copies[id(entry.node)], entry.index)
        if entry.node.op is None:
            return entry
        name = f"{entry.node.output_name(entry.index)} of another device"
        return Entry(outside.setdefault(_key(entry), Node(None, name, {})), 0)

    for node in nodes:
        copies[id(node)] = node.rebuilt(tuple(map(copied, node.inputs)), node.name)
    return copies, outside


def _make_stage(nodes: Sequence[Node], heads: Sequence[Entry], others: Sequence[Node], names: InputNames, device: int):
    """Make the `_Stage` of `nodes`; `heads` are the outputs of the graph, `others` the operators of other stages."""
    copies, outside = _isolated(nodes)
    entries = {_key(e): e for n in nodes for e in n.inputs}
    reads = tuple(entries[key] for key in outside)
    read_elsewhere = [*heads, *(e for n in others for e in n.inputs)]
    writes = tuple({_key(e): e for e in read_elsewhere if id(e.node) in copies}.values())
    outputs = [Entry(copies[id(e.node)], e.index) for e in writes]
    variables = {id(e.node): e.node for e in entries.values() if e.node.op is None}
    apply = make_apply([*variables.values(), *outside.values(), *copies.values()], outputs, names, roll=roll_by_default())

    @functools.partial(jax.jit, static_argnames=("train", "size", "constants", "policy", "parts"))
    def run(params, aux, inputs, crossing, key, weight, row_ids, part, *, train, size, constants, policy, parts):
        count_trace("stage")
        values = {id(n): c and c.value() for n, c in zip(outside.values(), crossing, strict=True)}
        shapes = [(copies[n], shape) for n, shape in constants if n in copies]
        attributes = {id(copy): Attrs({**copy.params, "shape": shape}) for copy, shape in shapes}
        options = {"key": key, "weight": weight, "row_ids": row_ids, "train": train, "policy": policy}
        options["axis_name"] = None if part is None else VirtualSlice(part, parts)
        stage = StageInput(values, size, attributes)
        outs, new_aux = apply(params, aux, inputs, **options, how=Interpretation(stage=stage))
        return tuple(None if v is None else _Crossing(*v) for v in outs), new_aux

    return _Stage(device, frozenset(n.name for n in variables.values()), reads, writes, run)


_Constants = tuple[tuple[int, tuple[int, ...]], ...]  # (id of an operator without inputs, its inferred shape); hashable


def _constants_of(order: Sequence[Node], heads: Sequence[Entry]) -> Callable[..., _Constants]:
    """Make the function (shapes of variables, batch size) -> `_Constants`; its results are cached."""
    nodes, graph = open_constants([n for n in order if n.op is not None]), Graph(heads)

    @functools.lru_cache(maxsize=32)
    def constants(shapes: tuple[tuple[str, tuple[int, ...]], ...], size: int | None) -> _Constants:
        attributes = attributes_with_shapes(nodes, graph, dict(shapes), size)
        return tuple((n, tuple(a["shape"])) for n, a in attributes.items())

    return constants


def make_grouped_apply(
    order: Sequence[Node], heads: Sequence[Entry], names: InputNames, groups: Mapping[str, int]
) -> Callable[..., tuple[tuple[Array, ...], Aux]]:
    """Make the `apply` function of a graph whose groups of nodes run on different devices.

    Args:
        order: the nodes of the graph in topological order.
        heads: the outputs of the graph.
        names: names of the inputs, labels and batch axes.
        groups: name of a group -> number of its device.  Device 0 is that of nodes that no group determines, and of the
            outputs.

    Returns:
        Function `(devices, *args) -> results`, where `devices` is the list of devices, and the other arguments and the results
        are those of `jfit.lowering.model.ApplyFn`.  It is not to be compiled as a whole.
    """
    numbers = devices_of(order, groups, 0)
    parts, variables = cut(order, numbers), [n for n in order if n.op is None]
    stages = []
    for part in parts:
        others = [node for other in parts if other is not part for node in other]
        stages.append(_make_stage(part, heads, others, names, numbers[id(part[0])]))
    at_home = {_key(h): h.node.name for h in heads if h.node.op is None}  # outputs that are variables
    constants = _constants_of(order, heads)
    aux_names = {n.name for n in order if id(n) in aux_nodes(order)}

    def apply(
        devices: Sequence[Device],
        params: Params,
        aux: Aux,
        inputs: Inputs,
        *,
        key: Array | None = None,
        train: bool = False,
        weight: Array | None = None,
        axis_name: Axis = None,
        row_ids: Array | None = None,
        policy: Policy | None = None,
        **_: Any,
    ) -> tuple[tuple[Array, ...], Aux]:
        if isinstance(axis_name, str):
            raise GraphError("a network whose ctx_groups are on different devices cannot run inside pmap or shard_map")
        part, count = (None, None) if axis_name is None else axis_name
        size = batch_size(variables, inputs, names)
        row_ids = jnp.arange(size) if row_ids is None and size is not None else row_ids
        arrays = {**params, **aux, **inputs}
        shapes = tuple((n.name, tuple(np.shape(arrays[n.name]))) for n in variables if n.name in arrays)
        options = {"train": train, "size": size, "constants": constants(shapes, size), "policy": policy, "parts": count}
        new_aux, crossing = dict(aux), {k: _Crossing(jnp.asarray(arrays[n])) for k, n in at_home.items()}
        for stage in stages:
            own = [{k: tree[k] for k in stage.variables if k in tree} for tree in (params, new_aux, inputs)]
            read = [crossing[_key(e)] for e in stage.reads]
            moved = jax.device_put((*own, read, key, weight, row_ids, part), devices[stage.device])
            outs, changed = stage.run(*moved, **options)
            crossing.update({_key(e): out for e, out in zip(stage.writes, outs, strict=True)})
            new_aux.update({k: _on_devices_of(v, aux[k]) for k, v in changed.items() if k in aux_names})
        results = [crossing[_key(h)] or raise_missing(h.node, inputs) for h in heads]
        return tuple(jax.device_put(r.value().to_channels_first().array, devices[0]) for r in results), new_aux

    return apply


def _on_devices_of(new: Array, old: Any) -> Array:
    """Return the new value of an auxiliary state on the devices of the old one."""
    return jax.device_put(new, old.sharding) if isinstance(old, Array) and old.committed else new


def roll_by_default() -> bool:
    """Return whether repeated blocks run as loops, as in `jfit.lower`."""
    return os.environ.get("JFIT_ROLL") != "0"


_grouped = kept(64)


def with_groups(model: Model, groups: Mapping[str, Device], home: Device) -> Model:
    """Make a model of a graph run its `ctx_group`s on different devices.

    Args:
        model: lowered from a graph.
        groups: name of a group -> its device.
        home: the device of nodes that no group determines, and of the outputs.

    Returns:
        Model whose `apply` is called outside of `jax.jit`, with arrays on any devices.  `jax.grad` differentiates it; the
        gradient of an array, and the new value of an auxiliary state, are on the devices of the array.  `axis_name` may be a
        `jfit.ops.axis.VirtualSlice`: the number of this slice of the batch.

    Models of equal graphs are traced once, if the same groups share a device in all of them.

    Example:
        >>> import jax, jfit, numpy as np
        >>> with jfit.sym.AttrScope(ctx_group="dev1"):
        ...     net = jfit.sym.square(jfit.sym.Variable("data"))
        >>> home = jax.devices()[0]
        >>> model = with_groups(jfit.lower(net), {"dev1": jax.devices()[-1]}, home)
        >>> model.apply({}, {}, {"data": np.array([3.0], "float32")})[0][0].tolist()
        [9.0]
    """
    assert model.symbol is not None
    devices = list(dict.fromkeys([home, *(d for _, d in sorted(groups.items()))]))
    numbers = {g: devices.index(d) for g, d in groups.items()}
    content = key_of((model.apply, sorted(numbers.items()), dict(model.batch_axes), roll_by_default()))
    key = None if content is None else (content, settings())
    apply = None if key is None else _grouped.get(key)
    if apply is None:
        names = InputNames((*model.inputs, *model.labels), model.labels, model.batch_axes)
        heads = model.symbol.heads
        if any(n.op is not None and n.op.overwritten for n in topological(heads)):
            heads = in_place(heads, names.inputs)
        apply = make_grouped_apply(topological(heads), heads, names, numbers)
        if key is not None:
            _grouped[key] = apply
    return model._replace(apply=functools.partial(apply, devices), traits=model.traits - {"row_keys"})
