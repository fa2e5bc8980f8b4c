"""Iterators over files of numbers: CSV, LibSVM, MNIST."""
