"""Faults injected into training runs and files, and what became of them: `python -m benchmarks.faults`."""
