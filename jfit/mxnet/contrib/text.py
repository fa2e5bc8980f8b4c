"""`mx.contrib.text`: vocabularies, and vectors of tokens from local files.

>>> counter = count_tokens_from_str("to be or not to be", " ", "\\n")
>>> Vocabulary(counter, most_freq_count=2).idx_to_token
['<unk>', 'be', 'to']
"""

from __future__ import annotations

import collections
import os
import re
import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from jfit.mxnet.errors import data_dir
from jfit.mxnet.ndarray.array import NDArray
from jfit.mxnet.ndarray.create import array, zeros

UNKNOWN = 0  # index of the token that stands for all others


def count_tokens_from_str(
    source_str: str, token_delim: str = " ", seq_delim: str = "\n", to_lower: bool = False,
    counter_to_update: collections.Counter[str] | None = None,
) -> collections.Counter[str]:  # fmt: skip
    """Count the tokens of a text.

    Args:
        source_str: the text.
        token_delim: regular expression between tokens.
        seq_delim: regular expression between sequences.
        to_lower: whether to convert the tokens to lower case.
        counter_to_update: counter to add to; None: a new one.

    Returns:
        collections.Counter.

    Example:
        >>> count_tokens_from_str("a b\\nA", to_lower=True)
        Counter({'a': 2, 'b': 1})
    """
    tokens = [t for t in re.split(f"{token_delim}|{seq_delim}", source_str) if t]
    counter = collections.Counter() if counter_to_update is None else counter_to_update
    counter.update([t.lower() for t in tokens] if to_lower else tokens)
    return counter


class Vocabulary:
    """Indices of tokens: the unknown token is 0, then reserved tokens, then others from the most frequent on.

    Args:
        counter: collections.Counter of tokens; None for none.
        most_freq_count: largest number of tokens of the counter; equally frequent ones in sorted order.
        min_freq: smallest frequency of a token.
        unknown_token: the token that stands for all that have no index.
        reserved_tokens: list of further tokens that always have an index.

    Raises:
        AssertionError: `min_freq` is below 1, reserved tokens are not unique, or `counter` is no Counter.

    Example:
        >>> vocabulary = Vocabulary(collections.Counter("aabc"), min_freq=2, reserved_tokens=["<pad>"])
        >>> vocabulary.to_indices(["a", "b"]), vocabulary.to_tokens(1)
        ([2, 0], '<pad>')
    """

    def __init__(
        self, counter: collections.Counter[Any] | None = None, most_freq_count: int | None = None, min_freq: int = 1,
        unknown_token: Hashable = "<unk>", reserved_tokens: Sequence[Any] | None = None,
    ) -> None:  # fmt: skip
        assert min_freq > 0, f"min_freq is {min_freq}, expected at least 1"
        special = [unknown_token, *(reserved_tokens or ())]
        assert len(set(special)) == len(special), f"unknown_token and reserved_tokens are not unique: {special}"
        assert counter is None or isinstance(counter, collections.Counter), "counter is not a collections.Counter"
        by_count = sorted(sorted((counter or {}).items()), key=lambda item: -item[1])
        frequent = [token for token, count in by_count if count >= min_freq and token not in special]
        self.unknown_token = unknown_token
        self.reserved_tokens = None if reserved_tokens is None else list(reserved_tokens)
        self._set_tokens([*special, *frequent[:most_freq_count]])

    def _set_tokens(self, tokens: list[Any]) -> None:
        self.idx_to_token = tokens
        self.token_to_idx = {token: index for index, token in enumerate(tokens)}

    def __len__(self) -> int:
        return len(self.idx_to_token)

    def to_indices(self, tokens: Any) -> Any:
        """Return the index of a token, or a list of the indices of a list; 0 for unknown tokens."""
        return _each(tokens, lambda token: self.token_to_idx.get(token, UNKNOWN))

    def to_tokens(self, indices: Any) -> Any:
        """Return the token of an index, or a list of the tokens of a list; ValueError for an index that is out of range."""
        return _each(indices, self._token)

    def _token(self, index: Any) -> Any:
        if index >= len(self):
            raise ValueError(f"{index} is not the index of a token; expected an int from 0 to {len(self) - 1}")
        return self.idx_to_token[index]


def _each(values: Any, convert: Callable[[Any], Any]) -> Any:
    return [convert(v) for v in values] if isinstance(values, list) else convert(values)


# ------------------------------------------------------------------------------------------------ vectors
class _TokenEmbedding(Vocabulary):
    """A vocabulary with a vector for each token.

    Attributes:
        vec_len: length of a vector.
        idx_to_vec: NDArray (tokens, vec_len).
    """

    def _load(
        self, path: str | os.PathLike[str], delimiter: str, unknown: Callable[..., Any] | None, encoding: str, vocabulary: Any
    ) -> None:
        """Read a file of lines `token number number ...`; the first line of a token counts, one number alone is a header."""
        path = os.path.expanduser(path)
        if not os.path.isfile(path):
            raise ValueError(f"the file of token vectors {path!r} does not exist")
        vectors: dict[Any, list[float]] = {}
        with open(path, encoding=encoding) as file:
            for number, line in enumerate(file, 1):
                token, *texts = line.rstrip().split(delimiter)
                where, vector = f"{path}, line {number}", [float(t) for t in texts]
                assert vector, f"{where}: found {line[:40]!r}, expected a token and its vector, separated by {delimiter!r}"
                if token in vectors:
                    warnings.warn(f"{where}: the token {token!r} has a vector already; this one is skipped", stacklevel=4)
                elif len(vector) == 1 and token != self.unknown_token:
                    warnings.warn(f"{where}: {token!r} has one number, which looks like a header; it is skipped", stacklevel=4)
                else:
                    length = len(next(iter(vectors.values()), vector))
                    assert len(vector) == length, f"{where}: the vector has {len(vector)} numbers, those before it {length}"
                    vectors[token] = vector
        own = vectors.pop(self.unknown_token, None)
        self.vec_len = len(own or next(iter(vectors.values())))
        self._set_tokens([*self.idx_to_token, *vectors])
        first = own if own is not None else (unknown or zeros)(shape=self.vec_len).asnumpy()
        rest = np.zeros((len(self.idx_to_token) - len(vectors) - 1, self.vec_len))  # reserved tokens
        self.idx_to_vec = array(np.array([first, *rest, *vectors.values()]))
        if vocabulary is not None:
            assert isinstance(vocabulary, Vocabulary), f"vocabulary is a Vocabulary, got {type(vocabulary).__name__}"
            self.idx_to_vec = self._vectors([self.unknown_token, *vocabulary.idx_to_token[1:]])
            self.unknown_token, self.reserved_tokens = vocabulary.unknown_token, vocabulary.reserved_tokens
            self._set_tokens(list(vocabulary.idx_to_token))

    def get_vecs_by_tokens(self, tokens: Any, lower_case_backup: bool = False) -> NDArray:
        """Return the vector of a token, or the vectors (tokens, vec_len) of a list; unknown tokens have that of index 0.

        Args:
            tokens: a token or a list of them.
            lower_case_backup: look an unknown token up in lower case, too.
        """
        vectors = self._vectors(tokens if isinstance(tokens, list) else [tokens], lower_case_backup)
        return vectors if isinstance(tokens, list) else vectors[0]

    def update_token_vectors(self, tokens: Any, new_vectors: NDArray) -> None:
        """Replace the vectors of tokens.

        Args:
            tokens: a token or a list of them; that of index 0 stands for all unknown ones.
            new_vectors: NDArray (tokens, vec_len), or (vec_len,) for one token.

        Raises:
            AssertionError: `new_vectors` has another shape.
            ValueError: a token is not in the vocabulary.
        """
        tokens = tokens if isinstance(tokens, list) else [tokens]
        vectors = new_vectors.reshape((1, -1)) if len(tokens) == 1 else new_vectors
        expected = (len(tokens), self.vec_len)
        assert vectors.shape == expected, f"new_vectors has shape {new_vectors.shape}, expected {expected}, one row per token"
        absent = [t for t in tokens if t not in self.token_to_idx]
        if absent:
            raise ValueError(f"the token {absent[0]!r} has no vector of its own; update that of {self.idx_to_token[UNKNOWN]!r}")
        self.idx_to_vec[array([self.token_to_idx[t] for t in tokens])] = vectors

    def _vectors(self, tokens: Sequence[Any], lower: bool = False) -> NDArray:
        known = self.token_to_idx
        indices = [known.get(t, known.get(t.lower(), UNKNOWN) if lower else UNKNOWN) for t in tokens]
        return self.idx_to_vec[array(indices)]


class CustomEmbedding(_TokenEmbedding):
    """Vectors of a text file with one token a line, followed by its numbers.

    Args:
        pretrained_file_path: path of the file.
        elem_delim: what separates token and numbers.
        encoding: encoding of the file.
        init_unknown_vec: function `f(shape=...)` for the vector of unknown tokens, if the file has none; default: zeros.
        vocabulary: the tokens to take; None: all of the file.
        kwargs: further arguments of `Vocabulary`.

    Raises:
        ValueError: the file does not exist.
        AssertionError: a line has no or too many numbers.

    Example:
        >>> with open("vectors.txt", "w") as file:
        ...     _ = file.write("a 1 2\\nb 3 4\\n")
        >>> CustomEmbedding("vectors.txt").get_vecs_by_tokens(["b", "?"]).asnumpy().tolist()
        [[3.0, 4.0], [0.0, 0.0]]
    """

    def __init__(
        self, pretrained_file_path: str | os.PathLike[str], elem_delim: str = " ", encoding: str = "utf8",
        init_unknown_vec: Callable[..., Any] | None = None, vocabulary: Vocabulary | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        self._load(pretrained_file_path, elem_delim, init_unknown_vec, encoding, vocabulary)


class _Pretrained(_TokenEmbedding):
    """Vectors of a published file, which lies in `<embedding_root>/<name of the class in lower case>/`.

    Args:
        pretrained_file_name: name of the file.
        embedding_root: folder of the folders of the files.
        init_unknown_vec: see `CustomEmbedding`, as all further arguments.
        vocabulary: see `CustomEmbedding`.
        kwargs: see `CustomEmbedding`.

    Raises:
        FileNotFoundError: the file does not exist; files are not downloaded.
    """

    pretrained_file_names: tuple[str, ...] = ()

    def __init__(
        self, pretrained_file_name: str | None = None, embedding_root: str | os.PathLike[str] | None = None,
        init_unknown_vec: Callable[..., Any] | None = None, vocabulary: Vocabulary | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        name, kind = pretrained_file_name or self.pretrained_file_names[0], type(self).__name__.lower()
        path = os.path.expanduser(os.path.join(embedding_root or os.path.join(data_dir(), "embeddings"), kind, name))
        if not os.path.exists(path):
            raise FileNotFoundError(f"{path} does not exist, and files are not downloaded: fetch {name} and put it there.")
        super().__init__(**kwargs)
        self._load(path, " ", init_unknown_vec, "utf8", vocabulary)


class GloVe(_Pretrained):
    """Vectors of GloVe, from a local file; arguments as for `CustomEmbedding`, with a file name and a folder.

    Source: Pennington and others, GloVe: Global Vectors for Word Representation, 2014.
    """

    pretrained_file_names = (
        "glove.840B.300d.txt", "glove.42B.300d.txt", *(f"glove.6B.{n}d.txt" for n in (50, 100, 200, 300)),
        *(f"glove.twitter.27B.{n}d.txt" for n in (25, 50, 100, 200)),
    )  # fmt: skip


class FastText(_Pretrained):
    """Vectors of fastText, from a local file; arguments as for `CustomEmbedding`, with a file name and a folder.

    Source: Bojanowski and others, Enriching Word Vectors with Subword Information, 2017.
    """

    pretrained_file_names = ("wiki.simple.vec", "wiki.en.vec", "crawl-300d-2M.vec")


_REGISTRY: dict[str, type[_TokenEmbedding]] = {}


def register(embedding_cls: type[_TokenEmbedding]) -> type[_TokenEmbedding]:
    """Class decorator that makes an embedding available to `create`, by its name in lower case.

    Args:
        embedding_cls: the class.

    Returns:
        The class.

    Example:
        >>> register(GloVe).__name__
        'GloVe'
    """
    _REGISTRY[embedding_cls.__name__.lower()] = embedding_cls
    return embedding_cls


register(GloVe)
register(FastText)


def create(embedding_name: str, **kwargs: Any) -> Any:
    """Create an embedding by the name of its class.

    Args:
        embedding_name: "glove", "fasttext" or a registered name, in any case.
        kwargs: arguments of the class.

    Returns:
        The embedding.

    Raises:
        AssertionError: there is no such name.

    Example:
        >>> create("glove", embedding_root="/none")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        FileNotFoundError: /none/glove/glove.840B.300d.txt does not exist, and files are not downloaded: ...
    """
    known = _REGISTRY.get(embedding_name.lower())
    assert known is not None, f"{embedding_name!r} is no registered embedding; there are {sorted(_REGISTRY)}"
    return known(**kwargs)


def get_pretrained_file_names(embedding_name: str | None = None) -> Any:
    """Return the names of the published files.

    Args:
        embedding_name: "glove", "fasttext" or a registered name; None: all.

    Returns:
        List of names, or for all embeddings a dict of lists.

    Raises:
        KeyError: there is no such name.

    Example:
        >>> get_pretrained_file_names("fasttext")
        ['wiki.simple.vec', 'wiki.en.vec', 'crawl-300d-2M.vec']
    """
    names = {name: list(getattr(cls, "pretrained_file_names", ())) for name, cls in _REGISTRY.items()}
    return names if embedding_name is None else names[embedding_name]
