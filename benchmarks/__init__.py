"""Benchmarks and measurements, each run as `python -m benchmarks.NAME`; benchmarks/README.md describes them."""
