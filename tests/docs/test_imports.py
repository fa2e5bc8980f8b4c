"""`import jfit` and `import jfit.mx` import their names when they are used; all names stay where they were."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import jfit
import jfit.mx as mx

ROOT = Path(jfit.__file__).parent


@pytest.mark.parametrize("package", [jfit, mx, jfit.data, jfit.optim, jfit.parallel, jfit.metrics], ids=lambda p: p.__name__)
def test_names_are_those_that_type_checkers_read(package):
    tree = ast.parse(Path(package.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [n for n in tree.body if isinstance(n, ast.ImportFrom)]
    names = {a.asname or a.name: (n.module or package.__name__, a.name) for n in imports for a in n.names}
    assert set(package.__all__) - {"contrib", "gluon", "notebook", "onnx"} == set(names) and set(names) <= set(dir(package))
    for name, (module, attribute) in names.items():
        source = importlib.import_module(module)
        expected = getattr(source, attribute, None) or importlib.import_module(f"{module}.{attribute}")
        value = getattr(package, name)
        # type checkers read a module of `jfit.mx._modules` from one that has all its names
        assert value is expected or all(hasattr(expected, n) for n in value.__all__), name


def test_a_fresh_process_imports_only_what_is_used():
    code = """
import gc, sys, jfit
own = ("jfit.allocator", "jfit.lazy", "jfit.disk_cache")
assert not [m for m in sys.modules if m.startswith("jfit.") and m not in own], sys.modules
assert "optax" not in sys.modules
from jfit import Run as run_class
assert jfit.load.__name__ == "load" and jfit.fit.__module__ == "jfit.fit" and jfit.Run is run_class
assert gc.isenabled() and "jax.extend" not in sys.modules
gc.disable()
assert jfit.sweep and not gc.isenabled()
import jfit.load.loaded  # its import sets the attribute `load` of jfit, which stays the function
assert callable(jfit.load) and "jfit.mxnet.module" not in sys.modules
assert "jfit.data.images" not in sys.modules
assert jfit.loop.loop.Loop and jfit.lowering.model.Model is jfit.Model
import jfit.mx as mx
assert not {"onnx", "PIL", "pandas", "torch", "flax", "matplotlib"} & set(sys.modules)
from jfit.mx import nd, sym as symbols, gluon
assert mx.sym is symbols and mx.nd is nd and mx.gluon.Trainer is gluon.Trainer
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.slow
def test_mx_imports_the_training_loop_when_it_is_used():
    code = """
import sys, jfit.mx as mx
mx.nd.zeros(2), mx.cpu()
loaded = {m.split(".")[1] for m in sys.modules if m.startswith("jfit.")}
assert not {"data", "init", "lowering", "metrics", "step", "prepare", "loop", "fit"} & loaded, loaded
assert "jfit.optim.registry" not in sys.modules and "jfit.parallel.devices" not in sys.modules
assert mx.optimizer.SGD and "jfit.optim.registry" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["mx.module", "mx.random", "mx.sym", "mxnet.symbol", "mxnet.gluon", "tools.verify", "data.images"]
)
@pytest.mark.repetitions(slow=3)
def test_any_module_can_be_the_first_that_is_imported(name):
    code = f"from jfit.{name.rpartition('.')[0]} import {name.rpartition('.')[2]}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# After the first name is used, the second is still a module.  All of them were modules when `import jfit` imported everything.
MODULES_AFTER = {
    "fit": "tools.lr_find",
    "score": "loop.loop",
    "load": "run",
    "callback": "mxnet.module",
    "Module": "mxnet.gluon",
    "data.files": "data.files.csv_iter",
    "graph": "graph.in_place",
    "programs": "mxnet.random",
}


@pytest.mark.slow
def test_modules_are_attributes_whatever_was_used_before():
    code = f"""
import operator, os, types, sys, optax, jfit
for first, module in {MODULES_AFTER!r}.items():
    child = os.fork()
    if not child:
        try:
            operator.attrgetter(first)(jfit)
            value = operator.attrgetter(module)(jfit)
            assert isinstance(value, types.ModuleType) and value.__name__ == "jfit." + module, (first, module)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, (first, module)
own = ("jfit.allocator", "jfit.lazy", "jfit.disk_cache")
assert not [m for m in sys.modules if m.startswith("jfit.") and m not in own]
jfit.compile_cache(False)
assert "jfit.parallel" not in sys.modules
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=120)


def test_missing_names_raise_attribute_errors():
    with pytest.raises(AttributeError, match="module 'jfit' has no attribute 'fitt'"):
        jfit.fitt  # noqa: B018
    with pytest.raises(AttributeError, match=r"mx.symm: jfit does not provide 'symm' here; .*'sym'"):
        mx.symm  # noqa: B018
    assert not hasattr(jfit, "__path_of_nothing__") and not hasattr(mx, "__wrapped__")


def test_lazy_packages_have_a_stub():
    """No other package hides imports in a table of strings."""
    users = [p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*.py") if "import_module(" in p.read_text(encoding="utf-8")]
    assert "lazy.py" in users
    packages = [p for p in ROOT.rglob("__init__.py") if "_lazy.stub(" in p.read_text(encoding="utf-8")]
    assert {p.parent for p in packages} == {p.parent for p in ROOT.rglob("__init__.pyi")} - {ROOT / "sym"}
    assert not [p for p in ROOT.rglob("__init__.py") if "_lazy.attributes(" in p.read_text(encoding="utf-8")]
