"""A member that sums what it should not: the round keeps the last release and names who is new or
has changed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ridgeway.client.round.epochs import Epoch
from ridgeway.client.round.holder import Holder
from ridgeway.common.base.settings import FEATURE_LIMIT
from ridgeway.common.protocol.cohort import Cohort
from ridgeway.common.statistics import Statistics
from ridgeway.coordinator.cli import round_commands
from ridgeway.coordinator.round.ask import RunOrder
from ridgeway.coordinator.round.federation import Federation
from ridgeway.coordinator.round.ledger import LedgerRelease
from ridgeway.coordinator.round.progress import Event, RouterWorse, Watch
from tests.support.commands import Workshop
from tests.support.corpora_on_disk import write_jsonl
from tests.support.faults import epoch_of, let_join, make_haste
from tests.support.hostile import MEMBERS
from tests.support.making import one_domain, random_samples
from tests.support.seeds import seeds
from tests.support.simulated_federation import (
    Direct,
    Parties,
    found,
    no_watch,
    of_kind,
    round_fails,
    round_of,
)

LETTERS = {
    "code": "0123456789., ",
    "law": "abcdefgh \n",
    "medicine": "nopqrstuv ,",
    "poetry": "ijklmwxyz ",
}
DOCUMENTS = 64
"""A quarter of them is held out: enough that a domain which is lost cannot be so by chance."""
NEW = {"law-3": "law", "poetry": "poetry"}

Lie = Callable[[Statistics], Statistics]
"""Other raw sums than a holder has."""


def texts(name: str, domain: str, count: int = DOCUMENTS) -> list[str]:
    """Texts in a domain's letters, with a few of all the others'."""
    source = random.Random(name)
    noise = "".join(LETTERS.values())
    return [
        "".join(source.choices((LETTERS[domain], noise)[source.random() < 0.2], k=60))
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    """Five holders after their first round, and two more that have not been in any."""
    with pytest.MonkeyPatch.context() as patch:
        make_haste(patch)
        parties = found(tmp_path_factory.mktemp("released"), mode="masked")
        for name, domain in {**MEMBERS, **NEW}.items():
            parties.settle(name, domain, texts(name, domain))
        let_join(parties, tuple(MEMBERS))
        round_with(parties, MEMBERS)
        return parties


@pytest.fixture
def parties(released: Parties, tmp_path: Path, haste: None) -> Parties:
    return released.copy(tmp_path / "parties")


def round_with(
    parties: Parties,
    names: Mapping[str, str],
    lies: Mapping[str, Lie] | None = None,
    accept: tuple[str, ...] = (),
    watch: Watch = no_watch,
) -> LedgerRelease:
    transport = Direct(parties, names)
    for name, lie in (lies or {}).items():
        holder = transport._holders[transport.names.index(name)]
        vars(holder)["exact_sums"] = _lying(holder, lie)
    return round_of(parties, transport, watch, accept_worse=accept)


def _lying(holder: Holder, lie: Lie) -> Callable[[Epoch, Cohort], Statistics]:
    def sums(epoch: Epoch, cohort: Cohort) -> Statistics:
        return lie(holder.epochs.statistics(epoch).statistics).weighted(
            cohort.shares[holder.identity.public]
        )

    return sums


def all_with_new(parties: Parties) -> dict[str, str]:
    """Let the two join, and everybody open a new epoch; who there is then."""
    let_join(parties, tuple(NEW))
    parties.new_epochs()
    return {**MEMBERS, **NEW}


def give(parties: Parties, name: str, documents: Sequence[str]) -> None:
    """Let a holder have other text than before."""
    [corpus] = parties.holder(name).settings.corpus
    changed = Path(corpus).with_name(f"{name} {parties.folder.parent.name}.jsonl")
    parties.rewrite(name, f'"{corpus}"', f'"{write_jsonl(changed, documents)}"')
    parties.ready(name)


def at_random(sums: Statistics) -> Statistics:
    """Sums over vectors that are as long as those of text, and mean nothing."""
    gram = sums.gram
    size = np.sqrt(np.trace(gram[:-1, :-1]) / gram[-1, -1])
    samples = random_samples(7, 400, len(gram)).astype(np.float64)
    lengths = np.linalg.norm(samples[:, :-1], axis=1, keepdims=True)
    samples[:, :-1] *= size / lengths
    return one_domain(np.rint(samples).astype(np.int64))


def stretched(sums: Statistics) -> Statistics:
    """The sums as if every feature were much larger than it is, with the mass as agreed."""
    factor = (
        int(FEATURE_LIMIT / np.sqrt(sums.gram.diagonal()[:-1].max() / sums.mass)) // 2
    )
    scale = np.full(len(sums.gram), -factor)
    scale[-1] = 1
    return one_domain_of(sums.gram * scale[:, None] * scale)


def one_domain_of(gram: Any) -> Statistics:
    return Statistics(gram, gram[:, -1:].copy())


def stands(parties: Parties, number: int = 1) -> None:
    """The release of this number is the newest, and nobody was handed another."""
    assert parties.standing.releases[-1].number == number
    latest = parties.release_folder(number).with_name("latest")
    assert latest.readlink() == Path(f"{number:04}")
    assert not parties.release_folder(number + 1).exists()
    assert {parties.holder(name).newest for name in MEMBERS} == {number}


def test_a_newcomer_with_another_domains_text_is_named_and_the_last_release_stands(
    parties: Parties,
) -> None:
    """It calls law's text poetry: half of law would be routed to it."""
    give(parties, "poetry", texts("stolen", "law"))
    names, seen = all_with_new(parties), list[Event]()
    with round_fails(
        r"held-out text of law .* worse than release 0001,.*new: law-3, poetry; "
    ):
        round_with(parties, names, watch=seen.append)
    [worse] = of_kind(RouterWorse, seen)
    assert (worse.domain, worse.newcomers, worse.changed) == (
        "law",
        ["law-3", "poetry"],
        sorted(MEMBERS),
    )
    assert worse.lost > 10 * worse.won
    stands(parties)


@pytest.mark.parametrize("lie", [at_random, stretched])
def test_sums_of_no_text_are_noticed_by_what_they_do_to_a_domain(
    parties: Parties, lie: Lie
) -> None:
    """They are well formed, so that nothing else could tell them: random vectors of the right
    length, scaled sums.
    """
    for name in MEMBERS:
        give(parties, name, texts(f"{name} now", MEMBERS[name]))
    with round_fails(r"held-out text of .*medicine.*changed: code-1, .*medicine\)"):
        round_with(parties, MEMBERS, {"medicine": lie})
    stands(parties)


def test_honest_growth_passes(parties: Parties) -> None:
    """A domain joins, one has another holder, two have more text: a second release, and everybody
    has it.
    """
    for name in ("medicine", "code-1"):
        give(
            parties,
            name,
            [*texts(name, MEMBERS[name]), *texts(f"{name} more", MEMBERS[name])],
        )
    names = all_with_new(parties)
    published = round_with(parties, names)
    assert (published.number, published.domains) == (
        2,
        ("code", "law", "medicine", "poetry"),
    )
    assert {parties.holder(name).newest for name in names} == {2}


def test_a_wanted_change_is_published_when_the_operator_says_so_and_nobody_is_asked_again(
    parties: Parties,
) -> None:
    """The total and its counts are kept."""
    give(parties, "poetry", texts("stolen", "law"))
    names = all_with_new(parties)
    for accept in ((), ("medicine",)):
        with round_fails(r"run the round again with --accept-worse law$"):
            round_with(parties, names, accept=accept)
    published = round_with(parties, names, accept=("law",))
    assert published.number == 2
    kinds = [
        entry.kind for entry in parties.ledger.journal.entries("totalled", "counted")
    ]
    assert kinds == ["totalled", "counted"] * 2
    assert round_with(parties, names).number == 2


def test_the_operator_reads_what_happened_and_what_to_do(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exit code that is not 0 and one sentence; with the option a release; and then that it
    stands.
    """
    give(parties, "poetry", texts("stolen", "law"))
    names = all_with_new(parties)

    def run_here(federation: Federation, order: RunOrder, watch: Watch) -> None:
        round_with(parties, names, accept=order.accept_worse, watch=watch)

    monkeypatch.setattr(round_commands, "run_work", run_here)
    round_command = ("coordinator", "round", parties.federation.folder)
    commands = Workshop(parties.folder)
    worse = commands.call(*round_command, "--json")
    assert worse.code == 2
    assert set(worse.json) == {"error", "released"} and worse.json["released"] is False
    assert worse.json["error"] in worse.stderr
    assert "worse     law" in worse.stderr
    assert worse.stderr.splitlines()[-1].endswith(
        "run the round again with --accept-worse law"
    )
    wanted = commands.call(*round_command, "--accept-worse", "law", "--json")
    assert (wanted.code, wanted.json["number"], wanted.json["unchanged"]) == (
        0,
        2,
        False,
    )
    still = commands.call(*round_command, "--json")
    assert (still.code, still.json["number"], still.json["unchanged"]) == (0, 2, True)
    assert "nothing has changed since it was made" in still.stderr


def test_a_member_does_not_send_a_damaged_epoch(parties: Parties) -> None:
    """A file that was changed on its disk: it refuses by itself, before masks hide whose the sums
    are.
    """
    parties.new_epochs()
    path = (
        parties.homes["medicine"]
        / "epochs"
        / epoch_of(parties.holder("medicine"))
        / "statistics.stats"
    )
    content = bytearray(path.read_bytes())
    content[-1] ^= 0x80
    path.write_bytes(content)
    with round_fails(r"would lose medicine.*medicine refused \(failed"):
        round_with(parties, MEMBERS)
    assert parties.refusals() == [("medicine", "seal", "failed")]


@pytest.mark.parametrize("seed", seeds(8, 3))
def test_honest_rounds_raise_no_alarm(seed: int, tmp_path: Path, haste: None) -> None:
    """Two holders have other text of their domain than before, and all counts differ a little."""
    parties = found(tmp_path, mode="masked")
    for name, domain in MEMBERS.items():
        parties.settle(name, domain, texts(f"{name} {seed}", domain, 24))
    let_join(parties, tuple(MEMBERS))
    round_with(parties, MEMBERS)
    parties.new_epochs()
    for name in ("law-1", "medicine"):
        give(parties, name, texts(f"{name} {seed} now", MEMBERS[name], 24))
    assert round_with(parties, MEMBERS).number == 2
