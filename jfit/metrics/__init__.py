"""Metrics as pure functions that run inside the compiled step.

`stats` computes the sums of one batch on one device; the step adds them over micro-batches and devices, and `update` adds
the result to the running sums.  Therefore values depend neither on the number of devices nor on padding: rows of weight 0 are
ignored, even if they contain NaN.  With weighted=True, rows are weighted by their row weights.  Counts are int32, float sums
use compensated summation.
Names and values are those of MXNet 1.9.1, and of scikit-learn for precision, recall, confusion_matrix and roc_auc.
`docs/metrics.md` lists all metrics.

>>> import jax.numpy as jnp
>>> acc = create("acc")
>>> seen = acc.stats((jnp.array([1, 0]),), (jnp.array([[0.2, 0.8], [0.3, 0.7]]),), (None,))
>>> {k: float(v) for k, v in acc.compute(acc.update(acc.init(), seen)).items()}
{'accuracy': 0.5}
"""

from jfit import lazy as _lazy

_lazy.stub(__name__)
