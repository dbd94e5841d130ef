"""The page's modes in a real browser: settings tried, links, history, chats, files of prompts,
experts, two releases.

All of it before one service in this process; axe-core looks at every mode, narrow and wide, light
and dark.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Semaphore
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from ridgeway.common.base.settings import Confidence
from ridgeway.common.routing.evaluation import CONFIDENCE_EDGES
from ridgeway.common.routing.experts_file import ExpertsFile
from ridgeway.common.routing.release import save_release
from ridgeway.serving.gateway import Gateway
from ridgeway.serving.routing_service import ReleaseSource, RoutingService
from ridgeway.serving.serve_command import create_app
from tests.support.browser import Visit, violations, visit
from tests.support.fake_expert import Expert, step_by_step, well
from tests.support.in_process import experts_toml, running
from tests.support.making import fixed_identity
from tests.support.serving import (
    OWN,
    facts_of,
    letter_table,
    prompt_for,
    release_of,
    unsure_prompts,
)
from tests.support.tiny import tiny_definition

pytestmark = pytest.mark.browser

DOMAINS = ["code", "law", "medicine"]
CONFUSION = [[40, 8, 2], [0, 30, 0], [5, 5, 10]]
RELIABILITY = [
    (edge, 1 / 16, index / 256) for index, edge in enumerate(CONFIDENCE_EDGES)
]
LAW, CODE = prompt_for("law", DOMAINS), prompt_for("code", DOMAINS)
FORMULAS = ["=1+1", "+1", "-1", "@sum", "\tx", "\n=1+1"]


def evaluated_release(
    folder: Path, domains: list[str], confusion: list[list[int]]
) -> None:
    """A release with the counts of an evaluation; each domain has letters of its own, as far as
    there are any.
    """
    evaluation = {
        "accuracy": 70.0,
        "domains": {},
        "confusion": confusion,
        "order": domains,
        "unit": "percent",
        "reliability": RELIABILITY,
    }
    facts = facts_of(
        domains,
        confidence=Confidence(temperature=20.0, calibrated=True).to_json(),
        evaluation=evaluation,
        examples=[LAW, CODE],
    )
    weights, table = np.zeros((2, len(domains))), letter_table(domains)
    save_release(folder, facts, weights, table, tiny_definition(), fixed_identity())


@dataclass(frozen=True)
class Served:
    """The service's address, and the two experts behind it."""

    url: str
    large: Expert
    small: Expert


@pytest.fixture(scope="module")
def served(module_path: Path) -> Iterator[Served]:
    """Two experts, a dear one that is better and a cheap one; and a second release, which knows
    tax.
    """
    evaluated_release(module_path / "release", DOMAINS, CONFUSION)
    release_of(module_path / "other", ["code", "tax", "law", "medicine"])
    with ExitStack() as stack:
        large, small = (
            stack.enter_context(Expert(well(name))) for name in ("large", "small")
        )
        experts = {
            name: {
                "base_url": expert.url,
                "model": name,
                "cost": cost,
                "domains": dict(zip(DOMAINS, quality, strict=True)),
            }
            for name, expert, cost, quality in (
                ("large", large, 3.0, (0.9, 0.9, 0.9)),
                ("small", small, 1.0, (0.8, 0.5, 0.3)),
            )
        }
        content = experts_toml(experts, fallback="small")
        (module_path / "experts.toml").write_text(content)
        known = ExpertsFile(module_path / "experts.toml")
        source = ReleaseSource(module_path / "release", check=known.check)
        service = RoutingService(
            source, compared=ReleaseSource(module_path / "other").open()
        )
        yield Served(
            stack.enter_context(
                running(create_app(service, gateway=Gateway(service, known)))
            ),
            large,
            small,
        )


@contextmanager
def opened(
    browser: Browser,
    served: Served,
    path: str = "/",
    *,
    calm: bool = True,
    **options: Any,
) -> Iterator[Visit]:
    """The page, once the release's card is there. calm: nothing may go wrong."""
    with visit(browser, served.url, path, calm=False, **options) as seen:
        _wait_until_shown(seen)
        yield seen
        assert not calm or _troubles(seen) == []


def _wait_until_shown(seen: Visit) -> None:
    seen.expect("#release .card").to_be_attached()
    seen.expect("#experts tbody tr").to_have_count(2)
    seen.open_all()


def _troubles(seen: Visit) -> list[str]:
    """Chromium calls a stream that was read to its end aborted, now and then."""
    return [
        trouble for trouble in seen.troubles if "/v1/chat/completions" not in trouble
    ]


@pytest.fixture(scope="module")
def tab(browser: Browser, served: Served) -> Iterator[Visit]:
    with opened(browser, served) as made:
        yield made


@pytest.fixture
def seen(tab: Visit) -> Iterator[Visit]:
    tab.anew()
    _wait_until_shown(tab)
    yield tab
    assert _troubles(tab) == []


def send(seen: Visit, text: str) -> None:
    """The next turn of a chat, once the one before was taken."""
    turns = seen.page.locator("#chat-turns > li")
    before = turns.count()
    seen.page.get_by_label("Next turn").fill(text)
    seen.press("Send")
    expect(turns).to_have_count(before + 1)


def load(page: Page, name: str, content: str) -> None:
    page.get_by_label("a file").check()
    page.get_by_label("File", exact=True).set_input_files(
        {"name": name, "mimeType": "text/plain", "buffer": content.encode()}
    )


def route_all(seen: Visit) -> None:
    seen.press("Route all")
    seen.expect("#batch-save").to_be_visible()


# What is shown belongs to what is typed


def test_a_decision_is_marked_as_soon_as_the_text_differs(seen: Visit) -> None:
    """It is no longer the text's; with the old text it is its own again, and an answer unmarks
    it.
    """
    page, badge = seen.page, seen.page.locator("#stale")
    seen.type_prompt(LAW)
    expect(badge).to_be_hidden()
    held: list[Route] = []
    page.route("**/v1/route", lambda route: held.append(route))
    with page.expect_request("**/v1/route"):
        seen.prompt.fill(CODE)
    expect(badge).to_be_visible()
    seen.prompt.fill(LAW)
    expect(badge).to_be_hidden()
    seen.prompt.fill(CODE)
    expect(badge).to_be_visible()
    seen.shows(".winner", "law")
    page.route(
        "**/v1/route", lambda route: route.continue_()
    )  # to unroute would answer those held too
    for route in held:
        route.continue_()
    seen.shows(".winner", "code")
    expect(badge).to_be_hidden()


def test_a_text_that_cannot_be_routed_leaves_no_decision_of_another(
    browser: Browser, served: Served
) -> None:
    """Rather nothing than what belongs to other words."""
    with opened(browser, served, calm=False) as seen:
        seen.type_prompt(LAW)
        seen.page.route("**/v1/route", lambda route: route.abort())
        seen.prompt.fill(CODE)
        seen.says("#prompt-problem", "This could not be routed.")
        seen.shows("#decision", "Nothing is routed yet.")
        seen.expect("#why").to_be_hidden()


def test_the_lead_is_told_in_a_sentence(seen: Visit, served: Served) -> None:
    """Which words make which part of it; blanks and signs are no words."""
    law, code = OWN[1], OWN[0]
    seen.type_prompt(f"{law * 4} {law * 3} {code * 2}.")
    seen.shows(
        ".lead",
        f"‘{law * 4}’ and ‘{law * 3}’ alone make more than the whole of the lead of law over code; "
        f"‘{code * 2}’ takes 40 % of it back.",
    )
    seen.type_prompt(" ".join([law * 5, law * 4, law * 4, law]))
    seen.says(
        ".lead", f"‘{law * 4}’ and ‘{law * 5}’ make 93 % of the lead of law over "
    )


def test_examples_of_the_release_can_be_tried_with_one_click(seen: Visit) -> None:
    """A newcomer need not think of a prompt."""
    seen.shows("#examples button", [LAW, CODE])
    seen.page.locator("#examples button").first.click()
    seen.shows(".winner", "law")


# Settings that are tried


def test_sliders_say_what_held_out_text_says_of_them(seen: Visit) -> None:
    """By the counts in the release; and what would become of the prompt."""
    page = seen.page
    seen.type_prompt(LAW)
    bins = [bin for bin in RELIABILITY if bin[0] >= 0.9]
    page.get_by_label("Abstain").fill(str(CONFIDENCE_EDGES.index(0.9)))
    share, right = sum(bin[1] for bin in bins), sum(bin[2] for bin in bins)
    seen.shows("#threshold-value", "below 90 %")
    expected = f"{100 * share:.1f} % would be answered, {100 * right / share:.1f} % of them right."
    seen.says("#threshold-told", expected)
    seen.says("#threshold-told", "This prompt would go to law.")

    cost = page.get_by_label("Weight of cost")
    cost.fill("0")
    seen.says("#mu-told", "large 100.0 %. Mean quality 0.9, mean cost 3,")
    seen.says("#mu-told", "This prompt would go to large.")
    cost.fill("50")  # the dear expert is worth its cost in medicine alone, by far
    mu = float(page.locator("#mu-value").inner_text())
    to_small = [
        [domain for domain in range(3) if 0.9 - (0.8, 0.5, 0.3)[domain] < 2 * mu].count(
            j
        )
        for j in range(3)
    ]
    share_small = (
        sum(row[j] / sum(row) * to_small[j] for row in CONFUSION for j in range(3)) / 3
    )
    assert 0 < share_small < 1
    seen.says("#mu-told", f"small {100 * share_small:.1f} %")
    cost.fill("100")
    seen.says("#mu-told", "small 100.0 %", "mean cost 1,")


def test_a_count_opens_what_is_behind_it(seen: Visit) -> None:
    """Shares of its row and column, and what else is there; examples are the reader's own
    batch's.
    """
    page = seen.page
    cell = page.get_by_role("button", name="8 texts of code routed to law, 16.0 %")
    cell.click()
    detail = page.locator("#release .panel")
    expect(detail).to_contain_text("Of the texts of code8 of 50, 16.0 %")
    expect(detail).to_contain_text("Of all that goes to law8 of 43, 18.6 %")
    expect(detail).to_contain_text("The other way round0 of 30, 0.0 %")
    expect(detail).to_contain_text("The release holds counts and no text.")
    load(page, "own.csv", f"prompt,label\n{LAW},code\n{LAW},law\n")
    route_all(seen)
    cell.click()
    expect(detail).to_contain_text(f"Of your batch, 1 text:{LAW}")


# Links and history


def test_a_link_holds_the_text_and_the_server_never_sees_it(
    browser: Browser, served: Served
) -> None:
    """It is in the fragment; whoever opens it sees the same, and typing takes it away."""
    with opened(browser, served) as seen:
        seen.type_prompt(LAW)
        seen.page.get_by_label("Abstain").fill("6")
        seen.page.get_by_role("radio", name="medicine").check(force=True)
        seen.page.locator("#prompt-tools button").click()
        seen.page.wait_for_function("() => location.hash.includes('text=')")
        address = seen.page.url
        assert parse_qs(address.partition("#")[2])["text"] == [LAW]
        seen.prompt.fill("x")
        seen.page.wait_for_function("() => !location.hash")
    with opened(
        browser, served, "/" + address.partition("/#")[2].join(["#", ""])
    ) as other:
        expect(other.prompt).to_have_value(LAW)
        other.shows(".winner", "law")
        other.shows("#threshold-value", "below 70 %")
        expect(other.page.get_by_role("radio", name="medicine")).to_be_checked()
        assert not [path for path in other.asked if LAW in path.partition("#")[0]]


def test_a_history_is_kept_only_where_it_is_wanted_and_is_bounded(
    browser: Browser, served: Served
) -> None:
    """In the browser alone; a text that is typed on is one entry; what is cleared is gone."""
    with opened(browser, served) as seen:
        page = seen.page
        seen.type_prompt(LAW)
        assert page.evaluate("localStorage.length") == 0
        page.get_by_label("Keep the last fifty prompts").check()
        full = json.dumps(
            [
                {"text": f"old {index}", "domain": "law", "confidence": 1}
                for index in range(50)
            ]
        )
        page.evaluate("full => localStorage.setItem('ridgeway-history', full)", full)
        seen.type_prompt(CODE[:5])
        seen.type_prompt(CODE[:9])
        seen.expect("#past li").to_have_count(50)
        expect(page.locator("#past li .cut").first).to_have_text(CODE[:9])
        expect(page.locator("#past li .cut").nth(1)).to_have_text("old 0")
        page.reload()
        page.locator("summary", has_text="History").click()
        page.locator("#past button").first.click()
        expect(seen.prompt).to_have_value(CODE[:9])
        seen.press("Clear the history")
        seen.shows("#past", "Nothing yet.")
        page.get_by_label("Keep the last fifty prompts").uncheck()
        assert page.evaluate("localStorage.length") == 0


# Chats and experts


def test_a_chat_says_why_it_stayed_and_why_it_switched(
    seen: Visit, browser: Browser, served: Served
) -> None:
    """A word is no evidence, a whole message of another domain is; a link has the user's turns, a
    new chat none.
    """
    page = seen.page
    page.get_by_label("a chat").check()
    for text in (LAW, CODE[:1], 4 * CODE):
        send(seen, text)
    turns = page.locator("#chat-turns > li")
    expect(turns.nth(0)).to_contain_text("The chat begins with law.")
    expect(turns.nth(1)).to_contain_text("Stayed with law: code is")
    expect(turns.nth(1)).to_contain_text(
        "times after so few words. This message alone: code"
    )
    expect(turns.nth(1).locator(".where")).to_have_text("law")
    expect(turns.nth(2)).to_contain_text("Switched from law to code")
    seen.shows("#chat-seat", "The chat is with code.")
    page.locator("#chat-tools").get_by_role("button", name="Link").click()
    page.wait_for_function("() => location.hash.includes('turn=')")
    with opened(browser, served, "/" + page.url[page.url.index("#") :]) as other:
        other.expect("#chat-turns > li").to_have_count(3)
        other.shows("#chat-seat", "The chat is with code.")
    seen.press("New chat")
    expect(turns).to_have_count(0)
    held: list[Route] = []
    page.route(
        "**/v1/route", lambda route: route.continue_() if held else held.append(route)
    )
    page.get_by_label("Next turn").fill(CODE)
    with page.expect_request("**/v1/route"):
        seen.press("Send")
    seen.press("New chat")  # while a turn of the old one is on its way
    send(seen, LAW)
    held[0].continue_()
    send(seen, LAW)
    expect(turns).to_have_text([re.compile(LAW)] * 2)


def test_an_expert_answers_beside_the_decision_and_can_be_stopped(
    browser: Browser, served: Served
) -> None:
    """Word by word, as it comes; who answers and why; another prompt takes the answer away."""
    steps = Semaphore(0)
    with opened(browser, served, calm=False) as seen:
        page, answers = seen.page, seen.page.locator("#expert")
        seen.type_prompt(LAW)
        seen.press("Ask large")
        expect(answers).to_contain_text("large answered: the expert of the domain.")
        expect(answers.locator(".answer")).to_have_text("largeonetwothreefour")
        served.large.part = step_by_step(steps)
        try:
            seen.type_prompt(CODE)
            expect(answers.locator(".answer")).to_have_count(0)
            seen.press("Ask large")
            steps.release()
            expect(answers.locator(".answer")).to_have_text("one")
            seen.press("Stop")
            expect(answers).to_contain_text("Stopped.")
            expect(answers.locator(".answer")).to_have_text("one")
        finally:
            steps.release(10)
            served.large.part = well("large")
        page.get_by_label("a chat").check()
        page.get_by_label("and ask the expert").check()
        for _ in range(2):
            send(seen, LAW)
            expect(page.locator("#chat-turns > li").last).to_contain_text(
                "large answered"
            )
        body = served.large.asked[-1].json
        assert [message["role"] for message in body["messages"]] == [
            "user",
            "assistant",
            "user",
        ]
        cells = page.locator("#experts tbody tr").first.locator("th, td")
        body = {"model": "large", "messages": [{"role": "user", "content": LAW}]}
        assert page.request.post(
            f"{served.url}/v1/chat/completions", data=body
        ).ok  # says how many tokens it took
        expect(cells.nth(2)).to_have_text(
            "5"
        )  # alone twice, once of them stopped, in a chat twice, and now
        expect(cells.nth(5)).to_have_text("2")
        name, state, _, failed, seconds, *_ = cells.all_inner_texts()
        assert (name, state, failed) == ("large", "up", "0.0 %") and seconds.endswith(
            " ms"
        )


def test_two_releases_are_shown_side_by_side(seen: Visit) -> None:
    """Both decisions, whether they differ, and where."""
    other = seen.page.locator("#compared")
    seen.type_prompt(LAW)  # to the second release, this is tax
    expect(other).to_contain_text("They differ: here law")
    expect(other.get_by_role("rowheader").first).to_have_text("tax")
    expect(other.locator("tbody tr").first).to_contain_text("not known")
    seen.type_prompt(CODE)
    expect(other).to_contain_text("Both say code: here code")


# Files of prompts


def test_a_file_is_routed_in_parts_and_saved_without_formulas(
    seen: Visit, tmp_path: Path
) -> None:
    """All rows in their order; cells that a spreadsheet would run are made harmless; confusions
    open their examples.
    """
    page = seen.page
    texts = [*FORMULAS, 'say "a, b"\nand c', *[LAW, CODE] * 150]
    lines = io.StringIO()
    csv.writer(lines).writerows([["text", "truth"], *[[text, "law"] for text in texts]])
    load(page, "prompts.csv", lines.getvalue())
    expect(page.get_by_label("Prompts are in")).to_have_value("text")
    expect(page.get_by_label("True domains are in")).to_have_value("truth")
    before = seen.asked.count("/v1/route")
    route_all(seen)
    assert seen.asked.count("/v1/route") == before + 2
    seen.shows("#batch-told", "307 of 307 prompts routed")
    seen.press("Examples of law routed to code")
    seen.says("#batch-examples", CODE)
    page.get_by_label("Rows with").fill("say")
    expect(
        page.get_by_role("region", name="Decisions of the batch").locator("tbody tr")
    ).to_have_count(1)
    with page.expect_download() as saved:
        seen.press("Save as CSV")
    saved.value.save_as(tmp_path / "decisions.csv")
    with (tmp_path / "decisions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["prompt"].removeprefix("'") for row in rows] == texts
    assert all(row["prompt"].startswith("'") for row in rows[: len(FORMULAS)])
    assert rows[-1]["domain"] == "code" and 0 < float(rows[-1]["confidence"]) <= 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "p.jsonl",
            '{"prompt": "abc", "label": "law"}\n"def"\n',
            "0 of 2 prompts routed",
        ),
        ("p.txt", "abc\n\ndef\n", "0 of 2 prompts routed"),
        ("p.csv", "a;text\n1;abc\n", "0 of 1 prompt routed"),
        ("p.jsonl", "{", "Line 1 is neither a JSON object nor a text."),
        ("p.csv", "", "There is no prompt in this file."),
        ("p.txt", "x\n" * 50_001, "50001 rows, and 50000 are taken at most"),
    ],
)
def test_files_are_read_or_refused_in_a_sentence(
    seen: Visit, name: str, content: str, message: str
) -> None:
    load(seen.page, name, content)
    seen.says("#mode-batch", message)


# For everybody


def test_no_mode_has_a_barrier(browser: Browser, served: Served) -> None:
    """By axe-core, with everything shown that can be, narrow and wide, light and dark, nothing to
    scroll sideways.
    """
    with opened(browser, served) as seen:
        page = seen.page
        seen.type_prompt(LAW + " " + CODE[:3])
        seen.press("Ask large")
        seen.says("#expert", "answered")
        seen.expect("#compared").to_be_visible()
        seen.press("8 texts of code")
        seen.open_all()
        assert violations(page) == []
        page.get_by_label("a chat").check()
        for text in (LAW, CODE[:3]):
            send(seen, text)
        assert violations(page) == []
        load(page, "own.csv", f"prompt,label\n{LAW},code\n{LAW},law\n")
        route_all(seen)
        seen.press("Examples of")
        assert violations(page) == []
    with visit(browser, served.url, "/docs") as docs:
        docs.expect("#records").to_be_visible()
        assert violations(docs.page) == []


def test_a_hundred_and_fifty_domains_can_be_read(
    browser: Browser, tmp_path: Path
) -> None:
    """The most frequent confusions instead of the whole matrix, a search, and few choices at
    once.
    """
    domains = [f"domain_{index:03}" for index in range(150)]
    confusion = (50 * np.eye(150, dtype=int) + np.eye(150, k=1, dtype=int)).tolist()
    confusion[7][90] = 25
    evaluated_release(tmp_path / "release", domains, confusion)
    app = create_app(RoutingService(ReleaseSource(tmp_path / "release")))
    with (
        running(app) as url,
        visit(browser, url, viewport={"width": 390, "height": 900}) as seen,
    ):
        page = seen.page
        seen.type_prompt(OWN[3] * 30)
        seen.open_all()
        seen.expect("#views input").to_have_count(6)
        page.get_by_label("Another domain").select_option("domain_140")
        expect(page.get_by_role("radio", name="domain_140")).to_be_checked()
        seen.expect("#decision tbody tr").to_have_count(11)
        pairs = page.get_by_role(
            "region", name="Where held-out texts were routed"
        ).locator("tbody tr")
        expect(pairs).to_have_count(20)
        expect(pairs.first).to_contain_text("domain_090")
        pairs.first.get_by_role("button").click()
        seen.says("#release .panel", "domain_007, routed to domain_090")
        seen.says("#release .panel", "25 of 76, 32.9 %")
        page.get_by_label("Confusions of").fill("domain_12")
        expect(pairs).to_have_count(11)
        page.get_by_label("Domains", exact=True).fill("domain_149")
        expect(
            page.get_by_role("region", name="Domains of the release").get_by_role(
                "rowheader"
            )
        ).to_have_count(1)
        assert page.evaluate("document.documentElement.scrollHeight") < 9000
        assert violations(page) == []


def test_the_page_says_whether_the_table_or_the_sentence_encoder_decided(
    browser: Browser, cascade: Path
) -> None:
    """And explains both kinds of decision."""
    app = create_app(RoutingService(ReleaseSource(cascade)))
    with running(app) as url, visit(browser, url) as seen:
        seen.expect("#release .card").to_be_attached()
        seen.open_all()
        for prompt, decided in (
            (LAW, "the table"),
            (unsure_prompts(3)[2], "the sentence encoder"),
        ):
            seen.type_prompt(prompt)
            seen.says("#decision .facts", f"Decided by{decided}")
            expect(seen.page.locator("#words tbody tr").first).to_be_visible()
