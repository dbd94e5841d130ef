"""What applications pass to a router and see of its decisions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ridgeway.common.base.errors import InputError
from ridgeway.common.routing.conversation import weighted_turns
from ridgeway.common.routing.decision import Decision
from ridgeway.common.routing.explanation import Explanation, WordWeight
from ridgeway.common.routing.router import Router
from tests.support.serving import prompt_for, release_of

DOMAINS = ("code", "law", "music")


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Router:
    folder = tmp_path_factory.mktemp("release") / "release"
    release_of(folder, DOMAINS)
    return Router.load(folder)


def test_a_chat_is_routed_by_its_turns(router: Router) -> None:
    """As the service routes it: a list of messages, whose parts other than text are passed over."""
    code, law = (prompt_for(domain, DOMAINS) for domain in ("code", "law"))
    parts = [{"type": "image_url", "image_url": {"url": code}}, {"type": "text", "text": law}]
    chat: list[Any] = [
        {"role": "system", "content": code},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "user", "content": parts},
    ]
    turns = weighted_turns([("system", code), ("assistant", ""), ("user", law)])
    assert router.route(chat) == router.route_turns(turns)
    assert router.route(chat).domain == "law"
    assert router.explain(chat) == router.explain_turns(turns)
    assert router.route([{"role": "user", "content": law}]) == router.route(law)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (7, "a prompt is of the type int"),
        (None, "a prompt is of the type NoneType"),
        (b"text", "a prompt is of the type bytes"),
        ({"role": "user", "content": "x"}, "a prompt is of the type dict"),
        (["x"], "message 0 is of the type str"),
        ([{"role": "user", "content": "x"}, {"content": "x"}], "message 1 is of the type dict"),
        ([{"role": "user", "content": 7}], "the content of message 0 is of the type int"),
        ([{"role": "user", "content": ["x"]}], "the content of message 0 is of the type list"),
    ],
)
def test_a_wrong_type_is_named_with_what_to_pass(router: Router, wrong: Any, named: str) -> None:
    """In one sentence, from every method that takes a prompt."""
    for method in (router.route, router.explain):
        with pytest.raises(InputError) as caught:
            method(wrong)
        assert str(caught.value).startswith(named)
        assert 'pass a text, or a chat as a list of {"role": "user"' in str(caught.value)
    with pytest.raises(InputError, match=r"prompt 1 is of the type .*; route_many takes texts alone"):
        router.route_many(["x", wrong])


def test_decisions_read_well_and_hold_no_markup_of_a_prompt() -> None:
    """In a terminal a line, in a notebook a table and coloured words, with everything escaped."""
    scores = {"law": 0.875, "<b>code</b>": 0.125}
    decision = Decision("law", 0.875, scores, False, "law", 12)
    assert repr(decision) == "<Decision law, 87.5 %; law 87.5 %, <b>code</b> 12.5 %; 12 tokens>"
    assert repr(decision._replace(abstained=True)).startswith("<Decision law, abstained;")
    assert repr(decision._replace(scores={str(place): 0.1 for place in range(9)})).endswith("and 4 more; 12 tokens>")
    words = (WordWeight("<script>", "law", 0.5), WordWeight(" the", "law", -0.25), WordWeight("", "law", 0.0))
    explanation = Explanation(decision, "<b>code</b>", 0.25, words)
    assert "law over <b>code</b> by 0.2500; '<script>' +0.5000" in repr(explanation)
    for shown in (decision._repr_html_(), explanation._repr_html_()):
        assert "<b>code" not in shown and "<script>" not in shown and "&lt;" in shown
    assert "rgba(46, 125, 50, 0.60)" in explanation._repr_html_()
    assert "rgba(198, 40, 40, 0.30)" in explanation._repr_html_()
    assert Explanation(decision, "code", 0.0, ())._repr_html_()


def test_the_package_says_that_it_is_typed() -> None:
    """So that type checkers read its annotations."""
    assert (Path(__file__).resolve().parents[3] / "ridgeway" / "py.typed").is_file()
