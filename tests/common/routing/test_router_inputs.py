"""What applications pass to a router and see of its decisions."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ridgeway.common.base.errors import InputError
from ridgeway.common.routing import router as router_module
from ridgeway.common.routing.conversation import weighted_turns
from ridgeway.common.routing.conversations import Conversations
from ridgeway.common.routing.decision import Decision
from ridgeway.common.routing.router import Explanation, Router, WordWeight
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
    parts = [
        {"type": "image_url", "image_url": {"url": code}},
        {"type": "text", "text": law},
    ]
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
        (7, "a prompt of type int cannot be routed"),
        (None, "a prompt of type NoneType cannot be routed"),
        (b"text", "a prompt of type bytes cannot be routed"),
        ({"role": "user", "content": "x"}, "a prompt of type dict cannot be routed"),
        (["x"], "message 0 of type str cannot be routed"),
        (
            [{"role": "user", "content": "x"}, {"content": "x"}],
            "message 1 of type dict cannot be routed",
        ),
        (
            [{"role": "user", "content": 7}],
            "the content of message 0 of type int cannot be routed",
        ),
        (
            [{"role": "user", "content": ["x"]}],
            "the content of message 0 of type list cannot be routed",
        ),
    ],
)
def test_a_wrong_type_is_named_with_what_to_pass(
    router: Router, wrong: Any, named: str
) -> None:
    """In one sentence, from every method that takes a prompt."""
    for method in (router.route, router.explain):
        with pytest.raises(InputError) as caught:
            method(wrong)
        words = str(caught.value)
        assert words.startswith(named)
        assert 'pass a text, or a chat as a list of {"role": "user"' in words
    with pytest.raises(InputError, match=named):
        router.route_many(["x", wrong])


def test_many_prompts_and_chats_are_routed_together(router: Router) -> None:
    """Each as `route` decides it, in their order."""
    code, law = (prompt_for(domain, DOMAINS) for domain in ("code", "law"))
    asked: list[Any] = [code, [{"role": "user", "content": law}], law]
    assert router.route_many(asked) == [router.route(prompt) for prompt in asked]
    with pytest.raises(InputError, match="use route for one prompt"):
        router.route_many(law)


def test_messages_of_clients_are_routed_as_they_are(router: Router) -> None:
    """OpenAI's and Anthropic's own objects, as they stand in a history, and LangChain's."""
    from anthropic.types import TextBlock
    from openai.types.chat import ChatCompletionMessage

    code, law = (prompt_for(domain, DOMAINS) for domain in ("code", "law"))
    plain = [{"role": "assistant", "content": code}, {"role": "user", "content": law}]
    openai = [ChatCompletionMessage(role="assistant", content=code), plain[1]]
    anthropic = [
        {"role": "assistant", "content": [TextBlock(type="text", text=code)]},
        plain[1],
    ]
    langchain = [
        SimpleNamespace(type="ai", content=code),
        SimpleNamespace(type="human", content=law),
    ]
    for chat in (openai, anthropic, langchain):
        assert router.route(chat) == router.route(plain)
    parts = [
        {"type": "tool_result", "content": code},
        {"type": "text", "text": code},
    ]
    chat = [plain[1], {"role": "user", "content": parts}]
    assert router.route(chat) == router.route(law)


def test_a_router_is_copied_and_pickled(router: Router) -> None:
    """Also after it was used; the copy decides alike."""
    router.route("abc")
    router.make_fast()
    for twin in (copy.deepcopy(router), pickle.loads(pickle.dumps(router))):
        assert twin.route("abcdef") == router.route("abcdef")
        assert (twin.release, twin.domains) == (router.release, router.domains)


def test_a_router_is_loaded_with_its_own_threshold(tmp_path: Path) -> None:
    """And names the fallback below it."""
    release_of(tmp_path / "release", DOMAINS)
    router = Router.load(tmp_path / "release", threshold=0.9, fallback="generalist")
    unsure = router.route("?")
    assert (unsure.domain, unsure.reason) == ("generalist", "low_confidence")
    assert router.route(prompt_for("law", DOMAINS)).domain == "law"


def test_a_followed_router_takes_the_next_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A good one takes the place of the old one; a bad one is refused, and the reason is told."""
    folder = tmp_path / "release"
    more: tuple[str, ...] = (*DOMAINS, "tax")
    release_of(folder, DOMAINS, number=1)
    monkeypatch.setattr(router_module, "LOOK_FOR_RELEASE_S", 0.0)
    followed = Router.follow(folder, threshold=0.9, fallback="generalist")
    assert followed.router.domains == DOMAINS
    assert followed.route("?").domain == "generalist"
    release_of(folder, more, number=2)
    assert followed.router.domains == more
    assert followed.route_many(["?"]) == [followed.explain("?").decision]
    assert followed.refused is None
    release_of(folder, DOMAINS, number=1)
    assert followed.router.domains == more
    assert "release 1 is older than release 2, which is in use" in str(followed.refused)


def test_conversations_hold_their_domain(router: Router) -> None:
    """As the gateway holds them: by what was said, or by a name; a new topic is followed, and users
    are told apart.
    """
    held = Conversations(router)
    code, law = (4 * prompt_for(domain, DOMAINS) for domain in ("code", "law"))

    def say(*said: str, **named: Any) -> tuple[str | None, bool]:
        turns = [
            {"role": role, "content": text}
            for text in said
            for role in ("user", "assistant")
        ]
        return held.route(turns[:-1], **named)[:2]

    assert say(law) == ("law", False)
    assert say(law, "?") == ("law", True)
    assert say(law, "?", code) == ("code", False)
    assert say(law, "?", code, "?") == ("code", True)
    assert say(law, session="one") == ("law", False)
    assert say("?", session="one") == ("law", True)
    assert say("?", session="one", names=("other",)) == (router.route("?").best, False)


def test_decisions_read_well_and_hold_no_markup_of_a_prompt() -> None:
    """In a terminal a line, in a notebook a table and coloured words, with everything escaped."""
    scores = {"law": 0.875, "<b>code</b>": 0.125}
    decision = Decision("law", 0.875, scores, False, "law", 12)
    line = "<Decision law, 87.5 %; law 87.5 %, <b>code</b> 12.5 %; 12 tokens>"
    assert repr(decision) == line
    assert "law, abstained;" in repr(decision._replace(abstained=True))
    many = decision._replace(scores=dict.fromkeys("123456789", 0.1))
    assert repr(many).endswith("and 4 more; 12 tokens>")
    words = (
        WordWeight("<script>", "law", 0.5),
        WordWeight(" the", "law", -0.25),
        WordWeight("", "law", 0.0),
    )
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
