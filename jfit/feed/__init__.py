"""Batches for the devices: gathered from arrays there, or prepared on the host; padding, order, agreement in a job."""

from jfit import lazy

lazy.modules(__name__)
