"""`jfit.parallel.collectives`: kinds, counts and bytes of hand-written programs, and of the HLO of accelerators."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_nets import batch_of, mlp
from jax import lax
from jax.sharding import Mesh, PartitionSpec

import jfit
from jfit.parallel import Collectives, Traffic, collectives
from jfit.parallel.communication import read_hlo

pytestmark = pytest.mark.optimized


def mapped(spmd, fn, devices=8):
    """A function of arrays with a leading device axis, by pmap or by shard_map."""
    if spmd == "pmap":
        return jax.pmap(fn, axis_name="d", devices=jax.devices()[:devices])
    mesh, spec = Mesh(np.array(jax.devices()[:devices]), ("d",)), PartitionSpec("d")
    return jax.jit(jax.shard_map(lambda x: fn(x[0])[None], mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))


@pytest.mark.parametrize("spmd", ["pmap", "shard_map"])
def test_each_kind_of_collective_has_its_operand_and_ring_bytes(spmd):
    def fn(x):  # (8, 16) uint16, 256 bytes
        row = lax.all_gather(x[0], "d")  # 32 bytes are sent to 7 others
        mine = lax.psum_scatter(x, "d")  # 7/8 of 256 bytes
        cells = lax.all_to_all(x, "d", 0, 0, tiled=True)
        shifted = lax.ppermute(x, "d", [(0, 1), (1, 0)])
        total = lax.psum(x.astype(jnp.float32), "d").astype(jnp.uint16)  # 512 bytes
        return row + mine[None] + cells + shifted + total

    traffic = collectives(mapped(spmd, fn), jnp.ones((8, 8, 16), jnp.uint16))
    assert traffic == Collectives(
        all_reduce=Traffic(1, 512, 2 * 7 / 8 * 512),
        all_gather=Traffic(1, 32, 7 * 32),
        reduce_scatter=Traffic(1, 256, 7 / 8 * 256),
        all_to_all=Traffic(1, 256, 7 / 8 * 256),
        collective_permute=Traffic(1, 256, 256),
    )
    assert traffic.total == Traffic(5, 1312, 896 + 224 + 224 + 224 + 256)


def test_a_collective_of_groups_sends_within_its_group():
    fn = mapped("pmap", lambda x: lax.psum(x, "d", axis_index_groups=[[0, 1], [2, 3]]), 4)
    assert collectives(fn, jnp.ones((4, 5))).all_reduce == Traffic(1, 20, 20)


def test_collectives_in_a_loop_count_once_per_iteration():
    def loop(x, length=None):
        return lax.scan(lambda c, _: (lax.psum(c, "d") / 2, None), x, None, length=length)[0]

    fn = mapped("pmap", lambda x: loop(x, 7) + lax.psum(x * x, "d"), 2)
    assert collectives(fn, jnp.ones((2, 3))).all_reduce == Traffic(8, 8 * 12, 8 * 12)
    endless = mapped("pmap", lambda x: lax.while_loop(lambda c: c[0] < 9, lambda c: lax.psum(c, "d"), x), 2)
    with pytest.raises(ValueError, match=r"collective in a branch, or in a loop of unknown length \(while"):
        collectives(endless, jnp.ones((2, 3)))
    branch = mapped("pmap", lambda x: lax.cond(x[0] > 0, lambda x: lax.psum(x, "d"), lambda x: x, x), 2)
    with pytest.raises(ValueError, match=r"in a branch, or .* \(.*depend on the data"):
        collectives(branch, jnp.ones((2, 3)))


# Accelerators start collectives and wait for them later, and have narrower dtypes.
ASYNCHRONOUS = """HloModule jit_f, is_scheduled=true, replica_count=2, num_partitions=8

%add.1 (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add.2 = f32[] add(%a, %b)
}

%async_computation (p: f32[8,4]) -> f32[2,4] {
  %p = f32[8,4]{1,0:T(8,128)} parameter(0)
  ROOT %reduce-scatter.1 = f32[2,4]{1,0} reduce-scatter(%p), replica_groups=[2,4]<=[8], dimensions={0}, to_apply=%add.1
}, execution_thread="main"

ENTRY %main (x: f32[8], m: pred[3], q: u2[10], /*index=3*/h: bf16[2,3]) -> f32[8] {
  %x = f32[8]{0:T(256)S(1)} parameter(0), metadata={op_name="f32[9] all-reduce(%x) = ("}
  %m = pred[3]{0} parameter(1)
  %q = u2[10]{0:E(2)} parameter(2)
  %h = bf16[2,<=3]{1,0:T(8,128)(2,1)} parameter(3)
  %w = f32[8,4]{1,0} broadcast(%x), dimensions={0}
  %c = s32[4]{0} constant({1, 2, 3, 4})
  %text = u8[2]{0} constant("((")
  %ar = (f32[8], /*index=1*/bf16[2,3]) all-reduce-start(f32[8]{0:T(256)} %x, bf16[2,3] %h), replica_groups={{0,1,2,3},{4,5,6,7}}
  %done = (f32[8]{0}, bf16[2,3]{1,0}) all-reduce-done((f32[8]{0}, bf16[2,3]{1,0}) %ar)
  %ag = ((pred[3]{0}, u2[10]{0}), (pred[24]{0}, u2[80]{0})) all-gather-start(%m, %q), replica_groups={}, dimensions={0}
  %agd = (pred[24]{0}, u2[80]{0}) all-gather-done(%ag)
  %rs = ((f32[8,4]{1,0}), f32[2,4]{1,0}, u32[]) async-start(%w), async_execution_thread="main", calls=%async_computation
  %rsu = ((f32[8,4]{1,0}), f32[2,4]{1,0}, u32[]) async-update(%rs), calls=%async_computation
  %rsd = f32[2,4]{1,0} async-done(%rsu), calls=%async_computation
  %sent = (f32[8], u32[], token[]) send(%x, %token), channel_id=3, is_host_transfer=true
  ROOT %gte = f32[8]{0} get-tuple-element(%done), index=0
}
"""


def test_asynchronous_collectives_count_once_and_narrow_dtypes_have_their_bits():
    assert read_hlo(ASYNCHRONOUS) == Collectives(
        all_reduce=Traffic(1, 32 + 12, 2 * 3 / 4 * 44),
        all_gather=Traffic(1, 3 + 3, 7 * 6),  # 20 bits are 3 bytes
        reduce_scatter=Traffic(1, 128, 3 / 4 * 128),
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "  %y = f32[8]{0} ragged-all-to-all(%x), replica_groups={}",
            r"y cannot be counted: it is a ragged-all-to-all\(.*; supported are",
        ),
        (
            "  %y = f32[8]{0} all-reduce(%x), replica_groups=mesh['a'=2]",
            r"y cannot be counted: .*replica_groups=mesh\['a'=2\]; supported are",
        ),
    ],
)
def test_what_cannot_be_counted_raises(line, message):
    text = (
        f"HloModule f, num_partitions=8\n\nENTRY %main (x: f32[8]) -> f32[8] {{\n  %x = f32[8]{{0}} parameter(0)\n{line}\n}}\n"
    )
    with pytest.raises(ValueError, match=message):
        read_hlo(text)


def test_lowered_and_compiled_programs_and_programs_of_one_device_are_accepted():
    fn = mapped("pmap", lambda x: lax.psum(x, "d"), 2)
    lowered = fn.lower(jax.ShapeDtypeStruct((2, 3), jnp.float32))
    assert collectives(lowered) == collectives(lowered.compile()) == Collectives(all_reduce=Traffic(1, 12, 12))
    assert collectives(jax.jit(jnp.sin), jnp.ones(2)) == Collectives()


def test_an_ordered_step_has_no_program_to_lower():
    parallel = jfit.data_parallel(jfit.train_step(mlp()), 2, reduce="ordered")
    with pytest.raises(ValueError, match="consists of several programs of one device each, so there is no program to lower"):
        collectives(parallel, jfit.init_state(mlp(), "sgd", batch_of(8)), batch_of(8))
