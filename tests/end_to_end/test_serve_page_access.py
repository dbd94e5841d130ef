"""The page for everybody: narrow screens, the dark, keyboards, screen readers, eyes that see few
colours.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, expect

from tests.support.browser import LEVEL, Visit, contrast, visit
from tests.support.commands import workshop
from tests.support.serving import Serving

pytestmark = pytest.mark.browser

PROMPT = "abcdefgh 0123, nopqrstuv " + "a" * 200 + "\n and more"
PLACES = ("/", "/docs")
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")

LAYERS = """(element) => {
  const found = [];
  for (let at = element; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    if (colour !== 'rgba(0, 0, 0, 0)') found.push(colour);
  }
  return found;
}"""
"""The backgrounds behind an element's text, the nearest first."""


@pytest.fixture(scope="module")
def served(module_path: Path) -> Iterator[Serving]:
    """A release that was evaluated, so that all there is can be shown."""
    shop = workshop(module_path)
    assert shop.run("evaluate release tests --propose --sign").code == 0
    with Serving(shop.folder, shop / "release") as serving:
        yield serving


def ready(seen: Visit, path: str) -> None:
    """Wait until all of a page is there."""
    if path == "/docs":
        seen.expect("#records").to_be_visible()
        return
    seen.type_prompt(PROMPT)
    seen.expect(".gauge").to_have_count(1)
    seen.open_all()
    seen.expect(".heat").to_be_visible()


@pytest.fixture(scope="module", params=PLACES)
def seen(
    browser: Browser, served: Serving, request: pytest.FixtureRequest
) -> Iterator[Visit]:
    """A page that tests look at one after the other, without motion: each sets the size and the
    scheme it looks in.
    """
    with visit(browser, served.url, request.param, reduced_motion="reduce") as opened:
        ready(opened, request.param)
        yield opened


def test_the_dark_is_dark(seen: Visit) -> None:
    """The page follows what the system prefers."""
    below = {}
    for scheme in SCHEMES:
        seen.page.emulate_media(color_scheme=scheme)
        below[scheme] = seen.page.evaluate(
            "getComputedStyle(document.body).backgroundColor"
        )
    assert contrast([below["dark"]], [below["light"]]) > 10


def test_whoever_wants_no_motion_gets_none(seen: Visit) -> None:
    moving = "all => all.filter(e => parseFloat(getComputedStyle(e).transitionDuration) > 0).length"
    assert seen.page.locator("*").evaluate_all(moving) == 0


def test_whatever_can_be_touched_is_large_enough_for_a_finger(seen: Visit) -> None:
    """Buttons, choices and links outside of text are at least 40 px high and wide."""
    seen.page.set_viewport_size({"width": 390, "height": 844})
    sizes = """all => all.map(e => [e.textContent, e.getBoundingClientRect()])
      .filter(([, box]) => box.height && (box.height < 40 || box.width < 40))
      .map(([text]) => text)"""
    assert (
        seen.page.locator(
            "button, label:has(input), summary, nav a, textarea"
        ).evaluate_all(sizes)
        == []
    )


def test_a_narrow_screen_needs_no_sideways_scrolling(seen: Visit) -> None:
    """320 px are enough; tables that are wider scroll in boxes of their own, which the keyboard
    reaches.
    """
    seen.page.set_viewport_size({"width": 320, "height": 640})
    seen.open_all()
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 320
    stuck = (
        "all => all.filter(e => e.scrollWidth > e.clientWidth && e.tabIndex < "
        "0).map(e => e.className)"
    )
    assert seen.page.locator(".scroll, pre").evaluate_all(stuck) == []


def test_the_keyboard_alone_is_enough(browser: Browser, served: Serving) -> None:
    """The first Tab offers to skip to the prompt; whatever has the focus shows it."""
    with visit(browser, served.url) as seen:
        ready(seen, "/")
        seen.page.reload()
        seen.expect(".heat").to_be_attached()
        seen.page.keyboard.press("Tab")
        expect(seen.page.get_by_role("link", name="Skip to the prompt")).to_be_focused()
        seen.page.keyboard.press("Enter")
        expect(seen.prompt).to_be_focused()
        seen.page.keyboard.type("abc")
        seen.shows(".winner", "law")
        outline = (
            "() => [document.activeElement.id || document.activeElement.tagName, "
            "outlined(document.activeElement)]"
        )
        seen.page.evaluate(
            "() => { window.outlined = (e) => parseFloat(getComputedStyle(e).outlineWidth) "
            "|| parseFloat(getComputedStyle(e.closest('label') ?? e).outlineWidth) }"
        )
        reached = []
        for _ in range(20):
            seen.page.keyboard.press("Tab")
            name, width = seen.page.evaluate(outline)
            assert width >= 2, f"{name} does not show that it has the focus"
            reached.append(name)
        assert "tokens" in reached and "SUMMARY" in reached


def test_every_colour_of_a_domain_can_be_seen_and_read_upon(
    browser: Browser, served: Serving
) -> None:
    """All sixteen: the sign stands out from the page, and a token's text from its colour at its
    strongest.
    """
    made = f"""() => [...Array(16).keys()].map(place => {{
      const span = name => Object.assign(document.createElement('span'), {{className: name}});
      const token = span(`token d${{place}} u${{place % 5}}`);
      const swatch = span(`swatch d${{place}}`);
      token.style.setProperty('--weight', 1);
      document.getElementById('tokens').append(token, swatch);
      const below = ({LAYERS})(document.getElementById('tokens'));
      const style = getComputedStyle(token);
      return {{ink: style.color, shade: style.backgroundColor,
        sign: getComputedStyle(swatch).backgroundColor,
        line: `${{style.textDecorationStyle}} ${{style.textDecorationColor}}`, below}};
    }})"""
    with visit(browser, served.url, reduced_motion="reduce") as seen:
        ready(seen, "/")
        for scheme in SCHEMES:
            seen.page.emulate_media(color_scheme=scheme)
            colours = seen.page.evaluate(made)
            for colour in colours:
                assert (
                    contrast([colour["ink"]], [colour["shade"], *colour["below"]])
                    >= LEVEL["text"]
                )
                assert contrast([colour["sign"]], colour["below"]) >= LEVEL["sign"]
            assert len({style["line"] for style in colours}) == 16
            assert (
                len({style["line"].split()[0] for style in colours}) == 5
            )  # not by colour alone
