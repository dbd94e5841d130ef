"""Adding up what holders hand over: what must agree, what adds, and what is told when it does
not.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from ridgeway.common.base.errors import (
    BrokenIdentity,
    EncoderMismatch,
    InputError,
    ShapeMismatch,
    StatisticsError,
)
from ridgeway.common.base.settings import Sampling, Weighting
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.statistics.statistics_file import Prepared
from ridgeway.common.statistics.sums import single_domain
from ridgeway.coordinator.solving.total import add_up, must_agree
from tests.support.making import one_domain, prepared, random_samples
from tests.support.tiny import tiny_encoder


@pytest.fixture
def parts(encoder: TableEncoder) -> list[Prepared]:
    return [prepared("law", encoder, 1), prepared("code", encoder, 2, count=30)]


def test_mixed_encoders_are_refused_with_both_fingerprints(
    encoder: TableEncoder,
) -> None:
    """In full, with the domains they belong to, so that the right one can be prepared again."""
    other = tiny_encoder(seed=1)
    mixed = [
        prepared("law", encoder, 1),
        prepared("code", encoder, 2),
        prepared("medicine", other, 3),
    ]
    words = (
        f"'law' was made with encoder tiny ({encoder.fingerprint}) "
        "and 'medicine' with "
        "tiny "
        f"({other.fingerprint})"
    )
    with pytest.raises(EncoderMismatch, match=re.escape(words)):
        add_up(mixed, "equal")


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        (
            Sampling(window=32),
            "'law' was made with window 64 and 'code' with window 32; prepare",
        ),
        (Sampling(max_tokens=9), "window 64 and 'code' with window 64, max_tokens 9"),
        (
            Sampling(8, stride=32, units=5),
            "window 64 and 'code' with window 8, stride 32, units 5",
        ),
    ],
)
def test_different_samplings_are_refused_in_words(
    encoder: TableEncoder, sampling: Sampling, words: str
) -> None:
    """Samples of another kind do not add up, and the message says how they differ."""
    with pytest.raises(StatisticsError, match=words):
        add_up(
            [
                prepared("law", encoder, 1),
                prepared("code", encoder, 2, sampling=sampling),
            ],
            "equal",
        )


def test_one_domain_alone_is_refused(encoder: TableEncoder) -> None:
    """With several files, too: there is nothing to choose from."""
    with pytest.raises(
        InputError, match=r"all statistics are of 'law'; .* at least two domains"
    ):
        add_up([prepared("law", encoder, 1)], "equal")
    with pytest.raises(InputError, match="at least two domains"):
        add_up([prepared("law", encoder, 1), prepared("law", encoder, 2)], "tokens")


def test_no_statistics_are_refused() -> None:
    """An empty list is no cohort."""
    with pytest.raises(InputError, match="no statistics"):
        add_up([], "equal")


def test_the_same_file_twice_is_refused(
    parts: list[Prepared], encoder: TableEncoder
) -> None:
    """Double counting shows: by content, not by name, and wherever the second copy stands."""
    copy = prepared("law", encoder, 1)
    with pytest.raises(
        InputError, match=rf"'law' with digest {copy.digest[:12]} were given twice"
    ):
        add_up([*parts, copy], "tokens")
    with pytest.raises(InputError, match="given twice"):
        must_agree([parts[0], parts[0]])


def test_the_same_sums_under_another_name_of_the_encoder_are_refused(
    parts: list[Prepared], encoder: TableEncoder
) -> None:
    """What an encoder is called does not make a corpus another one: the same sums would count
    twice.
    """
    with pytest.raises(InputError, match="given twice"):
        add_up([*parts, prepared("law", encoder, 1, name="local")], "tokens")


def test_equal_sums_of_two_domains_are_two_files(encoder: TableEncoder) -> None:
    """A digest covers the domain: two domains may hold the same text, if only to be compared."""
    total = add_up(
        [prepared("law", encoder, 1), prepared("code", encoder, 1)], "tokens"
    )
    assert (
        total.statistics.cross[:, 0].tolist() == total.statistics.cross[:, 1].tolist()
    )


def test_plain_sums_keep_their_masses(parts: list[Prepared]) -> None:
    """Under `tokens` a domain weighs what it holds."""
    total = add_up(parts, "tokens")
    assert total.masses == {"code": 30, "law": 80}
    assert total.statistics.mass == 110
    assert total.statistics.cross[-1].tolist() == [30, 80]


def test_a_total_says_what_it_was_made_of(
    parts: list[Prepared], encoder: TableEncoder
) -> None:
    """Domains by name, whoever came first, with the terms that all of them share."""
    for order in (parts, parts[::-1]):
        total = add_up(order, "equal")
        assert total.domains == ("code", "law")
        assert (total.encoder_name, total.fingerprint) == ("tiny", encoder.fingerprint)
        assert (total.sampling, total.holders) == (Sampling(), 2)
        assert repr(total) == "<Total 2 domains of 2 holders>"


def test_sums_of_another_width_under_one_fingerprint_are_refused(
    parts: list[Prepared], encoder: TableEncoder
) -> None:
    """A fingerprint that does not fit its sums is a forgery or a mistake, not a crash."""
    narrow = one_domain(random_samples(1, 20, encoder.width))
    wrong = Prepared("medicine", encoder.name, encoder.fingerprint, Sampling(), narrow)
    with pytest.raises(ShapeMismatch):
        add_up([*parts, wrong], "equal")


@pytest.mark.parametrize("weighting", ["equal", "tokens"])
def test_sums_that_no_text_can_have_are_not_added_up(
    encoder: TableEncoder, weighting: Weighting
) -> None:
    """Whatever becomes visible is checked, even if it never was a file."""
    gram = np.diag(np.array([1 << 20] * encoder.width + [100]))
    gram[0, 1] = gram[1, 0] = 1 << 22
    wrong = Prepared(
        "medicine", encoder.name, encoder.fingerprint, Sampling(), single_domain(gram)
    )
    with pytest.raises(BrokenIdentity):
        add_up([wrong, prepared("law", encoder, 1, count=2)], weighting)
