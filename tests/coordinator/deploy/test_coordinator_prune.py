"""Pruning: what nothing needs goes, and all that proves or judges anything stays, on both sides."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from ridgeway.client.deploy.holder_folder import holder_leftovers, prune_holder
from ridgeway.client.evidence import HolderRecord
from ridgeway.common.base.errors import InputError, RidgewayError
from ridgeway.common.base.files import write_whole
from ridgeway.common.deploy.processes import only_one
from ridgeway.coordinator.deploy.backup import back_up, restore
from ridgeway.coordinator.deploy.coordinator_folder import KEPT_RUNS, leftovers, prune
from ridgeway.coordinator.round.federation import _MAX_LOG_BYTES, Federation
from ridgeway.coordinator.round.membership import rollback
from ridgeway.coordinator.round.round import run_round
from ridgeway.coordinator.round.run_order import RoundWishes
from tests.support.commands import Workshop
from tests.support.faults import make_haste
from tests.support.simulated_federation import Direct, Parties, found, no_watch, populate

ROUNDS = 5


@pytest.fixture
def parties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parties:
    """A masked federation with a few releases, and what the years leave."""
    make_haste(monkeypatch)
    made = found(tmp_path / "parties", mode="masked")
    populate(made, {"code": "code", "law": "law", "medicine": "medicine"})
    for _ in range(ROUNDS):
        run_round(made.federation(), Direct(made), no_watch, RoundWishes(even_unchanged=True))
    folder = made.federation().folder
    for number in range(KEPT_RUNS + 3):
        write_whole(folder / "progress" / f"2026{number:04}.jsonl", b"{}\n")
    write_whole(folder / "link" / "state.db", b"x" * 5000)
    write_whole(folder / "link" / "nodes.json", b"{}")
    write_whole(folder / "link" / "flwr-home" / "apps" / "app.00000000" / "file.py", b"x" * 100)
    return made


def files(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and path.name not in ("lock", "ledger.db-wal", "ledger.db-shm")
    }


def test_what_goes_is_what_was_shown_and_nothing_else(parties: Parties) -> None:
    """A look changes nothing; then old routers, runs and Flower's files are gone, and the ledger has one more entry."""
    federation = parties.federation()
    before = files(federation.folder)
    shown = [each.row() for each in leftovers(federation, 2)]
    assert files(federation.folder) == before
    assert [each["files"] for each in shown] == [2 * (ROUNDS - 2), 3, 1, 2]
    assert [len(each.paths) for each in prune(federation, 2)] == [each["files"] for each in shown]
    gone = set(before) - set(files(federation.folder))
    expected = {
        f"releases/{number:04}/{name}"
        for number in range(1, ROUNDS - 1)
        for name in ("router.safetensors", "tokenizer.json")
    }
    expected |= {f"progress/2026{number:04}.jsonl" for number in range(3)}
    expected |= {"link/state.db", "link/nodes.json", "link/flwr-home/apps/app.00000000/file.py"}
    assert gone == expected
    changed = {name for name, digest in files(federation.folder).items() if before.get(name) != digest}
    assert changed <= {"ledger.db"}
    assert not any(each.paths for each in leftovers(parties.federation(), 2))


def test_a_pruned_folder_verifies_and_goes_on(parties: Parties, tmp_path: Path) -> None:
    """Its chain, manifests, sums and totals; a round, a backup of it, and what was opened is judged as before."""
    standing = parties.federation().ledger.standing()
    prune(parties.federation(), 2)
    federation = parties.federation()
    assert federation.verify()["releases"] == ROUNDS
    after = federation.ledger.standing()
    assert (after.totalled_epochs, after.totals, after.counts, after.releases) == (
        *(standing.totalled_epochs, standing.totals, standing.counts, standing.releases),
    )
    assert run_round(federation, Direct(parties), no_watch).number == ROUNDS
    back_up(parties.federation(), tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "again")
    again = Federation(tmp_path / "again", encoder=parties.encoder)
    assert again.verify()["releases"] == ROUNDS
    assert again.manifest(1)["number"] == 1


def test_a_pruned_release_is_known_but_cannot_come_back(parties: Parties) -> None:
    """Its manifest is shown and verified still; its router is named as gone, and one that is kept comes back."""
    prune(parties.federation(), 2)
    federation = parties.federation()
    with pytest.raises(InputError, match="0001 was pruned"):
        rollback(federation, 1)
    assert rollback(federation, ROUNDS - 1).published is not None
    path = federation.release_folder(1) / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"number": 1', b'"number": 2'))
    with pytest.raises(RidgewayError, match="changed after it was signed"):
        federation.verify()


def test_a_router_that_is_missing_without_a_word_in_the_ledger_is_missed(parties: Parties) -> None:
    """Only what was pruned may be gone."""
    (parties.federation().release_folder(1) / "router.safetensors").unlink()
    with pytest.raises(RidgewayError, match=r"router\.safetensors is missing"):
        parties.federation().verify()


def test_what_flower_keeps_stays_while_the_coordinator_is_up(parties: Parties) -> None:
    """A SuperLink that is being started counts as up."""
    federation = parties.federation()
    with only_one(federation.link, "a coordinator"):
        prune(federation, 2)
    assert (federation.link / "state.db").exists()
    assert (federation.link / "nodes.json").exists()


def test_a_holder_keeps_all_that_proves_and_judges(parties: Parties) -> None:
    """Old releases, bundles and parts go; the journal, the epoch and the keys stay, and everything verifies."""
    home = parties.homes["law"]
    write_whole(home / "bundles" / f"{'1' * 64}.fab", b"x" * 100)
    write_whole(home / "cache" / "prepared" / ("2" * 64) / "1.part", b"x" * 100)
    (home / "cache" / "prepared" / ("2" * 64)).touch()
    holder = parties.holder("law")
    known, before = holder.journal.entries("signed", "opened", "spent"), files(home)
    shown = holder_leftovers(holder, 2)
    assert [len(each.paths) for each in shown][:2] == [ROUNDS - 2, 1]
    prune_holder(holder, 2)
    gone = set(before) - set(files(home))
    assert all(name.split("/")[0] in ("releases", "bundles", "cache") for name in gone)
    assert {name.split("/")[1] for name in gone if name.startswith("releases")} == {"0001", "0002", "0003"}
    assert parties.holder("law").journal.entries("signed", "opened", "spent") == known
    assert all(each.good for each in HolderRecord(home).check())
    assert parties.holder("law").newest == ROUNDS
    again = run_round(parties.federation(), Direct(parties), no_watch, RoundWishes(even_unchanged=True))
    assert again.number == ROUNDS + 1
    assert parties.holder("law").newest == ROUNDS + 1


@pytest.mark.parametrize("side", ["coordinator", "client"])
def test_the_command_shows_a_table_and_removes_only_if_told(parties: Parties, tmp_path: Path, side: str) -> None:
    """The same figures before and after; with nothing left it says so."""
    folder = parties.federation().folder if side == "coordinator" else parties.homes["law"]
    shop = Workshop(tmp_path)
    command = (side, "prune", folder, "--keep", "2")
    assert "removable" in shop.call(*command).stdout
    told = [shop.call(*command, *words, "--json").json for words in ((), ("--remove",), ())]
    assert told[0]["bytes"] == told[1]["bytes"] > 0 == told[2]["bytes"]
    assert [each["removed"] for each in told] == [False, True, False]
    assert "nothing to remove" in shop.call(*command).stderr


def test_the_log_of_unforeseen_errors_is_put_aside_once_it_is_long(parties: Parties) -> None:
    """Whatever goes wrong for years: the newest errors are there, and two files at most."""
    federation = parties.federation()
    for word in ("first", "second", "third"):
        with pytest.raises(ZeroDivisionError, match=word), federation.logged():
            raise ZeroDivisionError(word + "x" * _MAX_LOG_BYTES)
    kept = {path.name: path.read_text() for path in (federation.folder / "logs").iterdir()}
    assert set(kept) == {"rounds.log", "rounds.log.1"}
    assert "third" in kept["rounds.log"]
    assert "second" in kept["rounds.log.1"]
