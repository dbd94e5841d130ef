"""The default of a deployment, played with the defaults of every command: private rounds, an epoch
at a time.

One story in the order of this file; after a test that failed the rest is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ridgeway.common.privacy.public_prior import LETTER_BUCKETS
from ridgeway.common.routing.release import load_release
from ridgeway.common.text.sentence_network import SENTENCE_WIDTH
from tests.support.commands import Finished
from tests.support.deployment import DEPLOYED, Deployment
from tests.support.tiny import private_encoder

pytestmark = DEPLOYED

NAMES = ("code", "law", "medicine")
SUMS_BYTES = 8 * (LETTER_BUCKETS + SENTENCE_WIDTH + 1)
"""A column of sums, and nothing of products."""


@pytest.fixture(scope="module")
def town(
    module_path: Path, private_sentences: None, sentences_cache: Path
) -> Iterator[Deployment]:
    """init, invite, init, admit, ready, join: no command is told a mode."""
    with Deployment(module_path, private_encoder(), sentences_cache) as made:
        made.found(wait=5.0)
        for name in NAMES:
            options = ("--max-epsilon", "1.4") if name == "medicine" else ()
            made.settle(name, *options)
            made.admit(name)
        made.ready(*NAMES)
        made.up()
        made.join(*NAMES)
        yield made


@pytest.fixture(scope="module")
def first(town: Deployment) -> Finished:
    return town.round().end()


def test_a_round_is_private_without_a_word_about_it(
    town: Deployment, first: Finished
) -> None:
    """The release says what it promises, and every holder has it."""
    assert first.code == 0, first.stderr
    assert (first.json["number"], first.json["domains"], first.json["refused"]) == (
        1,
        list(NAMES),
        [],
    )
    manifest = load_release(town.coordinator / "releases" / "0001").manifest
    assert (manifest["privacy"]["mode"], manifest["privacy"]["epsilon"]) == (
        "columns",
        1.0,
    )
    assert [town.newest(name) for name in NAMES] == [1, 1, 1]


def test_a_holder_sends_one_noisy_vector_and_noisy_counts_and_tells_what_they_cost(
    town: Deployment, first: Finished
) -> None:
    """A column of the features, not their products; the owner reads the ε."""
    for name in NAMES:
        status = town.owner(name, "status")
        kinds = [entry["kind"] for entry in status["sent"]]
        assert kinds == ["offer", "noisy_statistics", "counted", "receipt"]
        [sums] = [
            entry for entry in status["sent"] if entry["kind"] == "noisy_statistics"
        ]
        assert SUMS_BYTES < sums["bytes"] < SUMS_BYTES + 2_000
    stated = town.do("client statement", town.holder("law"))
    assert "1e-08" in stated.stdout and "ε" in stated.stdout


def test_a_round_without_new_epochs_changes_nothing(
    town: Deployment, first: Finished
) -> None:
    """Nothing leaves a second time, so nothing is paid for a second time, and the release
    stands.
    """
    again = town.round().end()
    assert again.code == 0, again.stderr
    assert town.releases() == ["0001"]
    assert {town.sent(name, "noisy_statistics") for name in NAMES} == {1}


@pytest.fixture(scope="module")
def second(town: Deployment, go_on: Callable[[], None]) -> Finished:
    """The next epoch of those whose budget allows one, whatever has changed."""
    go_on()
    town.grow("code", seed=1)
    town.ready("law")
    return town.round("--accept-unevaluated", "medicine").end()


def test_an_epoch_beyond_the_budget_is_not_opened(
    town: Deployment, first: Finished
) -> None:
    """One that allows an ε of 1.4 in all has had its round; the owner hears so, and the epoch
    before stays.
    """
    refused = town.run("client ready", town.holder("medicine"))
    assert "`max_epsilon` in client.toml allows 1.4" in refused.refusal


def test_a_second_epoch_gives_a_second_release(
    town: Deployment, second: Finished
) -> None:
    """New vectors of those who opened one; the vector of the third, which left before, is used
    again.
    """
    assert second.code == 0, second.stderr
    assert (second.json["number"], second.json["domains"]) == (2, list(NAMES))
    assert [town.sent(name, "noisy_statistics") for name in NAMES] == [2, 2, 1]
    assert [town.newest(name) for name in NAMES] == [2, 2, 2]


def test_nothing_private_has_reached_the_coordinator(
    town: Deployment, second: Finished
) -> None:
    """No text and no path of a holder stands in any file of the operator."""
    assert town.leaks() == []
