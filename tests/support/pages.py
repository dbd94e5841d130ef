"""What tests of pages that are only read ask of each of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from playwright.sync_api import Page
from starlette.testclient import TestClient

from ridgeway.common.base.files import sha256_of_file
from tests.support.commands import Workshop

UNSAFE_OPTIONS = [
    (
        ("--host", "0.0.0.0"),
        "is reachable from other machines, so API keys are required",
    ),
    (("--tls-cert", "x.crt"), "--tls-cert and --tls-key go together"),
    (("--keys", "none.toml"), "there is no keys file"),
]


def file_hashes(folder: Path) -> dict[str, str]:
    """Every file of a folder but those in which SQLite keeps track of its readers."""
    paths = [
        path
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(("-wal", "-shm"))
    ]
    return {str(path.relative_to(folder)): sha256_of_file(path) for path in paths}


def must_guard(http: TestClient, key: str, addresses: Iterable[str]) -> None:
    """Without a key there are the page's files and its health, and nothing of the folder; strange
    hosts get nothing.
    """
    for address in addresses:
        assert http.get(address).status_code == 401
        headers = {"authorization": f"Bearer {key}"}
        assert http.get(address, headers=headers).status_code == 200
        assert http.get(address, headers={"host": "evil.example"}).status_code == 403
    page = http.get("/")
    assert page.status_code == http.get("/health").status_code == 200
    assert (
        "default-src 'none'" in page.headers["content-security-policy"]
        and "medicine" not in page.text
    )
    assert http.get("/", headers={"origin": "https://evil.example"}).status_code == 403


def page_refusal(folder: Path, *options: str) -> str:
    """Why `ridgeway coordinator page FOLDER OPTIONS...` refuses."""
    done = Workshop(folder.parent).call("coordinator page", folder, *options)
    assert done.stderr.count("\n") <= 2
    return done.refusal


def must_be_for_everybody(page: Page, width: int) -> None:
    """No sideways scrolling, one h1 and no level left out, names for all that asks or shows, room
    for a finger.
    """
    for summary in page.locator("summary").all():
        if summary.is_visible():
            summary.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    levels: list[int] = page.locator("h1, h2, h3, h4").evaluate_all(
        "all => all.filter(e => e.offsetParent).map(e => +e.tagName[1])"
    )
    assert levels[0] == 1 and levels.count(1) == 1 and _no_level_is_left_out(levels)
    unlabelled = (
        "all => all.filter(e => ![...e.labels].some(l => l.textContent.trim())).map(e "
        "=> e.outerHTML)"
    )
    assert page.locator("input, select").evaluate_all(unlabelled) == []
    wordless = (
        "all => all.filter(e => !(e.textContent.trim() || e.ariaLabel)).map(e => "
        "e.outerHTML)"
    )
    assert page.locator("button, a, summary, h1, h2, h3").evaluate_all(wordless) == []
    assert (
        page.locator(
            "img:not([alt]), svg:not([aria-hidden]):not([role=img][aria-label])"
        ).count()
        == 0
    )
    assert page.locator("th:not([scope]), table:not(:has(caption))").count() == 0
    small = (
        "all => all.filter(e => e.offsetParent && e.getBoundingClientRect().height < "
        "39).map(e => e.textContent)"
    )
    assert (
        page.locator("button, label:has(input), summary, nav a, select").evaluate_all(
            small
        )
        == []
    )
    doubled = "all => all.map(e => e.id).filter((id, place, ids) => ids.indexOf(id) !== place)"
    assert page.locator("[id]").evaluate_all(doubled) == []


def _no_level_is_left_out(levels: Sequence[int]) -> bool:
    return all(after - before <= 1 for before, after in pairwise(levels))
