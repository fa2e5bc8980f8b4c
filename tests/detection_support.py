"""Operators run compiled: those with loops cost more to run step by step than to compile once, and once quickly."""

import dataclasses
import functools

import jax

from jfit.ops import Ctx, lookup


def compiled_op(name):
    """The record of an operator, its function compiled once for each set of attributes."""
    op = lookup(name)

    @functools.cache
    def jitted(attrs):
        return jax.jit(lambda *inputs: op.fn(Ctx(rows=(None,) * len(inputs)), attrs, *inputs))

    return dataclasses.replace(op, fn=lambda ctx, attrs, *inputs: jitted(attrs)(*inputs))


def call(name, attrs, *inputs):
    """What an operator computes, compiled."""
    op = compiled_op(name)
    return op.fn(None, op.parse(attrs), *inputs)
