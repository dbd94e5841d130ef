"""Private rounds from end to end, both ways: noise that adds up, a budget that is kept, one router
to count for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ridgeway.client import ready
from ridgeway.client.ready import open_epoch
from ridgeway.client.round.holder import Holder
from ridgeway.client.round.spending import Expense
from ridgeway.client.sums.corpus import is_held_out
from ridgeway.common.base.errors import InputError
from ridgeway.common.base.settings import WordFeatures
from ridgeway.common.privacy.noise import DocumentSums, PrivacyMode
from ridgeway.common.privacy.noisy_solve import noise_variance
from ridgeway.common.protocol.messages import Message
from ridgeway.common.protocol.packet import Blob, Packet, open_packet
from ridgeway.common.statistics import Statistics
from ridgeway.coordinator.round.federation import Federation, PrivacySettings
from ridgeway.coordinator.round.ledger import LedgerRelease
from ridgeway.coordinator.round.membership import remove, retire
from ridgeway.coordinator.round.progress import (
    Event,
    RouterEvaluated,
    RouterWorse,
    Watch,
)
from ridgeway.coordinator.solving.calibration import NoisyAccuracy
from ridgeway.coordinator.solving.solve import compose
from tests.support.commands import Workshop
from tests.support.faults import epoch_of, make_haste
from tests.support.hostile import MEMBERS, Hostile
from tests.support.simulated_federation import (
    DOMAINS,
    Direct,
    Parties,
    dry_run,
    found_private,
    names_of,
    no_watch,
    of_kind,
    older_copy,
    own_texts,
    populate,
    round_fails,
    round_of,
)

pytestmark = pytest.mark.usefixtures("private_sentences")

TWO_ROUNDS = 1.5
"""An ε that two rounds of 1 together stay below, and three do not."""


def settled(
    folder: Path, mode: PrivacyMode, max_epsilon: float = TWO_ROUNDS
) -> Parties:
    """Five holders that have agreed to this privacy, and to what two rounds cost."""
    parties = found_private(folder, privacy=PrivacySettings(sums=mode, epsilon=1.0))
    populate(parties, MEMBERS)
    for name in MEMBERS:
        parties.rewrite(name, "max_epsilon = 4.0", f"max_epsilon = {max_epsilon}")
    return parties


@pytest.fixture(scope="module", params=["columns", "full"])
def fresh(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Parties:
    """A federation of either way before its first round."""
    with pytest.MonkeyPatch.context() as patch:
        make_haste(patch)
        return settled(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def made(fresh: Parties, tmp_path_factory: pytest.TempPathFactory) -> Parties:
    """The same after one round."""
    with pytest.MonkeyPatch.context() as patch:
        make_haste(patch)
        parties = fresh.copy(tmp_path_factory.mktemp("made") / "parties")
        round_of(parties)
        return parties


@pytest.fixture
def new(fresh: Parties, tmp_path: Path, haste: None) -> Parties:
    return fresh.copy(tmp_path / "parties")


@pytest.fixture
def parties(made: Parties, tmp_path: Path, haste: None) -> Parties:
    return made.copy(tmp_path / "parties")


def exact(parties: Parties, name: str) -> DocumentSums:
    holder = parties.holder(name)
    return holder.epochs.document_sums(holder.epoch(parties.federation.terms))


def mode_of(parties: Parties) -> PrivacyMode:
    return parties.federation.privacy.mode


def expenses(parties: Parties, name: str) -> list[Expense]:
    return parties.holder(name).account.expenses()


def paid(parties: Parties) -> set[int]:
    """How many outputs each holder has paid for."""
    return {len(expenses(parties, name)) for name in MEMBERS}


def total_of(parties: Parties) -> Statistics:
    """The noisy total that the newest release is made of."""
    federation = parties.federation
    ledger = federation.ledger
    if federation.terms.uses_masks:
        return ledger.total(ledger.standing().totals[-1])
    total = np.zeros((federation.terms.features, len(DOMAINS)), dtype=np.int64)
    for name, domain in MEMBERS.items():
        total[:, DOMAINS.index(domain)] += ledger.sums(
            ledger.standing().contributions[name]
        ).cross[:, 0]
    return federation.terms.statistics_of(total.ravel(), len(DOMAINS))


# What is opened


def test_a_total_is_the_plain_sum_of_what_members_have_noised(parties: Parties) -> None:
    """Byte for byte: masks change nothing, and no other noise and no other number comes in."""
    total = total_of(parties)
    features = parties.terms.features
    columns = np.zeros_like(total.cross)
    products = np.zeros(features * (features - 1) // 2, dtype=np.int64)
    for name, domain in MEMBERS.items():
        holder = parties.holder(name)
        kept = holder.epochs.noisy(holder.epoch(parties.federation.terms), "statistics")
        assert kept is not None
        columns[:, DOMAINS.index(domain)] += kept[0][:features]
        products += kept[0][features:] if mode_of(parties) == "full" else 0
    assert np.array_equal(total.cross, columns)
    if mode_of(parties) == "full":
        assert np.array_equal(
            total.gram[:-1, :-1][np.triu_indices(features - 1)], products
        )


def test_the_noise_of_a_total_is_what_the_terms_say(parties: Parties) -> None:
    """Neither none nor much more: the squares of what lies on the total, beside their variance."""
    privacy, total = parties.federation.privacy, total_of(parties)
    plain = np.zeros_like(total.cross)
    for name, domain in MEMBERS.items():
        plain[:, DOMAINS.index(domain)] += exact(parties, name).column
    domains = list(MEMBERS.values())
    squares = np.square((total.cross - plain).astype(float)) / noise_variance(
        privacy, domains
    )
    squares *= max(map(domains.count, domains)) / np.array(
        [domains.count(name) for name in DOMAINS]
    )
    assert (
        0.1 < squares.mean() < 4
    )  # 21 numbers: beyond it lies less than one run in a million


def test_a_round_costs_each_document_what_the_terms_say(parties: Parties) -> None:
    """One vector of sums and one of counts, of other documents; each is paid for before it
    leaves.
    """
    leaves = "noisy_statistics" if mode_of(parties) == "columns" else "confirmed"
    for name in MEMBERS:
        holder = parties.holder(name)
        noted = [
            entry.facts["output"] if entry.kind == "spent" else entry.facts["kind"]
            for entry in holder.journal.entries("spent", "sent")
            if entry.kind == "spent" or entry.facts["kind"] in (leaves, "counted")
        ]
        assert noted == [
            word
            for word in ("statistics", leaves, "counts", "counted")
            if word in noted
        ]
        outputs = [expense.output for expense in expenses(parties, name)]
        assert outputs == ["statistics", "counts"]
        assert 0.99 < holder.account.epsilon() <= 1.0


def test_a_release_says_what_it_promises(parties: Parties) -> None:
    """In its signed manifest, with one plain sentence."""
    federation = parties.federation
    manifest, said = federation.manifest(1), federation.manifest(1)["privacy"]
    assert (said["mode"], said["epsilon"], said["delta"]) == (
        mode_of(parties),
        1.0,
        1e-8,
    )
    assert said["adjacency"] == "add or remove one document"
    assert (
        "(ε = 1, δ = 1e-08)" in said["sentence"]
        and said["covered"]
        and said["not_covered"]
    )
    assert said["counted"] == list(DOMAINS)
    assert not manifest["confidence"]["calibrated"]
    assert (
        manifest["confidence"]["temperature"] > 0
        and "public text" in said["calibration"]
    )


def test_where_noise_leaves_no_document_no_accuracy_is_told(
    new: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the event nor in the manifest."""
    monkeypatch.setattr(
        "ridgeway.coordinator.round.round.likeliest_counts", np.zeros_like
    )
    seen: list[Event] = []
    round_of(new, Direct(new), seen.append)
    [event] = of_kind(RouterEvaluated, seen)
    assert (event.documents, event.accuracy, event.interval) == (0, None, None)
    assert new.federation.manifest(1)["evaluation"] is None


def test_an_accuracy_under_noise_is_told_with_its_interval(
    new: Parties, tmp_path: Path
) -> None:
    """In the event, in the manifest, and by every command that shows an accuracy; with so few
    documents it is wide.
    """
    seen: list[Event] = []
    round_of(new, Direct(new), seen.append)
    [event] = of_kind(RouterEvaluated, seen)
    evaluation = new.federation.manifest(1)["evaluation"]
    if evaluation is None:  # noise left no document
        return
    low, high = evaluation["interval"]
    assert (low, high) == pytest.approx(
        event.interval, abs=0.01
    ) and 0 <= low <= evaluation["accuracy"] <= high <= 100
    assert set(evaluation["intervals"]) == set(evaluation["domains"])
    assert high - low > 10
    shop, folder = Workshop(tmp_path), new.federation.folder
    words = f"(95 %: {low:.1f} to {high:.1f})"
    assert words in shop.call("coordinator releases", folder).stdout
    shown = shop.call("coordinator releases", folder, "0").stdout
    assert words in shown
    for name, (least, most) in evaluation["intervals"].items():
        assert (
            f"{evaluation['domains'][name]:.1f} % (95 %: {least:.1f} to {most:.1f})"
            in shown
        )
        assert least <= evaluation["domains"][name] <= most
    assert shop.call("coordinator releases", folder, "--json").json[0]["interval"] == [
        low,
        high,
    ]


def test_a_router_that_is_surely_worse_is_not_published(
    new: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Surely: the interval of a domain lies below that of the newest release. The operator may
    accept it.
    """
    measured = [
        NoisyAccuracy(95.0, (90.0, 99.0)),
        NoisyAccuracy(80.0, (60.0, 92.0)),
        NoisyAccuracy(20.0, (10.0, 55.0)),
    ]
    # so that noise never leaves a release without a document, and so without an interval
    monkeypatch.setattr(
        "ridgeway.coordinator.round.round.likeliest_counts", np.ones_like
    )

    for name in new.homes:
        new.rewrite(name, "max_epsilon = 1.5", "max_epsilon = 9.0")

    def next_round(watch: Watch = no_watch) -> LedgerRelease:
        accuracy = measured.pop(0)
        monkeypatch.setattr(
            "ridgeway.coordinator.round.round.noisy_accuracy", lambda *_: accuracy
        )
        new.new_epochs()
        return round_of(new, watch=watch)

    assert [next_round().number, next_round().number] == [1, 2]
    seen: list[Event] = []
    with round_fails(r"worse than release 0002, .* --accept-worse code"):
        next_round(seen.append)
    worse = of_kind(RouterWorse, seen)
    assert {(event.before, event.after) for event in worse} == {
        ((60.0, 92.0), (10.0, 55.0))
    }
    accept = tuple(event.domain for event in worse)
    assert round_of(new, accept_worse=accept).number == 3


def test_domains_go_as_ever(parties: Parties) -> None:
    """A domain is retired from a private release, which goes on to say what it promises."""
    retire(parties.federation, "law")
    assert parties.federation.manifest(2)["privacy"]["epsilon"] == 1.0


def test_a_holder_is_taken_out_of_a_total_of_columns(parties: Parties) -> None:
    """Where single vectors are there; in a total under masks they are hidden."""
    change = remove(parties.federation, "law-2")
    if mode_of(parties) == "full":
        assert change.published is None and change.hidden
        return
    assert parties.federation.manifest(2)["privacy"]["mode"] == "columns"


# Sending again


def test_a_round_in_which_nothing_has_changed_costs_nothing(parties: Parties) -> None:
    """The release stands, nobody pays or is asked for a vector, and nothing stands in the way."""
    before = [expenses(parties, name) for name in MEMBERS]
    transport = Direct(parties)
    assert round_of(parties, transport).number == 1
    assert transport.reply_kinds == {"offer"}
    dry_run(parties)
    assert [expenses(parties, name) for name in MEMBERS] == before


def test_a_second_round_of_new_epochs_is_paid_for_and_a_third_is_not_afforded(
    parties: Parties,
) -> None:
    """ρ adds up over rounds; ε, at this δ, grows by less. The owner is told before an epoch is
    opened that no round could use, in one sentence, and the epoch that is open stays.
    """
    parties.new_epochs()
    assert round_of(parties).number == 2
    assert paid(parties) == {4}
    epsilon = parties.holder("law-1").account.epsilon()
    assert 1.3 < epsilon < TWO_ROUNDS
    before = epoch_of(parties.holder("law-1"))
    holder = parties.holder("law-1")
    with pytest.raises(
        InputError,
        match=r"would bring the ε of this corpus to 1\.\d+, and `max_epsilon`",
    ) as error:
        open_epoch(holder, parties.federation.terms, new_epoch=True)
    assert "\n" not in str(error.value)
    assert epoch_of(parties.holder("law-1")) == before
    assert before in {path.name for path in (holder.folder / "epochs").iterdir()}
    assert round_of(parties).number == 2


# Drop-outs and kills


class Falling(Direct):
    """Holders that are not heard any more from some kind of request on."""

    def __init__(self, parties: Parties, kind: str, *names: str) -> None:
        super().__init__(parties)
        self._kind, self._fallers = kind, names

    def answers(self, name: str, peer: int, packet: Packet) -> Iterator[Packet]:
        if name in self._fallers and open_packet(packet).message.kind == self._kind:
            self.down.add(name)
        elif name not in self.down:
            yield from super().answers(name, peer, packet)


def test_one_of_two_holders_of_a_domain_may_fall_away(new: Parties) -> None:
    """The release is of the others; who fell away before it signed or sent has paid nothing."""
    kind = "collect" if mode_of(new) == "columns" else "seal"
    published = round_of(new, Falling(new, kind, "law-1"))
    assert names_of(published) == set(MEMBERS) - {"law-1"}
    assert expenses(new, "law-1") == []
    assert len(expenses(new, "law-2")) == 2


def test_fewer_members_than_carry_the_noise_open_nothing(new: Parties) -> None:
    """With two of five gone after they have shared, a third and more of the noise would be missing;
    nobody has paid.
    """
    if mode_of(new) == "columns":
        pytest.skip("each holder adds all of the noise itself")
    with round_fails(r"3 of 5 members .* but 4 are needed"):
        round_of(new, Falling(new, "seal", "law-1", "code-1"))
    assert paid(new) == {0}
    assert round_of(new).number == 1


@pytest.mark.parametrize("kind", ["evaluate", "deliver"])
def test_a_coordinator_that_is_killed_goes_on_and_nobody_pays_twice(
    new: Parties, kind: str
) -> None:
    """Between the total and the counts, or before the release was delivered: the same vectors serve
    again.
    """

    class Dying(Direct):
        def exchange(self, packets: Mapping[int, Packet], seconds: float) -> Any:
            if open_packet(next(iter(packets.values()))).message.kind == kind:
                raise KeyboardInterrupt
            return super().exchange(packets, seconds)

    with pytest.raises(KeyboardInterrupt):
        round_of(new, Dying(new))
    before = total_of(new)
    assert round_of(new).number == 1
    assert total_of(new).equals(before) and paid(new) == {2}


# After a restore of either side


def test_an_older_copy_of_a_holders_folder_does_not_give_the_budget_back(
    new: Parties,
) -> None:
    """The file of what corpora have cost lies beside it, and still knows. The copy takes part in
    nothing.
    """
    home = new.homes["law-1"]
    with older_copy(home):
        round_of(new)
        cost = new.holder("law-1").account.epsilon()
    holder = new.holder("law-1")
    assert (
        holder.journal.entries("spent") == []
        and holder.account.epsilon() == cost > 0.99
    )
    for path in (new.federation.folder / "contributions").iterdir():
        path.unlink()
    transport = Direct(new)
    if mode_of(new) == "columns":
        published = round_of(
            new, transport, even_unchanged=True, accept_unevaluated=DOMAINS
        )
        assert names_of(published) == set(MEMBERS) - {"law-1"}
    else:  # a total without it is another one, in which the others' epochs are not
        with round_fails("older_copy"):
            round_of(new, transport, even_unchanged=True, accept_unevaluated=DOMAINS)
    assert ("law-1", "older_copy") in {(name, code) for name, _, code in new.refusals()}
    assert len(expenses(new, "law-1")) == 2


def test_an_older_copy_of_the_coordinators_folder_costs_nobody_anything(
    new: Parties,
) -> None:
    """Holders send again what they sent; the release takes a number that they have not got."""
    folder = new.federation.folder
    with older_copy(folder):
        round_of(new)
        before = total_of(new)
    assert round_of(new).number == 2
    assert total_of(new).equals(before) and paid(new) == {2}
    assert {new.holder(name).newest for name in MEMBERS} == {2}


# What may be asked


def all_refuse(parties: Parties) -> None:
    """Play a round whose release each member refuses."""
    round_of(parties)
    assert sorted(parties.refusals()) == [
        (name, "deliver", "bad_release") for name in sorted(MEMBERS)
    ]


def test_a_release_that_does_not_follow_from_its_total_is_refused(
    new: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Holders have solved the noisy total themselves: another router is not taken, whoever signed
    it.
    """

    def other(
        total: Any, encoder: Any, choices: Any, solution: Any, **more: Any
    ) -> Any:
        changed = solution.weights.copy()
        changed[encoder.table.shape[1]] *= 1.01
        return compose(
            total, encoder, choices, replace(solution, weights=changed), **more
        )

    monkeypatch.setattr("ridgeway.coordinator.round.round.compose", other)
    all_refuse(new)
    assert {new.holder(name).newest for name in MEMBERS} == {0}


def test_a_release_of_other_domains_than_were_solved_is_refused(
    new: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One column is not compared with all of them."""
    noted = Holder.note_solved
    monkeypatch.setattr(
        Holder,
        "note_solved",
        lambda self, name, weights: noted(self, name, weights[:, :-1]),
    )
    all_refuse(new)


def asked(parties: Parties, message: Message, blobs: Sequence[Blob] = ()) -> Any:
    return (
        Hostile(parties, list(MEMBERS), round="ef" * 16)
        .ask("law-1", message, blobs)
        .message
    )


def test_letters_in_other_buckets_are_refused_on_both_sides(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Documents are summed in a number of buckets that another number does not fit."""
    terms = parties.federation.terms
    more = replace(parties.encoder, options=WordFeatures(4))
    monkeypatch.setattr(Holder, "encoder", lambda *_: more)
    needed = r"runs of letters and USE sentence features.*--encoder"
    with pytest.raises(InputError, match=needed):
        open_epoch(parties.holder("law-1"), terms, new_epoch=True)
    federation = parties.federation
    monkeypatch.setattr(Federation, "encoder", more)
    with pytest.raises(InputError, match=needed):
        _ = federation.prior


# What is summed and counted


def test_a_long_text_is_one_document(tmp_path: Path, haste_with_changes: None) -> None:
    """Cut into pieces for the tokenizer or not: it counts once, in sums as among those held out."""
    parties = settled(tmp_path, "columns")
    long = "the law says " * 20_000
    [corpus] = parties.holder("law-1").settings.corpus
    texts = [long, *own_texts("law-1", "law", 10)]
    Path(corpus).write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in texts)
    )
    parties.rewrite("law-1", "holdout = 0.25", "holdout = 0.0")
    parties.ready("law-1")
    assert exact(parties, "law-1").documents == 11


def test_no_document_pushes_another_out_of_those_that_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample of a fixed size would let one document more move two numbers, so all that are held
    out count.
    """
    make_haste(monkeypatch, once=False)
    monkeypatch.setattr(ready, "MAX_HELD_OUT_DOCUMENTS", 1)
    parties = settled(tmp_path, "columns")
    parties.rewrite("law-1", "holdout = 0.25", "holdout = 0.75")
    holder = parties.ready("law-1")
    [corpus] = holder.settings.corpus
    texts = [json.loads(line)["text"] for line in Path(corpus).read_text().splitlines()]
    counted = holder.epochs.held_out(holder.epoch(parties.federation.terms)).lengths
    assert len(counted) == sum(is_held_out(text, 0.75) for text in texts) > 1
