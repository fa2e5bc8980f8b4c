"""What the parts of FeedForward share: a network and its parameters by name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from jfit.mxnet.seam import PLAIN, Arrays

Params = dict[str, Any]


class Holder:
    """A network, its devices and its parameters (None before there are any)."""

    symbol: Any
    ctx: list[Any]
    arg_params: Any  # dict by name, or None
    aux_params: Any
    arrays: Arrays = PLAIN

    def _known(self) -> tuple[Params, Params]:
        """(parameters, auxiliary states).

        Raises:
            ValueError: there are none yet, or no network.
        """
        if self.symbol is None:
            raise ValueError("the network is a function of the bucket key, and no data has told a key yet; call fit first.")
        if self.arg_params is None:
            raise ValueError("the model has no parameters yet; call fit, train or init_model, or load a checkpoint.")
        return self.arg_params, self.aux_params or {}

    def _give(self, params: Mapping[str, Any], aux: Mapping[str, Any]) -> None:
        """Take plain arrays as parameters."""
        self.arg_params = {name: self.arrays.box(value) for name, value in params.items()}
        self.aux_params = {name: self.arrays.box(value) for name, value in aux.items()}

    def _take(self, module: Any) -> None:
        """Copy the parameters of a module; the mean over devices where they have their own."""
        self.arg_params, self.aux_params = module.get_params()

    @contextlib.contextmanager
    def _keeping(self, module: Any) -> Iterator[None]:
        """Where the block fails or is interrupted, what the module has learned so far is kept."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(Exception):  # the devices may have lost it
                self._take(module)
            raise
