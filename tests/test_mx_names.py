"""What jfit does not have yet says so in a sentence, and `hasattr` is False."""

import pytest

import jfit.mx as mx


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
        (mx.gluon, "nn", "mx.gluon.nn"),
    ],
)
def test_a_name_that_is_not_there_raises_a_sentence(module, name, near):
    assert not hasattr(module, name)
    with pytest.raises(AttributeError, match=near):
        getattr(module, name)
