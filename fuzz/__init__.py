"""Readers of files under arbitrary bytes: `targets` says what must hold, `run` drives it with atheris."""
