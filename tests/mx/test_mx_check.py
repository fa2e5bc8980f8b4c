"""`python -m jfit.mx check` and `run`, and the table of MXNet's names in docs/mxnet_names.md."""

import fnmatch
import functools
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from docs_scripts import docs_script

from jfit.mx import _alias, _check
from jfit.mx.__main__ import main
from jfit.platforms import cores

ROOT = Path(__file__).parents[2]
RECORDED = json.loads((ROOT / "tests" / "golden" / "mxnet_names.json").read_text())
PROGRAM = """
try:
    import mxnet as mx
except ImportError:
    mx = None
import numpy as np
from mxnet import gluon, nd as arrays
from mxnet.initializer import *
import mxnet.library, mxnet.symbol as S

F = mx.sym
F.Convolution(F.Variable("x"), kernel=(3, 3), num_filter=1)
arrays.CachedOp
arrays.take(arrays.zeros(3), 1)

def shape(arrays):
    return arrays.nonsense, mx.nd.quux

class B(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return F.relu(x) + F.nothing(x).anything

mx.mod.Module.load("a", 1).fit(None)
Xavier().nothing
mx = np
mx.nd.later
"""


@functools.cache
def table():
    """The page's generator, and the status of every name."""
    names = docs_script("mxnet_names")
    return names, [state for states in names.table().values() for state in states]


@pytest.fixture
def program(tmp_path):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return file


def test_check_lists_missing_and_different_names_with_line_and_remedy(program, capsys):
    assert main(["check", str(program)]) == 1
    out = capsys.readouterr().out.replace(f"{program}:", "")
    lines = out.splitlines()
    assert [line.split(":")[0] for line in lines[:-1]] == ["9", "13", "14", "17", "21"]
    assert lines[0].startswith("9: mx.library is missing: operators compiled")
    assert "13: mx.nd.CachedOp is missing: hybridize" in out and "14: mx.nd.take differs: mode=" in out
    assert "17: mx.nd.quux is missing" in out and "21: mx.nd.nothing is missing" in out
    assert re.search(r" \d+ names of MXNet, \d+ there, 1 differs, \d missing$", lines[-1])


def test_check_of_programs_without_missing_names_succeeds(tmp_path, capsys):
    (tmp_path / "a.py").write_text("from jfit import mx\nimport jfit.mx.symbol as sym\nsym.relu\nmx.nd.zeros(1)\n")
    (tmp_path / "b.py").write_text("import numpy\n")
    assert main(["check", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'a.py'}: 4 names of MXNet, 4 there\n"
    (tmp_path / "b.py").write_text("print 'Python 2'\n")
    assert main(["check", str(tmp_path)]) == 1
    assert "b.py: cannot be read: " in capsys.readouterr().out


def test_a_wrong_command_prints_the_usage(capsys):
    assert main(["chek"]) == 2 and main([]) == 2 and main(["run"]) == 2
    assert "run an unchanged script" in capsys.readouterr().err
    assert main(["--help"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("as_module", [False, True])
def test_run_runs_an_unchanged_script(tmp_path, as_module):
    (tmp_path / "helper.py").write_text("import mxnet.symbol\n\ndef double(x):\n    return x * 2\n")
    (tmp_path / "script.py").write_text(
        "import sys\nimport mxnet as mx\nfrom mxnet.io import NDArrayIter\nfrom helper import double\n"
        "if __name__ == '__main__':\n"
        "    print(sys.argv[1:], double(mx.nd.ones(2)).asnumpy(), NDArrayIter is mx.io.NDArrayIter)\n"
        "    raise KeyError('at the end')\n"
    )
    what = ["-m", "script"] if as_module else [str(tmp_path / "script.py")]
    command = [sys.executable, "-m", "jfit.mx", "run", *what, "--epochs", "3"]
    done = subprocess.run(command, cwd=tmp_path if as_module else None, capture_output=True, text=True)
    assert done.stdout == "['--epochs', '3'] [2. 2.] True\n"
    assert done.returncode == 1
    assert [line for line in done.stderr.splitlines() if not line.startswith(" ")] == [
        "Traceback (most recent call last):",
        "KeyError: 'at the end'",
    ]
    assert done.stderr.count("File ") == 1 and "script.py" in done.stderr


CONTEXTS = """
import jfit.mx as mx
{before}
import jax
ctx = [mx.cpu(i) for i in range({count})]
print(len(jax.devices("cpu")), mx.nd.ones(1, ctx=ctx[-1]).context)
"""


@pytest.mark.repetitions(2)
@pytest.mark.parametrize(
    ("count", "before", "flags", "printed"),
    [
        (1, "", "", {1: "1 cpu(0)", 2: "4 cpu(0)", 8: "8 cpu(0)"}),
        (2, "", "", "8 cpu(1)"),  # contexts are named before anything is computed
        (2, "mx.nd.ones(1)", "", {2: "4 cpu(1)", 8: "8 cpu(1)"}),
        (3, "", "--xla_force_host_platform_device_count=3", "3 cpu(2)"),
    ],
)
def test_a_context_exists_for_every_cpu_number_that_scripts_use(count, before, flags, printed):
    printed = printed if isinstance(printed, str) else printed.get(cores())
    if printed is None:
        pytest.skip("not known for this number of cores")
    command = [sys.executable, "-c", CONTEXTS.format(count=count, before=before)]
    done = subprocess.run(command, env={**os.environ, "XLA_FLAGS": flags}, capture_output=True, text=True)
    assert done.stdout.strip() == printed, done.stderr


def test_the_alias_gives_the_modules_of_jfit_mx_and_leaves_them_as_they_are():
    import jfit.mx as mx

    _alias.install()
    try:
        mxnet = importlib.import_module("mxnet")
        symbol = importlib.import_module("mxnet.symbol")
        assert mxnet is mx and symbol is importlib.import_module("jfit.mx.symbol")
        assert mx.__spec__.name == "jfit.mx" and importlib.import_module("mxnet.gluon.utils") is mx.gluon.utils
        with pytest.raises(ModuleNotFoundError, match=r"jfit\.mx has no module 'mxnet\.nothing'; .*check"):
            importlib.import_module("mxnet.nothing")
    finally:
        _alias.uninstall()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("mxnet.symbol")


@pytest.mark.slow
def test_the_table_of_names_is_up_to_date_and_decides_every_missing_name():
    names, states = table()
    assert [state.name for state in states if state.kind == "missing" and not state.remark] == []
    assert len(states) == sum(len(names.split()) for names in RECORDED.values())
    assert (ROOT / "docs" / "mxnet_names.md").read_text() == names.markdown(), (
        "run python -m docs.mxnet_names > docs/mxnet_names.md"
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["differs", "missing"])
def test_every_line_of_differences_is_about_a_name_of_mxnet(kind):
    known = {state.name for state in table()[1] if state.kind == kind}
    assert [p for p in _check.remarks()[kind] if not fnmatch.filter(known, p)] == []
