"""Tests that calls raise, from a table of calls, errors and messages."""

from collections.abc import Callable
from typing import Any

import pytest


def refused(*cases: tuple[Any, ...]) -> Callable[..., None]:
    """A test of each case (call, message) or (call, error, message): the call raises the error, or a ValueError, with a message
    that matches."""

    @pytest.mark.parametrize("case", cases, ids=lambda case: case[-1])
    def test(case: tuple[Any, ...]) -> None:
        call, *error, message = case
        with pytest.raises(*error or [ValueError], match=message):
            call()

    return test
