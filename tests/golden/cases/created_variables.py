"""The attributes that MXNet gives to variables that become inputs of operators, and the values that follow.

Recorded with MXNET_ENGINE_TYPE=NaiveEngine: every operator of MXNet's registry is composed without inputs, with each choice of
each of its enumerations and flags.  The file has each operator whose variables have attributes that the operator itself does
not have, the networks below with `attr_dict` and file, and the values of their parameters after `Module.init_params`, which are
the same with all initializers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from cases import apart

INITIALIZERS = {
    "Zero": {}, "One": {}, "Constant": {"value": 3.0}, "Uniform": {}, "Normal": {}, "Orthogonal": {},
    "Xavier": {"magnitude": 2.34}, "MSRAPrelu": {},
}  # fmt: skip
HAVE_VALUES = ("prelu", "prelu_of_user", "prelu_with_init", "prelu_with_attr", "twice", "up", "up_of_user", "norm",
               "norm_in_scope", "sparse")  # networks whose parameters have no random values  # fmt: skip
SHAPE = (2, 3, 4, 4)  # of the input x of all networks


def networks(mx: Any) -> dict[str, Any]:
    """Networks of MXNet or of jfit, by name; each makes its variables anew."""
    v = mx.sym.Variable

    def prelu(*args: Any, name: str = "p", **kwargs: Any) -> Any:
        return mx.sym.LeakyReLU(v("x"), *args, act_type="prelu", name=name, **kwargs)

    def twice() -> Any:  # a variable keeps the attribute that it got first
        m = v("m")
        y = mx.sym.LeakyReLU(v("x"), m, act_type="prelu", name="p")
        return mx.sym.BatchNorm(y, gamma=v("scale_gamma"), beta=v("beta"), moving_mean=v("mean"), moving_var=m, name="b")

    with mx.AttrScope(__init__='["one", {}]'):
        scoped = mx.sym.BatchNorm(v("x"), name="b")
    return {
        "prelu": prelu(),
        "prelu_of_user": prelu(v("slope")),
        "prelu_with_init": prelu(v("slope", init=mx.init.One())),
        "prelu_with_lr": prelu(v("slope", lr_mult=3)),
        "prelu_with_attr": prelu(attr={"__init__": '["one", {}]', "lr_mult": "2"}),
        "prelu_computed": prelu(mx.sym.relu(v("raw_weight"), name="r")),
        "twice": twice(),
        "up": mx.sym.UpSampling(v("x"), scale=2, sample_type="bilinear", num_args=2, num_filter=3, name="u"),
        "up_of_user": mx.sym.UpSampling(
            v("x"), v("w"), scale=2, sample_type="bilinear", num_args=2, num_filter=3, name="u"
        ),
        "up_nearest": mx.sym.UpSampling(v("x"), v("w"), scale=2, sample_type="nearest", num_args=2, name="u"),
        "norm": mx.sym.BatchNorm(v("x"), name="b", attr={"wd_mult": "0"}),
        "norm_in_scope": scoped,
        "sync": mx.sym.contrib.SyncBatchNorm(v("x"), key="k", name="b"),
        "sparse": mx.sym.IdentityAttachKLSparseReg(mx.sym.Flatten(v("x"), name="f"), name="k"),
    }  # fmt: skip


def facts(net: Any) -> dict[str, Any]:
    """`attr_dict` of a network and the nodes of its file, in a form that can be compared."""
    nodes = json.loads(net.tojson())["nodes"]
    return {
        "attr_dict": net.attr_dict(),
        "nodes": [[n["op"], n["name"], n.get("attrs", {}), [i[:2] for i in n["inputs"]]] for n in nodes],
    }


def values(mx: Any, net: Any, initializer: Any) -> dict[str, list[float]]:
    """Values of the parameters and auxiliary states of a network after init_params."""
    module = mx.mod.Module(net, data_names=["x"], label_names=None)
    module.bind([("x", SHAPE)], for_training=False)
    module.init_params(initializer)
    return {k: a.asnumpy().ravel().tolist() for part in module.get_params() for k, a in part.items()}


def fixed_values(mx: Any, name: str) -> dict[str, list[float]]:
    """Values of the parameters of a network, which are the same with every initializer."""
    found = [values(mx, networks(mx)[name], getattr(mx.init, kind)(**kwargs)) for kind, kwargs in INITIALIZERS.items()]
    assert all(each == found[0] for each in found), name
    return found[0]


# ------------------------------------------------------------------------------------------------ the registry
def operators() -> Iterator[tuple[str, Any, dict[str, str], str]]:
    """(name, handle, argument name -> type, attribute with the number of inputs) of all operators but backward ones."""
    import ctypes

    from mxnet.base import _LIB, c_str, check_call, mx_uint, py_str

    count, names = ctypes.c_uint(), ctypes.POINTER(ctypes.c_char_p)()
    check_call(_LIB.MXListAllOpNames(ctypes.byref(count), ctypes.byref(names)))
    for name in sorted(py_str(names[i]) for i in range(count.value)):
        if "backward" in name or "_grad" in name or name in ("_NDArray", "_Native", "reset_arrays"):  # the last three crash
            continue
        handle, size = ctypes.c_void_p(), mx_uint()
        text, about, variadic, result = (ctypes.c_char_p() for _ in range(4))
        lists = [ctypes.POINTER(ctypes.c_char_p)() for _ in range(3)]
        check_call(_LIB.NNGetOpHandle(c_str(name), ctypes.byref(handle)))
        refs = [text, about, size, *lists, variadic, result]
        check_call(_LIB.MXSymbolGetAtomicSymbolInfo(handle, *map(ctypes.byref, refs)))
        yield name, handle, {py_str(lists[0][i]): py_str(lists[1][i]) for i in range(size.value)}, py_str(variadic.value)


def choices(kind: str) -> list[str]:
    """Some values of an attribute of this type."""
    if kind.startswith("{"):
        found = [item.strip().strip("'") for item in kind[1 : kind.index("}")].split(",")]
        return [item for item in found if item != "None"]
    if kind.startswith("boolean"):
        return ["True", "False"]
    return ["(1,)"] if kind.startswith(("Shape", "tuple")) else ["x"] if kind.startswith("string") else ["1"]


def added(handle: Any, attrs: dict[str, str]) -> dict[str, dict[str, str]] | None:
    """Variable -> attributes that it has and the operator has not, of a node without inputs; None: it is no node."""
    import ctypes

    from mxnet.base import _LIB, MXNetError, c_str_array, check_call, mx_uint
    from mxnet.symbol import Symbol

    try:
        made = ctypes.c_void_p()
        pairs = c_str_array(list(attrs)), c_str_array(list(attrs.values()))
        check_call(_LIB.MXSymbolCreateAtomicSymbol(handle, mx_uint(len(attrs)), *pairs, ctypes.byref(made)))
        net = Symbol(made)
        net._compose(name="n")
        *variables, node = json.loads(net.tojson())["nodes"]
    except (MXNetError, ValueError):
        return None
    have = node.get("attrs", {}).items()
    found = {v["name"]: dict(v.get("attrs", {}).items() - have) for v in variables}
    return {name: more for name, more in found.items() if more}


def variants(handle: Any, kinds: dict[str, str], variadic: str) -> dict[str, Any]:
    """The distinct results of `added` for one operator, with the attributes that lead to them."""
    base = {k: choices(t)[0] for k, t in kinds.items() if "required" in t and not t.startswith(("Symbol", "NDArray"))}
    base |= {k: "(2, 2)" for k in base if k in ("kernel", "pooled_size")}
    tried = [base] + [{**base, k: c} for k, t in kinds.items() if t.startswith(("{", "boolean")) for c in choices(t)]
    found: list[Any] = []
    composed = False
    for attrs in tried:
        more = added(handle, {**attrs, variadic: "2"} if variadic and variadic not in attrs else attrs)
        composed = composed or more is not None
        if more and more not in [f["added"] for f in found]:
            found.append({"attrs": attrs, "added": more})
    return {"composed": composed, "found": found}


def recorded(mx: Any) -> dict[str, Any]:
    cases, skipped, count = [], [], 0
    for name, handle, kinds, variadic in operators():  # each in a process of its own: some crash
        result = apart(lambda: variants(handle, kinds, variadic)) or {"composed": False, "found": []}  # noqa: B023
        count += result["composed"]
        skipped += [] if result["composed"] else [name]
        cases += [{"op": name, **found} for found in result["found"]]
    nets = {name: facts(net) for name, net in networks(mx).items()}
    for name in HAVE_VALUES:
        nets[name]["values"] = fixed_values(mx, name)
    data = {"mxnet": mx.__version__, "composed": count, "not_composed": skipped, "operators": cases, "networks": nets}
    return {"created_variables.json": data}
