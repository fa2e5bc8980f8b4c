"""Commands around `fit`: lr_find, cost, verify, replay, sweep."""

from jfit import lazy

lazy.modules(__name__)
