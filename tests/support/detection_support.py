"""Functions that call the detection operators by name, with attributes as a dict and optional inputs."""

from op_support import compiled

from jfit.ops import lookup


def call(name, attrs, *inputs):
    """What an operator computes, compiled."""
    op = lookup(name)
    return compiled(op.fn, op.parse(attrs))(*inputs)
