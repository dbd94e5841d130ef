"""Where a table hands over to sentences: the share and the accuracy that were asked for, on the
text that was given.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.identity import create_identity
from ridgeway.common.routing.release import amend_release, load_release
from ridgeway.common.routing.sentence_table import Cascade, choose_margin
from tests.support.commands import Workshop
from tests.support.corpora_on_disk import write_jsonl
from tests.support.serving import CASCADE_DOMAINS, OWN

TEXTS = {
    name: [OWN[index] * 12 + OWN[(index + 1) % 3] * number for number in range(12)]
    for index, name in enumerate(CASCADE_DOMAINS)
}


@pytest.fixture
def router(cascade: Path) -> Cascade:
    compiled = load_release(cascade).compiled
    assert isinstance(compiled, Cascade)
    return compiled


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_at_most_this_share_is_read(
    cascade: Path, router: Cascade, share: float
) -> None:
    reader = load_release(cascade).reader
    chosen = choose_margin(router, reader, TEXTS, share=share)
    assert chosen.share <= share + 1e-9
    tokens = reader.read([*chain.from_iterable(TEXTS.values())])
    read = replace(router, margin=chosen.margin).reads_sentences(tokens)
    assert read.mean() == pytest.approx(chosen.share)
    if share == 1.0:
        assert read.all()


def test_no_more_is_read_than_an_accuracy_needs(cascade: Path, router: Cascade) -> None:
    reader = load_release(cascade).reader
    every = choose_margin(router, reader, TEXTS, share=1.0)
    none = choose_margin(router, reader, TEXTS, share=0.0)
    best = max(every.accuracy, none.accuracy)
    least = choose_margin(router, reader, TEXTS, accuracy=best)
    assert least.accuracy >= best and least.margin <= every.margin
    assert choose_margin(router, reader, TEXTS, accuracy=0.0).share == 0
    with pytest.raises(InputError, match="no margin reaches"):
        texts = {name: ["zzz"] for name in TEXTS}
        choose_margin(router, reader, texts, accuracy=0.99)


def test_empty_texts_are_never_read(cascade: Path, router: Cascade) -> None:
    reader = load_release(cascade).reader
    tokens = reader.read(["", "ab"])
    leads = router.leads(router.table.token_sums(tokens), tokens)
    assert np.isinf(leads[0]) and np.isfinite(leads[1])
    chosen = choose_margin(
        router, reader, {name: ["", *TEXTS[name]] for name in TEXTS}, share=1.0
    )
    assert chosen.share == pytest.approx(12 / 13)


def test_signing_a_proposal_signs_the_margin(cascade: Path, tmp_path: Path) -> None:
    """It is in the manifest, and the release routes by it."""
    for name, domain_texts in TEXTS.items():
        write_jsonl(tmp_path / "data" / f"{name}.test.jsonl", domain_texts)
    shop = Workshop(tmp_path)
    amend_release(cascade, {}, create_identity(shop.key))
    words = "data --propose --sign --json --sentence-share 0.25".split()
    done = shop.do("evaluate", cascade, *words)
    margin = done.json["proposal"]["cascade"]["margin"]
    signed = load_release(cascade)
    assert isinstance(signed.compiled, Cascade)
    assert signed.compiled.margin == signed.manifest["cascade"]["margin"] == margin
    assert margin != 0.5
