"""Read this first: what Ridgeway does, in six tests, each a step on the way from private texts to a
served router.

tests/laws holds what must be true of each step, tests/vectors the bytes, and the other folders are
those of the source.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ridgeway import Router
from ridgeway.client.round.answers import answer
from ridgeway.common.base.settings import Ridge
from ridgeway.common.protocol.cohort import form_cohort
from ridgeway.common.protocol.messages import Collect, Refusal
from ridgeway.common.protocol.packet import open_packet, seal_packet
from ridgeway.common.statistics import Statistics
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.coordinator.solving.solve import solve
from tests.support.corpora_on_disk import (
    ALPHABETS,
    job,
    sentences,
    without_cache,
    write_jsonl,
)
from tests.support.in_process import served
from tests.support.masked_session import run_session
from tests.support.simulated_federation import (
    ONE_EACH,
    Parties,
    found,
    populate,
    round_of,
)

LEGAL = "abc defgh hgfed cba " * 5
"""In the letters of the domain `law`."""


@pytest.fixture(scope="module")
def parties(module_path: Path) -> Parties:
    """A coordinator and three holders, who send sums under masks alone."""
    return populate(found(module_path, mode="masked"), ONE_EACH)


@pytest.fixture(scope="module")
def release(parties: Parties) -> Path:
    """What their first round publishes."""
    number = round_of(parties).number
    return parties.federation.release_folder(number)


def sums_of(texts: list[str], encoder: TableEncoder, folder: Path) -> Statistics:
    corpus = write_jsonl(folder / "corpus.jsonl", texts)
    return without_cache(job(corpus), encoder, folder / "cache").prepared.statistics


def test_one_texts_become_sums_and_sums_add_up(
    encoder: TableEncoder, tmp_path: Path
) -> None:
    """Two holders' sums, added, are the sums of their texts together; no text is in them."""
    texts = sentences("law", 40)
    first = sums_of(texts[:15], encoder, tmp_path / "first")
    second = sums_of(texts[15:], encoder, tmp_path / "second")
    together = sums_of(texts, encoder, tmp_path / "both")
    assert np.array_equal((first + second).gram, together.gram)
    assert np.array_equal((first + second).cross, together.cross)


def test_two_masks_hide_each_vector_and_leave_the_total() -> None:
    """What members send is noise to the coordinator; the total that they open together is exact."""
    vectors = [
        np.array([member, 10 * member, -member, 7], dtype=np.int64)
        for member in range(5)
    ]
    session = run_session(5, vectors=vectors)
    assert np.array_equal(session.total, sum(vectors))
    for member, sealed in session.sealed.items():
        assert bytes(sealed.data) != vectors[member - 1].tobytes()


def test_three_a_total_is_solved_to_the_weights_of_a_router(
    encoder: TableEncoder, tmp_path: Path
) -> None:
    """Ridge regression from tokens to domains, out of the sums alone: (A + λI) W = B."""
    parts = [
        sums_of(sentences(domain, 40), encoder, tmp_path / domain)
        for domain in ALPHABETS
    ]
    placed = [part.placed(index, len(parts)) for index, part in enumerate(parts)]
    total = placed[0] + placed[1] + placed[2]
    solution = solve(total, encoder.scale, Ridge())
    assert solution.weights.shape == (encoder.width + 1, len(ALPHABETS))
    assert solution.residual < 1e-9


def test_four_a_round_publishes_a_router_that_tells_domains_apart(
    release: Path,
) -> None:
    """Announce, share, seal, open, solve, count, publish, deliver: one call, and a folder with a
    signed release.
    """
    router = Router.load(release)
    assert router.domains == tuple(ONE_EACH)
    assert router.route(LEGAL).best == "law"


def test_five_a_release_is_served_over_http(release: Path) -> None:
    """Prompts go to an expert of their domain; here only the routing is asked for."""
    with served(release, None) as local:
        assert local.post("/v1/route", {"prompt": LEGAL}).json()["best"] == "law"


def test_six_a_holder_refuses_what_its_owner_has_not_agreed_to(
    parties: Parties,
) -> None:
    """Sums in the clear, of a holder that sends them under masks alone: a refusal with a code, and
    no sums.
    """
    federation = parties.federation
    holder = parties.holder("law")
    clear = federation.terms.model_copy(update={"mode": "clear"})
    cohort = form_cohort(
        clear,
        {parties.holder(name).identity.public: ONE_EACH[name] for name in ONE_EACH},
    )
    request = seal_packet(Collect(cohort=cohort), federation.identity, round="ab" * 16)
    reply = open_packet(answer(holder, request))
    assert (
        isinstance(reply.message, Refusal) and reply.message.code == "mode_not_allowed"
    )
    assert reply.blobs == ()
