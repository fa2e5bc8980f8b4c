"""Which processes form a job: from arguments, from the environment of torchrun, or from that of MXNet's launcher."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import NamedTuple


class Settings(NamedTuple):
    """The processes of a job, and which of them this one is.

    Attributes:
        coordinator: "host:port" on which the process of rank 0 listens.
        num_processes: number of processes.
        rank: number of this process, from 0.
        local_rank: number of this process on its host, from 0; None if it is the only one there, or it is not known.
        source: where these settings come from, for messages.

    Example:
        >>> Settings("127.0.0.1:9000", 2, 0, None, "arguments").rank
        0
    """

    coordinator: str
    num_processes: int
    rank: int
    local_rank: int | None
    source: str


# Variables with the number of processes of a job, and with the number of a process.  (A shell of sbatch has SLURM_NTASKS and
# SLURM_PROCID, too; only processes that srun started have SLURM_STEP_NUM_TASKS.)
_LAUNCHERS = {"WORLD_SIZE": "RANK", "SLURM_STEP_NUM_TASKS": "SLURM_PROCID"}
_LAUNCHERS |= {"OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK", "PMI_SIZE": "PMI_RANK"}

# Variables with the number of processes that a launcher started, and those that name this launch.
_LAUNCHES = {"WORLD_SIZE": ("TORCHELASTIC_RUN_ID",), "SLURM_STEP_NUM_TASKS": ("SLURM_JOB_ID", "SLURM_STEP_ID")}


# Launchers, and the variables of their processes: the number of these, the rank (one of several), host and port of rank 0.
_TORCHRUN = ("torchrun", "WORLD_SIZE", ("RANK",), "MASTER_ADDR", "MASTER_PORT")
_WORKERS = ("DMLC_WORKER_ID", "DMLC_RANK", "DMLC_TASK_ID", *_LAUNCHERS.values())  # it starts them itself, or by MPI or Slurm
_MXNET = ("MXNet's launcher", "DMLC_NUM_WORKER", _WORKERS, "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT")


def token_of(num_processes: int, env: Mapping[str, str] = os.environ) -> str:
    """Return a text that all processes of a job have in common: a digest of `JFIT_JOB_TOKEN`, or of the launcher's job id.

    Args:
        num_processes: number of processes of the job.  Ids of a launcher that started another number are ignored: the processes
            of the job may have been started by several of its commands.
        env: environment variables.

    Example:
        >>> torchrun = {"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "a1b2"}
        >>> len(token_of(2, torchrun)), token_of(4, torchrun)
        (64, '')
    """
    names = [("JFIT_JOB_TOKEN",), *(names for count, names in _LAUNCHES.items() if env.get(count) == str(num_processes))]
    values = next(([env[name] for name in known] for known in names if all(env.get(name) for name in known)), None)
    return "" if values is None else hashlib.sha256(json.dumps(values).encode()).hexdigest()


def launched(env: Mapping[str, str] = os.environ) -> str | None:
    """Return the variable that says that a launcher started this process as one of several.

    Args:
        env: environment variables.

    Returns:
        Name of the variable with the number of processes; None if there is none, or one process.

    Example:
        >>> launched({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0"}), launched({})
        ('SLURM_STEP_NUM_TASKS', None)
    """
    return next((count for count, rank in _LAUNCHERS.items() if rank in env and env.get(count, "1") != "1"), None)


def settings_of(
    coordinator: str | None = None,
    num_processes: int | None = None,
    rank: int | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Settings | None:
    """Read the settings of a job: explicit arguments, else the environment of torchrun, else that of MXNet's launcher.

    Args:
        coordinator: "host:port" of the process of rank 0; None: from the environment.
        num_processes: number of processes; None: from the environment.
        rank: number of this process, from 0; None: from the environment.
        environment: environment variables.

    Returns:
        `Settings`; None if there are neither arguments nor such variables.

    Raises:
        ValueError: some of the three arguments are missing, or a value is not possible.

    Example:
        >>> torchrun = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
        >>> settings_of(environment=torchrun).coordinator
        '127.0.0.1:29501'
    """
    if coordinator is num_processes is rank is None:
        return _from_environment(environment)
    if coordinator is None or num_processes is None or rank is None:
        raise ValueError(
            f"jfit.distributed.init got {coordinator=}, {num_processes=} and {rank=}; pass all three, or none of them to read "
            "the environment of torchrun or of a cluster"
        )
    return _checked(Settings(coordinator, num_processes, rank, None, "the arguments of jfit.distributed.init"))


def _from_environment(env: Mapping[str, str]) -> Settings | None:
    torchrun = "WORLD_SIZE" in env and "RANK" in env
    launcher, count, ranks, host, port = _TORCHRUN if torchrun else _MXNET
    if count not in env:
        return None
    if not torchrun and (role := env.get("DMLC_ROLE", "worker")) != "worker":
        raise ValueError(f"DMLC_ROLE is {role!r}, but only workers take part in a job of jfit; do not start this process")
    names = [count, host, port, next((name for name in ranks if name in env), ranks[0])]
    if missing := [name for name in names if name not in env]:
        raise ValueError(
            f"the environment has {count}, as {launcher} sets it, but not {' and '.join(missing)}; start the script with the "
            "launcher, or set it for each process, or pass coordinator=, num_processes= and rank= to jfit.distributed.init"
        )
    several = torchrun and "LOCAL_RANK" in env and _number({"LOCAL_WORLD_SIZE": "2", **env}, "LOCAL_WORLD_SIZE") > 1
    local = _number(env, "LOCAL_RANK") if several else None
    coordinator = f"{env[host]}:{_number(env, port) + torchrun}"  # torchrun itself listens on MASTER_PORT
    source = f"the environment variables of {launcher} ({', '.join(names)})"
    return _checked(Settings(coordinator, _number(env, count), _number(env, names[-1]), local, source))


def _number(env: Mapping[str, str], name: str) -> int:
    try:
        return int(env[name])
    except ValueError:
        raise ValueError(f"the environment variable {name} is {env[name]!r}, expected a whole number") from None


def _checked(settings: Settings) -> Settings:
    if not 0 <= settings.rank < settings.num_processes:
        what = f"rank {settings.rank} of {settings.num_processes} processes, from {settings.source}"
        raise ValueError(f"{what}, is not possible: ranks are numbered from 0 to the number of processes - 1")
    host, _, port = settings.coordinator.rpartition(":")
    if ":" in host.strip("[]"):
        settings = settings._replace(coordinator=f"[{host.strip('[]')}]:{port}")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"coordinator {settings.coordinator!r}, from {settings.source}, is not 'host:port'")
    return settings
