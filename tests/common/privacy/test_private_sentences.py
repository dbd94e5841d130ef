"""Private sums of an encoder that reads sentences: bounded documents, the prior, the two routers of
one total.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest

from ridgeway.common.base.errors import FormatError, InputError, ShapeMismatch
from ridgeway.common.base.settings import WordFeatures
from ridgeway.common.privacy.accountant import Privacy
from ridgeway.common.privacy.noise import (
    VECTOR_LENGTH,
    PrivacyMode,
    bounded_sums,
    count_unit,
    document_vectors,
    row_unit,
)
from ridgeway.common.privacy.noisy_solve import solve_private
from ridgeway.common.privacy.public_prior import (
    Integers,
    PublicPrior,
    make_prior,
    prior_bytes,
    prior_of_bytes,
)
from ridgeway.common.routing.sentence_table import (
    NOISY_MARGIN,
    Cascade,
    compile_router,
    margin_for,
)
from ridgeway.common.statistics import Statistics
from ridgeway.common.text.sentence_encoder import SentenceEncoder
from ridgeway.common.text.sentence_network import SENTENCE_WIDTH
from ridgeway.common.text.table_encoder import (
    TableEncoder,
    of_table_rows,
    with_sentences,
    with_words,
)
from tests.support.tiny import tiny_encoder

DOMAINS = ("weather", "money")
TEXTS = {
    "weather": (
        "will it rain today",
        "is it sunny outside",
        "how cold is it now",
        "does it snow in winter",
    ),
    "money": (
        "transfer cash to my bank",
        "what is my account balance",
        "pay the invoice",
        "how much did it cost",
    ),
}
HELD_OUT = {
    "weather": ("is a storm coming", "how warm will it be tomorrow"),
    "money": ("send money to my brother", "what do i owe the bank"),
}
WIDTH = 6


@pytest.fixture(scope="module")
def encoder(sentences: SentenceEncoder) -> TableEncoder:
    return with_sentences(tiny_encoder(WIDTH), sentences)


@pytest.fixture(scope="module")
def prior(encoder: TableEncoder) -> PublicPrior:
    return make_prior(encoder, [list(chain(*TEXTS.values()))])


def rows_of(
    texts: tuple[str, ...], encoder: TableEncoder, prior: PublicPrior
) -> Integers:
    ids, lengths = encoder.tokenizer.encode_many(texts)
    return document_vectors(prior, ids, lengths, encoder.table, encoder.sentences)


def test_a_document_is_bounded_whatever_stands_beside_it(
    encoder: TableEncoder, prior: PublicPrior
) -> None:
    """Empty ones are zeros, long ones are read in pieces, and each row is as long as the bound, or
    just below.
    """
    texts = ("", "rain", "is it sunny outside " * 200, "7" * 5000)
    together = rows_of(texts, encoder, prior)
    assert (
        together.shape == (4, encoder.document_width)
        and encoder.document_width == WIDTH + SENTENCE_WIDTH
    )
    assert not together[0].any()
    squares = np.square(together[1:]).sum(axis=1)
    assert (squares <= VECTOR_LENGTH**2).all() and (
        squares > 0.99 * VECTOR_LENGTH**2
    ).all()
    for text, row in zip(texts, together, strict=True):
        assert (rows_of((text,), encoder, prior)[0] == row).all()
    bounded_sums("full", together)


def test_both_parts_count(encoder: TableEncoder, prior: PublicPrior) -> None:
    """Sentences have 25 parts of 41 of a vector's square, tokens the rest."""
    rows = rows_of(TEXTS["money"], encoder, prior).astype(float)
    of_sentences = np.square(rows[:, WIDTH:]).sum(axis=1) / np.square(rows).sum(axis=1)
    assert np.allclose(of_sentences, 25 / 41, atol=1e-3)


def test_a_prior_of_sentences_is_read_as_it_was_written(prior: PublicPrior) -> None:
    """And one number that was changed is noticed."""
    content = bytearray(prior_bytes(prior))
    assert prior_of_bytes(bytes(content)).fingerprint == prior.fingerprint
    for index in (len(content) // 2, len(content) - 2):
        changed = content.copy()
        changed[index] ^= 1
        with pytest.raises(FormatError):
            prior_of_bytes(bytes(changed))


def test_a_prior_and_an_encoder_must_both_read_sentences(
    encoder: TableEncoder, prior: PublicPrior
) -> None:
    ids, lengths = encoder.tokenizer.encode_many(["rain"])
    plain = make_prior(tiny_encoder(WIDTH), [["rain", "money"]])
    for known, reads in ((prior, None), (plain, encoder.sentences)):
        with pytest.raises(ShapeMismatch):
            document_vectors(known, ids, lengths, encoder.table, reads)


def test_words_have_no_prior(encoder: TableEncoder) -> None:
    with pytest.raises(
        InputError, match="token features and USE sentence features only"
    ):
        make_prior(with_words(encoder, WordFeatures()), [["rain"]])


@pytest.mark.parametrize("mode", ["columns", "full"])
def test_one_total_gives_both_routers(
    encoder: TableEncoder, prior: PublicPrior, mode: PrivacyMode
) -> None:
    """With next to no noise, text that the table cannot tell apart is routed by its sentences."""
    copies = 40_000
    sums = [
        bounded_sums(mode, rows_of(TEXTS[name], encoder, prior)) for name in DOMAINS
    ]
    cross = np.stack([part.column for part in sums], axis=1) * copies
    gram = np.zeros((encoder.document_width + 1,) * 2, np.int64)
    if mode == "full":
        gram[:-1, :-1] = sum(part.products for part in sums) * copies
    total = Statistics(gram, cross)
    privacy = Privacy(mode=mode, epsilon=8.0, prior=prior.fingerprint)
    weights = solve_private(total, privacy, DOMAINS, prior, encoder)
    assert weights.shape == (encoder.width + 1, 2 * len(DOMAINS))
    of_sentences = slice(WIDTH, WIDTH + SENTENCE_WIDTH)
    assert weights[of_sentences, :2].any()
    # random features are not summed, and the table knows nothing of sentences
    assert not weights[WIDTH + SENTENCE_WIDTH : -1].any()
    outside = np.delete(weights[:, 2:], of_table_rows(encoder), axis=0)
    assert not outside.any() and weights[:WIDTH, 2:].any()
    router = compile_router(encoder, weights, margin_for(private=True))
    assert isinstance(router, Cascade) and router.margin == NOISY_MARGIN
    for index, name in enumerate(DOMAINS):
        ids, lengths = encoder.tokenizer.encode_many(HELD_OUT[name])
        assert (router.sentences.token_sums(ids, lengths).argmax(axis=1) == index).all()


def test_tokens_alone_are_solved_as_if_nothing_else_were_summed(
    encoder: TableEncoder, prior: PublicPrior
) -> None:
    """The table of the cascade is that of a round without sentences, but for rounding."""
    plain = PublicPrior(tiny_encoder(WIDTH).fingerprint, prior.tokens)
    weights = []
    for known, reader in ((prior, encoder), (plain, tiny_encoder(WIDTH))):
        sums = [
            bounded_sums("columns", rows_of(TEXTS[name], reader, known))
            for name in DOMAINS
        ]
        cross = np.stack([part.column for part in sums], axis=1) * 1_000_000
        assert (
            cross[-1] == len(TEXTS["money"]) * count_unit("columns") * 1_000_000
        ).all() and row_unit("columns") == 1
        total = Statistics(np.zeros((reader.document_width + 1,) * 2, np.int64), cross)
        privacy = Privacy(mode="columns", epsilon=8.0, prior=known.fingerprint)
        weights.append(solve_private(total, privacy, DOMAINS, known, reader))
    table = weights[0][of_table_rows(encoder), 2:]
    assert np.allclose(table, weights[1], rtol=1e-3, atol=1e-6)
