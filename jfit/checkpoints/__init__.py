"""Checkpoints: saving, reading, locking, resuming, and the fingerprint that decides whether a run can be resumed."""

from jfit import lazy

lazy.modules(__name__)
