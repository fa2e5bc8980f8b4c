"""Benchmarks that users run on their own machines: `python -m jfit.bench scaling --help`."""

from jfit import lazy

lazy.modules(__name__)
