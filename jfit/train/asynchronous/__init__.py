"""Asynchronous training: workers send gradients to a server, which applies each when it arrives.

`api.fit_async` starts a `server.ParameterServer` and several `worker.Worker`s as actors (`jfit.distributed.actors`).
"""

from jfit.train.asynchronous.api import fit_async

__all__ = ["fit_async"]
