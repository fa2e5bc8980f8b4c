"""Image crops, sizes, colors and decoding against MXNet's results, and malformed image files."""

import io
import random
import zlib

import numpy as np
import pytest
from cases import images as recorded
from cases.images import AUGMENTERS, BATCHES, FOLDER, pictures, png
from hypothesis import given, settings
from hypothesis import strategies as st

import jfit.mx as mx
from jfit.data.images import Recipe, decode, encode
from jfit.data.images.recipe import check_recipe, decode_into, is_random, random_numbers
from jfit.data.images.resample import reach, resample
from jfit.formats import FormatError

Image = pytest.importorskip("PIL.Image")


@pytest.fixture(scope="module")
def golden():
    return np.load(FOLDER / "images.npz")


def levels(found, wanted) -> float:
    assert np.shape(found) == np.shape(wanted)
    return float(np.abs(np.asarray(found, np.float64) - np.asarray(wanted, np.float64)).max())


# ------------------------------------------------------------------------------------------------ what MXNet gives
@pytest.fixture(scope="module")
def functions():
    found: dict = {}
    recorded.functions(mx, found)
    return found


@pytest.mark.parametrize("size", recorded.SIZES)
@pytest.mark.parametrize("interp", range(5))
def test_sizes_are_opencvs_to_one_level(golden, functions, size, interp):
    # OpenCV rounds its weights to 11 bits; without weights there is nothing to round.
    assert levels(functions[f"{size} {interp}"], golden[f"{size} {interp}"]) <= (interp > 0)


def test_borders_decoded_photos_and_random_boxes_are_mxnets(golden, functions):
    for name in ("boxes", *(f"border {kind}" for kind in range(5))):
        assert levels(functions[name], golden[name]) == 0
    for name in ("photo", "photo grey"):  # decoders of other versions may round differently
        assert levels(functions[name], golden[name]) <= 2


@pytest.mark.parametrize("name", BATCHES)
def test_batches_of_image_record_iter_are_mxnets(golden, name):
    given = {"data_shape": (3, 16, 16), **BATCHES[name]}
    it = mx.io.ImageRecordIter(path_imgrec=str(FOLDER / "images.rec"), batch_size=2, preprocess_threads=0, **given)
    mixes = name in ("grown", "grey")  # weights of neighbours, or of colours
    found = it.next().data[0].asnumpy()[1]
    assert levels(found, golden[f"batch {name}"]) <= (1 if mixes else 1e-5)


@pytest.fixture(scope="module")
def augmented():
    found: dict = {}
    recorded.augmenters(mx, found)
    return found


@pytest.mark.parametrize("name", AUGMENTERS)
def test_augmenters_draw_and_compute_as_mxnet(golden, augmented, name):
    np.testing.assert_allclose(augmented[f"augmenter {name}"], golden[f"augmenter {name}"], rtol=1e-6, atol=1e-4)
    if f"dumps {name}" in golden:
        assert str(augmented[f"dumps {name}"]) == str(golden[f"dumps {name}"])


def test_image_iter_reads_draws_and_pads_as_mxnet(golden):
    found: dict = {}
    recorded.image_iter(mx, found)
    for handle in ("pad", "discard", "roll_over"):
        np.testing.assert_allclose(found[f"iter {handle}"], golden[f"iter {handle}"], rtol=1e-6)


# ------------------------------------------------------------------------------------------------ properties
shapes = st.tuples(st.integers(1, 12), st.integers(1, 12))


@settings(max_examples=80, deadline=None)
@given(shapes, shapes, st.integers(0, 4), st.data())
def test_resizing_a_crop_equals_cropping_the_resized_image(shape, size, kind, data):
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3)).astype(np.uint8)
    whole = resample(image, size, kind)
    x, y = data.draw(st.integers(0, size[0] - 1)), data.draw(st.integers(0, size[1] - 1))
    width, height = data.draw(st.integers(1, size[0] - x)), data.draw(st.integers(1, size[1] - y))
    wanted, box = whole[y : y + height, x : x + width], (x, y, width, height)
    assert np.array_equal(resample(image, size, kind, box), wanted)
    left, top, right, bottom = reach((shape[1], shape[0]), size, kind, box)
    cut = ((shape[1], shape[0]), (left, top))
    assert np.array_equal(resample(image[top:bottom, left:right], size, kind, box, cut), wanted)


@settings(max_examples=40, deadline=None)
@given(shapes, st.sampled_from(["RGB", "L", "RGBA", "P", "1", "I;16", "LA"]), st.booleans())
def test_every_kind_of_png_becomes_three_channels(shape, mode, grey):
    out = io.BytesIO()
    Image.new(mode, shape).save(out, "PNG")
    assert decode(out.getvalue(), "L" if grey else "RGB").shape == (shape[1], shape[0], 1 if grey else 3)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 300), st.sampled_from(["png", "jpg"]))
def test_a_damaged_image_is_decoded_or_raises(noise, cut, kind):
    content = png(pictures()[0]) if kind == "png" else (FOLDER / "photo.jpg").read_bytes()
    try:
        found = decode(content[:cut] + noise + content[cut + len(noise) :], "RGB", "a.rec", "row 3")
    except FormatError as error:
        assert str(error).startswith("a.rec: row 3: ")
    else:
        assert found.ndim == 3 and found.dtype == np.uint8


def test_image_formats_that_run_external_programs_are_not_opened():
    out = io.BytesIO()
    Image.new("RGB", (4, 4)).save(out, "EPS")
    with pytest.raises(FormatError, match="no image that Pillow can open"):
        decode(out.getvalue())


def test_a_small_file_that_declares_a_huge_image_raises_before_decoding():
    content = bytearray(png(pictures()[0]))
    content[16:24] = (60000).to_bytes(4, "big") * 2
    content[29:33] = zlib.crc32(bytes(content[12:29])).to_bytes(4, "big")
    with pytest.raises(FormatError, match="pixels"):
        decode(bytes(content))
    narrow = encode(np.zeros((1, 5000, 3), np.uint8), 9, ".png")
    with pytest.raises(FormatError, match="would grow to a side of 1280000"):
        decode_into(Recipe((3, 8, 8), resize=256), narrow, None, np.zeros((3, 8, 8), np.float32))


# ------------------------------------------------------------------------------------------------ the recipe
PHOTO = (FOLDER / "photo.jpg").read_bytes()  # 48 high, 64 wide


def decoded(seed=0, epoch=0, row=0, content=PHOTO, **fields):
    recipe = check_recipe(Recipe(**({"data_shape": (3, 24, 32)} | fields)))
    channels, height, width = recipe.data_shape
    out = np.zeros((height, width, channels) if recipe.channels_last else (channels, height, width), recipe.dtype)
    decode_into(recipe, content, random_numbers(seed, epoch, row) if is_random(recipe) else None, out)
    return out


RANDOM = {
    "place": {"rand_crop": True},
    "sizes": {"random_resized_crop": True, "min_random_area": 0.1, "max_aspect_ratio": 0.3},
    "squares": {"min_crop_size": 10, "max_crop_size": 40},
    "scales": {"min_random_scale": 0.7, "max_random_scale": 1.5},
    "colours": {"brightness": 0.3, "contrast": 0.3, "saturation": 0.3, "pca_noise": 0.1},
    "mirrored": {"rand_mirror": True},
    "interpolations": {"resize": 40, "inter_method": 10},
    "light": {"max_random_contrast": 0.3, "max_random_illumination": 9},
}


@pytest.mark.parametrize("fields", RANDOM.values(), ids=RANDOM)
def test_random_numbers_depend_only_on_seed_epoch_and_row(fields):
    assert np.array_equal(decoded(1, 2, 3, **fields), decoded(1, 2, 3, **fields))
    assert len({decoded(1, epoch, row, **fields).tobytes() for epoch in range(5) for row in range(5)}) > 1
    assert np.isfinite(decoded(1, 2, 3, data_shape=(1, 24, 32), **fields)).all()


def test_layouts_and_dtypes_hold_the_same_numbers():
    first = decoded(mean=(1, 2, 3), std=(2, 2, 2))
    assert np.array_equal(decoded(mean=(1, 2, 3), std=(2, 2, 2), channels_last=True), first.transpose(1, 2, 0))
    assert np.array_equal(decoded(dtype="uint8"), decoded())
    assert np.array_equal(decoded(dtype="int8"), np.minimum(decoded(), 127))
    assert np.array_equal(decoded(mirror=True), decoded()[:, :, ::-1])


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"data_shape": (3, 8)}, "data_shape is"),
        ({"dtype": "float16"}, "dtype is 'float16'; expected one of 'float32'"),
        ({"inter_method": 7}, "inter_method is 7"),
        ({"min_random_area": 0.0}, "the range of random areas is 0.0 to 1.0"),
        ({"random_resized_crop": True, "max_aspect_ratio": 2.0}, "range of aspect ratios"),
        ({"min_crop_size": 9, "max_crop_size": 4}, "the range of crop sizes is 9 to 4"),
    ],
)
def test_an_invalid_recipe_raises(fields, says):
    with pytest.raises(ValueError, match=says):
        check_recipe(Recipe(**({"data_shape": (3, 8, 8)} | fields)))


# ------------------------------------------------------------------------------------------------ functions
def test_create_augmenter_makes_mxnets_list():
    found = mx.image.CreateAugmenter(
        (3, 8, 9), 12, True, True, True, True, True, brightness=0.1, hue=0.1, pca_noise=0.1, rand_gray=0.5
    )
    names = [type(augmenter).__name__ for augmenter in found]
    assert names == [
        "ResizeAug", "RandomSizedCropAug", "HorizontalFlipAug", "CastAug", "ColorJitterAug", "HueJitterAug", "LightingAug",
        "RandomGrayAug", "ColorNormalizeAug",
    ]  # fmt: skip
    random.seed(0)
    image = pictures()[0]
    for augmenter in found:
        image = augmenter(image)
    assert image.shape == (8, 9, 3) and image.dtype == np.float32
    with pytest.raises(AssertionError, match="pass rand_crop=True too"):
        mx.image.CreateAugmenter((3, 8, 9), rand_resize=True)
    with pytest.raises(ValueError, match="expected True, None or an array of 1 or 3 numbers"):
        mx.image.CreateAugmenter((3, 8, 9), mean=np.ones(2))
    assert len(mx.image.CreateAugmenter((3, 8, 9), mean=False, std=False)) == 2  # crop and cast


def test_without_pillow_the_error_names_the_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match=r"jfit.image."):
        decode(PHOTO)
    with pytest.raises(ImportError, match=r"jfit.image."):
        mx.io.ImageRecordIter(path_imgrec=str(FOLDER / "images.rec"), data_shape=(3, 8, 8), batch_size=2)
