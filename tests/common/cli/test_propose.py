"""`ridgeway evaluate --propose` and --sign: the curve, the proposal, and the commands that it
names.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from ridgeway.common.base.files import labelled_texts
from ridgeway.common.base.identity import load_identity
from ridgeway.common.cli.route_commands import outcomes
from ridgeway.common.routing.coverage import at
from ridgeway.common.routing.evaluation import beginnings_routed, evaluate
from ridgeway.common.routing.release import PRIVACY, amend_release, load_release
from ridgeway.common.routing.router import Router
from tests.support.commands import Workshop, workshop
from tests.support.corpora_on_disk import ALPHABETS, sentences, write_jsonl
from tests.support.making import contents


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """A workshop whose test texts are partly of two domains, so that a router errs on some."""
    made = workshop(tmp_path_factory.mktemp("shop"))
    names = list(ALPHABETS)
    for number, domain in enumerate(names):
        other = names[(number + 1) % len(names)]
        mixed = [
            text[: 80 + 3 * turn] + foreign[3 : 123 - 3 * turn]
            for turn, (text, foreign) in enumerate(
                zip(sentences(domain, 40), sentences(other, 40), strict=True)
            )
        ]
        write_jsonl(made / "mixed" / f"{domain}.test.jsonl", mixed)
    return made


def test_the_curve_and_the_proposal_are_printed_and_nothing_is_changed(
    shop: Workshop,
) -> None:
    """A table, a sentence with an interval, the caveat, and a command: the release was not fitted
    to this text, so a threshold of its own comes after that.
    """
    before = contents(shop / "release")
    done = shop.do("evaluate release mixed --propose --accuracy 90")
    for words in (
        "threshold",
        "For 90 %, abstain below ",
        "95 % interval",
        "chosen on this same text",
        "fit it to this text, then choose again: ridgeway evaluate",
    ):
        assert words in done.stdout
    assert "To set it in the release:" not in done.stdout
    assert "calibration error" in done.stderr
    assert contents(shop / "release") == before


def test_the_proposed_threshold_does_what_is_said_of_it(
    shop: Workshop, tmp_path: Path
) -> None:
    """Once the confidence is fitted on the text, the named command sets a threshold that reaches
    the wish there.
    """
    shutil.copytree(shop.folder, tmp_path / "shop")
    shop = Workshop(tmp_path / "shop")
    wish = "evaluate release mixed --propose --accuracy 95"
    signed = shop.do(wish, "--sign").stdout
    words = shop.do(wish).stdout
    [line] = re.findall("^To set it in the release:.*", words, re.MULTILINE)
    assert line in signed
    command = shlex.split(line.partition(":")[2].replace("NAME", "general"))
    assert command[:2] == ["ridgeway", "evaluate"]
    assert "To set it" not in shop.call(*command[1:], "--accuracy", "95").stdout
    router = Router.load(shop / "release")
    texts = labelled_texts(shop / "mixed", router.domains, ["text"])
    answered = {
        name: [
            decision
            for decision in router.route_many(domain_texts)
            if not decision.abstained
        ]
        for name, domain_texts in texts.items()
    }
    assert router.confidence.threshold > 0
    shares = {
        name: len(decisions) / len(texts[name]) for name, decisions in answered.items()
    }
    right = sum(
        sum(d.domain == name for d in decisions) / len(texts[name])
        for name, decisions in answered.items()
    )
    assert right / sum(shares.values()) >= 0.95


def test_programs_get_shares(shop: Workshop) -> None:
    """The curve, the proposal and the unit as JSON; without a threshold, the accuracy that
    `evaluate` finds.
    """
    facts = shop.do("evaluate release mixed --propose --accuracy 90 --json").json
    proposal = facts["proposal"]
    assert proposal["unit"] == "share"
    assert proposal["threshold"]["accuracy"] >= 0.9
    assert proposal["curve"][0]["coverage"] == 1.0
    assert 100 * proposal["curve"][0]["accuracy"] == pytest.approx(facts["accuracy"])
    gaps = proposal["confidence"]
    assert gaps["gap_after"] < gaps["gap_before"]
    assert "release" not in facts


def test_a_wish_that_nothing_reaches_is_said_to_be_one(shop: Workshop) -> None:
    """Three texts a domain are too few to promise anything of, however right they are."""
    done = shop.do("evaluate release tests --propose")
    assert "No threshold with at least 30 answered texts reaches 99 %" in done.stdout
    assert "To set it" not in done.stdout


def test_first_tokens_are_measured_as_short_prompts(shop: Workshop) -> None:
    """The outcome is that of the texts cut after so many tokens; the tiny tokenizer has one a
    letter.
    """
    router = Router.load(shop / "release")
    texts = labelled_texts(shop / "mixed", router.domains, ["text"])
    cut = {name: [text[:7] for text in whole] for name, whole in texts.items()}
    short, expected = outcomes(router, texts, 7), evaluate(router, cut)
    assert 100 * (at(short, 0.0).accuracy or 0) == pytest.approx(expected.accuracy)
    for tokens, given in ((7, cut), (0, texts)):
        confidence, best = beginnings_routed(router, texts["law"], tokens)
        decisions = router.route_many(given["law"])
        for decision, sure, index in zip(decisions, confidence, best, strict=True):
            assert sure == pytest.approx(decision.confidence)
            assert router.domains[index] == decision.best


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--propose --accuracy 0", "an accuracy is in percent"),
        ("--propose --accuracy 0.99", "an accuracy is in percent"),
        ("--propose --accuracy 101", "an accuracy is in percent"),
        ("--propose --tokens -1", "--tokens"),
        ("--tokens 7", "--tokens needs --propose"),
        ("--sign", "--sign needs --propose"),
        ("--propose --fallback x", "--fallback needs --sign"),
        ("--propose --sign --threshold 0.5", "name a fallback"),
        ("--propose --sign --sentences never", "omit --sentences"),
        ("--propose --sign --sentence-share 1", "has no sentence encoder"),
        ("--propose --sign --sentence-share 1 --sentence-accuracy 1", "not both"),
    ],
)
def test_bad_options_are_one_sentence(
    shop: Workshop, words: str, sentence: str
) -> None:
    """Said before anything is measured."""
    done = shop.call(f"evaluate release mixed {words}")
    assert done.code == 2
    assert sentence in done.stderr
    assert done.stdout == ""


def test_a_private_release_is_signed_for_public_text_alone(
    shop: Workshop, tmp_path: Path
) -> None:
    """Exact counts of other text would tell what noise hides; to measure publishes nothing."""
    release = tmp_path / "private"
    shutil.copytree(shop / "release", release)
    amend_release(release, {PRIVACY: {"mode": "private"}}, load_identity(shop.key))
    words = ("evaluate", release, "mixed", "--propose")
    before = contents(release)
    shop.do(*words)
    refused = shop.call(*words, "--sign")
    assert refused.code == 2
    assert "if the text is public, add --public-text" in refused.stderr
    assert contents(release) == before
    shop.do(*words, "--sign", "--public-text")
    assert load_release(release).confidence.calibrated
