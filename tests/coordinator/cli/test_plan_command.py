"""The accuracy to expect of a private round: a formula with the right limits, as a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.__main__ import main
from ridgeway.common.base.errors import InputError
from ridgeway.common.base.settings import DEFAULT, WordFeatures
from ridgeway.common.privacy.noise import PrivacyMode
from ridgeway.common.privacy.public_prior import built_in_prior
from ridgeway.common.text.sentence_encoder import UseEncoder
from ridgeway.common.text.table_encoder import (
    TableEncoder,
    with_sentences,
    with_words,
)
from ridgeway.coordinator.cli.plan_command import (
    FIT,
    FIT_ERROR,
    Forecast,
    forecast,
)
from ridgeway.coordinator.solving.calibration import rightly_chosen
from ridgeway.simulations.experiments.dataset import Dataset, folder_dataset, split
from ridgeway.simulations.experiments.privacy_part import PrivateGround, accuracy

modes = st.sampled_from(["columns", "full"])


@given(st.integers(2, 200))
def test_without_a_difference_one_guesses(domains: int) -> None:
    """One in C is right by chance; with a great difference all are."""
    assert rightly_chosen(0, domains) == pytest.approx(1 / domains, rel=1e-3)
    assert rightly_chosen(12, domains) == pytest.approx(1, rel=1e-3)


@given(modes, st.integers(50, 10**6), st.integers(2, 50), st.floats(0.1, 10))
def test_documents_and_epsilon_help_and_domains_do_not(
    mode: PrivacyMode, documents: int, domains: int, epsilon: float
) -> None:
    """More text or less privacy never predicts worse, and more domains never better, in any kind of
    text.
    """

    def at(count: int, among: int, cost: float) -> Forecast:
        return forecast(mode, count, among, cost, 1e-8)

    here = at(documents, domains, epsilon)
    assert 0 <= here.least <= here.expected <= here.most <= 1
    more = at(2 * documents, domains, epsilon), at(documents, domains, 2 * epsilon)
    for kind, share in here.by_kind.items():
        assert all(better.by_kind[kind] >= share - 1e-9 for better in more)
        # with products, more domains are more documents to learn from
        if mode == "columns":
            assert at(documents, domains + 1, epsilon).by_kind[kind] <= share


def test_no_router_has_one_domain() -> None:
    """What cannot be planned is said."""
    with pytest.raises(InputError, match="two domains"):
        forecast("columns", 100, 1, 1.0, 1e-8)


def test_the_command_shows_both_modes(capsys: pytest.CaptureFixture[str]) -> None:
    """A table for people, and JSON of the same for programs."""
    words = "plan --documents 2000 --domains 5 --epsilon 1 --epsilon 3".split()
    with pytest.raises(SystemExit) as ended:
        main([*words, "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0
    modes_shown = [forecast["privacy"] for forecast in facts["forecasts"]]
    assert modes_shown == ["columns", "full"] * 2
    with pytest.raises(SystemExit):
        main(words)
    assert f"{100 * facts['forecasts'][0]['expected']:.0f} %" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main("plan --documents 2000 --epsilon 50".split())
    assert ended.value.code == 2 and "ε must be above 0" in capsys.readouterr().err


@pytest.mark.slow
def test_the_plan_predicts_small_simulations(
    shared_data: Path, use: TableEncoder, sentences: UseEncoder
) -> None:
    """On held-out training documents of clm, in both modes, within the error that the plan
    states.
    """
    held = split(folder_dataset(shared_data / "clm").sampled(1, train=1200))
    dataset = Dataset("clm", "held-out training text", held.fit, held.held)
    encoder = with_sentences(with_words(use, WordFeatures()), sentences)
    prior = built_in_prior(encoder)
    for mode, documents, epsilon in (
        ("columns", 300, 1.0),
        ("columns", 300, 3.0),
        ("full", 300, 3.0),
    ):
        chosen: PrivacyMode = "full" if mode == "full" else "columns"
        summed = round(documents / (1 - DEFAULT.holdout))  # the rest is held out
        ground = PrivateGround(dataset.sampled(1, train=summed), encoder, prior)
        measured = accuracy(ground, ground.privacy(chosen, epsilon), seed=1) / 100
        expected = forecast(
            chosen, documents, len(dataset.domains), epsilon, 1e-8
        ).by_kind[FIT.kinds[2].name]
        assert measured == pytest.approx(expected, abs=FIT_ERROR), (
            mode,
            documents,
            epsilon,
        )
