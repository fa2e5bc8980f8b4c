"""Re-runnable measurements: `step_overhead` (speed against peers) and `size` (lines of code)."""
