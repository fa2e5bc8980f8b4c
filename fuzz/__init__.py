"""Fuzzing of the file readers with arbitrary bytes: `targets` defines the checks, `run` runs them with atheris."""
