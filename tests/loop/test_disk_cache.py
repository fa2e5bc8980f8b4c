"""Compiled programs on disk: a second process compiles nothing, the folder is bounded, private, and never in the way."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import jfit
from jfit import disk_cache

PROGRAM = """
import json, sys, warnings
import jax, numpy as np
import jfit
warnings.simplefilter("ignore" if "damaged" in sys.argv else "error")
with jfit.counters.counted() as counts:
    net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2, name="fc")
    net = jfit.sym.SoftmaxOutput(net, name="softmax")
    x = np.eye(4, dtype="float32")
    run = jfit.fit(net, (x, [0, 1, 0, 1]), batch_size=2, num_epoch=1, progress=False)
folder = jax.config.jax_compilation_cache_dir
print(json.dumps([counts["compiles"], counts["disk_hits"], folder, run.params["fc_weight"].tolist()]))
"""


def start(home: Path, *arguments: str, **environment: str) -> subprocess.Popen:
    """Start PROGRAM in a new process with an empty environment but for the cache folder of the user."""
    names = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "XLA_FLAGS")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.Popen(command, env={**kept, "XDG_CACHE_HOME": str(home), **environment}, stdout=subprocess.PIPE)


def result(process: subprocess.Popen) -> list:
    output, _ = process.communicate()
    assert process.returncode == 0
    return json.loads(output)


@pytest.fixture
def restored():
    """The compile cache of the tests, whatever the test chose."""
    folder, seconds = jax.config.jax_compilation_cache_dir, jax.config.jax_persistent_cache_min_compile_time_secs
    yield
    jfit.compile_cache(False)
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", seconds)


@pytest.mark.slow
def test_a_second_process_compiles_nothing_and_computes_the_same_bits(tmp_path):
    compiles, hits, folder, weight = result(start(tmp_path))
    assert compiles == 2 and hits == 0  # initial values and the step
    assert Path(folder).parent == tmp_path / "jfit" / "xla"
    assert Path(folder).stat().st_mode & 0o077 == 0
    compiles, hits, _, again = result(start(tmp_path))
    assert hits == compiles
    assert again == weight


@pytest.mark.slow
def test_a_file_that_was_cut_off_is_compiled_again(tmp_path):
    whole, _, folder, weight = result(start(tmp_path))
    for file in Path(folder).glob("*-cache"):
        file.write_bytes(file.read_bytes()[:100])
    compiles, hits, _, again = result(start(tmp_path, "damaged"))
    assert hits == 0 and compiles == whole > 0 and again == weight


@pytest.mark.slow
def test_the_cache_is_off_where_it_is_not_wanted_or_cannot_be(tmp_path):
    processes = [
        start(tmp_path, JFIT_CACHE="0"),
        start(tmp_path / "file" / "no_folder"),
        start(tmp_path, JAX_ENABLE_COMPILATION_CACHE="0"),
    ]
    (tmp_path / "file").write_text("")
    assert [result(process)[2] for process in processes] == [None, None, None]
    assert not (tmp_path / "jfit").exists()


def test_an_argument_switches_the_cache_off_and_on(tmp_path, restored):
    folder = jfit.compile_cache(tmp_path / "programs")
    jax.jit(lambda x: x * 3.25)(1.0)
    assert any(folder.iterdir())
    assert jfit.compile_cache(False) is None
    assert jax.config.jax_compilation_cache_dir is None


def test_a_folder_where_others_may_write_is_refused(tmp_path, restored):
    folder = jfit.compile_cache(tmp_path)
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="other users can write there"):
        jfit.compile_cache(tmp_path)
    folder.chmod(0o700)
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError, match="other users can write there"):
        jfit.compile_cache(tmp_path)
    tmp_path.chmod(0o1777)
    assert jfit.compile_cache(tmp_path) == folder


def test_a_path_that_is_no_folder_is_refused(tmp_path, restored):
    (tmp_path / "file").write_text("")
    with pytest.raises(PermissionError, match="File exists; choose another folder"):
        jfit.compile_cache(tmp_path / "file")


def test_the_files_used_longest_ago_are_deleted_when_the_process_ends(tmp_path, restored):
    folder = jfit.compile_cache(tmp_path, max_bytes=250)
    for age, name in enumerate(("new", "middle", "old")):
        (folder / name).write_bytes(bytes(100))
        os.utime(folder / name, (1e9 - age, 1e9 - age))
    disk_cache._delete_oldest()
    assert sorted(file.name for file in folder.iterdir()) == ["middle", "new"]


def test_files_that_are_no_programs_are_never_deleted(tmp_path, restored):
    (tmp_path / "data").mkdir()
    (tmp_path / "elsewhere").mkdir()
    kept = [tmp_path / "data" / "thesis.txt", tmp_path / "elsewhere" / "photos.zip"]
    for file in kept:
        file.write_bytes(bytes(1000))
    folder = jfit.compile_cache(tmp_path, max_bytes=1)
    (folder / "folder").mkdir()
    (tmp_path / "jax-link-01234567").symlink_to(tmp_path / "elsewhere")
    (folder / "program-cache").write_bytes(bytes(1000))
    disk_cache._delete_oldest()
    assert all(file.exists() for file in kept)
    assert not (folder / "program-cache").exists()


@pytest.mark.parametrize("folder", ["", None, 1])
def test_what_is_no_folder_is_refused(folder, restored):
    with pytest.raises(TypeError, match="expected True, False or the path of a folder"):
        jfit.compile_cache(folder)


@pytest.mark.parametrize(("choice", "folder"), [("1", "jfit/xla"), ("on", "jfit/xla"), ("{}/chosen", "chosen")])
def test_the_environment_variable_says_yes_or_names_a_folder(choice, folder, monkeypatch, tmp_path, restored):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("JFIT_CACHE", choice.format(tmp_path))
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "of jax"))
    disk_cache.start()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "of jax")  # the user has chosen one already
    jax.config.update("jax_compilation_cache_dir", None)
    disk_cache.start()
    assert Path(jax.config.jax_compilation_cache_dir).parent == tmp_path / folder


def test_a_folder_in_the_environment_that_cannot_be_used_is_a_warning(monkeypatch, tmp_path, restored):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("JFIT_CACHE", str(tmp_path / "file"))
    jax.config.update("jax_compilation_cache_dir", None)
    with pytest.warns(UserWarning, match="JFIT_CACHE: compiled programs cannot be kept in"):
        disk_cache.start()
