"""Operators of detection by name: attributes are given as a dict, inputs may be missing."""

from op_support import compiled

from jfit.ops import lookup


def call(name, attrs, *inputs):
    """What an operator computes, compiled."""
    op = lookup(name)
    return compiled(op.fn, op.parse(attrs))(*inputs)
