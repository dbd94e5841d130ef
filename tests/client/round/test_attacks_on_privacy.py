"""Attacks on private rounds that once succeeded, or were tried: refused, without effect, or within the promise.

F1   counts under crafted weights        test_f1_..., test_e2e_counts_...; test_scoring.py:
                                         test_where_a_document_is_routed_depends_on_that_document_alone
F2   an ε that nobody has agreed to      A08 in test_attacks_on_rounds.py
F3   names and noise tell changes        test_noninterference.py: test_noise_that_is_drawn_again_tells_no_change
F4   a new folder, a second federation   test_f4_..., and test_corpus_spending.py
F5   exact rounds before private ones    test_f5_...; `calibrate`: tests/coordinator/cli
F6   shares of noise and colluders       tests/laws/test_privacy_laws.py:
                                         test_honest_members_of_a_sum_that_opens_have_all_the_noise
F7   refusals that depend on a corpus    test_noninterference.py, test_answers.py:
                                         test_a_corpus_that_is_gone_or_cannot_be_read_changes_no_answer
F11  sessions that break off are paid    A10 in test_attacks_on_rounds.py; test_private_sums.py
F12  sums that wrap around               tests/laws/test_privacy_laws.py: test_no_total_leaves_64_bits
attack_sums, sens, sens2, vertex, repro_folders    here, under their names
acct, noise, noise2                      tests/laws/test_privacy_laws.py
tokfuzz                                  tests/common/encoding
timing                                   how long an answer takes is not covered (docs/reference/privacy.md);
                                         no round reads the corpus: tests/common/deploy/test_bundle_rooms.py
A01 ... A20: test_attacks_on_rounds.py
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import beta

from ridgeway.client.deploy.holder_folder import create_holder
from ridgeway.client.ready import open_epoch
from ridgeway.client.round import private_sums
from ridgeway.client.round.answers import answer
from ridgeway.client.round.holder import PRIOR, Holder
from ridgeway.client.round.private_sums import laid_out, with_noise
from ridgeway.client.round.scoring import HeldOut, Scorer, router_table
from ridgeway.client.sums.document_sums import DocumentJob, sum_documents
from ridgeway.client.sums.prepare import PrepareJob
from ridgeway.common.base.errors import InputError
from ridgeway.common.base.settings import DEFAULT, Selector
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.privacy.document_bound import (
    UNIT,
    DocumentSums,
    Integers,
    PrivacyMode,
    bounded_sums,
    moved_square,
)
from ridgeway.common.privacy.document_vectors import VECTOR_LENGTH
from ridgeway.common.privacy.privacy_settings import Privacy
from ridgeway.common.privacy.private_solve import solve_private
from ridgeway.common.privacy.public_prior import MAX_ROW_SUM, PublicPrior, Whitening, make_prior
from ridgeway.common.protocol.messages import (
    Announce,
    Collect,
    Counted,
    Evaluate,
)
from ridgeway.common.protocol.packet import Blob, Packet, open_packet, vector_blob
from ridgeway.common.routing.token_table import compile_table, step_for
from ridgeway.coordinator.round.run_order import RoundWishes
from tests.support.attackers import (
    document,
    seeded_bytes,
    settled_privately,
)
from tests.support.corpora_on_disk import write_jsonl
from tests.support.faults import make_haste
from tests.support.hostile import FEATURES, SEAL, Hostile, code_of
from tests.support.simulated_federation import Parties, own_texts

MEMBERS = {"V": "law", "U": "medicine", "A": "code"}
DOMAINS = ("code", "law", "medicine")
EPSILONS = (0.1, 1.0, 3.0)
NO_PRIOR = "0" * 64
EVEN_WORSE = RoundWishes(accept_worse=DOMAINS, accept_unevaluated=DOMAINS, even_unchanged=True)
DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(autouse=True)
def _haste(monkeypatch: pytest.MonkeyPatch) -> None:
    make_haste(monkeypatch, once=False)


@pytest.fixture
def parties(tmp_path: Path) -> Parties:
    """Three holders that allow an ε of 1 in all: one round of `columns`."""
    return settled_privately(tmp_path, MEMBERS, max_epsilon=1.0)


def question(coordinator: Hostile, **changes: Any) -> Evaluate:
    asked = Evaluate(terms=coordinator.terms, domains=DOMAINS, holders=DOMAINS, selector="average", k=10)
    return asked.model_copy(update=changes)


def made_up_total(seed: int) -> Blob:
    return vector_blob(np.random.default_rng(seed).integers(-1_000_000, 1_000_000, 3 * FEATURES))


# Counts


@pytest.fixture(scope="module")
def detector(smollm2: TableEncoder) -> Callable[[int, int], NDArray[np.float64]]:
    """Weights under which one token once changed the unit that the logits of all documents were rounded to."""
    table = smollm2.table.astype(np.float32) * np.float32(smollm2.scale)
    mean = table.mean(axis=0)
    centred = table - mean
    spread = (centred.T @ centred).astype(np.float64) / len(table)
    spread += 1e-6 * np.trace(spread) / len(spread) * np.eye(len(spread))

    def crafted(token: int, domains: int) -> NDArray[np.float64]:
        direction = np.linalg.solve(spread, centred[token].astype(np.float64))
        scores = centred.astype(np.float64) @ direction
        others = np.delete(scores, token)
        offset = 0.25 * np.abs(others).max()
        high, low = scores[token] + offset, np.abs(others + offset).max()
        assert high > 1.05 * low
        steepness = 2.0**30 / math.sqrt(high * low)
        small, large = step_for(steepness * low), step_for(steepness * high)
        assert large >= 2 * small
        weights = np.zeros((smollm2.width + 1, domains))
        weights[:-1, -1] = -steepness * direction
        weights[-1, -1] = -steepness * (offset - mean.astype(np.float64) @ direction)
        weights[-1, 1] = 0.6 * small
        return weights

    return crafted


def public_documents() -> list[str]:
    """Paragraphs that anybody may read."""
    text = "\n\n".join(path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))[:3])
    return [each for each in text.split("\n\n") if len(each) > 60]


def routed(
    encoder: TableEncoder, weights: NDArray[np.float64], texts: Sequence[str], rule: str = "average"
) -> Integers:
    """To which domain how many of these documents go, as a holder counts them."""
    ids, lengths = encoder.tokenizer.encode_many(texts)
    held = HeldOut(ids.astype(np.int32), lengths.astype(np.int64))
    table = router_table(encoder, weights)
    return Scorer(table, Selector(rule, 10), held, 0).routed()  # type: ignore[arg-type]


def test_f1_one_document_is_one_count(
    smollm2: TableEncoder, detector: Callable[[int, int], NDArray[np.float64]]
) -> None:
    """Under the weights of the attack on counts, one held-out document more is one more in one place.

    Rounded by what the documents themselves need, as it once was, the same weights move nearly all of them.
    """
    target = "Patient 22: diagnosis of sarcoidosis confirmed."
    texts = public_documents()
    weights = detector(RARE_TOKEN, 6)
    assert RARE_TOKEN in smollm2.tokenizer.encode(target)
    before, after = (routed_once(smollm2, weights, each) for each in (texts, [*texts, target]))
    assert np.abs(after - before).sum() > len(texts) // 2
    before, after = (routed(smollm2, weights, each) for each in (texts, [*texts, target]))
    assert sorted(after - before) == [0, 0, 0, 0, 0, 1]
    changed = int(np.flatnonzero(after - before)[0])
    for epsilon in EPSILONS:
        privacy = Privacy(mode="columns", epsilon=epsilon, prior=NO_PRIOR)
        scales = np.full(6, privacy.count_sigma)
        without, with_it = (noisy(UNIT * counts, scales, 6000, seed) for seed, counts in enumerate((before, after)))
        for direction in (np.eye(6)[changed], np.eye(6)[0] - np.eye(6)[1]):
            assert proven_epsilon(with_it @ direction, without @ direction, privacy.delta) <= epsilon


RARE_TOKEN = 24459
"""Of the default encoder: a part of "sarcoidosis"."""


def routed_once(encoder: TableEncoder, weights: NDArray[np.float64], texts: Sequence[str]) -> Integers:
    """To which domain documents went when logits were rounded by the largest of the tokens at hand."""
    ids, lengths = encoder.tokenizer.encode_many(texts)
    used, places = np.unique(ids, return_inverse=True)
    table = compile_table(encoder.table[used], encoder.scale, weights)
    held = HeldOut(places.astype(np.int32), lengths.astype(np.int64))
    return Scorer(table, Selector("average", 10), held, 0).routed()


def solved(parties: Parties, total: Integers) -> NDArray[np.float64]:
    """The weights that a holder solves a noisy total to."""
    terms = parties.federation().terms
    assert terms.privacy is not None
    statistics = terms.statistics_of(total, len(DOMAINS))
    return solve_private(statistics, terms.privacy, DOMAINS, parties.federation().prior, parties.encoder)


def test_e2e_counts(tmp_path: Path) -> None:
    """Over the protocol: a made-up total brings noisy counts, which one held-out document moves by one before noise."""
    total = np.random.default_rng(3).integers(-1_000_000, 1_000_000, 3 * FEATURES)
    target = document("the patient has", held_out=True)
    exact, noise = [], []
    for place, more in enumerate(([], [target])):
        texts = {"V": [*own_texts("V", "law", 40), *more]}
        parties = settled_privately(tmp_path / str(place), MEMBERS, texts=texts)
        coordinator = Hostile(parties, list(MEMBERS))
        counted = coordinator.ask("V", question(coordinator), (vector_blob(total),)).message
        assert isinstance(counted, Counted)
        holder = parties.holder("V")
        held = holder.epochs.held_out(holder.epoch(coordinator.terms))
        table = router_table(parties.encoder, solved(parties, total))
        exact.append(Scorer(table, Selector("average", 10), held, 1).routed())
        assert coordinator.terms.privacy is not None
        noise.append((np.array(counted.counts) - UNIT * exact[-1]) / coordinator.terms.privacy.count_sigma)
        assert holder.account.epsilon() == pytest.approx(1.0)
    assert sorted(exact[1] - exact[0]) == [0, 0, 1]
    assert 0.1 < np.abs(noise).max() < 6


def test_f1_named_a_made_up_total_chooses_the_weights(parties: Parties) -> None:
    """A coordinator that makes a total up chooses what is counted for: once an epoch, under noise, and paid for."""
    wanted = np.random.default_rng(5).standard_normal(FEATURES - 1)
    total = np.zeros((FEATURES, len(DOMAINS)), np.int64)
    total[:-1, 0] = np.rint(1e3 * wanted)
    total[:-1, 2] = -total[:-1, 0]
    whitening = parties.federation().prior.tokens.scaled
    aimed, got = whitening.T @ wanted, solved(parties, total.ravel())[:-1]
    for column, side in ((got[:, 0], 1), (got[:, 2], -1)):
        cosine = aimed @ column / np.linalg.norm(aimed) / np.linalg.norm(column)
        assert side * cosine > 0.999
    coordinator = Hostile(parties, list(MEMBERS))
    counted = coordinator.ask("V", question(coordinator), (vector_blob(total.ravel()),)).message
    assert isinstance(counted, Counted)
    assert code_of(coordinator.ask("V", question(coordinator), (made_up_total(1),))) == "already_counted"
    assert parties.holder("V").account.epsilon() == pytest.approx(1.0)


# Sums


@pytest.mark.parametrize("mode", ["columns", "full"])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_attack_sums(mode: PrivacyMode, epsilon: float) -> None:
    """Who knows all else and takes the likeliest statistic proves no ε above what is promised."""
    privacy = Privacy(mode=mode, epsilon=epsilon, prior=NO_PRIOR)
    likeliest, exact, scales = hardest_pair(privacy)
    seen = [likeliest(noisy(each, scales, 12_000, seed)) for seed, each in enumerate(exact)]
    assert proven_epsilon(seen[1], seen[0], privacy.delta) <= epsilon


def test_attack_sums_notices_noise_that_is_too_small() -> None:
    """The same attack proves far more than an ε of 1 where noise is a thirtieth of what it should be."""
    privacy = Privacy(mode="columns", epsilon=1.0, prior=NO_PRIOR)
    likeliest, exact, scales = hardest_pair(privacy)
    seen = [likeliest(noisy(each, scales // 30, 6000, seed)) for seed, each in enumerate(exact)]
    assert proven_epsilon(seen[1], seen[0], privacy.delta) > 3


def hardest_pair(
    privacy: Privacy,
) -> tuple[Callable[[Integers], NDArray[np.float64]], tuple[Integers, Integers], Integers]:
    """Sums without and with a document of the greatest length, laid out as they leave, and how to tell them apart."""
    width = 4
    rest = np.zeros((50, width), np.int64)
    rest[:, 1] = VECTOR_LENGTH // 2
    row = np.zeros((1, width), np.int64)
    row[0, 0] = VECTOR_LENGTH
    before, scales = laid_out(bounded_sums(privacy.mode, rest), privacy)
    after, same = laid_out(bounded_sums(privacy.mode, np.vstack([rest, row])), privacy)
    np.testing.assert_array_equal(scales, same)
    direction = (after - before) / scales.astype(float) ** 2
    return lambda rows: (rows - before) @ direction, (before, after), scales


def noisy(exact: Integers, scales: Integers, times: int, seed: int) -> Integers:
    """What leaves a holder, drawn many times, a row each."""
    drawn = with_noise(np.tile(exact, times), np.tile(scales, times), seeded_bytes(seed))
    return drawn.reshape(times, -1)


def proven_epsilon(inside: NDArray[Any], outside: NDArray[Any], delta: float) -> float:
    """The ε that a threshold proves with 95 % confidence; it is chosen on one half, and judged on the other."""
    half = len(inside) // 2
    edges = np.quantile(np.concatenate([inside[:half], outside[:half]]), np.linspace(0.005, 0.995, 100))
    chosen = max(
        ((_proven(inside[:half], outside[:half], edge, side, delta), edge, side) for edge in edges for side in (1, -1)),
    )
    return _proven(inside[half:], outside[half:], chosen[1], chosen[2], delta)


def _proven(inside: NDArray[Any], outside: NDArray[Any], edge: float, side: int, delta: float) -> float:
    one, other = (inside, outside) if side > 0 else (-outside, -inside)
    hits, alarms = int((one > side * edge).sum()), int((other > side * edge).sum())
    least = beta.ppf(0.025, hits, len(one) - hits + 1) if hits else 0.0
    most = beta.ppf(0.975, alarms + 1, len(other) - alarms) if alarms < len(other) else 1.0
    return float(math.log((least - delta) / most)) if least > delta else -math.inf


HOSTILE_TEXTS = {
    "one letter": "a",
    "a token many times": " sarcoidosis" * 20_000,
    "whitespace and a letter": "\n" * 70_000 + "x",
    "emoji": "🙂" * 5000,
    "combining": "e\u0301\u0302\u0303" * 3000,
    "CJK": "漢字" * 4000,
    "right to left": "שלום עולם " * 500,
    "zero width": "\u200b" * 999,
    "special tokens": "<|im_start|>user hi<|im_end|>" * 300,
    "no newline": "x" * 300_000,
    "65536": "q" * 65_536,
    "65537": "q" * 65_537,
    "a beginning opposite to the rest": " the" * 32 + " sarcoidosis" * 50,
    "CR LF": "a\r\n" * 30_000,
    "JSON in JSON": json.dumps({"text": "x"}) * 200,
}


@pytest.mark.parametrize("mode", ["columns", "full"])
def test_sens(tmp_path: Path, smollm2: TableEncoder, mode: PrivacyMode) -> None:
    """From files to integers, no document moves the sums by more than the bound, whatever the prior says."""
    texts = public_documents()[:20]
    width = smollm2.width
    largest = np.random.default_rng(1).integers(-(MAX_ROW_SUM // width - 1), MAX_ROW_SUM // width, (width, width))
    priors = [
        make_prior(smollm2, [texts[:10], texts[10:]]),
        PublicPrior(smollm2.fingerprint, Whitening(np.full(width, 4096 << 8, np.int64), largest.astype(np.int32), 64)),
    ]
    for prior in priors:
        before = summed(tmp_path / "before.jsonl", texts, smollm2, mode, prior)
        for name, text in HOSTILE_TEXTS.items():
            after = summed(tmp_path / "after.jsonl", [*texts[:7], text, *texts[7:]], smollm2, mode, prior)
            assert moved_by(after, before) <= moved_square(mode), name


def summed(
    path: Path, texts: Sequence[str], encoder: TableEncoder, mode: PrivacyMode, prior: PublicPrior
) -> DocumentSums:
    job = PrepareJob(
        roots=(write_jsonl(path, texts),),
        domain="law",
        sampling=DEFAULT.sampling,
        holdout=0.0,
        text_fields=("text",),
        threads=1,
        whole=True,
    )
    return sum_documents(DocumentJob(job, encoder, mode), prior)


def moved_by(one: DocumentSums, other: DocumentSums) -> int:
    """The square of the length of a difference, in integers."""
    parts = ((one.products - other.products).ravel(), one.column - other.column)
    return sum(int((part.astype(object) ** 2).sum()) for part in parts if part.size)


def test_sens2_a_document_is_summed_or_counted_and_a_copy_counts(tmp_path: Path) -> None:
    """A document is in one of the two parts; a copy of it is a document more (docs/reference/privacy.md says so)."""
    texts = own_texts("V", "law", 400)
    parties = settled_privately(tmp_path, MEMBERS, texts={"V": texts, "U": [*texts, texts[0]]})
    found_documents = {}
    for name in "VU":
        holder = parties.holder(name)
        epoch = holder.epoch(parties.federation().terms)
        parts = holder.epochs.document_sums(epoch).documents, len(holder.epochs.held_out(epoch).lengths)
        found_documents[name] = sum(parts)
    assert found_documents == {"V": 400, "U": 401}


# Accounts


def second_folder(parties: Parties, name: str, other: Path, **changes: Any) -> Holder:
    """Another folder on a holder's corpus: a new key, the same user."""
    holder = parties.holder(name)
    settings = holder.settings.model_copy(update=changes)
    return create_holder(other, settings, {PRIOR: (holder.folder / PRIOR).read_bytes()})


def test_f4_another_folder_while_a_session_runs(tmp_path: Path) -> None:
    """What it pays before a total is signed counts, though there was enough when the round was announced."""
    parties = settled_privately(tmp_path, MEMBERS, "full", max_epsilon=1.0)
    coordinator = Hostile(parties, list(MEMBERS))
    coordinator.begin()
    coordinator.seal()
    account = second_folder(parties, "V", tmp_path / "other").account
    account.pay(account.expense("e" * 64, "statistics", "private", coordinator.terms.privacy, 0.25))
    assert code_of(coordinator.ask("V", coordinator.confirm_request("statistics", MEMBERS))) == "budget_spent"


def test_no_noise_is_drawn_anew_under_the_same_masks(tmp_path: Path) -> None:
    """Not even where the vector is lost: two under the same masks would show their difference."""
    parties = settled_privately(tmp_path, MEMBERS, "full")
    coordinator = Hostile(parties, list(MEMBERS))
    coordinator.begin()
    coordinator.seal()
    [kept] = parties.homes["V"].glob("epochs/*/statistics.noisy")
    kept.unlink()
    assert code_of(coordinator.send("V", coordinator.request(SEAL, "statistics", "V"))) == "already_answered"


@pytest.fixture
def both_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two answers that draw noise meet there, if they can."""
    meeting = threading.Barrier(2)
    plain = private_sums.with_noise

    def drawn_together(*given: Any) -> Integers:
        with contextlib.suppress(threading.BrokenBarrierError):
            meeting.wait(0.5)
        return plain(*given)

    monkeypatch.setattr(private_sums, "with_noise", drawn_together)


def at_once(*asked: tuple[Path, Packet]) -> list[Any]:
    """What holders answer to requests that arrive at the same time, as processes of their own would."""

    def answered(request: tuple[Path, Packet]) -> Any:
        home, packet = request
        return open_packet(answer(Holder(home), packet))

    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(answered, asked))


@pytest.mark.usefixtures("both_at_once")
def test_repro_folders_sums_asked_for_twice_at_once(parties: Parties) -> None:
    """Noise is drawn once an epoch, also if two cohorts are asked for at the same time: no mean of draws is got."""
    coordinator = Hostile(parties, list(MEMBERS))
    packets = [coordinator.packet(Collect(cohort=coordinator.cohort(names))) for names in ("VUA", "VU")]
    replies = at_once(*((parties.homes["V"], packet) for packet in packets))
    vectors = {bytes(reply.blobs[0]) for reply in replies if reply.blobs}
    assert len(vectors) == 1


@pytest.mark.usefixtures("both_at_once")
def test_repro_folders_two_questions_at_once(parties: Parties) -> None:
    """Of two questions that arrive at the same time one is answered."""
    coordinator = Hostile(parties, list(MEMBERS))
    packets = [coordinator.packet(question(coordinator), (made_up_total(seed),)) for seed in (1, 2)]
    replies = at_once(*((parties.homes["V"], packet) for packet in packets))
    assert sorted(reply.message.kind for reply in replies) == ["counted", "refusal"]


@pytest.mark.usefixtures("both_at_once")
def test_repro_folders_two_folders_at_once(parties: Parties, tmp_path: Path) -> None:
    """A budget for one round is spent once, also if two folders on one corpus are asked at the same time."""
    coordinator = Hostile(parties, list(MEMBERS))
    other = second_folder(parties, "V", tmp_path / "new")
    open_epoch(other, coordinator.terms)
    packets = [coordinator.packet(question(coordinator), (made_up_total(seed),)) for seed in (1, 2)]
    replies = at_once((parties.homes["V"], packets[0]), (other.folder, packets[1]))
    assert sorted(reply.message.kind for reply in replies) == ["counted", "refusal"]


def test_f5_exact_round_before(tmp_path: Path) -> None:
    """After exact sums have left, a corpus has an ε of infinity: no private epoch and no private answer."""
    parties = settled_privately(tmp_path, MEMBERS, modes=("private", "masked"), min_cohort=3)
    private, masked = parties.federation().terms, parties.federation().terms_in("masked")
    other = second_folder(parties, "V", tmp_path / "other")
    open_epoch(other, private)
    for name in MEMBERS:
        open_epoch(parties.holder(name), masked)
    coordinator = Hostile(parties, list(MEMBERS))
    coordinator.terms = masked
    coordinator.play("statistics")
    assert parties.holder("V").account.epsilon() == math.inf
    with pytest.raises(InputError, match="∞"):
        open_epoch(parties.holder("V"), private, new_epoch=True)
    for request in (Announce(terms=private), Collect(cohort=coordinator.cohort(terms=private))):
        assert code_of(coordinator.ask("V", request)) == "epoch_does_not_fit"
    announced = coordinator.packet(Announce(terms=private))
    assert code_of(open_packet(answer(other, announced))) == "budget_spent"
    asked = coordinator.packet(question(coordinator, terms=private), (made_up_total(1),))
    assert code_of(open_packet(answer(other, asked))) == "budget_spent"
