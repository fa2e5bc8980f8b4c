"""Training speed on an accelerator against hand-written JAX and other frameworks: `python -m benchmarks.accelerator`."""
