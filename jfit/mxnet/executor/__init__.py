"""Graphs bound to arrays: `Symbol.bind`, `simple_bind` and the Executor they return."""
