"""The names of `jfit.mx`: missing names raise AttributeError with the nearest names, so that `hasattr` is False."""

import importlib
import pickle
import subprocess
import sys

import pytest

import jfit.mx as mx
from jfit.mx._modules import TABLE


@pytest.mark.parametrize(
    ("module", "name", "near"),
    [
        (mx, "vis", "nearest names are 'viz'"),
        (mx, "recordi", "nearest names are .*'recordio'"),
        (mx, "modul", "nearest names are 'module'"),
        (mx.optimizer, "Ftr", "'Ftrl'"),
        (mx.optimizer, "Adamw", "'AdamW'"),
        (mx.nd, "Convolutio", "'Convolution'"),
        (mx.sym, "Convolutio", "'Convolution'"),
        (mx.io, "ImageDetRecordIter", "mx.io.ImageDetRecordIter"),
        (mx.mod, "Modul", "'Module'"),
        (mx.init, "Xavie", "'Xavier'"),
        (mx.gluon, "HybridBlok", "'HybridBlock'"),
    ],
)
def test_a_missing_name_raises_attribute_error(module, name, near):
    assert not hasattr(module, name)
    with pytest.raises(AttributeError, match=near):
        getattr(module, name)


def test_every_module_of_jfit_mx_is_a_basemodule_of_jfit_mx():
    modules = [getattr(mx.mod, name) for name in mx.mod.__all__]
    assert len(modules) == 6 and all(issubclass(module, mx.mod.BaseModule) for module in modules)


def test_names_of_jfit_mx_can_be_imported_from_their_modules():
    for path, source in TABLE.items():
        module = importlib.import_module(f"jfit.mx.{path}")
        assert module.__all__ and all(hasattr(module, name) for name in module.__all__) and {*module.__all__} <= {*dir(module)}
        found: dict = {}
        exec(f"from jfit.mx.{path} import *", found)
        assert {*found} - {"__builtins__"} == {*module.__all__}
        if isinstance(source, str):
            assert module.__all__[0] in vars(importlib.import_module(f"jfit.{source}"))
    import jfit.mx.contrib.svrg_optimization.svrg_module as svrg
    import jfit.mx.optimizer as opt
    from jfit.mx.gluon import Trainer, utils

    assert opt is mx.optimizer and svrg.SVRGModule is mx.contrib.svrg_optimization.svrg_module.SVRGModule
    assert Trainer is mx.gluon.trainer.Trainer and utils is mx.gluon.utils and pickle.loads(pickle.dumps(opt.SGD)) is opt.SGD
    with pytest.raises(ModuleNotFoundError, match=r"jfit\.mx\.nets"):
        importlib.import_module("jfit.mx.nets")


def test_mx_base_has_the_error_classes_and_their_conversion():
    for name in ("DamagedFile", "MissingFile", "ReshapeError"):
        assert issubclass(getattr(mx.base, name), mx.base.MXNetError)
    with pytest.raises(mx.base.MissingFile), mx.base.translated():
        raise FileNotFoundError("no such file")


@pytest.mark.slow
def test_any_module_may_be_the_first_that_a_script_uses():
    # each in a fork of a process that has used none of them
    program = """
import os, jax, jfit.mx as mx
from jfit.mx._modules import TABLE
for path in TABLE:
    if "." not in path and not os.fork():
        try:
            module = getattr(mx, path)
            [getattr(module, name) for name in [n for n in dir(module) if n[0] != "_"][:2]]
            os._exit(0)
        except BaseException as error:
            print(path, error, flush=True)
            os._exit(1)
    elif "." not in path:
        os.wait()
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True)
    assert done.stdout == "" and done.returncode == 0, done.stdout + done.stderr
