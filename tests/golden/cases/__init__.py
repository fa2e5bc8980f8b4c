"""What MXNet 1.9.1 and jfit both run; `python tests/golden/record.py NAME` records what MXNet gives for a module of cases."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def apart(call: Callable[[], Any]) -> Any:
    """The result of a call, as JSON gives it back, from a process of its own; None if MXNet crashes in it."""
    with tempfile.NamedTemporaryFile() as out:
        pid = os.fork()
        if pid == 0:
            Path(out.name).write_text(json.dumps(call()), encoding="utf-8")
            os._exit(0)
        crashed = os.waitpid(pid, 0)[1] != 0
        text = Path(out.name).read_text(encoding="utf-8")
    return None if crashed or not text else json.loads(text)
