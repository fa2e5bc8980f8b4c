"""The documentation site has every public name; `make docs` builds it and looks for the names in the built pages too."""

import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
from pathlib import Path

import pytest

import jfit
import jfit.mx

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pages():
    spec = importlib.util.spec_from_file_location("jfit_site_pages", ROOT / "docs" / "pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_every_public_name_has_an_entry_in_the_site(pages):
    text = "\n".join(pages.api_pages().values())
    anchors = set(re.findall(r'<a id="([^"]+)">', text)) | set(re.findall(r"\{#(jfit[^ ]+) ", text))
    links = {f"{space.name}.": space.other for spaces in pages.public_names().values() for space in spaces}
    modules = {"jfit": jfit, "jfit.mx": jfit.mx}
    for found in pkgutil.iter_modules(jfit.__path__, "jfit."):
        modules[found.name] = importlib.import_module(found.name)
    for name in ("jfit", "jfit.mx"):
        modules |= dict(pages.modules_below(name, modules[name]))
    # `mx.mod` and `mx.module` are one module with one entry; `jfit.graph` has the names of `jfit.sym`.
    same = {other: name[:-1] for name, others in links.items() for other in others} | {"jfit.graph": "jfit.sym"}
    expected = {
        f"{same.get(path, path)}.{name}"
        for path, module in modules.items()
        for name in getattr(module, "__all__", ())
        if not inspect.ismodule(getattr(module, name)) and (path != "jfit.load")
    }
    assert len(expected) > 500
    assert not expected - anchors


def test_every_page_of_the_site_is_in_its_navigation(pages):
    """`make docs` is strict about this, but runs only after the slow tests."""
    written = [*pages.copied_pages(), *(p.relative_to(ROOT / "docs").as_posix() for p in ROOT.glob("docs/**/*.md"))]
    # The README becomes several pages, in the navigation like all others.
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert len(written) > 30
    assert not [page for page in written if not re.search(rf"[ :]{re.escape(page)}\s*$", navigation, re.M)]
