"""Decimal numbers in text, many at once: a digit of all of them is read before the next digit of any."""

from __future__ import annotations

import numpy as np

_TENS = 10.0 ** np.arange(19)
_MOST = 17  # characters of a number that is read here: sixteen digits and a point
_EXACT = 1 << 53  # integers below are floats, and so are the powers of ten: their quotient is rounded once
_CHUNK = 1 << 14  # numbers at a time, so that they stay in the cache


def decimals(text: bytes, starts: np.ndarray, ends: np.ndarray) -> np.ndarray | None:
    """The numbers that stand at text[starts:ends], each the nearest float64.

    Args:
        text: where they stand.
        starts: first character of each, increasing.
        ends: character behind each.

    Returns:
        (numbers,) float64; None where one of them is no number.

    Example:
        >>> decimals(b"1.25,-7,3e2", np.array([0, 5, 8]), np.array([4, 7, 11])).tolist()
        [1.25, -7.0, 300.0]
    """
    raw = np.frombuffer(text, np.uint8)
    found = np.empty(len(starts))
    for low in range(0, len(starts), _CHUNK):
        part = slice(low, low + _CHUNK)
        values, odd = _plain(raw, starts[part], ends[part])
        for k in np.flatnonzero(odd).tolist():  # exponents, blanks, nan, many digits
            word = text[starts[low + k] : ends[low + k]]
            try:
                values[k] = float(word)
            except ValueError:
                return None
            if b"_" in word:
                return None
        found[part] = values
    return found


def _plain(raw: np.ndarray, at: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers made of a sign, digits and a point; and which are made of something else."""
    first = raw.take(at, mode="clip")
    sign = (first == ord("-")) | (first == ord("+"))
    at = at + sign
    size = ends - at
    odd = (size < 1) | (size > _MOST)
    digits, point = np.zeros(len(at), np.int64), np.zeros(len(at), np.int64)
    mantissa, pointed = np.zeros(len(at), np.int64), np.zeros(len(at), bool)
    for k in range(min(_MOST, int(size.max(initial=0)))):
        code = raw.take(at + k, mode="clip") - np.uint8(ord("0"))
        inside = k < size
        digit, dot = (code < 10) & inside, (code == 254) & inside  # "." stands two before "0"
        odd |= (inside & ~digit & ~dot) | (dot & pointed)
        np.add(mantissa * 10, code, out=mantissa, where=digit)
        digits += digit
        point += digit & pointed  # digits behind the point
        pointed |= dot
    odd |= (digits < 1) | (mantissa >= _EXACT)
    values = mantissa / _TENS[point]
    return np.where(first == ord("-"), -values, values), odd
