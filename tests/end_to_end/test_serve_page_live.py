"""The page while the service changes: other releases, traffic, drift, keys, a service that is
gone.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from ridgeway.common.web.api_keys import add_key
from tests.support.browser import visit
from tests.support.commands import Workshop
from tests.support.serving import Serving, write_experts

pytestmark = pytest.mark.browser

UNKNOWN = ""
"""Says nothing for any domain, so that no decision is sure."""
STRICT = {"threshold": 0.999, "fallback": "general", "max_body": 0.1}


@pytest.fixture(scope="module")
def strict(shop: Workshop) -> Iterator[Serving]:
    """A service that is seldom sure, takes short prompts only, and has an expert for what it is not
    sure of.
    """
    experts = write_experts(
        shop / "experts.toml", {"general": "http://127.0.0.1:1/v1"}, "general"
    )
    with Serving(
        shop.folder, shop / "release", "--experts", experts, settings=STRICT
    ) as served:
        yield served


@pytest.fixture
def release(shop: Workshop, tmp_path: Path) -> Path:
    """A release of the test's own, to be replaced."""
    return shutil.copytree(shop / "release", tmp_path / "release")


def test_a_release_replaced_on_disk_is_shown_without_reloading(
    browser: Browser, shop: Workshop, release: Path
) -> None:
    """Card, decision and heat map become those of the new release; a bad one is refused, and the
    page says why.
    """
    with Serving(shop.folder, release) as served, visit(browser, served.url) as seen:
        before = served.http.get("/v1/releases/current").json()["release"]
        seen.type_prompt("abcd")
        shown = seen.page.locator("#release code").first
        expect(shown).to_have_attribute("title", before)
        seen.page.evaluate("window.stayed = true")

        assert shop.run("evaluate --propose --sign", release, "tests").code == 0
        seen.shows("#said", re.compile("^Release [0-9a-f]{12} is in use now.$"))
        card = served.http.get("/v1/releases/current").json()
        assert card["release"] != before
        expect(shown).to_have_attribute("title", card["release"])
        seen.expect("#decision code").to_have_attribute("title", card["release"])
        seen.expect("#decision .sure").not_to_contain_text("not calibrated")
        evaluation = card["manifest"]["evaluation"]
        counts = [str(count) for row in evaluation["confusion"] for count in row]
        seen.shows(".heat td.count", counts)
        seen.shows(".heat thead th", [*evaluation["order"], "right"])

        manifest = json.loads((release / "manifest.json").read_text())
        (release / "manifest.json").write_text(
            json.dumps({**manifest, "domains": ["one", "two"]})
        )
        seen.says("#release .notice", "A newer release was refused")
        expect(shown).to_have_attribute("title", card["release"])
        assert seen.page.evaluate("window.stayed")


def test_charts_show_what_was_decided(browser: Browser, shop: Workshop) -> None:
    """Every decision of the last minutes is in the chart, its text and its table; times have their
    unit.
    """
    with (
        Serving(shop.folder, shop / "release") as served,
        visit(browser, served.url) as seen,
    ):
        chart = seen.page.locator("#decisions-chart")
        seen.page.locator("summary", has_text="last five minutes").click()
        expect(chart.locator("svg")).to_have_attribute(
            "aria-label", re.compile("^0 decisions")
        )
        expect(chart).to_contain_text("No decisions yet")
        for prompt, times in (("abcd", 7), ("0123", 5)):
            served.post("/v1/route", {"prompts": [prompt] * times})
        expect(chart.locator("svg")).to_have_attribute(
            "aria-label", "12 decisions in the last 5 minutes. code 5, law 7"
        )
        assert chart.locator(".bar-part").count() >= 2
        expect(chart.locator(".legend li")).to_have_text(["code", "law"])
        chart.locator("summary").click()
        rows = [
            [int(cell) for cell in row.split("\t")[1:]]
            for row in chart.locator("tbody tr").all_inner_texts()
        ]
        assert [sum(column) for column in zip(*rows, strict=True)] == [5, 7, 0]
        latency = seen.page.locator("#latency-chart")
        expect(latency).to_contain_text(
            re.compile(r"Latest: median [\d.]+ ms, 99th percentile [\d.]+ ms")
        )
        expect(latency.locator(".line.tail").first).to_be_attached()


def test_an_alarm_is_shown_while_prompts_are_unlike_the_release(
    browser: Browser, shop: Workshop
) -> None:
    """It says why; and it goes when the prompts are as they should be."""
    serving = Serving(shop.folder, shop / "release", settings={"drift_share": 0.4})
    with serving as served, visit(browser, served.url) as seen:
        banner = seen.page.locator("#alarm")
        seen.says("#drift", "No prompts under this release yet.")
        expect(banner).to_be_hidden()
        served.post("/v1/route", {"prompts": [UNKNOWN] * 60})
        expect(banner).to_contain_text("more than 40 % of them have a low confidence")
        seen.shows("#drift .value", "100.0 %")
        served.post("/v1/route", {"prompts": ["abcdefgh abcdefgh abcdefgh"] * 140})
        expect(banner).to_be_hidden()


def test_an_abstention_says_where_the_prompt_goes(
    browser: Browser, strict: Serving
) -> None:
    """To the fallback; which domain was ahead all the same; and how the expert that would answer
    is.
    """
    with visit(browser, strict.url) as seen:
        seen.type_prompt("abcd 0123")
        ahead = strict.post("/v1/route", {"prompt": "abcd 0123"}).json()["best"]
        seen.shows(".winner", "general")
        seen.says(".sure", f"The prompt goes to general; {ahead} is ahead.")
        seen.says("#said", "abstained, goes to general")
        seen.says("#decision dl", "Expertgeneral")
        seen.open_all()
        row = seen.page.locator("#experts tbody tr")
        expect(row.locator("th, td")).to_have_text(
            ["general", "up", "0", "–", "–", "0", "0"]
        )


def test_a_service_with_keys_asks_for_one(
    browser: Browser, shop: Workshop, tmp_path: Path
) -> None:
    """A wrong key is asked again; a right one is kept in memory alone, and all goes on from where
    it stood.
    """
    key, _ = add_key(tmp_path / "keys", "page")
    serving = Serving(
        shop.folder, shop / "release", "--keys", tmp_path / "keys", key=key
    )
    with serving as served, visit(browser, served.url, calm=False) as seen:
        box = seen.page.get_by_label("Key", exact=True)
        expect(box).to_be_focused()
        box.fill("wrong")
        box.press("Enter")
        seen.says("#key-why", "not known here")
        box.fill(key)
        seen.press("Go on")
        seen.says("#release", "In use since")
        expect(box).to_be_hidden()
        seen.type_prompt("abcd")
        seen.shows(".winner", "law")
        assert [trouble for trouble in seen.troubles if "401" not in trouble] == []
        assert seen.page.evaluate(
            "[localStorage.length, sessionStorage.length, document.cookie]"
        ) == [0, 0, ""]
        seen.page.goto(f"{served.url}/docs")
        box.fill(key)
        box.press("Enter")
        expect(seen.page.locator(".operation").first).to_be_visible()


def test_a_service_that_is_gone_is_waited_for(browser: Browser, shop: Workshop) -> None:
    """A calm word, what was shown stays, and the page goes on when the service is there again."""
    with (
        Serving(shop.folder, shop / "release") as served,
        visit(browser, served.url, calm=False) as seen,
    ):
        seen.type_prompt("abcd")
        seen.says("#release", "In use since")
        served.stop()
        notice = seen.page.locator("#live-problem")
        expect(notice).to_contain_text("The service does not answer.")
        seen.shows(".winner", "law")
        seen.press("Route", exact=True)
        seen.says("#prompt-problem", "This could not be routed.")
        served.begin()
        served.until_ready()
        expect(notice).to_be_hidden()
        seen.press("Route", exact=True)
        seen.expect("#prompt-problem").to_be_hidden()


def test_a_page_that_nobody_looks_at_asks_nothing(
    browser: Browser, strict: Serving
) -> None:
    """While its tab is hidden, the page does not ask how the service is; when it is shown again, at
    once.
    """
    hidden = """(value) => {
      Object.defineProperty(document, 'hidden', { value, configurable: true });
      document.dispatchEvent(new Event('visibilitychange'));
    }"""
    with visit(browser, strict.url, own_clock=True) as seen:
        seen.expect(".gauge").to_have_count(1)
        with seen.page.expect_response("**/v1/activity"):
            seen.page.clock.run_for(2000)
        seen.page.evaluate(hidden, True)
        before = seen.asked.count("/v1/activity")
        seen.page.clock.run_for(60_000)
        assert seen.asked.count("/v1/activity") == before
        with seen.page.expect_request("**/v1/activity"):
            seen.page.evaluate(hidden, False)


def test_what_the_service_cannot_use_is_said(browser: Browser, strict: Serving) -> None:
    """A very long prompt waits for the button; one that is too long for the service is answered
    with its reason.
    """
    with visit(browser, strict.url, calm=False) as seen:
        seen.prompt.fill("ab " * 60_000)
        problem = seen.page.locator("#prompt-problem")
        expect(problem).to_contain_text("press Route")
        seen.press("Route", exact=True)
        expect(problem).to_contain_text("This could not be routed.")
        assert "/v1/route" in seen.asked
