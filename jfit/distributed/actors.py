"""Actors: objects whose methods are called remotely; on Ray each has a process of its own, without Ray a thread of this one.

`jfit.fit_async` and `KVStore("dist_async")` use this small interface: `start` an actor, `call` its methods, `kill` it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

Future = concurrent.futures.Future

# Read when ray is imported: without it Ray replaces 127.0.0.1 by the address of a network card, and listens on all of them.
_LOOPBACK_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
_AUTHENTICATION = "RAY_AUTH_MODE"
_VARIABLES = {_LOOPBACK_VARIABLE: "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_enable_metrics_collection": "0"}


class Actor(Protocol):
    """An object that lives elsewhere.  Actors can be passed to other actors."""

    def call(self, method: str, *args: Any) -> Future[Any]:
        """Call a method; the future has its result or its exception, or the exception that the actor was lost."""
        ...


class Actors(Protocol):
    """Where actors are started."""

    def start(self, build: Callable[..., Any], *args: Any, calls: int = 1, options: Mapping[str, Any] | None = None) -> Actor:
        """Start an actor whose object is `build(*args)`.

        Args:
            build: class or function of a module, or of the user's script.
            args: its arguments.
            calls: number of methods that may run at the same time, in threads.
            options: arguments of `ray.actor.ActorClass.options`, such as {"num_gpus": 1}; threads have none.
        """
        ...

    def kill(self, actor: Any) -> None:
        """End an actor at once."""
        ...

    def close(self) -> None:
        """Give back what was started; actors that still run are ended."""
        ...


class ThreadActors:
    """Actors that are threads of this process.

    Example:
        >>> actors = ThreadActors()
        >>> actor = actors.start(list, (3, 1, 2))
        >>> actor.call("index", 1).result()
        1
        >>> actors.close()
    """

    def __init__(self) -> None:
        self._pools: list[concurrent.futures.ThreadPoolExecutor] = []

    def start(self, build: Callable[..., Any], *args: Any, calls: int = 1, options: Mapping[str, Any] | None = None) -> Actor:
        """See `Actors.start`."""
        del options
        pool = concurrent.futures.ThreadPoolExecutor(calls + 1, thread_name_prefix="jfit-actor")
        self._pools.append(pool)
        return _ThreadActor(pool, pool.submit(build, *args))

    def kill(self, actor: Any) -> None:
        """Cannot end a thread: drops the calls that wait, and lets the others end."""
        actor.pool.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Wait until all calls have ended."""
        for pool in self._pools:
            pool.shutdown(wait=True, cancel_futures=True)


class _ThreadActor:
    def __init__(self, pool: concurrent.futures.ThreadPoolExecutor, target: Future[Any]) -> None:
        self.pool, self._target = pool, target

    def call(self, method: str, *args: Any) -> Future[Any]:
        return self.pool.submit(lambda: getattr(self._target.result(), method)(*args))


class RayActors:
    """Actors of Ray: on the cluster that the script has joined by `ray.init`, else on this host, on the loopback interface.

    Args:
        needs: what needs Ray, for the message if it is not installed.
        num_cpus: number of CPUs that a Ray of this host assigns to actors, not a limit of what they use.

    Attributes:
        address: with which other processes join it by `join_ray`.
        authentication: how they prove that they may: "token" for the token in a file of the user; None: not at all.

    Raises:
        ImportError: Ray is not installed.
        RuntimeError: Ray would listen on all interfaces of this host, because the script has imported it before.
    """

    def __init__(self, needs: str, num_cpus: int | None = None) -> None:
        self._ray = import_ray(needs)
        self._started = not self._ray.is_initialized()
        if self._started:
            start_ray(self._ray, num_cpus)
        self.address: str = self._ray.get_runtime_context().gcs_address
        self.authentication = os.environ.get(_AUTHENTICATION)  # Ray sets it when it starts
        self._actors: list[_RayActor] = []

    def start(self, build: Callable[..., Any], *args: Any, calls: int = 1, options: Mapping[str, Any] | None = None) -> Actor:
        """See `Actors.start`."""
        holder = self._ray.remote(max_restarts=0, **(options or {}))(_Holder)
        actor = _RayActor(holder.options(max_concurrency=calls + 1).remote(build, *args))
        self._actors.append(actor)
        return actor

    def kill(self, actor: Any) -> None:
        """See `Actors.kill`."""
        with contextlib.suppress(Exception):  # it may be lost already, or Ray itself
            self._ray.kill(actor.handle)

    def close(self) -> None:
        """End all actors, and the Ray of this host if it was started here."""
        for actor in self._actors:
            self.kill(actor)
        if self._started:
            self._ray.shutdown()


class _RayActor:
    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def call(self, method: str, *args: Any) -> Future[Any]:
        return self.handle.call.remote(method, *args).future()


class _Holder:
    """The object of a Ray actor; `call` runs in several threads if the actor allows it."""

    def __init__(self, build: Callable[..., Any], *args: Any) -> None:
        self._target = build(*args)

    def call(self, method: str, *args: Any) -> Any:
        return getattr(self._target, method)(*args)


def named_actor(ray: Any, name: str) -> Actor:
    """Return the actor that another process has started with `start(..., options={"name": name, "namespace": "jfit"})`."""
    return _RayActor(ray.get_actor(name, namespace="jfit"))


def check_ray(needs: str) -> None:
    """Raise ImportError with what to install if Ray is not installed.

    Args:
        needs: what needs Ray, such as 'KVStore("dist_async")'.
    """
    if importlib.util.find_spec("ray") is None:
        raise ImportError(f'{needs} needs the extra: pip install "jfit[ray]"')


def import_ray(needs: str) -> Any:
    """Import Ray so that it can be bound to the loopback interface.

    Args:
        needs: as for `check_ray`.

    Returns:
        The module `ray`.

    Raises:
        ImportError: it is not installed.
    """
    check_ray(needs)
    with _variables():
        import ray
    return ray


def join_ray(needs: str, address: str, authentication: str | None) -> Any:
    """Join a Ray that another process has started, unless this process has joined one.

    Args:
        needs: as for `check_ray`.
        address: `RayActors.address` there.
        authentication: `RayActors.authentication` there.

    Returns:
        The module `ray`.

    Raises:
        ImportError: Ray is not installed.
        RuntimeError: this process would listen on all interfaces, because the script has imported Ray before.
    """
    if authentication is not None:  # before Ray is imported, which reads it
        os.environ.setdefault(_AUTHENTICATION, authentication)
    ray = import_ray(needs)
    if ray.is_initialized():
        return ray
    local = {"_node_ip_address": "127.0.0.1"} if address.startswith("127.") else {}
    if local:
        _check_loopback(ray)
    with _variables():
        ray.init(address, log_to_driver=False, **local)
    return ray


def start_ray(ray: Any, num_cpus: int | None = None) -> str:
    """Start Ray on this host, on 127.0.0.1 only; or join the cluster of the environment variable RAY_ADDRESS.

    Args:
        ray: from `import_ray`.
        num_cpus: number of CPUs that Ray assigns to actors; None: those of the host.

    Returns:
        Address with which other processes join it.

    Raises:
        RuntimeError: Ray would listen on all interfaces, because the script has imported it before.
    """
    if os.environ.get("RAY_ADDRESS"):
        return ray.init().address_info["gcs_address"]
    _check_loopback(ray)
    with _variables():
        context = ray.init("local", num_cpus=num_cpus, include_dashboard=False, _node_ip_address="127.0.0.1")
    return context.address_info["gcs_address"]


def _check_loopback(ray: Any) -> None:
    if not ray.util.get_node_ip_address().startswith("127."):
        raise RuntimeError(
            "the script imported ray before jfit needed it, so that Ray would listen on all network interfaces of this host; "
            f"set the environment variable {_LOOPBACK_VARIABLE}=0 before the import, which binds it to 127.0.0.1, or call "
            "ray.init() yourself to decide which cluster is used"
        )


@contextlib.contextmanager
def _variables() -> Iterator[None]:
    """Set the variables that Ray reads at import and start, which the processes that it starts inherit; then restore them."""
    before = {name: os.environ.get(name) for name in _VARIABLES}
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
