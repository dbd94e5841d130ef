"""The files of pages as they are sent: what they may hold, and how browsers may keep them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from ridgeway.common.web.http_errors import add_error_handlers
from ridgeway.common.web.site import read_site, site_api
from ridgeway.serving.serve_command import _DOCUMENTS as PLACES

PACKAGES = tuple(f"ridgeway.{room}" for room in ("serving", "coordinator", "client"))
SITES = {package: read_site(package) for package in PACKAGES}
FILES = {
    (package, name): body.decode()
    for package, site in SITES.items()
    for name, body in site.contents.items()
}
SCRIPTS = sorted(file for file in FILES if file[1].endswith(".js"))
_DOCUMENTS = sorted(file for file in FILES if file[1].endswith(".html"))
SITE = SITES["ridgeway.serving"]
CONTENTS, VERSION = SITE.contents, SITE.version

File = tuple[str, str]
"""A page's package, and the name of one of its files."""


@pytest.fixture(scope="module")
def http() -> Iterator[TestClient]:
    app = FastAPI(docs_url=None)
    add_error_handlers(app)
    app.include_router(site_api(SITE, PLACES))
    with TestClient(app) as client:
        yield client


@pytest.mark.parametrize("file", SCRIPTS)
def test_scripts_never_make_html_of_text(file: File) -> None:
    """A prompt or a holder's words may be anything, so nothing is parsed: text goes in as text."""
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new "
        r"Function|javascript:"
    )
    assert not re.findall(forbidden, FILES[file])


@pytest.mark.parametrize("file", sorted(FILES))
def test_files_name_no_other_site(file: File) -> None:
    """Everything comes from the service; the one address in full is the name of SVG itself."""
    assert set(re.findall(r"https?://[^\"' )]+", FILES[file])) <= {
        "http://www.w3.org/2000/svg"
    }
    assert not re.findall(r"@import|\burl\(|//cdn", FILES[file])


@pytest.mark.parametrize("file", _DOCUMENTS)
def test_documents_hold_no_script_and_no_style_of_their_own(file: File) -> None:
    """So that the service can forbid browsers to run any."""
    assert not re.findall(
        r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", FILES[file]
    )


@pytest.mark.parametrize("file", SCRIPTS)
def test_scripts_import_what_is_there(file: File) -> None:
    """Each import names a file of the page, and something that it exports."""
    imports = re.findall(r"import \{([^}]*)\} from \"\./([^\"]+)\"", FILES[file])
    for names, source in imports:
        for name in names.split(","):
            exported = rf"export (async )?(function|const|class) {name.strip()}\b"
            assert re.search(exported, FILES[file[0], source]), f"{source}: {name}"


def test_documents_name_files_of_one_version_that_browsers_may_keep(
    http: TestClient,
) -> None:
    """Whatever a document names is there; other versions and other names are not."""
    for address in PLACES:
        document = http.get(address)
        assert document.headers["cache-control"] == "no-cache"
        addresses = re.findall(r"(?:href|src)=\"(/page/[^\"]+)\"", document.text)
        assert len(addresses) >= 4
        for address in addresses:
            answer = http.get(address)
            assert answer.status_code == 200
            assert "immutable" in answer.headers["cache-control"]
            assert answer.content == CONTENTS[address.rpartition("/")[2]]
    for wrong in (
        "/page/0/main.js",
        f"/page/{VERSION}/page.py",
        f"/page/{VERSION}/..%2fpage.py",
    ):
        assert http.get(wrong).status_code == 404
        assert http.get(wrong).json()["error"]["message"] == "not found"


def test_files_say_what_they_are(http: TestClient) -> None:
    """Browsers that do not guess run a script only if it is called one."""
    kinds = {
        "main.js": "text/javascript",
        "style.css": "text/css",
        "favicon.svg": "image/svg+xml",
    }
    for name, kind in kinds.items():
        answer = http.head(f"/page/{VERSION}/{name}")
        assert answer.headers["content-type"].partition(";")[0] == kind
        assert int(answer.headers["content-length"]) == len(CONTENTS[name])
        assert answer.content == b""


@pytest.mark.parametrize("package", PACKAGES)
def test_no_page_has_a_file_of_the_name_of_a_shared_one(package: str) -> None:
    """It would take the place of the shared one without a word."""
    names, shared = (
        {path.name for path in (files(room) / "static").iterdir()}
        for room in (package, "ridgeway.common.web")
    )
    assert names and shared and not names & shared
