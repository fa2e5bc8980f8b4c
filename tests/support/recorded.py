"""Whether an array that was recorded is computed yet."""

from jfit.mxnet.mutable import MutableArray


def is_computed(array):
    """Return whether an NDArray has its value, which one that is recorded gets when it is first read."""
    try:
        MutableArray.value.__get__(array)
    except AttributeError:
        return False
    return True
