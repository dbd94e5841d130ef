"""Adding up what holders hand over: what must agree, what adds, and what is told when it does
not.
"""

from __future__ import annotations

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
from ridgeway.common.statistics import Prepared, Statistics, single_domain
from ridgeway.coordinator.solving.solve import add_up
from tests.support.making import one_domain, prepared, random_samples
from tests.support.tiny import tiny_encoder

ENCODER = tiny_encoder()
LAW = prepared("law", ENCODER, 1)
CODE = prepared("code", ENCODER, 2, count=30)
OTHER = tiny_encoder(seed=1)
NARROW = one_domain(random_samples(1, 20, ENCODER.width))
IMPOSSIBLE = np.diag(np.array([1 << 20] * ENCODER.width + [100]))
IMPOSSIBLE[0, 1] = IMPOSSIBLE[1, 0] = 1 << 22


def of_sums(statistics: Statistics) -> Prepared:
    return Prepared(
        "medicine", ENCODER.name, ENCODER.fingerprint, Sampling(), statistics
    )


def sampled(*words: int, **named: int) -> list[Prepared]:
    return [LAW, prepared("code", ENCODER, 2, sampling=Sampling(*words, **named))]


@pytest.mark.parametrize("weighting", ["equal", "tokens"])
@pytest.mark.parametrize(
    ("parts", "error", "words"),
    [
        ([], InputError, "no statistics"),
        ([LAW], InputError, r"all statistics are of 'law'; .* at least two domains"),
        ([LAW, prepared("law", ENCODER, 2)], InputError, "at least two domains"),
        (
            [LAW, CODE, prepared("medicine", OTHER, 3)],
            EncoderMismatch,
            rf"'law' was made with encoder tiny \({ENCODER.fingerprint}\)"
            rf" and 'medicine' with tiny \({OTHER.fingerprint}\)",
        ),
        (
            sampled(window=32),
            StatisticsError,
            "'law' was made with window 64 and 'code' with window 32; prepare",
        ),
        (
            sampled(max_tokens=9),
            StatisticsError,
            "window 64 and 'code' with window 64, max_tokens 9",
        ),
        (
            sampled(8, stride=32, units=5),
            StatisticsError,
            "window 64 and 'code' with window 8, stride 32, units 5",
        ),
        (
            [LAW, CODE, prepared("law", ENCODER, 1)],
            InputError,
            f"'law' with digest {LAW.digest[:12]} were given twice",
        ),
        # what an encoder is called does not make a corpus another one
        (
            [LAW, CODE, prepared("law", ENCODER, 1, name="local")],
            InputError,
            "given twice",
        ),
        # a fingerprint that does not fit its sums is a forgery or a mistake, not a crash
        ([LAW, CODE, of_sums(NARROW)], ShapeMismatch, None),
        # whatever becomes visible is checked, even if it never was a file
        (
            [of_sums(single_domain(IMPOSSIBLE)), prepared("law", ENCODER, 1, count=2)],
            BrokenIdentity,
            None,
        ),
    ],
)
def test_what_does_not_add_up_is_refused_in_words(
    parts: list[Prepared],
    error: type[Exception],
    words: str | None,
    weighting: Weighting,
) -> None:
    """Nothing, one domain, other encoders, other samples, the same sums twice, sums of no text."""
    with pytest.raises(error, match=words):
        add_up(parts, weighting)


def test_equal_sums_of_two_domains_are_two_files() -> None:
    """A digest covers the domain: two domains may hold the same text, if only to be compared."""
    total = add_up([LAW, prepared("code", ENCODER, 1)], "tokens")
    assert (
        total.statistics.cross[:, 0].tolist() == total.statistics.cross[:, 1].tolist()
    )


def test_plain_sums_keep_their_masses() -> None:
    """Under `tokens` a domain weighs what it holds."""
    total = add_up([LAW, CODE], "tokens")
    assert total.masses == {"code": 30, "law": 80}
    assert total.statistics.mass == 110
    assert total.statistics.cross[-1].tolist() == [30, 80]


def test_a_total_says_what_it_was_made_of() -> None:
    """Domains by name, whoever came first, with the terms that all of them share."""
    for order in ([LAW, CODE], [CODE, LAW]):
        total = add_up(order, "equal")
        assert total.domains == ("code", "law")
        assert (total.encoder_name, total.fingerprint) == ("tiny", ENCODER.fingerprint)
        assert (total.sampling, total.holders) == (Sampling(), 2)
        assert repr(total) == "<Total 2 domains of 2 holders>"
