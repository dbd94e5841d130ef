"""What a round lets go: old routers and what old runs told; all that proves or judges anything
stays, on both sides.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ridgeway.client.evidence import HolderRecord
from ridgeway.common.base.errors import InputError, RidgewayError, RoundFailed
from ridgeway.common.base.files import sha256_of_file, write_whole
from ridgeway.coordinator.deploy.coordinator_folder import back_up, restore
from ridgeway.coordinator.round.federation import (
    _MAX_LOG_BYTES,
    KEPT_RUNS,
    Federation,
    FederationSettings,
)
from ridgeway.coordinator.round.ledger import LedgerRelease
from ridgeway.coordinator.round.membership import rollback
from tests.support.faults import Crash
from tests.support.simulated_federation import (
    ONE_EACH,
    Direct,
    Parties,
    dry_run,
    found,
    populate,
    round_of,
)

ROUNDS = 5


@pytest.fixture
def parties(tmp_path: Path, haste: None) -> Parties:
    """A masked federation with a few releases, and what the years leave."""
    made = populate(found(tmp_path / "parties", mode="masked", keep=ROUNDS), ONE_EACH)
    for _ in range(ROUNDS):
        play(made)
    for number in range(KEPT_RUNS + 3):
        write_whole(made.federation.progress(f"2026{number:04}"), b"{}\n")
    return made


def play(parties: Parties) -> LedgerRelease:
    return round_of(parties, even_unchanged=True)


def keeping(parties: Parties, keep: int) -> Federation:
    """Let the coordinator and its holders keep so many releases."""
    for path in (
        parties.federation.folder / "coordinator.toml",
        *(home / "client.toml" for home in parties.homes.values()),
    ):
        path.write_text(re.sub("(?m)^keep = .*$", f"keep = {keep}", path.read_text()))
    return parties.federation


def files(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): sha256_of_file(path)
        for path in folder.rglob("*")
        if path.is_file()
        and not path.is_symlink()
        and path.name not in ("lock", "ledger.db-wal", "ledger.db-shm")
    }


def test_a_round_lets_old_routers_and_runs_go_and_nothing_else(
    parties: Parties,
) -> None:
    """The ledger says which; the next time there is nothing more to say."""
    federation = keeping(parties, 2)
    before = files(federation.folder)
    play(parties)
    gone = set(before) - set(files(federation.folder))
    expected = {
        f"releases/{number:04}/{name}"
        for number in range(1, ROUNDS)
        for name in ("router.safetensors", "tokenizer.json")
    }
    assert gone == expected | {f"progress/2026{number:04}.jsonl" for number in range(3)}
    changed = {
        name
        for name, digest in before.items()
        if files(federation.folder).get(name, digest) != digest
    }
    assert changed <= {"ledger.db"}
    assert parties.entries("pruned") == [{"releases": list(range(1, ROUNDS))}]
    federation.prune()
    assert len(parties.entries("pruned")) == 1


def test_nothing_goes_as_long_as_all_are_to_be_kept(parties: Parties) -> None:
    """Nor with a round that fails, a dry run, or any other change."""
    federation = parties.federation
    assert not parties.entries("pruned")
    assert all(federation.release(number) for number in range(1, ROUNDS + 1))
    assert FederationSettings().keep == 10
    federation, before = keeping(parties, 1), files(federation.folder / "releases")
    dry_run(parties)
    with pytest.raises(RoundFailed):
        round_of(parties, Direct(parties, ["code"]))
    rollback(federation, 1)
    assert set(before) <= set(files(federation.folder / "releases"))


def test_a_crash_before_files_are_gone_loses_no_word_of_them(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger spoke first, so what is left verifies, and the next round takes the rest."""
    federation = keeping(parties, 2)
    with monkeypatch.context() as patch:
        patch.setattr(
            Path, "unlink", lambda path, **named: (_ for _ in ()).throw(Crash())
        )
        with pytest.raises(Crash):
            federation.prune()
    assert parties.federation.verify()["releases"] == ROUNDS
    parties.federation.prune()
    assert not (federation.release_folder(1) / "router.safetensors").exists()
    assert parties.federation.verify()["releases"] == ROUNDS


def test_a_pruned_folder_verifies_and_goes_on(parties: Parties, tmp_path: Path) -> None:
    """Its chain, manifests, sums and totals; a round, a backup of it, and what was opened is judged
    as before.
    """
    standing = parties.standing
    federation = keeping(parties, 2)
    federation.prune()
    assert federation.verify()["releases"] == ROUNDS
    after = federation.standing
    for name in ("totalled_epochs", "totals", "counts", "releases"):
        assert getattr(after, name) == getattr(standing, name)
    assert round_of(parties).number == ROUNDS
    back_up(parties.federation, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "again")
    again = Federation(tmp_path / "again", encoder=parties.encoder)
    assert again.verify()["releases"] == ROUNDS
    assert again.manifest(1)["number"] == 1


def test_a_pruned_release_is_known_but_cannot_come_back(parties: Parties) -> None:
    """Its manifest is shown and verified still; its router is named as gone, and one that is kept
    comes back.
    """
    federation = keeping(parties, 2)
    federation.prune()
    with pytest.raises(InputError, match="0001 was pruned"):
        rollback(federation, 1)
    assert rollback(federation, ROUNDS - 1).published
    path = federation.release_folder(1) / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"number": 1', b'"number": 2'))
    with pytest.raises(RidgewayError, match="changed after it was signed"):
        federation.verify()


def test_a_router_that_is_missing_without_a_word_in_the_ledger_is_missed(
    parties: Parties,
) -> None:
    """Only what was pruned may be gone."""
    (parties.release_folder(1) / "router.safetensors").unlink()
    with pytest.raises(RidgewayError, match=r"router\.safetensors is missing"):
        parties.federation.verify()


def test_a_holder_keeps_all_that_proves_and_judges(parties: Parties) -> None:
    """Old releases go with the next that comes; the journal, the epoch and the keys stay, and
    everything verifies.
    """
    home = parties.homes["law"]
    keeping(parties, 2)
    holder = parties.holder("law")
    known, before = holder.journal.entries("signed", "opened", "spent"), files(home)
    play(parties)
    gone = set(before) - set(files(home))
    assert {name.split("/")[0] for name in gone} == {"releases"}
    assert {name.split("/")[1] for name in gone} == {
        f"{number:04}" for number in range(1, ROUNDS)
    }
    assert [entry.facts for entry in holder.journal.entries("pruned")] == [
        {"releases": list(range(1, ROUNDS))}
    ]
    assert parties.holder("law").journal.entries("signed", "opened", "spent") == known
    assert all(check.good for check in HolderRecord(home).check())
    assert parties.holder("law").newest == ROUNDS + 1
    assert play(parties).number == ROUNDS + 2
    assert parties.holder("law").newest == ROUNDS + 2


def test_the_log_of_unforeseen_errors_is_put_aside_once_it_is_long(
    parties: Parties,
) -> None:
    """Whatever goes wrong for years: the newest errors are there, and two files at most."""
    federation = parties.federation
    for word in ("first", "second", "third"):
        with pytest.raises(ZeroDivisionError, match=word), federation.logged():
            raise ZeroDivisionError(word + "x" * _MAX_LOG_BYTES)
    kept = {
        path.name: path.read_text() for path in (federation.folder / "logs").iterdir()
    }
    assert set(kept) == {"rounds.log", "rounds.log.1"}
    assert "third" in kept["rounds.log"]
    assert "second" in kept["rounds.log.1"]
