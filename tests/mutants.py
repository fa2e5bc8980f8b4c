"""Mutation testing: change one line of jfit at a time, in a copy, and check that the fast tests fail.

    python tests/mutants.py              # all mutants: about half an hour on two cores, CI does not run it
    python tests/mutants.py graph loss   # those whose file or code contains one of these words

A mutant that survives shows that no test covers the line.  A stale mutant no longer matches the code: rewrite or delete it.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
SECONDS = 900  # a mutant that runs longer is killed, in both senses

# file under jfit/: test files under tests/, then `code => what replaces it`; the code must occur once in the file
MUTANTS = r"""
graph/infer.py: infer infer_golden
    in reversed(order): => in order:
    (operators[::-1], None) => (operators, None)
graph/compose.py: symbol
    AttrScope.current() | underscored(dict(attr or {})) | texts => underscored(dict(attr or {})) | AttrScope.current() | texts
graph/serial.py: serial
    record["inputs"] = [*listed[:at], *listed[first_aux:], *listed[at:first_aux]] => record["inputs"] = listed
    if not 0 <= index < self.counts[at]: => if not 0 <= index <= self.counts[at]:
lowering/interpret.py: lowering lowering_rows
    jax.random.fold_in(key, zlib.crc32(node.name.encode())) => key
    row_ids = row_ids + jax.lax.axis_index(axis_name) * size => row_ids = row_ids
    elif slot == node.op.label and entry.node.op is None: => elif False:
    or first.rows.axis == 0 => or True
lowering/model.py: model lowering step
    jnp.where(weight > 0, losses, 0) * weight) => jnp.where(weight > 0, losses, 0))
    jnp.tile(jnp.repeat(weight, rows.after), rows.before) => jnp.tile(jnp.repeat(weight, rows.before), rows.after)
lowering/function.py: model outputs coupling
    jax.lax.all_gather(x, axis_name, tiled=True) if x.shape[:1] == (rows,) else x => x
    device = None if axis_name is None else jax.lax.axis_index(axis_name) => device = None
lowering/joint.py: outputs
    losses * jnp.float32(term.scale) => losses
lowering/build.py: lowering model
    if "N" in layout else int(node.name in states) => if "N" in layout else 0
ops/loss.py: ops_nn ops_gradients
    _row_means(output) * attrs.get("grad_scale", 1.0) => _row_means(output)
ops/norm.py: ops_nn ops_gradients parallel
    (d_beta, d_gamma) if over is None else lax.psum((d_beta, d_gamma), over) => (d_beta, d_gamma)
ops/pooling.py: ops_nn ops_gradients ops_spatial
    larger = tiles[tap] > best => larger = tiles[tap] >= best
ops/rnn.py: ops_rnn
    jax.random.fold_in(ctx.key, layer) => ctx.key
ops/sorting.py: ops_ordering
    size - 1 - jnp.flip(jnp.argsort(jnp.flip(data, axis), axis, stable=True), axis) => jnp.argsort(-data, axis)
optim/core.py: optim optim_rules optim_odd
    return base(count + 1) => return base(count)
    keep=state.lr_mult is not None) => keep=False)
optim/schedules.py: schedules
    jnp.where(count < steps, warm, rate) => jnp.where(count <= steps, warm, rate)
    rate((count - 1) / length), base_lr=None => rate(count / length), base_lr=None
metrics/core.py: metrics metrics_oracles
    jnp.where(each > 0, values, jnp.zeros((), values.dtype)) => values
data/arrays.py: data data_properties
    array.max() <= high) => array.max() < high)
data/shuffle.py: data data_properties
    np.array([seed & _MASK64, epoch & _MASK64], np.uint64) => np.array([epoch & _MASK64, seed & _MASK64], np.uint64)
data/stream.py: data iterators feed
    self._mid_epoch = resets => self._mid_epoch = False
data/ndarray_iter.py: iterators data
    self._order = self._order[self._mix] => self._order = self._mix
step/train.py: step step_rows parallel
    scale = jnp.minimum(1.0, norm / jnp.maximum(length, 1e-30)) => scale = norm / jnp.maximum(length, 1e-30)
    wide(g) * factor if exact and is_small(g) else => wide(g) * factor if False else
step/reduce.py: parallel step
    sums if axis_name is None else lax.psum(sums, axis_name), local => sums, local
step/sharded.py: sharded
    if chunk * self.count != size: => if False:
    return lax.psum(jnp.sum(x), self.axis_name) => return jnp.sum(x)
step/elementwise.py: sharded
    _operations(reference, {}) => _operations(traced, original)
step/slices.py: step step_properties totals
    (jnp.arange(1, count), jax.tree.map => (jnp.arange(count - 1), jax.tree.map
    (shard.weight > 0) | (shard.metric_weight > 0) => shard.weight > 0
step/totals.py: totals step
    part = value - lost => part = value
parallel/contexts.py: devices
parallel/devices.py: parallel devices
    step = count * multiple => step = count
train/loop.py: loop fit
    c.every - step % c.every for => c.every for
train/batches.py: feed fit_inputs fit
    weight = row_weight if weight is None else weight * row_weight => weight = row_weight
    return batch, count - filled * self._rows_separable => return batch, count
train/history.py: history
    self._tables() == other._tables() => self._epochs == other._epochs
optim/averaging.py: conveniences
    (d * old + (1 - d) * wide(w)) => (d * old + wide(w))
data/weights.py: data_forms
    else (factor * weight).astype(np.float32) => else factor.astype(np.float32)
train/callbacks/plateau.py: conveniences
    elif waited >= patience: => elif waited > patience:
train/callbacks/stopping.py: callbacks
    gain > min_delta => gain >= min_delta
"""


class Mutant(NamedTuple):
    """One line of jfit, what it becomes, and the test files that should notice."""

    file: str
    old: str
    new: str
    tests: list[str]


def mutants(words: list[str]) -> list[Mutant]:
    """Those whose file or code contains one of the words; all without words."""
    found, file, tests = [], "", []
    for line in MUTANTS.strip().splitlines():
        if not line.startswith(" "):
            file, _, names = line.partition(": ")
            tests = [f"tests/test_{name}.py" for name in names.split()]
            continue
        old, _, new = line.strip().partition(" => ")
        if not words or any(word in f"{file} {old}" for word in words):
            found.append(Mutant(f"jfit/{file}", old, new, tests))
    return found


def verdict(mutant: Mutant, copy: Path) -> str:
    """Applies a mutant to the copy, runs its tests there, and takes it back."""
    path = copy / mutant.file
    whole = path.read_text(encoding="utf-8") if path.is_file() else ""
    if whole.count(mutant.old) != 1 or not all((copy / test).is_file() for test in mutant.tests):
        return "stale"
    command = [sys.executable, "-m", "pytest", "-qx", "-m", "not slow and not gpu", "-p", "no:cacheprovider", *mutant.tests]
    bytecode = Path(importlib.util.cache_from_source(str(path)))
    try:
        path.write_text(whole.replace(mutant.old, mutant.new), encoding="utf-8")
        bytecode.unlink(missing_ok=True)  # a change of the same size in the same second would not be seen
        environment = {**os.environ, "PYTHONPATH": str(copy)}
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return "killed (time)"
    finally:
        path.write_text(whole, encoding="utf-8")
        bytecode.unlink(missing_ok=True)
    by = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return "SURVIVED" if done.returncode == 0 else f"killed by {by[1] if by else f'exit {done.returncode}'}"


def main() -> None:
    """Prints one line for each mutant."""
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".pytest_cache" / "compiled"))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__", "shared"))
        for mutant in mutants(sys.argv[1:]):
            print(f"{mutant.file}: {mutant.old} => {mutant.new}: {verdict(mutant, copy)}", flush=True)


if __name__ == "__main__":
    main()
