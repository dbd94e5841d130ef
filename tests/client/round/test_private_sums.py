"""Outputs under noise: one vector of an epoch, the same again and no other, paid for before it
leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ridgeway.client.round import answers, epochs
from ridgeway.client.round.answers import answer
from ridgeway.client.round.epochs import NoisyOutputs
from ridgeway.client.round.holder import PRIOR, Holder
from ridgeway.client.round.spending import Account
from ridgeway.common.base.errors import BoundExceeded
from ridgeway.common.privacy import noise
from ridgeway.common.privacy.accountant import surely_noised
from ridgeway.common.privacy.noise import UNIT
from ridgeway.common.protocol.cohort import Terms, form_cohort
from ridgeway.common.protocol.messages import (
    Collect,
    Counted,
    Evaluate,
    Message,
    NoisyStatistics,
    Refusal,
)
from ridgeway.common.protocol.packet import Blob, open_packet, seal_packet, vector_blob
from tests.support.making import fixed_identity, refusing
from tests.support.simulated_federation import Parties, found_private

pytestmark = pytest.mark.usefixtures("private_sentences")

COUNTS = np.array([3, 1, 0])
QUESTION, OTHER = "a" * 64, "b" * 64
DOMAINS = ("code", "law", "medicine")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    folder = tmp_path_factory.mktemp("private")
    return found_private(folder).with_law(30, max_epsilon=1.3)


@pytest.fixture
def parties(whole: Parties, tmp_path: Path) -> Parties:
    return whole.copy(tmp_path / "parties")


@pytest.fixture
def terms(parties: Parties) -> Terms:
    return parties.terms


def outputs(parties: Parties, **changes: Any) -> NoisyOutputs:
    """As a process that was just started has them."""
    holder, terms = parties.law, parties.terms
    assert terms.privacy is not None
    return holder.noisy(holder.epoch(terms), terms.privacy.model_copy(update=changes))


def vector(parties: Parties, **changes: Any) -> list[int]:
    return [
        int(value) for value in outputs(parties, **changes).column_sums().cross[:, 0]
    ]


def spent(parties: Parties) -> list[str]:
    return [expense.output for expense in parties.law.account.expenses()]


# Once an epoch


def test_the_same_vector_leaves_again(parties: Parties) -> None:
    """However often it is asked for, and it is paid for once; it is not the exact one."""
    holder = parties.law
    exact = holder.epochs.document_sums(holder.epoch(parties.terms)).column.tolist()
    first = vector(parties)
    assert vector(parties) == vector(parties) == first != exact
    assert spent(parties) == ["statistics"]


def test_the_same_counts_leave_again_and_no_others(parties: Parties) -> None:
    """Another router is another question; it is refused, and costs nothing."""
    first = outputs(parties).counts(COUNTS, QUESTION).tolist()
    assert (
        outputs(parties).counts(COUNTS, QUESTION).tolist()
        == first
        != (UNIT * COUNTS).tolist()
    )
    for counts, question in ((COUNTS, OTHER), (np.array([3, 1]), QUESTION)):
        with refusing("already_counted"):
            outputs(parties).counts(counts, question)
    assert spent(parties) == ["counts"]


@pytest.mark.parametrize("changes", [{"epsilon": 0.5}, {"delta": 1e-9}])
def test_other_noise_is_not_drawn_for_the_same_data(
    parties: Parties, changes: dict[str, float]
) -> None:
    """Two vectors with noise of their own would tell more than one."""
    vector(parties)
    with refusing("epoch_used"):
        vector(parties, **changes)


def test_a_new_epoch_of_the_same_documents_is_noised_and_paid_for_anew(
    parties: Parties,
) -> None:
    """So whether a corpus has changed cannot be told from what leaves."""
    parties.rewrite("law", "max_epsilon = 1.3", "max_epsilon = 4.0")
    first = vector(parties)
    parties.ready("law")
    assert vector(parties) != first
    assert spent(parties) == ["statistics"] * 2


def test_a_lost_vector_is_not_made_again(parties: Parties) -> None:
    """Paid for and gone from the folder, as in an older copy of it: another one would be a second
    one.
    """
    vector(parties)
    holder = parties.law
    [path] = holder.folder.glob("epochs/*/statistics.noisy")
    path.unlink()
    with refusing("epoch_used"):
        vector(parties)


def test_a_spent_budget_draws_no_noise(parties: Parties) -> None:
    """Nothing is kept that could leave later."""
    vector(parties)
    parties.rewrite("law", "max_epsilon = 1.3", "max_epsilon = 9.0")
    parties.ready("law")
    parties.rewrite("law", "max_epsilon = 9.0", "max_epsilon = 1.3")
    with refusing("budget_spent"):
        vector(parties)
    current = parties.law.epochs.current()
    assert current is not None
    assert list(parties.homes["law"].glob(f"epochs/{current.name}/*.noisy")) == []


# Crashes


class Crash(BaseException):
    """The process ends here."""


def crash(*_: Any, **__: Any) -> None:
    raise Crash


@pytest.mark.parametrize("moment", ["before it is paid for", "after it is paid for"])
@pytest.mark.parametrize("output", ["statistics", "counts"])
def test_a_crash_between_keeping_and_paying_costs_nothing_twice(
    parties: Parties, monkeypatch: pytest.MonkeyPatch, moment: str, output: str
) -> None:
    """Nothing had left: before, another vector may be made; after, the kept one leaves."""

    def asked() -> list[int]:
        if output == "statistics":
            return vector(parties)
        return [int(value) for value in outputs(parties).counts(COUNTS, QUESTION)]

    plain = Account.pay

    def pay(account: Account, *expenses: Any) -> None:
        if moment == "after it is paid for":
            plain(account, *expenses)
        crash()

    with monkeypatch.context() as patch:
        patch.setattr(Account, "pay", pay)
        with pytest.raises(Crash):
            asked()
    epoch = parties.law.epoch(parties.terms)
    kept = parties.law.epochs.noisy(epoch, output)
    assert kept is not None
    assert spent(parties) == ([output] if moment == "after it is paid for" else [])
    first = asked()
    assert spent(parties) == [output]
    assert asked() == first
    if moment == "after it is paid for":
        assert kept[0].tolist()[: len(first)] == first


def test_nothing_leaves_that_was_not_kept(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk costs nothing: the vector is kept first, then paid for."""
    with monkeypatch.context() as patch:
        patch.setattr("ridgeway.client.round.epochs.write_whole", crash)
        with pytest.raises(Crash):
            vector(parties)
    assert spent(parties) == []


# Shares of noise


@pytest.fixture
def full(tmp_path: Path) -> Parties:
    made = found_private(tmp_path / "full", privacy={"sums": "full"})
    return made.with_law(30, max_epsilon=1.3)


def pay(parties: Parties) -> None:
    """As a holder does that signs the total."""
    holder, terms = parties.law, parties.terms
    epoch = holder.epoch(terms)
    holder.account.pay(
        holder.account.expense(
            epoch.name, "statistics", "private", terms.privacy, epoch.holdout
        )
    )


def shared(parties: Parties, cohort: str, members: int = 3) -> list[int]:
    return [
        int(value)
        for value in outputs(parties).shared_sums(members, cohort).gram.ravel()
    ]


def test_sums_with_a_share_of_the_noise_are_for_one_cohort_once_they_are_signed(
    full: Parties,
) -> None:
    """Before that another cohort gets noise of its own, since nothing was opened; afterwards none
    does.
    """
    first = shared(full, QUESTION)
    assert shared(full, QUESTION) == first
    other = shared(full, OTHER)
    assert other != first
    assert spent(full) == []
    pay(full)
    assert shared(full, OTHER) == other
    with refusing("epoch_used"):
        shared(full, QUESTION)


def test_sums_that_could_wrap_around_in_their_cohort_are_not_made(
    full: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may sum as many documents as the bound leaves it among so many members."""
    room = noise.EXACT_BOUND // noise.max_documents("full")
    monkeypatch.setattr(noise, "EXACT_BOUND", 60 * room)
    shared(full, QUESTION, members=2)
    with pytest.raises(BoundExceeded, match="in a private round of 9 holders"):
        shared(full, OTHER, members=9)


def test_fewer_members_each_draw_more(
    monkeypatch: pytest.MonkeyPatch, full: Parties
) -> None:
    """With a third of them gone, what is left is still enough; the column has all of it from
    everybody.
    """
    drawn: list[int] = []

    def noted(sigma: int, count: int, draw: Callable[[int], bytes]) -> Any:
        drawn.append(sigma)
        return np.zeros(count, np.int64)

    monkeypatch.setattr(epochs, "discrete_gaussian", noted)
    privacy = full.terms.privacy
    assert privacy is not None
    for members in (3, 9):
        drawn.clear()
        shared(full, f"{members:064x}", members)
        squares, products = privacy.shared(members)
        assert set(drawn) == {privacy.sigma, squares, products}
        assert surely_noised(members) * squares**2 >= privacy.sigma**2


# In a round


def cohort_of(holder: Holder, terms: Terms) -> Any:
    return form_cohort(terms, {holder.key: "law", fixed_identity(9).public: "code"})


def ask(parties: Parties, message: Message, *blobs: Blob) -> Any:
    identity = parties.federation.identity
    packet = seal_packet(message, identity, round="cd" * 16, blobs=blobs)
    return open_packet(answer(parties.law, packet)).message


def question(terms: Terms, **changes: Any) -> Evaluate:
    asked = Evaluate(
        terms=terms, domains=DOMAINS, selector="average", k=10, holders=DOMAINS
    )
    return asked.model_copy(update=changes)


def test_a_holder_counts_for_its_own_solution_of_the_total(
    parties: Parties, terms: Terms
) -> None:
    """What is sent is a total, not weights; the same total gets the same counts, any other none."""
    collect = Collect(cohort=cohort_of(parties.law, terms))
    assert isinstance(ask(parties, collect), NoisyStatistics)
    total = np.arange(terms.vector_size(3), dtype=np.int64) * UNIT
    asked = question(terms)
    counted = ask(parties, asked, vector_blob(total))
    assert isinstance(counted, Counted)
    assert (len(counted.counts), counted.quality, counted.reliability) == (3, (), ())
    assert ask(parties, asked, vector_blob(total)) == counted
    assert ask(parties, asked, vector_blob(total + 1)).code == "already_counted"
    assert spent(parties) == ["statistics", "counts"]


def refusal_to_count(parties: Parties, terms: Terms, **changes: Any) -> str:
    """The code with which the holder refuses to count for a total of zeros; nothing is spent."""
    blob = vector_blob(np.zeros(terms.vector_size(3), dtype=np.int64))
    refusal: Refusal = ask(parties, question(terms, **changes), blob)
    assert spent(parties) == []
    return refusal.code


@pytest.mark.parametrize(
    "changes",
    [
        {"temperatures": (1.0,)},
        {"experts": ("e",)},
        {"last": "0" * 64},
        {"session": "0" * 64},
        {"holders": ("law",)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_in_private_rounds_nothing_else_is_counted(
    parties: Parties, terms: Terms, changes: dict[str, Any]
) -> None:
    """Neither calibration nor changes since the last release: no noise is on these."""
    assert refusal_to_count(parties, terms, **changes) == "malformed"


def test_without_the_prior_a_total_is_not_solved(
    parties: Parties, terms: Terms
) -> None:
    """It is named as missing."""
    (parties.homes["law"] / PRIOR).unlink()
    assert refusal_to_count(parties, terms) == "prior_missing"


@pytest.mark.parametrize("weight", [1e200, np.nan])
def test_weights_beyond_all_routers_are_not_counted_with(
    parties: Parties, terms: Terms, monkeypatch: pytest.MonkeyPatch, weight: float
) -> None:
    """Whatever total they come from."""
    monkeypatch.setattr(
        answers, "solve_private", lambda *_: np.full((terms.features, 3), weight)
    )
    assert refusal_to_count(parties, terms) == "malformed"
