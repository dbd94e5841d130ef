"""Attacks on rounds that once succeeded, each played whole against real holders: refused, or without effect.

What a mode does not protect from, by docs/reference/privacy.md, is shown as such: `named` is in the test's name.

    A01, A03, A04, A04b, A05, A06, A08, A10, A12, A15, A18, and four that are older: here
    A02  one friend                        test_masked_survivors.py:
                                           test_a_second_sum_without_one_member_is_refused_by_all_others
    A06  many questions                    test_masked_survivors.py: test_counts_are_given_for_one_router_an_epoch
    A07  a member that lies                A15, and test_totals.py
    A09  epochs and noise tell changes     test_noninterference.py
    A11  refusals tell of a corpus         test_noninterference.py; in private rounds test_private_sums.py
    A13  older releases come back          tests/common/serve/routing/test_current_release.py:
                                           test_a_release_with_a_lower_number_or_none_is_refused
    A14  redirects of a SuperNode          tests/client/deploy/test_supernode_process.py:
                                           test_a_redirect_is_not_followed
    A16  few addresses shut the gate       tests/coordinator/deploy/test_fleet_proxy.py:
                                           test_a_few_addresses_without_a_key_cannot_shut_the_gate
    A17  free disk                         test_noninterference.py: test_made_up_cohorts_do_not_measure_the_disk
    A19  flooded memory                    test_totals.py:
                                           test_whatever_is_asked_one_total_of_an_epoch_and_lot_can_be_opened
    A20  the signing key in `serve`        tests/test_packages.py:
                                           test_serve_of_the_compose_file_sees_the_releases_and_not_the_signing_key
                                           test_serve_of_the_chart_sees_the_releases_and_not_the_signing_key
    F1 ... F13: test_attacks_on_privacy.py
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError
from scipy.optimize import nnls

from ridgeway.client.deploy.holder_folder import agreed_policy
from ridgeway.client.ready import open_epoch
from ridgeway.client.round.private_sums import laid_out, with_noise
from ridgeway.client.round.scoring import Scorer, router_table
from ridgeway.common.base.errors import InputError
from ridgeway.common.base.settings import EQUAL_MASS, Selector
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.masking.agreement import Agreement
from ridgeway.common.privacy.accountant import epsilon_of
from ridgeway.common.privacy.discrete_gaussian import Randomness
from ridgeway.common.privacy.document_bound import DocumentSums, Integers, bounded_sums
from ridgeway.common.privacy.document_vectors import document_vectors
from ridgeway.common.privacy.privacy_settings import Privacy
from ridgeway.common.privacy.public_prior import PublicPrior, make_prior
from ridgeway.common.protocol.cohort import Member
from ridgeway.common.protocol.messages import (
    KINDS,
    Announce,
    Collect,
    Evaluate,
    Message,
    NoisyStatistics,
    Revealed,
    Share,
)
from ridgeway.common.protocol.packet import Blob, open_packet, vector_blob, weights_blob
from ridgeway.common.routing.evaluation import unpaired
from ridgeway.coordinator.round.round import run_round
from ridgeway.coordinator.round.run_order import RoundWishes
from tests.support.attackers import (
    add_document,
    document,
    domains_of,
    opened,
    own_sums,
    refusals,
    rounds,
    seeded_bytes,
    settled,
    settled_privately,
    whitened,
)
from tests.support.faults import make_haste
from tests.support.hostile import FEATURES, Hostile, code_of, nothing_revealed
from tests.support.rosters import unpin
from tests.support.simulated_federation import Direct, Parties, no_watch, own_texts

ONE_TOTAL = "epoch_used"
TOO_FEW = "too_few_of_roster"


@pytest.fixture(autouse=True)
def _haste(monkeypatch: pytest.MonkeyPatch) -> None:
    make_haste(monkeypatch, once=False)


@pytest.fixture
def names() -> Iterator[str]:
    """Names of rounds."""
    return rounds()


# Several totals


def test_a01_split_federation(tmp_path: Path, names: Iterator[str]) -> None:
    """No three sums of honest holders give the sums of one: the second is not opened, whoever is in it."""
    seven = settled(tmp_path / "seven", domains_of("ABCGPQR"))
    opened(seven, "ABCGPQR", next(names))
    assert refusals(seven, "ABC", next(names)) == {TOO_FEW}
    assert refusals(seven, "PQR", next(names)) == {TOO_FEW}
    assert refusals(seven, "ABCPQR", next(names)) == {ONE_TOTAL}
    six = settled(tmp_path / "six", domains_of("ABGPQR"))
    opened(six, "ABPQR", next(names))
    assert refusals(six, "ABG", next(names)) == {TOO_FEW}
    assert refusals(six, "PQR", next(names)) == {TOO_FEW}


def test_a01_in_folders_that_were_restored(tmp_path: Path, names: Iterator[str]) -> None:
    """An older copy of a holder's folder does not sign another total of the same epoch: it takes part in nothing."""
    parties = settled(tmp_path, domains_of("ABCG"))
    for name in "ABC":
        shutil.copytree(parties.homes[name], tmp_path / "older" / name)
    opened(parties, "ABCG", next(names))
    for name in "ABC":
        shutil.rmtree(parties.homes[name])
        shutil.copytree(tmp_path / "older" / name, parties.homes[name])
    coordinator = Hostile(parties, list("ABC"), next(names))
    asked = Announce(terms=coordinator.terms)
    assert {code_of(coordinator.ask(name, asked)) for name in "ABC"} == {"older_copy"}


def test_a03_thin_companion(tmp_path: Path, names: Iterator[str]) -> None:
    """One changed document is no cover: its owner gets no new epoch by it, and the others are in no second total."""
    parties = settled(tmp_path, domains_of("ABCD"))
    opened(parties, "ABCD", next(names))
    add_document(parties, "B", document("b has signed a contract", held_out=False))
    with pytest.raises(InputError, match="1 documents changed"):
        open_epoch(parties.holder("B"), parties.federation().terms)
    assert refusals(parties, "BCD", next(names)) == {ONE_TOTAL}
    parties.ready("B")
    coordinator = Hostile(parties, list("BCD"), next(names))
    coordinator.begin()
    coordinator.seal()
    for name in "CD":
        assert code_of(coordinator.ask(name, coordinator.confirm_request("statistics", "BCD"))) == ONE_TOTAL
    nothing_revealed(coordinator)


@pytest.mark.parametrize("between", ["a private epoch", "600 other documents", "600 others in a total"])
def test_a03_changes_count_from_every_epoch_that_was_opened(tmp_path: Path, names: Iterator[str], between: str) -> None:
    """An epoch in between, in a total or not, does not make one changed document enough."""
    domains = domains_of("ABC")
    parties = settled_privately(tmp_path, domains, modes=("private", "masked"), min_cohort=3, max_epsilon=float("inf"))
    masked = parties.federation().terms_in("masked")
    for name in domains:
        open_epoch(parties.holder(name), masked)
    coordinator = Hostile(parties, list(domains), next(names))
    coordinator.terms = masked
    coordinator.play("statistics")
    [corpus] = map(Path, parties.holder("A").settings.corpus)
    before = corpus.read_text()
    if between == "a private epoch":
        open_epoch(parties.holder("A"), parties.federation().terms)
    else:
        corpus.write_text("".join(f'{{"text": "other text {number}"}}\n' for number in range(600)))
        open_epoch(parties.holder("A"), masked)
        if between == "600 others in a total":
            for name in "BC":
                open_epoch(parties.holder(name), masked, new_epoch=True)
            coordinator = Hostile(parties, list(domains), next(names))
            coordinator.terms = masked
            coordinator.play("statistics")
        corpus.write_text(before)
    add_document(parties, "A", document("a has signed a contract", held_out=False))
    with pytest.raises(InputError, match="changed since"):
        open_epoch(parties.holder("A"), masked)


def test_a03_named_who_leaves_between_two_epochs(tmp_path: Path, names: Iterator[str]) -> None:
    """If all others open new epochs on their own word, two totals tell what changed, and who went."""
    parties = settled(tmp_path, domains_of("ABCD"))
    first = opened(parties, "ABCD", next(names))
    left, before = own_sums(parties, "A"), own_sums(parties, "B")
    add_document(parties, "B", document("b has signed a contract", held_out=False))
    for name in "BCD":
        parties.ready(name)
    second = opened(parties, "BCD", next(names))
    changed = own_sums(parties, "B").gram - before.gram
    np.testing.assert_array_equal(first.gram - second.gram, left.gram - changed)


def test_a05_columns_by_shares(tmp_path: Path, names: Iterator[str]) -> None:
    """Nobody chooses shares: a domain's holders weigh the same, and the same cohort again is the same total."""
    parties = settled(tmp_path, {"V": "law", "W": "law", "U": "law", "X": "code", "Y": "medicine"})
    assert set(Member.model_fields) == {"key", "domain"}
    coordinator = Hostile(parties, list("VWUXY"))
    member = coordinator.cohort().members[0]
    with pytest.raises(ValidationError):
        Member.model_validate({**member.model_dump(), "share": EQUAL_MASS // 2})
    one, two = (opened(parties, "VWUXY", next(names)).as_vector() for _ in range(2))
    np.testing.assert_array_equal(one, two)


def test_a18_unpinning_forgets_nothing(tmp_path: Path, names: Iterator[str]) -> None:
    """Whoever unpins members that have left still knows that its epoch is in a total."""
    parties = settled(tmp_path, domains_of("ABGPQR"))
    opened(parties, "ABPQR", next(names))
    gone = [parties.holder(name).identity.public for name in "PQR"]
    for name in "ABG":
        unpin(parties.homes[name], gone)
    coordinator = Hostile(parties, list("ABG"), next(names))
    coordinator.begin()
    coordinator.seal()
    for name in "AB":
        assert code_of(coordinator.ask(name, coordinator.confirm_request("statistics", "ABG"))) == ONE_TOTAL


def test_old_mass_of_the_coordinators_own(tmp_path: Path) -> None:
    """A holder's sums have the mass that it has agreed to, in every message that could bring another."""
    parties = settled(tmp_path, domains_of("ABC"))
    coordinator = Hostile(parties, list("ABC"))
    other = coordinator.terms.model_copy(update={"mass": 1 << 37})
    assert code_of(coordinator.ask("A", Announce(terms=other))) == "mass_not_allowed"
    coordinator.announce()
    request = coordinator.share_request(coordinator.cohort(terms=other))
    assert code_of(coordinator.ask("A", request)) == "mass_not_allowed"


# The words of a document that was added


SECRETS = (
    "Maria Lindqvist was suspended in March for stealing morphine from the pharmacy.",
    "Offer of settlement: Northwind pays Halvorsen 4.2 million, admits nothing, and the chromium readings stay sealed.",
)


def test_a04_needs_the_owners_word(tmp_path: Path, names: Iterator[str]) -> None:
    """In masked rounds a document that was added is in no second total, unless its owner says so."""
    parties = settled(tmp_path, domains_of("ABC"))
    before = opened(parties, "ABC", next(names))
    for name in "ABC":
        add_document(parties, name, document(f"{name} one document more", held_out=False))
        with pytest.raises(InputError, match="--new-epoch"):
            open_epoch(parties.holder(name), parties.federation().terms)
    after = opened(parties, "ABC", next(names))
    np.testing.assert_array_equal(after.as_vector(), before.as_vector())


def test_a04_named_two_epochs_tell_the_new_document(
    tmp_path: Path, names: Iterator[str], smollm2: TableEncoder
) -> None:
    """Two masked totals of epochs that owners opened on their own word tell the words of the one new document."""
    parties = settled(tmp_path, {"law": "law", "code": "code", "medicine": "medicine"}, encoder=smollm2)
    columns = []
    secret = document(SECRETS[0], held_out=False)
    for more in ((), (secret,)):
        for text in more:
            add_document(parties, "law", text)
            for name in parties.homes:
                parties.ready(name)
        total = opened(parties, list(parties.homes), next(names))
        columns.append(raw_column(total.cross[:, 1]))
    tokens = {int(each) for each in smollm2.tokenizer.encode(secret)}
    first = read_words(smollm2, columns[1] - columns[0])[: len(tokens)]
    assert len(tokens & set(first)) >= 0.8 * len(tokens)


def raw_column(column: NDArray[np.int64], mass: int = EQUAL_MASS) -> NDArray[np.int64]:
    """The sums that a weighted column was made of: of all numbers of samples, the one for which they are whole."""
    heaviest = column[np.argsort(-np.abs(column))[1:40]].astype(np.float64)
    samples = np.arange(1, 200_000)
    exact = heaviest[:, None] * samples / mass
    is_whole = np.abs(exact - np.rint(exact)).max(axis=0) <= samples / (2 * mass) + 1e-9
    for number in samples[is_whole].tolist():
        raw = column.astype(np.float64) * number / mass
        if np.abs(raw - np.rint(raw)).max() <= number / (2 * mass) + 1e-9:
            return np.asarray(np.rint(raw), np.int64)
    raise AssertionError("the number of samples was not found")


def read_words(encoder: TableEncoder, change: NDArray[np.int64], step: int = 300) -> list[int]:
    """The tokens that a sum of windows is made of, heaviest first: least squares without negative weights."""
    plain = encoder.tokenizer.plain_ids
    table = encoder.table[plain].astype(np.float64)
    mean, white = whitened(table)
    rows = np.hstack([(table - mean) @ white, np.full((len(table), 1), 3.0)])
    target = np.append((change[:-1] - change[-1] * mean) @ white, 3.0 * change[-1])
    left, chosen, weights = target, np.zeros(0, np.int64), np.zeros(0)
    for _ in range(3):
        new = np.argpartition(-(rows @ left), step)[:step]
        chosen = np.union1d(chosen[weights > 0], new)
        weights, _ = nnls(rows[chosen].T, target, maxiter=20 * len(chosen))
        left = target - rows[chosen].T @ weights
    return [int(plain[chosen[at]]) for at in np.argsort(-weights) if weights[at] > 0]


def test_a04_in_private_rounds(smollm2: TableEncoder) -> None:
    """Of two epochs' noisy columns (columns, ε = 1) nobody reads more of an added document than without one.

    The reading is linear, as in the attack on exact sums; on the exact difference it names most tokens.
    """
    prior = make_prior(smollm2, PUBLIC_TEXT)
    privacy = Privacy(mode="columns", epsilon=1.0, prior=prior.fingerprint)
    corpus = rows_of(smollm2, prior, own_texts("law", "law", 50))
    plain = smollm2.tokenizer.plain_ids
    tokens = directions(smollm2, prior)
    with_document, without, exactly = [], [], []
    for secret in SECRETS:
        ids = set(map(int, smollm2.tokenizer.encode(secret)))
        is_right = np.isin(plain, list(ids))
        before = bounded_sums("columns", corpus)
        after = bounded_sums("columns", np.vstack([corpus, rows_of(smollm2, prior, [secret])]))
        exactly.append(hits(tokens, (after.column - before.column)[None], is_right).mean() / len(ids))
        draw = seeded_bytes(len(secret))
        old, same, new = (noisy_epochs(sums, privacy, TRIALS, draw) for sums in (before, before, after))
        with_document.append(hits(tokens, new - old, is_right))
        without.append(hits(tokens, same - old, is_right))
    assert min(exactly) > 0.4
    one, other = np.concatenate(with_document), np.concatenate(without)
    error = np.sqrt(one.var() / one.size + other.var() / other.size)
    assert one.size >= 200
    assert one.mean() - other.mean() <= 1.96 * error
    assert one.mean() < 0.05


TRIALS = 100
"""Of each document."""
PUBLIC_TEXT = [
    [text for text in path.read_text(encoding="utf-8").split("\n\n") if len(text) > 80]
    for path in sorted((Path(__file__).parents[3] / "docs").glob("*.md"))[:4]
]


def noisy_epochs(sums: DocumentSums, privacy: Privacy, epochs: int, draw: Randomness) -> Integers:
    """What leaves a holder in so many epochs with the same documents, a row each."""
    exact, scales = laid_out(sums, privacy)
    return with_noise(np.tile(exact, epochs), np.tile(scales, epochs), draw).reshape(epochs, -1)


def rows_of(encoder: TableEncoder, prior: PublicPrior, texts: Sequence[str]) -> Integers:
    ids, lengths = encoder.tokenizer.encode_many(texts)
    return document_vectors(prior, ids, lengths.astype(np.int64), encoder.table)


def directions(encoder: TableEncoder, prior: PublicPrior) -> NDArray[np.float32]:
    """Where each token alone would move a column, by what is public."""
    table = encoder.table[encoder.tokenizer.plain_ids].astype(np.float32)
    rows = (table - prior.tokens.centre.astype(np.float32)) @ prior.tokens.matrix.T.astype(np.float32)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


def hits(tokens: NDArray[np.float32], changes: Integers, is_right: NDArray[np.bool_]) -> NDArray[np.int64]:
    """How many of the tokens of a document are among as many that fit best what changed."""
    scores = changes[:, :-1].astype(np.float32) @ tokens.T
    best = np.argpartition(-scores, int(is_right.sum()), axis=1)[:, : int(is_right.sum())]
    return np.asarray(is_right[best].sum(axis=1))


def test_a04_private_rounds_send_what_the_trials_draw(tmp_path: Path) -> None:
    """Two whole rounds with a document added in between: what differs in what arrives is that document and noise."""
    parties = settled_privately(tmp_path, {"law": "law", "code": "code", "medicine": "medicine"})
    privacy = parties.federation().terms.privacy
    assert privacy is not None
    arrived, exact = [], []
    for more in ((), (document("law has one document more", held_out=False),)):
        for text in more:
            add_document(parties, "law", text)
            parties.ready("law")
        exact.append(exact_column(parties, "law"))
        transport = Direct(parties)
        run_round(parties.federation(), transport, no_watch, EVEN_WORSE)
        arrived.append(noisy_column(transport, "law"))
    noise = (arrived[1] - arrived[0] - (exact[1] - exact[0])) / (np.sqrt(2) * privacy.sigma)
    assert (exact[1] != exact[0]).any()
    assert 0.3 < np.sqrt(np.square(noise).mean()) < 3
    assert parties.holder("law").account.epsilon() == pytest.approx(epsilon_of(2 * privacy.rho, privacy.delta))


EVEN_WORSE = RoundWishes(accept_worse=("law", "code", "medicine"), accept_unevaluated=("law", "code", "medicine"))


def exact_column(parties: Parties, name: str) -> Integers:
    holder = parties.holder(name)
    return holder.epochs.document_sums(holder.epoch(parties.federation().terms)).column


def noisy_column(transport: Direct, name: str) -> Integers:
    """The column that a holder has sent under noise."""
    [found] = [
        np.frombuffer(opened.blobs[0], np.int64)
        for sender, packet in transport.replies
        if isinstance((opened := open_packet(packet)).message, NoisyStatistics) and sender == name
    ]
    return found


def test_a04b_named_two_holders_a_domain(tmp_path: Path, names: Iterator[str]) -> None:
    """A second holder of the domain hides its column, and not what one of them alone has changed."""
    domains = {"one": "law", "other": "law", "code": "code", "medicine": "medicine"}
    parties = settled(tmp_path, domains)
    before = opened(parties, list(domains), next(names))
    old = own_sums(parties, "one", EQUAL_MASS // 2)
    add_document(parties, "one", document("one document more", held_out=False))
    for name in domains:
        parties.ready(name)
    after = opened(parties, list(domains), next(names))
    changed = own_sums(parties, "one", EQUAL_MASS // 2).cross[:, 0] - old.cross[:, 0]
    np.testing.assert_array_equal((after.cross - before.cross)[:, 1], changed)
    assert changed.any()


# Questions, and what refusals tell


def evaluation(coordinator: Hostile, **changes: Any) -> Evaluate:
    asked, _ = coordinator.question()
    return asked.model_copy(update=changes)


def test_a06_a_question_names_each_domain_once(tmp_path: Path, names: Iterator[str]) -> None:
    """One division of text is one into the domains: a domain that is named often would make it as fine as wanted."""
    parties = settled(tmp_path, {"V": "law", "U": "medicine", "A": "code"})
    coordinator = Hostile(parties, list("VUA"), next(names))
    coordinator.begin()
    coordinator.seal()
    often = ("code", *["law"] * 200, "medicine")
    asked = {**dict(evaluation(coordinator)), "domains": often, "temperatures": ()}
    question = Evaluate.model_construct(**asked)
    weights = np.random.default_rng(1).standard_normal((FEATURES, len(often)))
    assert code_of(coordinator.ask("V", question, (weights_blob(weights),))) == "malformed"


def test_a06_named_one_crafted_question_an_epoch(tmp_path: Path, names: Iterator[str]) -> None:
    """In masked rounds the coordinator chooses the weights that are counted under, once an epoch."""
    parties = settled(tmp_path, {"V": "law", "U": "medicine", "A": "code"})
    coordinator = Hostile(parties, list("VUA"), next(names))
    coordinator.begin()
    coordinator.seal()
    coordinator.finish("statistics")
    weights = np.random.default_rng(1).standard_normal((FEATURES, 3))
    coordinator.weights = weights_blob(weights)
    coordinator.count()
    rows = unpaired(coordinator.finish("counts"))[:18].reshape(3, 6)
    holder = parties.holder("V")
    held = holder.epochs.held_out(holder.epoch(coordinator.terms))
    table = router_table(parties.encoder, weights)
    routed = Scorer(table, Selector("average", 10), held, 1).routed()
    np.testing.assert_array_equal(rows[1, :3], routed)


def test_old_held_out_document_between_two_evaluations(tmp_path: Path, names: Iterator[str]) -> None:
    """A held-out document that was added is not counted before its owner opens an epoch, and then under masks."""
    parties = settled(tmp_path, {"V": "law", "U": "medicine", "A": "code"})
    honest = Hostile(parties, list("VUA"), next(names))
    before = honest.play("statistics", "counts")["counts"]
    add_document(parties, "V", document("v was held out", held_out=True))
    again = Hostile(parties, list("VUA"), next(names), weights=honest.weights)
    again.begin()
    again.hold()
    again.count()
    np.testing.assert_array_equal(again.finish("counts"), before)


def test_old_held_out_document_after_counts_alone(tmp_path: Path, names: Iterator[str]) -> None:
    """An epoch whose counts were opened is followed by another as one whose sums were: not for one document."""
    parties = settled(tmp_path, {"V": "law", "U": "medicine", "A": "code"})
    coordinator = Hostile(parties, list("VUA"), next(names))
    coordinator.weights = weights_blob(np.random.default_rng(1).standard_normal((FEATURES, 3)))
    coordinator.begin()
    coordinator.hold()
    coordinator.count()
    coordinator.finish("counts")
    add_document(parties, "V", document("v was held out", held_out=True))
    with pytest.raises(InputError, match="1 documents changed"):
        open_epoch(parties.holder("V"), coordinator.terms)


# Budgets, names, and things that end rounds


def test_a08_epsilon_of_the_invitation(tmp_path: Path) -> None:
    """A holder that took an invitation up allows no ε of 8, whatever message brings it; nothing is spent."""
    parties = settled_privately(tmp_path, {"V": "law", "U": "medicine", "A": "code"})
    terms = parties.federation().terms
    agreed = agreed_policy(terms, parties.federation().identity.public)
    assert agreed.max_round_epsilon <= 1
    parties.rewrite("V", "max_round_epsilon = 1.0", f"max_round_epsilon = {agreed.max_round_epsilon}")
    coordinator = Hostile(parties, list("VUA"))
    assert terms.privacy is not None
    greedy = terms.model_copy(update={"privacy": terms.privacy.model_copy(update={"epsilon": 8.0})})
    cohort = coordinator.cohort(terms=greedy)
    question = Evaluate(terms=greedy, domains=cohort.domains, holders=cohort.domains, selector="average", k=10)
    blob = vector_blob(np.zeros(3 * FEATURES, np.int64))
    requests: list[tuple[Message, tuple[Blob, ...]]] = [
        (Announce(terms=greedy), ()),
        (Collect(cohort=cohort), ()),
        (question, (blob,)),
    ]
    for request, blobs in requests:
        assert code_of(coordinator.ask("V", request, blobs)) == "privacy_not_allowed"
    assert parties.holder("V").account.epsilon() == 0


@pytest.mark.parametrize("mode", ["full", "masked"])
def test_a10_sessions_that_break_off_cost_nothing(tmp_path: Path, names: Iterator[str], mode: str) -> None:
    """Sessions that end after sealing are paid by nobody, and the next one goes on to its total."""
    domains = domains_of("VABF")
    parties = settled(tmp_path, domains) if mode == "masked" else settled_privately(tmp_path, domains, "full")
    for _ in range(3):
        coordinator = Hostile(parties, list("VABF"), next(names))
        coordinator.begin()
        coordinator.seal("VAB")
        nothing_revealed(coordinator)
    for name in domains:
        assert parties.holder(name).account.expenses() == []
    last = Hostile(parties, list("VABF"), next(names))
    last.begin()
    last.seal()
    signatures = last.confirm("statistics", last.shared)
    last.open("statistics", last.shared, last.shared, signatures)
    assert len(last.gave(Revealed)) == 4
    assert len(parties.holder("V").account.expenses()) == 1


def test_a12_time_bomb(tmp_path: Path, names: Iterator[str]) -> None:
    """After 600 epochs, each in a total, the next one is opened as the first was."""
    parties = settled(tmp_path, domains_of("ABC"))
    for name in "ABC":
        holder = parties.holder(name)
        members = sorted(parties.holder(each).identity.public for each in "ABC")
        past: list[tuple[str, dict[str, Any]]] = []
        for number in range(600):
            facts: dict[str, Any] = {"lot": "statistics", "epoch": f"{number:064x}", "total": f"{number + 1000:064x}"}
            facts |= {"members": members, "session": f"{number:064x}"}
            past += [("signed", facts), ("opened", {"round": f"{number + 1000:032x}", **facts})]
        holder.journal.append(*past)
    total = opened(parties, "ABC", next(names))
    assert total.mass == 3 * EQUAL_MASS


REQUEST_FIELDS = {
    "hello": {"cohort", "handovers", "heard"},
    "announce": {"terms", "handovers", "heard"},
    "collect": {"cohort"},
    "share": {"cohort", "agreement"},
    "hold": {"session", "shared"},
    "seal": {"session", "shared"},
    "confirm_sum": {"session", "lot", "sent"},
    "lock_sum": {"session", "lot", "sent"},
    "open_sum": {"session", "lot", "sent", "confirmations", "locks"},
}
"""What a holder is told before it signs a sum; hand-overs, signatures and adverts are signed by whom they are of. How
much of a holder was heard is the coordinator's own word, can only make that holder refuse, and is not written down."""


def test_a15_no_member_is_told_what_another_says(tmp_path: Path, names: Iterator[str]) -> None:
    """No message carries a member's account of earlier sums, and what a member writes down concerns it alone."""
    for kind, fields in REQUEST_FIELDS.items():
        assert set(KINDS[kind].model_fields) == fields
    assert not any(Share.blob_count)
    assert not any(Announce.blob_count)
    assert set(Agreement.model_fields) == {"terms", "cohort", "round", "lots", "threshold", "adverts"}
    parties = settled(tmp_path, domains_of("ABCDF"))
    liar = parties.holder("F")
    lie: dict[str, Any] = {"lot": "statistics", "epoch": "0" * 64, "total": "0" * 64, "members": []}
    lie |= {"session": "0" * 64, "round": "0" * 32}
    liar.journal.append(("learned", lie), ("signed", lie), ("opened", lie))
    for name in "ABCD":
        unpin(parties.homes[name], [liar.identity.public])
    assert opened(parties, "ABCD", next(names)).mass == 4 * EQUAL_MASS
