"""Scores and predictions of a model over a data set."""

from jfit import lazy

lazy.modules(__name__)
