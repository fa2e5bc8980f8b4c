"""Stages 5 and 6: epochs, events, evaluation, checkpoints; `fit` wires them together, a `Run` is what it returns."""
