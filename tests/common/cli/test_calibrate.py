"""`ridgeway calibrate`: the curve, the proposal, and the commands that it names."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from ridgeway.common.base.jsonl import labelled_texts
from ridgeway.common.cli.route_commands import fitted_on, outcomes
from ridgeway.common.routing.coverage import at
from ridgeway.common.routing.evaluation import beginnings_routed, evaluate
from ridgeway.common.routing.router import Router
from tests.support.commands import Workshop, workshop
from tests.support.corpora_on_disk import ALPHABETS, sentences, write_jsonl
from tests.support.making import contents


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """A workshop whose test texts are partly of two domains, so that a router errs on some."""
    made = workshop(tmp_path_factory.mktemp("shop"))
    names = list(ALPHABETS)
    for place, domain in enumerate(names):
        other = names[(place + 1) % len(names)]
        mixed = [
            own[: 80 + 3 * turn] + foreign[3 : 123 - 3 * turn]
            for turn, (own, foreign) in enumerate(
                zip(sentences(domain, 40), sentences(other, 40), strict=True)
            )
        ]
        write_jsonl(made / "mixed" / f"{domain}.test.jsonl", mixed)
    return made


def test_the_curve_and_the_proposal_are_printed_and_nothing_is_changed(
    shop: Workshop,
) -> None:
    """A table, a sentence with an interval, the caveat, and a command."""
    before = contents(shop / "release")
    done = shop.call("calibrate", "release", "mixed", "--accuracy", "90")
    assert done.code == 0, done.stderr
    assert "threshold" in done.stdout
    assert "For 90 %, abstain below " in done.stdout
    assert "95 % interval" in done.stdout
    assert "chosen on this same text" in done.stdout
    assert contents(shop / "release") == before


def test_the_proposed_threshold_does_what_is_said_of_it(
    shop: Workshop, tmp_path: Path
) -> None:
    """Once the confidence is fitted on the text, the named command sets a threshold that reaches
    the wish there.
    """
    shutil.copytree(shop.folder, tmp_path / "shop")
    shop = Workshop(tmp_path / "shop")
    assert shop.call("coordinator", "calibrate", "release", "mixed").code == 0
    words = shop.call("calibrate", "release", "mixed", "--accuracy", "95").stdout
    [line] = [
        line
        for line in words.splitlines()
        if line.startswith("To set it in the release:")
    ]
    command = shlex.split(line.partition(":")[2].replace("NAME", "general"))
    assert command[:3] == ["ridgeway", "coordinator", "calibrate"]
    assert shop.call(*command[1:]).code == 0
    router = Router.load(shop / "release")
    texts = labelled_texts(shop / "mixed", router.domains, ["text"])
    answered = {
        name: [each for each in router.route_many(own) if not each.abstained]
        for name, own in texts.items()
    }
    assert router.confidence.threshold > 0
    shares = {name: len(found) / len(texts[name]) for name, found in answered.items()}
    right = sum(
        sum(d.domain == name for d in found) / len(texts[name])
        for name, found in answered.items()
    )
    assert right / sum(shares.values()) >= 0.95


def test_programs_get_shares(shop: Workshop) -> None:
    """The curve, the proposal and the unit as JSON; without a threshold, the accuracy that
    `evaluate` finds.
    """
    found = shop.call(
        "calibrate", "release", "mixed", "--accuracy", "90", "--json"
    ).json
    assert found["unit"] == "share"
    assert found["proposal"]["accuracy"] >= 0.9
    assert found["curve"][0]["coverage"] == 1.0
    plain = shop.call("evaluate", "release", "mixed", "--json").json["accuracy"]
    assert 100 * found["curve"][0]["accuracy"] == pytest.approx(plain)


def test_a_wish_that_nothing_reaches_is_said_to_be_one(shop: Workshop) -> None:
    """Three texts a domain are too few to promise anything of, however right they are."""
    done = shop.call("calibrate", "release", "tests")
    assert done.code == 0, done.stderr
    assert "No threshold with at least 30 answered texts reaches 99 %" in done.stdout
    assert "To set it" not in done.stdout


def test_first_tokens_are_measured_as_short_prompts(shop: Workshop) -> None:
    """The outcome is that of the texts cut after so many tokens; the tiny tokenizer has one a
    letter.
    """
    router = Router.load(shop / "release")
    texts = labelled_texts(shop / "mixed", router.domains, ["text"])
    cut = {name: [text[:7] for text in own] for name, own in texts.items()}
    short, expected = outcomes(router, texts, 7), evaluate(router, cut)
    assert 100 * (at(short, 0.0).accuracy or 0) == pytest.approx(expected.accuracy)
    for tokens, given in ((7, cut), (0, texts)):
        confidence, best = beginnings_routed(router, texts["law"], tokens)
        decisions = router.route_many(given["law"])
        assert confidence == pytest.approx([each.confidence for each in decisions])
        assert [router.domains[place] for place in best] == [
            each.best for each in decisions
        ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--accuracy", "0"], "an accuracy is in percent"),
        (["--accuracy", "0.99"], "an accuracy is in percent"),
        (["--accuracy", "101"], "an accuracy is in percent"),
        (["--tokens", "-1"], "--tokens"),
    ],
)
def test_bad_options_are_one_sentence(
    shop: Workshop, words: list[str], sentence: str
) -> None:
    """Said before anything is measured."""
    done = shop.call("calibrate", "release", "mixed", *words)
    assert done.code == 2
    assert sentence in done.stderr
    assert done.stdout == ""


def test_a_release_knows_whether_it_was_fitted_on_this_text() -> None:
    """By the number of texts of each domain that its manifest counts, and by there being a fitted
    temperature.
    """
    figures = {"order": ["a", "b"], "confusion": [[3, 1], [0, 5]], "temperature": 0.5}
    assert fitted_on({"evaluation": figures}, {"a": 4, "b": 5})
    assert not fitted_on({"evaluation": figures}, {"a": 4, "b": 6})
    assert not fitted_on(
        {"evaluation": {**figures, "order": [], "confusion": []}}, {"a": 4, "b": 5}
    )
    assert not fitted_on({"evaluation": None}, {"a": 4, "b": 5})
