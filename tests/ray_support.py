"""For tests that run Ray: the processes that it started, and the addresses on which they listen."""

import contextlib
import os
import socket
import struct
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """Ids of the processes that a process has started, and those have started."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    found, new = [], [pid]
    while new:
        new = [child for child, parent in parents.items() if parent in new]
        found += new
    return found


def of_session(session: int) -> list[int]:
    """Ids of the processes of a session (`start_new_session`), also of those whose parents have ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                found.append(int(folder.name))
    return found


def listening(pids: list[int]) -> set[str]:
    """Addresses on which processes accept TCP connections, without ports; IPv4 addresses in IPv6 form as IPv4."""
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    target = os.readlink(link)
                    if target.startswith("socket:["):
                        inodes.add(target[8:-1])
    found = set()
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:  # LISTEN
                words = bytes.fromhex(fields[1].partition(":")[0])
                packed = b"".join(struct.pack(">I", word) for word in struct.unpack(f"<{len(words) // 4}I", words))
                found.add(socket.inet_ntop(family, packed).removeprefix("::ffff:"))
    return found


def start_on_loopback() -> str:
    """Start Ray as jfit does, and check that all its processes listen on the loopback interface; else stop it at once."""
    from jfit.distributed.actors import import_ray, start_ray

    ray = import_ray("the test")
    address = start_ray(ray, 8)
    found = outside([os.getpid(), *descendants(os.getpid())])
    if found:
        ray.shutdown()
        raise SystemExit(f"Ray listens on {found}")
    return address


def outside(pids: list[int]) -> list[str]:
    """Addresses other than those of the loopback interface on which processes listen; none may be unknown."""
    found = listening(pids)
    assert found
    return sorted(a for a in found if not a.startswith("127.") and a != "::1")
