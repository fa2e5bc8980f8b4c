"""The table of epochs and steps of a run, its plots and its display in notebooks."""

from jfit import lazy

lazy.modules(__name__)
