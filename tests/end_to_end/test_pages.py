"""The two pages that are only read, in a real browser: a federation's and a holder's."""

from __future__ import annotations

import re
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from ridgeway.client.holder_view import holder_page
from ridgeway.common.base.journal import Journal
from ridgeway.common.web.api_keys import add_key, make_rules
from ridgeway.common.web.site import create_page_app
from ridgeway.coordinator.federation_page import FederationView, federation_page
from ridgeway.coordinator.round.ask import RoundWishes
from ridgeway.coordinator.round.round import run_round
from tests.support.browser import Visit, visit
from tests.support.in_process import running
from tests.support.pages import must_be_for_everybody
from tests.support.simulated_federation import (
    ONE_EACH,
    Direct,
    Parties,
    found,
    no_watch,
    populate,
    round_of,
)

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=alert(1)><script>alert(1)</script>"
MANY = 150


@pytest.fixture(scope="module")
def parties(module_path: Path) -> Parties:
    """Two releases; after them a refusal whose words are hostile, and a bundle that was refused
    with such words.
    """
    made = populate(found(module_path, mode="masked"), ONE_EACH)
    round_of(made)
    for name in ("code", "law"):
        made.change_corpus(name)
    made.ready("medicine")
    wishes = RoundWishes(accept_worse=("code", "law", "medicine"))
    run_round(made.federation, Direct(made), no_watch, wishes)
    ledger = made.federation.ledger
    ledger.note("opened", round="n3", number=3, terms={"mode": "masked"})
    ledger.note(
        "refused",
        round="n3",
        step="announce",
        name="law",
        code="not_pinned",
        reason=HOSTILE,
    )
    ledger.note("closed", round="n3", release=None, reason=HOSTILE)
    Journal(made.homes["law"] / "journal.db").append(
        ("refused_bundle", {"bundle": "ef" * 32, "reason": HOSTILE})
    )
    return made


@contextmanager
def federation(browser: Browser, parties: Parties, **options: Any) -> Iterator[Visit]:
    view = FederationView(parties.federation, lambda: frozenset({"code", "law"}))
    with (
        running(create_page_app(federation_page(view))) as url,
        visit(browser, url, **options) as seen,
    ):
        seen.expect("#verified").not_to_have_text("The chain is being verified.")
        yield seen


@contextmanager
def holder(browser: Browser, home: Path, **options: Any) -> Iterator[Visit]:
    with (
        running(create_page_app(holder_page(home))) as url,
        visit(browser, url, **options) as seen,
    ):
        seen.expect("#verified").not_to_have_text("The records are being verified.")
        yield seen


@pytest.mark.parametrize(
    ("width", "scheme"), [(1280, "light"), (500, "dark"), (320, "light")]
)
def test_the_federation_is_there_for_everybody(
    browser: Browser, parties: Parties, width: int, scheme: str
) -> None:
    """Wide and narrow, light and dark, by keyboard and to a screen reader; and no word of a holder
    is ever run.
    """
    with federation(
        browser, parties, viewport={"width": width, "height": 800}, color_scheme=scheme
    ) as seen:
        page = seen.page
        seen.shows("#members tbody th", ["code", "law", "medicine"])
        seen.says("#obstacles", HOSTILE)
        seen.says("#round", HOSTILE)
        seen.says("#verified", "The chain holds")
        assert page.locator("#accuracy .series").count() == 3
        seen.says("#changes", "code, law, medicine")
        must_be_for_everybody(page, width)
        assert page.locator("img[src=x]").count() == 0


def test_many_members_can_be_searched_and_folded(
    browser: Browser, tmp_path: Path
) -> None:
    """The first twenty, all of them on request, and those of a name or a domain."""
    parties = found(tmp_path, mode="masked")
    ledger = parties.federation.ledger
    for number in range(MANY):
        facts = {
            "name": f"holder-{number:03}",
            "domain": f"domain_{number % 60:02}",
            "node": f"n{number}",
        }
        ledger.note("admitted", key=secrets.token_hex(32), **facts)
    with federation(browser, parties) as seen:
        rows = seen.page.locator("#members tbody tr")
        expect(rows).to_have_count(20)
        seen.press(f"Show all {MANY}")
        expect(rows).to_have_count(MANY)
        seen.page.get_by_label("Find").fill("domain_07")
        expect(rows.locator("th")).to_have_text(
            ["holder-007", "holder-067", "holder-127"]
        )
        seen.page.get_by_label("Find").fill("nobody")
        seen.shows("#members", "No member is like this.")
        seen.says("#round", "No round yet.")
        seen.says("#releases", "No release yet.")


def test_what_happens_while_the_page_is_open_is_shown(
    browser: Browser, parties: Parties, tmp_path: Path
) -> None:
    """Without a reload: a new entry of the ledger, and the round that it speaks of."""
    copy = parties.copy(tmp_path / "copy")
    with federation(browser, copy) as seen:
        seen.says("#round", "Round 3")
        copy.federation.ledger.note(
            "opened", round="n4", number=4, terms={"mode": "masked"}
        )
        seen.says("#round", "Round 4 was interrupted")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (320, "light")])
def test_a_holder_sees_all_that_left(
    browser: Browser, parties: Parties, width: int, scheme: str
) -> None:
    """With what it held, whether it was opened, and what was refused; words of others are text."""
    with holder(
        browser,
        parties.homes["law"],
        viewport={"width": width, "height": 800},
        color_scheme=scheme,
    ) as seen:
        page = seen.page
        seen.says("#kinds", "its numbers under masks")
        seen.says("#refused", HOSTILE)
        seen.shows("#verified", "Yes, all of them, and they agree.")
        page.get_by_label("only what holds numbers of the corpus").check()
        seen.expect("#sent tbody tr").to_have_count(4)
        must_be_for_everybody(page, width)
        assert page.locator("img[src=x]").count() == 0


def test_what_was_altered_is_said_at_the_top_of_both_pages(
    browser: Browser, parties: Parties, tmp_path: Path
) -> None:
    """Above all else, and only then; times are told with their zone."""
    copy = parties.copy(tmp_path / "copy")
    for path in (
        copy.federation.folder / "ledger.db",
        copy.homes["law"] / "journal.db",
    ):
        with sqlite3.connect(path) as database:
            database.execute(
                "update entries set time = replace(time, '20', '21') where number = 2"
            )
        database.close()
    for opened in (federation(browser, parties), holder(browser, parties.homes["law"])):
        with opened as seen:
            seen.expect("#altered").to_be_hidden()
    zone = re.compile(r"\d\d:\d\d:\d\d (UTC|GMT)")
    for altered in (federation(browser, copy), holder(browser, copy.homes["law"])):
        with altered as seen:
            seen.says("#altered", "Something was altered")
            seen.says("#altered", "entry 2")
            expect(seen.page.locator("#releases, #sent").first).to_contain_text(zone)


def test_a_key_is_asked_for_and_is_enough(
    browser: Browser, parties: Parties, tmp_path: Path
) -> None:
    """The page itself comes without one, and holds nothing of the folder until it is given."""
    key, _ = add_key(tmp_path / "keys.toml", "owner")
    rules = make_rules("127.0.0.1", tmp_path / "keys.toml")
    app = create_page_app(holder_page(parties.homes["law"]), rules)
    with running(app) as url, visit(browser, url, calm=False) as seen:
        seen.expect("#key").to_be_visible()
        seen.shows("#glance", "The folder is being read.")
        seen.page.get_by_label("Key").fill(key)
        seen.press("Go on")
        seen.says("#glance", "law")
