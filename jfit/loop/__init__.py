"""The training loop: dispatches, and what watches them."""

from jfit import lazy

lazy.modules(__name__)
