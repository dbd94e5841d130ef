"""A holder's copies: none gives a budget back, or puts the data of one epoch into a second
total.
"""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest

from ridgeway.client.deploy.holder_folder import (
    back_up_holder,
    charge_restored,
    restore_holder,
)
from ridgeway.client.evidence import HolderRecord
from ridgeway.client.ready import open_epoch
from ridgeway.client.round.answers import answer
from ridgeway.common.base.errors import FormatError, InputError
from ridgeway.common.privacy.accountant import epsilon_of, rho_for
from ridgeway.common.protocol.messages import Announce, HeardOutputs, Refusal
from ridgeway.common.protocol.packet import open_packet, seal_packet
from ridgeway.coordinator.deploy.authority import create_authority
from ridgeway.coordinator.deploy.coordinator_folder import back_up, restore
from ridgeway.coordinator.round.federation import PrivacySettings
from ridgeway.coordinator.round.round import run_round
from tests.support.commands import Workshop
from tests.support.faults import make_haste
from tests.support.making import refusing
from tests.support.simulated_federation import (
    ONE_EACH,
    Direct,
    Parties,
    found,
    found_private,
    no_watch,
    populate,
)

pytestmark = pytest.mark.usefixtures("private_sentences")

HOLDERS = {"code": "code", "law": "law", "medicine": "medicine", "law-2": "law"}
OLD = "law"


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    """A private federation before its first round; each holder keeps what it spent in a file of its
    own.
    """
    with pytest.MonkeyPatch.context() as patch:
        make_haste(patch, once=False)
        parties = found_private(
            tmp_path_factory.mktemp("fresh"), privacy=PrivacySettings(epsilon=1.0)
        )
        populate(parties, HOLDERS)
        return parties


@pytest.fixture
def parties(fresh: Parties, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parties:
    make_haste(monkeypatch, once=False)
    return fresh.copy(tmp_path / "parties")


def round_of(parties: Parties) -> None:
    run_round(parties.federation, Direct(parties), no_watch)


def next_round(parties: Parties) -> None:
    for name in HOLDERS:
        parties.ready(name)
    round_of(parties)


def spending(parties: Parties) -> Path:
    return Path(str(parties.holder(OLD).settings.spending))


class Machine:
    """All that a holder has on its machine, as a snapshot takes and brings it back."""

    def __init__(self, parties: Parties, copy: Path, *, spending: bool = True) -> None:
        self.parties, self.copy, self._with_spending = parties, copy, spending
        shutil.copytree(parties.homes[OLD], copy / "folder")
        if spending and self._spending.exists():
            shutil.copy(self._spending, copy / "spending")

    @property
    def _spending(self) -> Path:
        return spending(self.parties)

    def put_back(self) -> None:
        shutil.rmtree(self.parties.homes[OLD])
        shutil.copytree(self.copy / "folder", self.parties.homes[OLD])
        if self._with_spending:
            self._spending.unlink()
            if (self.copy / "spending").exists():
                shutil.copy(self.copy / "spending", self._spending)


def refused(parties: Parties) -> bool:
    """Whether a round leaves the holder out because its folder is an older copy."""
    federation = parties.federation
    asked = Announce(terms=federation.terms, heard=federation.standing.heard)
    reply = answer(
        parties.holder(OLD), seal_packet(asked, federation.identity, round="ab" * 16)
    )
    message = open_packet(reply).message
    return isinstance(message, Refusal) and message.code == "older_copy"


@pytest.mark.parametrize(
    "spending", [False, True], ids=["the folder alone", "the whole machine"]
)
def test_an_older_copy_takes_part_in_nothing(
    parties: Parties, tmp_path: Path, spending: bool
) -> None:
    """Of the folder, as the file beside it tells; of the whole machine, as an honest coordinator
    tells.
    """
    before = Machine(parties, tmp_path / "copy", spending=spending)
    round_of(parties)
    assert not refused(parties)
    spent = parties.holder(OLD).account.epsilon()
    before.put_back()
    assert refused(parties)
    if not spending:
        assert parties.holder(OLD).account.epsilon() == spent
        with pytest.raises(InputError, match="is an older copy"):
            parties.ready(OLD)


def test_a_copy_between_sums_and_counts_is_noticed(
    parties: Parties, tmp_path: Path
) -> None:
    """Its sums it knows; of its counts the coordinator has got one more."""
    round_of(parties)
    holder = parties.holder(OLD)
    key = holder.key
    holder.check_record(
        [
            HeardOutputs(key=key, sums=1, counts=1),
            HeardOutputs(key="1" * 64, sums=9, counts=9),
        ]
    )
    for counted in (
        HeardOutputs(key=key, sums=2, counts=1),
        HeardOutputs(key=key, sums=1, counts=2),
    ):
        with refusing("older_copy"):
            holder.check_record([counted])


def test_restored_a_folder_is_charged_for_what_may_have_left_and_takes_part_again(
    parties: Parties, tmp_path: Path
) -> None:
    """One round at the least that its owner allows, for each epoch since and for the one that was
    open; never less than what truly left.
    """
    before = Machine(parties, tmp_path / "copy")
    round_of(parties)
    next_round(parties)
    truly = parties.holder(OLD).account.epsilon()
    before.put_back()
    holder = parties.holder(OLD)
    assert holder.account.epsilon() == 0
    charged = charge_restored(holder, epochs_since=1)
    assert len(charged) == 4
    account = parties.holder(OLD).account
    policy = holder.policy
    assert account.epsilon() == epsilon_of(
        2 * rho_for(policy.max_round_epsilon, policy.max_delta), policy.max_delta
    )
    assert account.epsilon() >= truly
    assert parties.holder(OLD).epochs.current() is None
    next_round(parties)
    newest = parties.federation.newest
    assert newest is not None
    assert {member.name for member in newest.members} == set(HOLDERS)


def test_an_owner_that_names_too_few_epochs_is_still_refused(
    parties: Parties, tmp_path: Path
) -> None:
    """By what the coordinator has got; the right number, said afterwards, ends it."""
    before = Machine(parties, tmp_path / "copy")
    round_of(parties)
    next_round(parties)
    before.put_back()
    charge_restored(parties.holder(OLD), epochs_since=0)
    parties.ready(OLD)
    assert refused(parties)
    charge_restored(parties.holder(OLD), epochs_since=1)
    next_round(parties)
    assert not refused(parties)


def test_what_the_file_beside_the_folder_knows_is_not_charged_again(
    parties: Parties, tmp_path: Path
) -> None:
    before = Machine(parties, tmp_path / "copy", spending=False)
    round_of(parties)
    spent = parties.holder(OLD).account.epsilon()
    before.put_back()
    assert charge_restored(parties.holder(OLD), epochs_since=0) == []
    assert parties.holder(OLD).account.epsilon() == spent
    next_round(parties)


def test_a_budget_that_may_be_spent_is_spent(parties: Parties, tmp_path: Path) -> None:
    """After a restore that may have cost all of it, no epoch is opened any more."""
    parties.rewrite(OLD, "max_epsilon = 4.0", "max_epsilon = 1.5")
    charge_restored(parties.holder(OLD), epochs_since=9)
    with pytest.raises(InputError, match=r"`max_epsilon` in client\.toml allows 1\.5"):
        open_epoch(parties.holder(OLD), parties.terms)


def test_a_backup_brings_the_folder_back_without_its_epoch(
    parties: Parties, tmp_path: Path
) -> None:
    """Keys, journal, releases, roster and what was spent."""
    round_of(parties)
    holder = parties.holder(OLD)
    spent, releases = holder.account.epsilon(), holder.received
    made = back_up_holder(holder, tmp_path / "law.backup")
    assert made.holder == holder.key
    assert stat.S_IMODE((tmp_path / "law.backup").stat().st_mode) == 0o600
    assert not any("epochs" in name or "session" in name for name in made.files)
    shutil.rmtree(parties.homes[OLD])
    restored = restore_holder(tmp_path / "law.backup", parties.homes[OLD])
    assert restored.account.epsilon() == spent and restored.received == releases
    assert charge_restored(restored, epochs_since=0) == []
    assert restored.identity.public == holder.key
    assert restored.pinned_keys == holder.pinned_keys
    assert not (parties.homes[OLD] / "spending.jsonl").exists()
    assert HolderRecord(parties.homes[OLD]).journal.verify() > 0
    next_round(parties)


def test_a_new_machine_knows_what_the_corpus_has_cost(
    parties: Parties, tmp_path: Path
) -> None:
    """Though the file that folders share was lost with the old one."""
    round_of(parties)
    file, spent = spending(parties), parties.holder(OLD).account.epsilon()
    back_up_holder(parties.holder(OLD), tmp_path / "law.backup")
    shutil.rmtree(parties.homes[OLD])
    file.unlink()
    assert (
        restore_holder(tmp_path / "law.backup", parties.homes[OLD]).account.epsilon()
        == spent
    )
    assert len(file.read_text().splitlines()) == 2


def test_a_restore_that_was_cut_off_before_it_charged_takes_part_in_nothing(
    parties: Parties, tmp_path: Path
) -> None:
    """Also where nobody else knows what has left: no file beside it, and a coordinator that says
    nothing.
    """
    back_up_holder(parties.holder(OLD), tmp_path / "law.backup")
    round_of(parties)
    spending(parties).unlink()
    shutil.rmtree(parties.homes[OLD])
    holder = restore_holder(tmp_path / "law.backup", parties.homes[OLD])
    with refusing("older_copy"):
        holder.check_record()
    with pytest.raises(InputError, match="is an older copy"):
        parties.ready(OLD)
    charge_restored(holder, epochs_since=0)
    parties.holder(OLD).check_record()


def test_a_masked_epoch_after_a_restore_needs_the_owners_word(tmp_path: Path) -> None:
    """Totals that the copy does not know may hold nearly the same documents."""
    parties = found(tmp_path / "parties", mode="masked")
    populate(parties, ONE_EACH)
    charge_restored(parties.holder(OLD), epochs_since=1)
    with pytest.raises(
        InputError, match="documents changed since an epoch that is in an opened total"
    ):
        open_epoch(parties.holder(OLD), parties.terms)
    open_epoch(parties.holder(OLD), parties.terms, new_epoch=True)


def test_what_is_no_holders_backup_is_refused_and_leaves_no_folder(
    parties: Parties, tmp_path: Path
) -> None:
    """A coordinator's, a damaged one, none; nothing is overwritten."""
    create_authority(parties.federation.link, [])
    back_up(parties.federation, tmp_path / "co.backup")
    back_up_holder(parties.holder(OLD), tmp_path / "law.backup")
    with pytest.raises(
        FormatError, match="a coordinator's folder; use `ridgeway coordinator restore`"
    ):
        restore_holder(tmp_path / "co.backup", tmp_path / "new")
    with pytest.raises(
        FormatError, match="a holder's folder; use `ridgeway client restore`"
    ):
        restore(tmp_path / "law.backup", tmp_path / "new")
    with pytest.raises(InputError, match="no backup is overwritten"):
        back_up_holder(parties.holder(OLD), tmp_path / "law.backup")
    with pytest.raises(InputError, match="not empty"):
        restore_holder(tmp_path / "law.backup", parties.homes[OLD])
    content = (tmp_path / "law.backup").read_bytes()
    (tmp_path / "law.backup").write_bytes(content[: len(content) // 2])
    with pytest.raises(FormatError):
        restore_holder(tmp_path / "law.backup", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_the_commands_say_what_was_charged_and_ask_for_the_number(
    parties: Parties, tmp_path: Path
) -> None:
    shop, home = Workshop(tmp_path), parties.homes[OLD]
    shop.do("client backup", home, tmp_path / "law.backup")
    shutil.rmtree(home)
    words = ("client restore", home, "--from", tmp_path / "law.backup")
    assert shop.call(*words).code == 2
    assert "6 outputs" in shop.do(*words, "--epochs-since", "2").stderr
    again = shop.do("client restore", home, "--epochs-since", "0", "--json").json
    assert again["charged"] == 0 and again["privacy"]["spent"] > 1
