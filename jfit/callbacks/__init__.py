"""Callbacks: pure pairs (init, on) that a run calls with events."""

from jfit.callbacks.base import Callback, Event, as_callback, lambda_callback

__all__ = ["Callback", "Event", "as_callback", "lambda_callback"]
