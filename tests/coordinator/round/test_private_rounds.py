"""Private rounds from end to end: noise that adds up under masks, a budget that is kept, questions that are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from ridgeway.client.round import held_out
from ridgeway.client.round.holder import Holder
from ridgeway.client.round.private_sums import FOLDER, NOISY, PRIOR, SUMS, Expense, NoisyVectors, expenses, spent
from ridgeway.client.sums.corpus import is_held_out
from ridgeway.common.base.errors import BoundExceeded, InputError, Refused, RoundFailed
from ridgeway.common.base.settings import EQUAL_MASS, CosineFeatures, WordFeatures
from ridgeway.common.encoding.table_encoder import with_cosines, with_words
from ridgeway.common.privacy.document_bound import DocumentSums, Integers, PrivacyMode, bounded_sums, max_documents
from ridgeway.common.privacy.privacy_settings import Privacy
from ridgeway.common.privacy.public_prior import make_prior, prior_bytes, write_prior
from ridgeway.common.protocol.cohort import SamplingTerms, Terms
from ridgeway.common.protocol.messages import Announce, Evaluate, Refusal
from ridgeway.common.protocol.packet import Blob, open_packet, weights_blob
from ridgeway.common.routing.drift_sketch import companion
from ridgeway.common.statistics.sums import Statistics
from ridgeway.coordinator.round.federation import Federation, PrivacySettings
from ridgeway.coordinator.round.membership import remove, retire
from ridgeway.coordinator.round.preflight import check_holders
from ridgeway.coordinator.round.round import run_round
from ridgeway.coordinator.solving.private_solve import PRIVATE_CANDIDATE, PUBLIC_TEMPERATURE, noise_variance
from ridgeway.coordinator.solving.total import add_weighted
from tests.support.commands import Workshop
from tests.support.faults import make_haste
from tests.support.hostile import FEATURES, MEMBERS, Hostile, code_of
from tests.support.simulated_federation import Direct, Parties, found, no_watch, own_texts, populate

PUBLIC = [own_texts("public", domain, 30) for domain in ("code", "law", "medicine")]


def settled(folder: Path, mode: PrivacyMode, way: str = "masked", epsilon: float = 1.0) -> Parties:
    """Five holders that have agreed to this privacy, and to what one round costs."""
    parties = found(folder, mode=way, privacy=PrivacySettings(mode=mode, epsilon=epsilon))
    write_prior(make_prior(parties.encoder, PUBLIC), parties.federation().folder / PRIOR)
    populate(parties, MEMBERS)
    for name in MEMBERS:
        parties.rewrite(name, 'privacy = "none"', f'privacy = "{mode}"')
        parties.rewrite(name, "max_epsilon = 8.0", f"max_epsilon = {epsilon}")
    return parties


@pytest.fixture(scope="module", params=["columns", "full"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Parties:
    """A federation of either mode after one masked round."""
    with pytest.MonkeyPatch.context() as patch:
        make_haste(patch)
        parties = settled(tmp_path_factory.mktemp(request.param), request.param)
        run_round(parties.federation(), Direct(parties), no_watch)
        return parties


@pytest.fixture
def parties(made: Parties, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parties:
    make_haste(monkeypatch)
    return made.copy(tmp_path / "parties")


def noised(parties: Parties, name: str, lot: str) -> list[Integers]:
    """What a holder has noised for a lot, in the order of time."""
    holder = parties.holder(name)
    return [
        load_file(holder.folder / FOLDER / f"{each.vector}{NOISY}")["vector"]
        for each in expenses(holder.journal)
        if each.lot == lot
    ]


def exact(parties: Parties, name: str) -> DocumentSums:
    sums = parties.holder(name).sums(parties.federation().terms)
    assert isinstance(sums, DocumentSums)
    return sums


def mode_of(parties: Parties) -> PrivacyMode:
    privacy = parties.federation().privacy
    assert privacy is not None
    return privacy.mode


# What is opened


def test_a_masked_total_is_the_plain_sum_of_what_members_have_noised(parties: Parties) -> None:
    """Byte for byte: masks change nothing, and no other noise and no other number comes in."""
    ledger = parties.federation().ledger
    stored = ledger.standing().totals[-1]
    total = ledger.total(stored)
    columns = np.zeros_like(total.cross)
    products = np.zeros(FEATURES * (FEATURES - 1) // 2, dtype=np.int64)
    for name, domain in MEMBERS.items():
        [vector] = noised(parties, name, "statistics")
        columns[:, stored.domains.index(domain)] += vector[:FEATURES]
        products += vector[FEATURES:] if mode_of(parties) == "full" else 0
    assert np.array_equal(total.cross, columns)
    assert np.array_equal(total.gram[:-1, :-1][np.triu_indices(FEATURES - 1)], products)


def test_the_noise_of_a_total_is_what_the_terms_say(parties: Parties) -> None:
    """Neither none nor much more: the squares of what lies on the total, beside their variance."""
    federation = parties.federation()
    stored, privacy = federation.ledger.standing().totals[-1], federation.privacy
    assert privacy is not None
    total = federation.ledger.total(stored)
    plain = np.zeros_like(total.cross)
    for name, domain in MEMBERS.items():
        plain[:, stored.domains.index(domain)] += exact(parties, name).column
    domains = list(MEMBERS.values())
    squares = np.square((total.cross - plain).astype(float)) / noise_variance(privacy, domains)
    squares *= max(map(domains.count, domains)) / np.array([domains.count(name) for name in stored.domains])
    assert 0.1 < squares.mean() < 4  # 21 numbers: beyond it lies less than one run in a million


def test_a_round_costs_each_document_what_the_terms_say(parties: Parties) -> None:
    """One vector of sums and one of counts, of other documents; the journal has both before they leave."""
    for name in MEMBERS:
        holder = parties.holder(name)
        entries = holder.journal.entries("spent", "sent")
        noted = [(entry.kind, entry.facts["lot"]) for entry in entries if "lot" in entry.facts]
        assert noted == [(kind, lot) for lot in ("statistics", "scores") for kind in ("spent", "sent")]
        assert 0.99 < holder.noisy.epsilon_spent() <= 1.0


def test_a_release_says_what_it_promises(parties: Parties) -> None:
    """In its signed manifest, with one plain sentence; and there is no sketch of the total beside it."""
    federation = parties.federation()
    manifest, said = federation.manifest(1), federation.manifest(1)["privacy"]
    assert (said["mode"], said["epsilon"], said["delta"]) == (mode_of(parties), 1.0, 1e-8)
    assert said["adjacency"] == "add or remove one document"
    assert "(ε = 1, δ = 1e-08)" in said["sentence"] and said["covered"] and said["not_covered"]
    told = manifest["evaluation"]  # of so few documents noise may leave none
    assert told is None or told["candidates"] == 1
    assert not manifest["confidence"]["calibrated"]
    assert manifest["confidence"]["temperature"] == PUBLIC_TEMPERATURE and "public text" in said["calibration"]
    assert not companion(federation.release_folder(1)).exists()


def test_domains_go_as_ever(parties: Parties) -> None:
    """A domain is retired from a private release, which goes on to say what it promises."""
    change = retire(parties.federation(), "law")
    assert change.published is not None
    assert parties.federation().manifest(change.published.number)["privacy"]["epsilon"] == 1.0


# Sending again


def test_a_round_in_which_nothing_has_changed_costs_nothing(parties: Parties) -> None:
    """With the whole budget spent: the kept total is used again, the release stands, and nothing stands in the way."""
    assert run_round(parties.federation(), Direct(parties), no_watch).number == 1
    checked = check_holders(parties.federation(), Direct(parties), no_watch)
    assert [each.obstacles for each in checked] == [[]] * len(MEMBERS)
    assert {len(expenses(parties.holder(name).journal)) for name in MEMBERS} == {2}


def test_an_unchanged_corpus_sends_the_same_vector_again_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator lost the total: with a whole budget spent, holders still send what they have sent before."""
    make_haste(monkeypatch)
    parties = settled(tmp_path, "columns")
    run_round(parties.federation(), Direct(parties), no_watch)
    before = parties.federation().ledger.total(parties.federation().ledger.standing().totals[-1])
    for path in (parties.federation().folder / "contributions").iterdir():
        path.unlink()
    run_round(parties.federation(), Direct(parties), no_watch, even_unchanged=True)
    after = parties.federation().ledger.total(parties.federation().ledger.standing().totals[-1])
    assert after.equals(before)
    assert [len(noised(parties, name, "statistics")) for name in MEMBERS] == [1] * len(MEMBERS)


def test_shares_of_noise_are_never_sent_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two totals with the same shares in them would show, by their difference, a change under few shares alone."""
    make_haste(monkeypatch)
    parties = settled(tmp_path, "full", epsilon=4.0)
    for name in MEMBERS:
        parties.rewrite(name, "max_epsilon = 4.0", "max_epsilon = 8.0")
    run_round(parties.federation(), Direct(parties), no_watch)
    for name in ("code-1", "law-1"):
        parties.change_corpus(name)
    run_round(parties.federation(), Direct(parties), no_watch, accept_worse=["code", "law"])
    for name in MEMBERS:
        first, second = noised(parties, name, "statistics")
        assert not np.array_equal(first, second)


def test_what_is_noised_but_not_kept_is_paid_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vector that was lost, or damaged, is drawn anew: that is another vector, and costs as one."""
    make_haste(monkeypatch)
    parties = settled(tmp_path, "columns", epsilon=0.5)
    terms, holder = announced(parties), parties.holder("law-1")
    assert terms.privacy is not None
    sums = holder.sums(terms)
    assert isinstance(sums, DocumentSums)
    given = sums, holder.source(sums), terms.privacy, 0.25
    first = holder.noisy.sums(*given)
    assert holder.noisy.sums(*given).equals(first) and len(expenses(holder.journal)) == 1
    [path] = (holder.folder / FOLDER).glob(f"*{NOISY}")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(Refused, match=r"spent an ε of 0.5 and allows 0.5"):
        holder.noisy.sums(*given)


def announced(parties: Parties) -> Any:
    """The terms of a round, once holders have the prior that comes with them."""
    federation = parties.federation()
    for name in MEMBERS:
        assert federation.privacy is not None
        parties.holder(name).noisy.take_prior(
            prior_bytes(federation.prior), federation.privacy, parties.encoder.fingerprint
        )
    return federation.terms


# The budget


def test_a_holder_sees_what_was_spent_and_what_is_left(parties: Parties, tmp_path: Path) -> None:
    """In words, and for programs with every vector that was paid for; the operator sees what a release promises."""
    shop, home = Workshop(tmp_path), parties.homes["law-1"]
    assert "ε 1 of 1" in shop.call("client", "status", home).stderr
    told = shop.call("client", "status", home, "--json").json["privacy"]
    assert (told["allowed"], told["delta"]) == (1.0, 1e-8) and 0.99 < told["spent"] <= 1.0
    assert [each["lot"] for each in told["vectors"]] == ["statistics", "scores"]
    shown = shop.call("coordinator", "show", parties.federation().folder).stderr
    assert "ε 1" in shown and "add or remove one document" in shown and "Whoever sees all that left" in shown


def test_beyond_its_cap_a_holder_refuses_before_anything_is_read(parties: Parties) -> None:
    """A changed corpus is another vector: the request is refused, the text is not even opened, and nothing leaves."""
    for name in ("law-1", "code-1"):
        parties.change_corpus(name)
        kept = parties.homes[name] / FOLDER / SUMS
        before = kept.stat().st_mtime_ns
        asked = Hostile(parties, list(MEMBERS), round="ef" * 16)
        message = asked.ask(name, Announce(terms=asked.terms), [prior_bytes(parties.federation().prior)]).message
        assert isinstance(message, Refusal) and message.code == "budget_spent"
        assert "spent an ε of 1 and allows 1 in all" in message.reason
        assert kept.stat().st_mtime_ns == before
        assert len(expenses(parties.holder(name).journal)) == 2


def test_a_cap_that_is_raised_is_spent_from_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ρ adds up over rounds; ε, at this δ, grows by less."""
    make_haste(monkeypatch)
    parties = settled(tmp_path, "columns")
    run_round(parties.federation(), Direct(parties), no_watch)
    for name in ("law-1", "code-1"):
        parties.rewrite(name, "max_epsilon = 1.0", "max_epsilon = 1.5")
        parties.change_corpus(name)
    run_round(parties.federation(), Direct(parties), no_watch)
    assert 1.3 < parties.holder("law-1").noisy.epsilon_spent() < 1.5
    assert parties.holder("law-2").noisy.epsilon_spent() <= 1.0 + 0.5  # its counts are of another router


def test_documents_pay_for_sums_or_for_counts(parties: Parties) -> None:
    """One is either summed or held out; if the share that is held out was changed, it may have paid for both."""
    paid = expenses(parties.holder("medicine").journal)
    [rho] = {each.rho for each in paid}
    assert spent(paid) == rho
    changed = Expense("", "scores", rho, 0.5, "", "")
    assert spent([*paid, changed]) == 3 * rho
    assert spent([]) == 0


def test_the_journal_of_another_folder_is_refused(parties: Parties) -> None:
    """Neither a colleague's journal, without what this holder has sent, nor an empty one gives a budget back."""
    asked, home = Hostile(parties, list(MEMBERS), round="ef" * 16), parties.homes["law-1"]
    blobs = [prior_bytes(parties.federation().prior)]
    parties.change_corpus("law-1")
    shutil.copytree(home / FOLDER, home / "kept")
    for other in (parties.homes["law-2"], None):
        for path in [*home.glob("journal.db*"), *(home / FOLDER).glob(f"*{NOISY}")]:
            path.unlink()
        if other:
            for path in other.glob("journal.db*"):
                shutil.copy(path, home)
        else:
            shutil.copytree(home / "kept", home / FOLDER, dirs_exist_ok=True)
        assert code_of(asked.ask("law-1", Announce(terms=asked.terms), blobs)) == "foreign_journal"


# What may be asked


def clear_ask(parties: Parties, message: Any, blobs: Sequence[Blob] = ()) -> Any:
    return Hostile(parties, list(MEMBERS), round="ef" * 16).ask("law-1", message, blobs).message


def test_a_prior_that_is_not_the_one_of_the_terms_is_refused(parties: Parties) -> None:
    """Another one, a damaged one, none, or one with terms that name none."""
    terms = parties.federation().terms
    other = prior_bytes(make_prior(parties.encoder, [PUBLIC[0]]))
    assert clear_ask(parties, Announce(terms=terms), [other]).code == "prior_mismatch"
    assert clear_ask(parties, Announce(terms=terms), [b"nonsense"]).code == "prior_mismatch"
    assert clear_ask(parties, Announce(terms=terms)).code == "malformed"


@pytest.mark.parametrize("features", [WordFeatures(4), CosineFeatures(4)])
def test_features_beyond_those_of_tokens_are_refused_on_both_sides(
    parties: Parties, monkeypatch: pytest.MonkeyPatch, features: WordFeatures | CosineFeatures
) -> None:
    """Words and cosines alike: rows of documents have neither, so they would be summed without."""
    terms, plain = parties.federation().terms, parties.encoder
    more = with_words(plain, features) if isinstance(features, WordFeatures) else with_cosines(plain, features)
    monkeypatch.setattr(Holder, "encoder", lambda *_: more)
    with pytest.raises(Refused, match="a table of tokens alone"):
        parties.holder("law-1").sums(terms)
    federation = parties.federation()
    monkeypatch.setattr(Federation, "encoder", more)
    with pytest.raises(InputError, match=r"features of tokens alone.*coordinator init --encoder"):
        _ = federation.prior


def test_a_holder_that_wants_privacy_takes_no_other_terms(parties: Parties) -> None:
    """Not exact sums, not the other mode, not a larger δ."""
    terms = parties.federation().terms
    assert terms.privacy is not None
    exact = terms.model_copy(update={"privacy": None, "weighting": "equal", "mass": EQUAL_MASS})
    assert clear_ask(parties, Announce(terms=exact)).code == "privacy_not_allowed"
    other: PrivacyMode = "full" if terms.privacy.mode == "columns" else "columns"
    for change in ({"mode": other}, {"delta": 1e-6}):
        asked = terms.model_copy(update={"privacy": terms.privacy.model_copy(update=change)})
        assert clear_ask(parties, Announce(terms=asked)).code == "privacy_not_allowed"


def test_under_noise_one_router_is_counted_for_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each further candidate, temperature, comparison or expert would be a number that nobody has paid for."""
    make_haste(monkeypatch)
    parties = settled(tmp_path, "columns", "clear")
    terms = announced(parties)
    plain = Evaluate(terms=terms, domains=("code", "law"), candidates=(PRIVATE_CANDIDATE,))
    blobs = [weights_blob(np.eye(FEATURES, 2))]
    more = PRIVATE_CANDIDATE.model_copy(update={"normalise_columns": True})
    changes: list[dict[str, Any]] = [{"candidates": (PRIVATE_CANDIDATE, more)}, {"temperatures": (1.0,)}]
    for change in [*changes, {"experts": ("gpt",)}, {"last": "0" * 64}]:
        assert clear_ask(parties, plain.model_copy(update=change), blobs).code == "foreign_candidates"
    first, again = (clear_ask(parties, plain, blobs) for _ in range(2))
    assert first.counts == again.counts and first.counts[0][2:] == (0, 0)
    assert len(expenses(parties.holder("law-1").journal)) == 1
    assert clear_ask(parties, plain, [weights_blob(np.eye(FEATURES, 2) * 2)]).code == "budget_spent"


def test_in_the_clear_each_holder_adds_all_the_noise_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator sees single vectors then, in either mode; and a holder's can be taken out of the sum again."""
    make_haste(monkeypatch)
    parties = settled(tmp_path, "full", "clear")
    run_round(parties.federation(), Direct(parties), no_watch)
    federation = parties.federation()
    privacy, ledger = federation.privacy, federation.ledger
    assert privacy is not None
    for name in MEMBERS:
        sent, own = ledger.sums(ledger.standing().contributions[name]), exact(parties, name)
        off = (sent.gram[:-1, :-1] - own.products)[np.triu_indices(FEATURES - 1, 1)] / privacy.product_sigma
        column = (sent.cross[:, 0] - own.column) / privacy.sigma
        assert 0.05 < np.square(np.concatenate([off, column])).mean() < 6
    change = remove(federation, "law-2")
    assert change.published is not None
    assert federation.manifest(change.published.number)["privacy"]["mode"] == "full"


def test_large_corpora_add_up_in_the_clear() -> None:
    """A document weighs more than a sample in its count, and a million of them still have room."""
    privacy = Privacy(mode="full", epsilon=1.0, prior="0" * 64)
    sampling = SamplingTerms(window=8, max_tokens=0)
    given: dict[str, Any] = {
        "encoder": "0" * 64,
        "encoder_name": "tiny",
        "features": 3,
        "weighting": "tokens",
        "mass": 0,
    }
    terms = Terms(mode="clear", sampling=sampling, privacy=privacy, **given)
    row = np.zeros((1, 2), dtype=np.int64)
    one = bounded_sums("full", row)
    sums = Statistics(np.zeros((3, 3), np.int64), np.zeros((3, 1), np.int64))
    sums.gram[-1, -1] = sums.cross[-1, 0] = 1_000_000 * one.column[-1]
    total = add_weighted([("code", sums, 0.0), ("law", sums, 0.0)], terms)
    assert total.masses == {"code": 1_000_000, "law": 1_000_000}


def test_fewer_members_than_carry_the_noise_open_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two of five gone after they have shared, a third and more of the noise would be missing."""
    make_haste(monkeypatch)
    parties = settled(tmp_path, "full")
    transport = Direct(parties)
    original = transport.answers

    def falling(name: str, peer: int, packet: Any) -> Any:
        if open_packet(packet).message.kind == "seal" and name in ("law-1", "code-1"):
            return iter(())
        return original(name, peer, packet)

    monkeypatch.setattr(transport, "answers", falling)
    with pytest.raises(RoundFailed, match=r"3 of 5 members .* and 4 are needed"):
        run_round(parties.federation(), transport, no_watch)
    assert parties.federation().ledger.journal.entries("opened_sum") == []


def test_more_documents_than_have_room_are_refused(parties: Parties) -> None:
    holder, privacy = parties.holder("law-1"), parties.federation().privacy
    assert privacy is not None
    sums = exact(parties, "law-1")
    times = max_documents(sums.mode) // sums.documents + 1
    many = DocumentSums(sums.mode, sums.products, sums.column * times)
    with pytest.raises(BoundExceeded, match="documents are too many"):
        holder.noisy.sums(many, "source", privacy, 0.25)


def test_a_long_text_is_one_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut into pieces for the tokenizer or not: it counts once, in sums as among those held out."""
    make_haste(monkeypatch)
    parties = settled(tmp_path, "columns")
    long = "the law says " * 20_000
    texts = [long, *own_texts("law-1", "law", 8)]
    [corpus] = parties.holder("law-1").settings.corpus
    Path(corpus).write_text("".join(f'{{"text": "{text}"}}\n'.replace("\n", " ")[:-1] + "\n" for text in texts))
    parties.rewrite("law-1", "holdout = 0.25", "holdout = 0.0")
    announced(parties)
    assert exact(parties, "law-1").documents == 9
    files = tmp_path / "texts"
    files.mkdir()
    (files / "long.txt").write_text(long + "\n" + long)
    parties.rewrite("law-1", f'"{corpus}"', f'"{files}"')
    assert exact(parties, "law-1").documents == 1


def test_no_document_pushes_another_out_of_those_that_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample of a fixed size would let one document more move two numbers, so all that are held out count."""
    make_haste(monkeypatch)
    monkeypatch.setattr(held_out, "MAX_HELD_OUT_DOCUMENTS", 1)
    parties = settled(tmp_path, "columns")
    parties.rewrite("law-1", "holdout = 0.25", "holdout = 0.75")
    [corpus] = parties.holder("law-1").settings.corpus
    texts = [json.loads(line)["text"] for line in Path(corpus).read_text().splitlines()]
    counted = parties.holder("law-1").held_out(parties.federation().terms).lengths
    assert len(counted) == sum(is_held_out(text, 0.75) for text in texts) > 1


def test_a_folder_without_the_prior_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_haste(monkeypatch)
    parties = settled(tmp_path, "columns")
    with pytest.raises(Refused, match="has not got the prior"):
        parties.holder("law-1").sums(parties.federation().terms)


def test_a_column_has_all_of_the_noise_however_many_members_there_are() -> None:
    """Members share the noise on products, to which all add; a domain's column may be one holder's alone."""
    privacy = Privacy(mode="full", epsilon=1.0, prior="0" * 64)
    drawn: list[tuple[int, int]] = []

    class Recorded(NoisyVectors):
        def __init__(self) -> None: ...

        def _noisy(self, name: str, lot: Any, privacy: Any, holdout: float, exact: Any, scales: Any) -> Any:
            drawn.append((int(scales[:4].min()), int(scales[4:].max())))
            return exact

    for members in (1, 3, 30, 300):
        Recorded().sums(bounded_sums("full", np.zeros((2, 3), np.int64)), "source", privacy, 0.05, members, "session")
    assert {column for column, _ in drawn} == {privacy.sigma}
    assert [products for _, products in drawn] == [privacy.shared(members)[0] for members in (1, 3, 30, 300)]
