"""Iterators over numeric data files: CSV, LibSVM and MNIST (IDX)."""
