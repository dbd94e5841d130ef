"""The page in a real browser, before a real router: a prompt, the decision, what its words say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.support.browser import Visit, visit
from tests.support.commands import Workshop
from tests.support.corpora_on_disk import ALPHABETS
from tests.support.serving import Serving

pytestmark = pytest.mark.browser

PROMPT = "abcdefgh abba\n 0123, nop"
"""Mostly in the letters of law, some of the other domains."""
LONG = PROMPT + " ab bc cd de ef fg gh 45"
"""More different words than the table has rows."""


@pytest.fixture(scope="module")
def served(shop: Workshop) -> Iterator[Serving]:
    with Serving(shop.folder, shop / "release") as serving:
        yield serving


@pytest.fixture(scope="module")
def tab(browser: Browser, served: Serving) -> Iterator[Visit]:
    with visit(browser, served.url) as opened:
        yield opened


@pytest.fixture
def seen(tab: Visit) -> Iterator[Visit]:
    tab.anew()
    yield tab
    assert tab.troubles == []


def explained(served: Serving, prompt: str) -> Any:
    return served.post("/v1/route", {"prompt": prompt, "explain": True}).json()


def painted(seen: Visit) -> list[dict[str, Any]]:
    """Every word as it is shown: its text, its classes, and how strong its colour is."""
    look = (
        "e => ({text: e.textContent, marks: e.className, weight: "
        "+e.style.getPropertyValue('--weight')})"
    )
    found: list[dict[str, Any]] = seen.page.locator(".token").evaluate_all(
        f"all => all.map({look})"
    )
    return found


def weights_of(table: list[str]) -> list[float]:
    return [float(cell.replace("−", "-")) for cell in table]


def test_a_typed_prompt_is_routed_without_pressing_anything(
    seen: Visit, served: Serving
) -> None:
    """The decision appears with its confidence, every domain's probability, and the release."""
    seen.prompt.press_sequentially(PROMPT.split("\n")[0])
    decision = seen.page.locator("#decision")
    answer = explained(served, PROMPT.split("\n")[0])
    expect(decision.locator(".winner")).to_have_text("law")
    assert answer["domain"] == "law"
    expect(decision.locator(".sure")).to_have_text(
        f"Confidence {100 * answer['confidence']:.1f} %, not calibrated"
    )
    ranked = sorted(answer["scores"].items(), key=lambda item: -item[1])
    expect(decision.get_by_role("rowheader")).to_have_text([name for name, _ in ranked])
    expect(decision.locator("tbody td.number")).to_have_text(
        [f"{100 * share:.1f} %" for _, share in ranked]
    )
    expect(decision.locator("code")).to_have_attribute("title", answer["release"])
    seen.shows("#said", re.compile(r"^law, confidence \d+ %; then \w+, \d+ %\.$"))


@pytest.mark.parametrize("action", ["Control+Enter", "the button"])
def test_a_prompt_is_routed_at_once_when_asked_to(
    browser: Browser, served: Serving, action: str
) -> None:
    """Without waiting for a pause in typing: the page's clock stands still here."""
    with visit(browser, served.url) as seen:
        seen.page.clock.install()
        seen.page.clock.pause_at("2100-01-01")
        box = seen.prompt
        box.fill("0123")
        seen.expect(".winner").to_have_count(0)
        if action == "the button":
            seen.press("Route", exact=True)
        else:
            box.press(action)
        seen.shows(".winner", "code")


def test_the_latest_prompt_wins(seen: Visit) -> None:
    """While an answer is on its way others may be typed; what is shown in the end is the last
    one's.
    """
    held: list[Route] = []
    seen.page.route(
        "**/v1/route", lambda route: route.continue_() if held else held.append(route)
    )
    box = seen.prompt
    box.fill("0123")
    box.press("Control+Enter")
    expect(box).to_have_value("0123")
    box.fill("nopq")
    box.press("Control+Enter")
    box.fill("abcd")
    box.press("Control+Enter")
    assert len(held) == 1
    held[0].continue_()
    seen.shows(".winner", "law")
    seen.shows("#tokens", "abcd")


def test_an_emptied_box_shows_no_decision(seen: Visit) -> None:
    """What is gone from the box is gone from the page."""
    seen.type_prompt("abc")
    seen.prompt.fill(" ")
    seen.shows("#decision", "Nothing is routed yet.")
    seen.expect("#tokens").to_be_hidden()


def test_the_page_opens_with_the_prompt_alone(seen: Visit) -> None:
    """What a visitor does not ask for is one click away, and a release without examples offers
    none.
    """
    seen.expect("#release .card").to_be_attached()
    assert seen.page.locator("main details[open]").count() == 0
    seen.expect("#release").to_be_hidden()
    seen.expect("#examples-part").to_be_hidden()
    seen.page.locator("summary", has_text="About this router").click()
    seen.expect("#release .card").to_be_visible()


def test_words_have_the_colour_of_their_domain_and_its_strength(
    seen: Visit, served: Serving
) -> None:
    """All of the prompt is there, blanks and line feeds too; the colour is the domain's, the
    strength the weight's.
    """
    seen.type_prompt(PROMPT)
    answer = explained(served, PROMPT)
    shown = painted(seen)
    assert [word["text"] for word in shown] == [
        "abcdefgh",
        " ",
        "abba",
        "\n",
        " ",
        "0123",
        ",",
        " ",
        "nop",
    ]
    most = max(abs(word["weight"]) for word in answer["explanation"])
    for word, drawn in zip(answer["explanation"], shown, strict=True):
        index = answer["order"].index(word["domain"])
        assert f"d{index} u{index}" in drawn["marks"]
        assert drawn["weight"] == pytest.approx(abs(word["weight"]) / most, abs=1e-3)


def test_the_keyboard_switches_to_what_words_say_of_one_domain(
    seen: Visit, served: Serving
) -> None:
    """Arrow keys go through the domains; words that speak against one look different from those
    that speak for it.
    """
    seen.type_prompt(PROMPT)
    answer = explained(served, PROMPT)
    seen.page.get_by_role("radio", name="what decided").focus()
    for index, domain in enumerate(answer["order"]):
        seen.page.keyboard.press("ArrowRight")
        expect(seen.page.get_by_role("radio", name=domain)).to_be_checked()
        seen.says("#view-words", f"for or against {domain}")
        for word, drawn in zip(answer["explanation"], painted(seen), strict=True):
            marks = f"u0 d{index}" if word["parts"][index] > 0 else "u2 against"
            assert drawn["marks"] == f"token {marks}"
    seen.page.keyboard.press("ArrowRight")
    expect(seen.page.get_by_role("radio", name="what decided")).to_be_checked()


def test_arrow_keys_read_out_words_from_a_single_tab_stop(
    seen: Visit, served: Serving
) -> None:
    """However long the prompt is, one press of Tab leads past its words; within, each can be
    read.
    """
    seen.type_prompt(PROMPT)
    answer = explained(served, PROMPT)
    seen.page.get_by_role("radio", name="what decided").focus()
    seen.page.keyboard.press("Tab")
    seen.expect("#tokens").to_be_focused()
    reading = seen.page.locator("#reading")
    for word in answer["explanation"][:3]:
        seen.page.keyboard.press("ArrowRight")
        expect(reading).to_contain_text(
            f"{json.dumps(word['text'])} speaks for {word['domain']}"
        )
        expect(reading).to_contain_text(f"{word['weight']:+.4f}".replace("-", "−"))
    seen.page.keyboard.press("End")
    expect(reading).to_contain_text(json.dumps("nop"))
    seen.page.keyboard.press("Tab")
    assert seen.page.evaluate("!document.activeElement.closest('#tokens')")


def test_pointing_at_a_word_reads_it_out(seen: Visit, served: Serving) -> None:
    seen.type_prompt(PROMPT)
    word = explained(served, PROMPT)["explanation"][5]
    seen.page.locator(".token").nth(5).hover()
    seen.says("#reading", f"{json.dumps(word['text'])} speaks for {word['domain']}")


def test_the_words_that_decided_are_those_of_the_command_line(
    seen: Visit, shop: Workshop
) -> None:
    """The same rows in the same order as `ridgeway route --explain` prints."""
    seen.type_prompt(LONG)
    seen.open_all()
    printed = shop.run("route --explain release", LONG).stdout
    said = re.findall(
        r"(?m)^ *'(.*)' +(\w+) +(\d+) +([+-][\d.]+) +([+-]\d+) ?%", printed
    )
    assert len(said) == 12
    rows = seen.page.locator("#words tbody tr")
    expect(rows).to_have_count(13)
    shown = [
        [cell.strip() for cell in row.split("\t")] for row in rows.all_inner_texts()
    ]
    assert [[json.loads(cells[0]), *cells[1:3]] for cells in shown[:12]] == [
        [text.replace("\\n", "\n"), domain, times] for text, domain, times, _, _ in said
    ]
    assert weights_of([cells[3] for cells in shown[:12]]) == [
        float(weight) for *_, weight, _ in said
    ]
    assert [cells[4].replace("−", "-") for cells in shown[:12]] == [
        f"{share} %" for *_, share in said
    ]
    [others] = re.findall(r"(\d+ other words)", printed)
    assert shown[12][0] == others


def test_a_prompt_is_shown_as_text_whatever_it_holds(seen: Visit) -> None:
    """Markup in a prompt makes no elements and runs nothing."""
    prompt = '<img src=x onerror="document.title=1"><b>bold</b>'
    seen.type_prompt(prompt)
    assert seen.page.locator("main img, main #tokens b, main #words b").count() == 0
    assert seen.page.title() == "Ridgeway"


def test_what_no_word_stands_for_is_shown_and_weighs_nothing(seen: Visit) -> None:
    """Special tokens have no weight; the prompt still reads as it was typed."""
    given = [
        {"text": " 🎉", "domain": "law", "weight": 0.1, "parts": [0.1]},
        {"text": "", "domain": "code", "weight": -0.3, "parts": [0.2]},
        {"text": "ab", "domain": "law", "weight": 0.2, "parts": [0.3]},
    ]
    words = "([m, p, w]) => import(m).then(({pieces}) => pieces(p, w))"
    module = seen.page.locator("script").get_attribute("src") or ""
    cut = seen.page.evaluate(
        words, [module.replace("main.js", "pieces.js"), "x 🎉ab!", given]
    )
    assert [piece["text"] for piece in cut] == ["x ", "🎉", "ab", "!"]
    assert [piece["weighs"] for piece in cut] == [False, True, True, False]
    assert cut[2]["weight"] == 0.2


def test_the_card_says_what_the_release_is(seen: Visit, served: Serving) -> None:
    """Its id, its signer's whole key, its domains; and that nobody has evaluated it."""
    card = served.http.get("/v1/releases/current").json()
    section = seen.page.locator("#release")
    seen.open_all()
    codes = section.locator("code")
    expect(codes.nth(0)).to_have_attribute("title", card["release"])
    expect(codes.nth(1)).to_have_attribute("title", card["signer"])
    expect(section).to_contain_text("not evaluated on held-out text")
    expect(section.get_by_role("rowheader")).to_have_text(sorted(ALPHABETS))
    expect(section.locator("tbody td:nth-of-type(1)")).to_have_text(
        ["–"] * len(ALPHABETS)
    )


def test_the_docs_describe_every_address(browser: Browser, served: Serving) -> None:
    """Each with its method, what it holds, and a command that can be tried as it stands."""
    described = served.http.get("/openapi.json").json()["paths"]
    wanted = [
        (method.upper(), path)
        for path, methods in described.items()
        for method in methods
    ]
    assert ("POST", "/v1/route") in wanted
    with visit(browser, served.url, "/docs") as seen:
        seen.shows(".operation h2 code", [path for _, path in wanted])
        seen.shows(".operation h2 .method", [method for method, _ in wanted])
        tried = seen.page.locator("#post-v1-route pre").inner_text()
        body = json.loads(tried[tried.index("-d '") + 4 : -1])
        assert served.post("/v1/route", body).status_code == 200
        expect(seen.page.locator("#post-v1-route tbody th code").first).to_have_text(
            "prompt"
        )
