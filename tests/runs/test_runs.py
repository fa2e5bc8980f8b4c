"""`jfit.verify` names planted differences, and `python -m jfit.runs` shows folders of checkpoints without changing them."""

from __future__ import annotations

import shutil
import threading

import jax
import jax.numpy as jnp
import pytest
from fit_support import blobs, mlp, train

import jfit
from jfit.checkpoints import locks
from jfit.checkpoints.checkpoint import load_arrays
from jfit.checkpoints.saved import read
from jfit.runs.__main__ import main

x, y = blobs()
NODE = jfit.sym.Reshape(jfit.sym.Variable("x"), shape=(7,), name="w\x1b[31m").tojson()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs of 5 steps per epoch: a, which died, has checkpoints of the steps 6 and 12, group/b of the ends of epochs."""
    folder = tmp_path_factory.mktemp("runs")
    train(mlp(dropout=0.3), num_epoch=3, checkpoint=folder / "a", checkpoint_every=6, batch_size=10)
    shutil.rmtree(folder / "a" / "step-00000015")
    train(mlp(dropout=0.3), num_epoch=2, checkpoint=folder / "group" / "b", batch_size=10, seed=1)
    return folder


def listing(folder):
    # the owner of a lock touches it now and then
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != locks.LOCK_FILE}


# without "bit" in its name, because the fixture compiles as tests without it do
def test_an_untouched_run_is_the_same_and_is_not_changed(runs):
    before = listing(runs)
    result = jfit.verify(runs / "a", (x, y))
    assert result.same and result.intervals == [(6, 12)] and not result.settings and not result.environment
    assert str(result).endswith("same bits in all 15 arrays; trained from step 6 to step 12")
    assert listing(runs) == before


def test_other_data_another_seed_and_another_learning_rate_are_named(runs):
    result = jfit.verify(runs / "a", (x + 1, y))
    assert not result.same and result.intervals == [(6, 12)] and result.differences[0].name == "params/fc1_bias"
    assert result.settings[0].startswith("data: data was float32 (4,), sample ")
    result = jfit.verify(runs / "a", (x, y), seed=1)
    assert "after training from step 6 to step 12\n  params/fc1_bias: 8 of 8 values differ" in str(result)
    assert result.settings == ["seed was 0 and is 1"]


def test_a_flipped_weight_in_a_checkpoint_with_valid_checksums_is_named(runs, tmp_path):
    shutil.copytree(runs / "a", tmp_path / "a")
    saved = read(tmp_path / "a" / "step-00000012")
    arrays = load_arrays(saved.folder)
    arrays["params/fc2_weight"][1, 2] += 0.5
    jfit.checkpoint.save(tmp_path / "a", arrays, step=12, meta=saved.meta)
    result = jfit.verify(tmp_path / "a", (x, y))
    [difference] = result.differences
    assert (difference.name, difference.count, difference.size) == ("params/fc2_weight", 1, 24)
    assert difference.maximum == pytest.approx(0.5) and "so other data or the checkpoint changed" in str(result)


def loss(output, label):
    return (output - label) ** 2


def model(rate):
    def apply(params, rows, key):
        kept = jax.random.bernoulli(key, 1 - rate, rows.shape)
        return jnp.where(kept, rows, 0) @ params["w"]

    return apply


def test_a_function_has_the_same_bits_and_another_dropout_rate_is_named(tmp_path):
    options = {"loss": loss, "params": {"w": jnp.zeros(4)}}
    jfit.fit(model(0.2), (x, y), batch_size=10, num_epoch=2, checkpoint=tmp_path, progress=False, **options)
    assert jfit.verify(tmp_path, (x, y), model(0.2), **options).same
    result = jfit.verify(tmp_path, (x, y), model(0.5), **options)
    assert result.differences[0].name == "params/w" and result.settings[0].startswith("model was function ")
    with pytest.raises(ValueError, match="the checkpoint has only a digest of loss; pass what was passed to fit, as in"):
        jfit.verify(tmp_path, (x, y), model(0.2), params=options["params"])
    with pytest.raises(ValueError, match="model of this run, a function or a module, is not in its checkpoints"):
        jfit.verify(tmp_path, (x, y))


def test_verify_needs_two_checkpoints_with_a_fingerprint(runs, tmp_path):
    with pytest.raises(ValueError, match=r"found 0 checkpoints in .*, expected at least 2"):
        jfit.verify(tmp_path, (x, y))
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        jfit.verify(tmp_path / "other", (x, y))
    with pytest.raises(TypeError, match="steps is 4; expected the steps of at least two checkpoints"):
        jfit.verify(tmp_path, (x, y), steps=4)  # pyright: ignore[reportArgumentType]
    with pytest.raises(FileNotFoundError, match="has no checkpoint of step 3; its steps are: 6, 12"):
        jfit.verify(runs / "a", (x, y), steps=[3, 6])
    jfit.checkpoint.save(tmp_path, {"step": 1})
    jfit.checkpoint.save(tmp_path, {"step": 2})
    with pytest.raises(ValueError, match="has no fingerprint of its run"):
        jfit.verify(tmp_path, (x, y))


def test_list_shows_steps_best_epoch_and_state_of_each_run(runs, tmp_path, capsys):
    shutil.copytree(runs, tmp_path / "all")
    (tmp_path / "all" / "group" / "b" / "step-00000010" / "meta.json").write_text("{}")
    owner = threading.Event()
    locks.acquire(tmp_path / "all" / "a", owner)
    before = listing(tmp_path)
    assert main(["list", str(tmp_path / "all")]) == 0
    locks_line, other = capsys.readouterr().out.splitlines()[1:]
    assert locks_line.split()[:2] == ["a", "12"] and "locked by process" in locks_line
    assert other.split()[:2] == ["group/b", "5"] and other.endswith("epoch 1 of 2")
    assert listing(tmp_path) == before
    locks.release(owner)
    assert main(["list", str(runs)]) == 0
    assert "finished" in capsys.readouterr().out.splitlines()[2]


def test_show_and_diff(runs, capsys):
    a, b = str(runs / "a"), str(runs / "group" / "b")
    assert main(["show", a, "--rows", "1"]) == 0
    text = capsys.readouterr().out
    for part in ("epoch 2 of 3, step 12", "versions.jax", "step 6   ", "last 1 of 2 epochs"):
        assert part in text
    assert ["optimizer_params.momentum", "0.9"] in [line.split() for line in text.splitlines()]
    assert main(["show", a, "--rows", "0"]) == 0 and "last 0 of 2 epochs" in capsys.readouterr().out
    assert main(["show", a, "--rows", "-1"]) == 2 and "--rows -1: expected" in capsys.readouterr().err
    assert main(["diff", a, b]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["seed", "0", "1"] in lines and ["num_epoch", "3", "2"] in lines and not any("batch_size" in line for line in lines)
    assert main(["diff", a, b, "--all"]) == 0 and "batch_size" in capsys.readouterr().out
    assert main(["show", str(runs)]) == 2 and "has no checkpoint" in capsys.readouterr().err


def test_names_are_printed_without_escape_sequences_of_terminals(tmp_path, capsys):
    name = "a\x1b[2J\x9b\nb"
    jfit.checkpoint.save(tmp_path / name, {"step": 1, "w\x1b[31m": jnp.zeros(1)}, meta={"arguments": {"model\x1b]0;": "x\x07"}})
    for command in (["list", str(tmp_path)], ["show", str(tmp_path / name)], ["diff", *[str(tmp_path / name)] * 2, "--all"]):
        assert main(command) == 0
    assert main(["show", str(tmp_path / name / "none")]) == 2
    text = "".join(capsys.readouterr())
    assert text.replace("\n", "").isprintable() and r"a\x1b[2J\x9b\nb  1" in text and r"model\x1b]0;" in text
    net = jfit.sym.load_json(NODE)
    for fails in (lambda: jfit.checkpoint.restore(tmp_path / name, {"step": 1}), lambda: net.infer_shape(x=(2, 3))):
        with pytest.raises(ValueError) as caught:
            fails()
        assert str(caught.value).replace("\n", "").isprintable() and r"\x1b[31m" in str(caught.value)
