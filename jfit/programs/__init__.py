"""Compiled programs that are kept for the whole process, so that equal functions are compiled once.

`Program` compiles a function at its first call for arguments of some shapes and dtypes, unless an equal one was compiled
before:

1. By key, without a trace.  Functions of jfit are values: a training step, for example, is equal to one with an equal graph and
   equal settings (`jfit.programs.keys`).  The key is read at this first call.
2. By text, with a trace.  A function that the user wrote, or an optax transformation, may depend on anything, so it has no key.
   It is traced and lowered, and if an equal text was compiled before, nothing is compiled.  Functions that call Python on the
   host are always compiled.

Both tables have at most 128 entries, those by key for 64 signatures (shapes, dtypes, devices, settings of jax) each; the entry
that was used least recently is dropped.  Entries refer neither to the data nor to the parameters of a fit, but they have the
arrays that a function closes over, and the static fields of pytrees that are its arguments.  If the arrays have more than
1 MB, the program is not kept by its text (with several devices: if the text has more than 4 million characters).

A change of the code of jfit, jax, NumPy or optax at run time, such as a method that is replaced, is not in the key: call
`clear_programs` afterwards.  It also drops the programs that are kept.

>>> import jax, jfit, numpy as np
>>> from jfit.programs import Program, clear_programs
>>> def scaled(factor):
...     return Program(lambda x: factor * x, jax.jit, name="scaled")
>>> x = np.float32(2)
>>> with jfit.counters.counted() as counts:
...     results = [float(scaled(factor)(x)) for factor in (3, 3, 5)]
>>> results, counts["compiles"]  # the second has the text of the first
([6.0, 6.0, 10.0], 2)
>>> clear_programs()
"""

from jfit.programs.keys import ByIdentity, Constants, Made, depends_on_more, key_of, keyed, made, read_key
from jfit.programs.tables import Program, Recent, check_shapes, clear_programs, kept, settings

__all__ = [
    "ByIdentity",
    "Constants",
    "Made",
    "Program",
    "Recent",
    "check_shapes",
    "clear_programs",
    "depends_on_more",
    "kept",
    "key_of",
    "keyed",
    "made",
    "read_key",
    "settings",
]
