"""A graph as MXNet lists it for debugging: every node with its inputs and attributes."""

from __future__ import annotations

from jfit.graph.symbol import Entry, Symbol, aux_nodes


def listing(symbol: Symbol) -> str:
    """Every node in order, with inputs and attributes, in MXNet's words.

    Example:
        >>> import jfit
        >>> print(listing(jfit.sym.relu(jfit.sym.Variable("x"), name="r")), end="")
        Symbol Outputs:
                output[0]=r(0)
        Variable:x
        --------------------
        Op:relu, Name=r
        Inputs:
                arg[0]=x(0) version=0
    """
    order = symbol.nodes()
    if len(symbol.heads) == 1 and symbol.heads[0].node.op is None:
        return f"Variable:{symbol.heads[0].node.name}\n"
    aux = aux_nodes(order)

    def source(entry: Entry) -> str:
        # how often the variable was written before it is read: auxiliary states once, by the operator itself
        version = f" version={int(id(entry.node) in aux)}" if entry.node.op is None else ""
        return f"{entry.node.name}({entry.index}){version}"

    lines = ["Symbol Outputs:", *(f"\toutput[{i}]={h.node.name}({h.index})" for i, h in enumerate(symbol.heads))]
    for node in order:
        if node.op is None:
            lines.append(f"Variable:{node.name}")
            continue
        lines += ["-" * 20, f"Op:{node.op.name}, Name={node.name}"]
        if node.inputs:
            lines += ["Inputs:", *(f"\targ[{i}]={source(e)}" for i, e in enumerate(node.inputs))]
        if node.attrs:
            lines += ["Attrs:", *(f"\t{k}={v}" for k, v in sorted(node.attrs.items()))]
    return "\n".join(lines) + "\n"
