"""The coordinator's signing key renewed: holders follow the chain from the key they pinned, and a
thief cannot.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ridgeway.client.deploy.notices import take_notice
from ridgeway.client.evidence import HolderRecord
from ridgeway.client.round.answers import answer
from ridgeway.common.base.errors import (
    FormatError,
    IdentityError,
    InputError,
    ReleaseError,
)
from ridgeway.common.base.files import canonical_json
from ridgeway.common.base.identity import HandOver, hand_over, load_identity, next_key
from ridgeway.common.base.journal import system_clock
from ridgeway.common.protocol.cohort import INVITE, NOTICE
from ridgeway.common.protocol.messages import Hello, Refusal
from ridgeway.common.protocol.packet import open_packet, seal_packet
from ridgeway.common.routing.release import CurrentRelease, amend_release, load_release
from ridgeway.common.routing.router import Router
from ridgeway.coordinator.deploy.authority import create_authority
from ridgeway.coordinator.deploy.coordinator_folder import (
    back_up,
    keep_installed,
    restore,
)
from ridgeway.coordinator.deploy.supervisor import announce, write_invite
from ridgeway.coordinator.round.federation import KEY, Federation
from ridgeway.coordinator.round.membership import rollback
from ridgeway.serving.routing_service import ReleaseSource
from tests.support.commands import Workshop
from tests.support.making import fixed_identity, sign_again
from tests.support.simulated_federation import (
    DOMAINS,
    ONE_EACH,
    Parties,
    found,
    populate,
    round_of,
)


@pytest.fixture
def parties(tmp_path: Path, haste: None) -> Parties:
    """A federation after its first round."""
    made = found(tmp_path, mode="masked", address="router.example.org:9443")
    populate(made, ONE_EACH)
    create_authority(made.federation.link, ["router.example.org"])
    round_of(made)
    return made


def renew(parties: Parties) -> HandOver:
    return parties.federation.renew_key()


def another_round(parties: Parties) -> int:
    parties.new_epochs()
    return round_of(parties).number


def asked(parties: Parties, federation: Federation) -> str:
    """The kind of law's answer to a greeting, or the code of its refusal."""
    greeting = seal_packet(Hello(), federation.identity, round="0" * 32)
    message = open_packet(answer(parties.holder("law"), greeting)).message
    return message.code if isinstance(message, Refusal) else message.kind


def noticed(parties: Parties, federation: Federation) -> str:
    """What law's owner is told of the notice of a coordinator."""
    announce(federation)
    notice = (federation.link / NOTICE).read_bytes()
    home, pinned = parties.homes["law"], federation.keys[0]
    return "\n".join(take_notice(home, notice, pinned, system_clock()))


def thief(parties: Parties) -> Federation:
    """Whoever has a copy of the coordinator's folder, and so its key."""
    return parties.copy(parties.folder / "stolen").federation


def test_holders_follow_the_chain_from_the_key_they_pinned(parties: Parties) -> None:
    """Twice: the rounds go on, what was signed before stays good, and every record verifies."""
    first = parties.federation.identity.public
    for number in (2, 3):
        renew(parties)
        assert another_round(parties) == number
    federation = parties.federation
    assert federation.identity.public not in (first, federation.keys[1])
    assert federation.keys[0] == first
    assert federation.verify()["releases"] == 3
    for name in ONE_EACH:
        holder = parties.holder(name)
        assert (holder.settings.policy.coordinator, holder.coordinator) == (
            first,
            federation.identity.public,
        )
        assert holder.newest == 3
        assert [
            check.words
            for check in HolderRecord(holder.folder).check()
            if not check.good
        ] == []


def test_what_the_key_before_signed_is_verified_without_another_round(
    parties: Parties,
) -> None:
    """The release was signed before the hand-over, which came by the notice."""
    announce(parties.federation)
    renew(parties)
    federation = parties.federation
    words = noticed(parties, federation)
    assert federation.identity.public in words
    assert federation.keys[0] in words
    record = HolderRecord(parties.homes["law"])
    results = {check.name: check for check in record.check()}
    assert all(check.good for check in results.values())
    assert federation.identity.public in results["keys"].words


def test_the_key_before_signs_nothing_that_a_holder_takes_any_more(
    parties: Parties,
) -> None:
    """Requests and notices: whoever met the hand-over refuses, and says which key holds."""
    stolen = thief(parties)
    renew(parties)
    assert asked(parties, stolen) == "here"  # it has met nothing yet
    assert asked(parties, parties.federation) == "here"
    assert asked(parties, stolen) == "key_handed_over"
    create_authority(stolen.link.parent / "other", [])
    shutil.copytree(stolen.link.parent / "other", stolen.link, dirs_exist_ok=True)
    with pytest.raises(FormatError, match="no longer valid"):
        noticed(parties, stolen)


def test_a_second_hand_over_of_the_old_key_is_refused(parties: Parties) -> None:
    """A thief hands the stolen key over to its own: who met the first hand-over keeps to it, and
    has the proof.
    """
    stolen = thief(parties)
    renew(parties)
    assert asked(parties, parties.federation) == "here"
    stolen.renew_key()
    assert asked(parties, stolen) == "forked_key"
    assert asked(parties, parties.federation) == "here"
    [keys] = [
        check
        for check in HolderRecord(parties.homes["law"]).check()
        if check.name == "keys"
    ]
    assert "handed over twice" in keys.words
    with pytest.raises(FormatError, match="handed over twice"):
        noticed(parties, stolen)


def test_whoever_met_the_thief_first_refuses_the_operator(parties: Parties) -> None:
    """Nobody can tell the two apart, so the first one holds; that the rounds stop is what brings it
    to light.
    """
    stolen = thief(parties)
    stolen.renew_key()
    assert asked(parties, stolen) == "here"
    renew(parties)
    assert asked(parties, parties.federation) == "forked_key"


def test_a_release_is_verified_by_whoever_pinned_an_earlier_key(
    parties: Parties,
) -> None:
    """The chain travels with it; a key that the chain does not lead from is refused, and so is a
    later one.
    """
    old = parties.federation.identity.public
    renew(parties)
    another_round(parties)
    federation = parties.federation
    folder = federation.release_folder(2)
    for key in (old, federation.identity.public):
        assert Router.load(folder, key=key).domains == DOMAINS
    for number, key in ((2, fixed_identity(1).public), (1, federation.identity.public)):
        with pytest.raises(ReleaseError, match="not by the key you trust"):
            Router.load(federation.release_folder(number), key=key)
    rollback(federation, 1)
    again = load_release(federation.release_folder(3), key=old)
    assert again.signer == federation.identity.public


def test_the_public_chain_does_not_let_the_old_key_sign_for_the_new_one(
    parties: Parties, tmp_path: Path
) -> None:
    """A thief adds the true chain to a release that the stolen key signs: who pinned the new key
    refuses it.
    """
    stolen = thief(parties)
    renew(parties)
    federation = parties.federation
    folder = tmp_path / "forged"
    shutil.copytree(stolen.release_folder(1), folder)
    amend_release(
        folder, {}, stolen.identity.with_handovers(federation.identity.handovers)
    )
    with pytest.raises(ReleaseError, match="not by the key you trust"):
        load_release(folder, key=federation.identity.public)


def test_an_amended_release_keeps_its_chain(parties: Parties) -> None:
    """As `evaluate --sign` amends it, which knows the key file alone."""
    old = parties.federation.identity.public
    renew(parties)
    another_round(parties)
    folder = parties.release_folder(2)
    amend_release(
        folder, {"evaluation": None}, load_identity(parties.federation.folder / KEY)
    )
    assert load_release(folder, key=old).manifest["evaluation"] is None


def test_a_chain_that_was_damaged_does_not_verify(parties: Parties) -> None:
    """Also one whose links were signed by somebody else."""
    old = parties.federation.identity.public
    stranger = fixed_identity(1)
    folder = parties.release_folder(1)
    sign_again(folder, stranger, {})
    forged = hand_over(fixed_identity(2), stranger, 1)
    manifest = folder / "manifest.json"
    words = forged.to_json() | {"before": old}
    body = json.loads(manifest.read_bytes())
    wrong: tuple[object, ...] = ([words], [1], "x", [{}])
    for handovers in wrong:
        body["signature"]["handovers"] = handovers
        manifest.write_bytes(canonical_json(body))
        with pytest.raises(ReleaseError, match="changed after it was signed"):
            load_release(folder, key=old)


@pytest.mark.parametrize("pinned", [False, True])
def test_a_running_service_follows_the_hand_over_and_does_not_go_back(
    parties: Parties, pinned: bool
) -> None:
    """With --key, or trusting the first signer: the chain leads on from there, and the old key no
    longer valid.
    """
    latest = parties.federation.folder / "releases" / "latest"
    stolen = thief(parties)
    current = CurrentRelease(
        ReleaseSource(latest, stolen.identity.public if pinned else None)
    )
    renew(parties)
    another_round(parties)
    assert current.refresh()
    assert (current.refused, current.served.release.signer) == (
        None,
        parties.federation.identity.public,
    )
    latest.unlink()
    amend_release(stolen.release_folder(1), {"number": 9}, stolen.identity)
    latest.symlink_to(stolen.release_folder(1))
    assert current.refresh()
    assert "not by the key you trust" in str(current.refused)
    assert current.served.number == 2


def test_a_running_service_learns_of_a_hand_over_from_a_release_that_it_cannot_use(
    parties: Parties,
) -> None:
    """It was signed, so the old key no longer valid, although no expert serves the release."""
    latest = parties.federation.folder / "releases" / "latest"
    stolen = thief(parties)
    first = parties.federation.newest
    assert first is not None

    def check(router: Router) -> None:
        if router.release != first.release:
            raise InputError("nobody serves this")

    current = CurrentRelease(ReleaseSource(latest, stolen.identity.public, check=check))
    renew(parties)
    another_round(parties)
    assert current.refresh()
    assert current.refused == "nobody serves this"
    amend_release(stolen.release_folder(1), {"number": 9}, stolen.identity)
    latest.unlink()
    latest.symlink_to(stolen.release_folder(1))
    assert current.refresh()
    assert "not by the key you trust" in str(current.refused)


def test_a_release_whose_own_chain_hands_its_signers_key_over_is_refused(
    parties: Parties,
) -> None:
    """Also by whoever pinned the old key: the release itself shows that this key no longer
    valid.
    """
    stolen = thief(parties)
    renew(parties)
    folder, old = stolen.release_folder(1), stolen.identity.public
    sign_again(folder, stolen.identity, {})
    assert load_release(folder, key=old).signer == old
    manifest = folder / "manifest.json"
    body = json.loads(manifest.read_bytes())
    body["signature"]["handovers"] = [
        link.to_json() for link in parties.federation.identity.handovers
    ]
    manifest.write_bytes(canonical_json(body))
    with pytest.raises(ReleaseError, match="not by the key you trust"):
        Router.load(folder, key=old)


def test_a_renewal_that_is_cut_off_is_brought_to_its_end(parties: Parties) -> None:
    """Before the ledger has it nothing happened; afterwards the next process takes the new key
    up.
    """
    folder = parties.federation.folder
    old = (folder / KEY).read_bytes()
    next_key(folder / KEY).write_bytes(b"half a key")
    assert parties.federation.identity.public == load_identity(folder / KEY).public
    link = renew(parties)
    (folder / KEY).rename(next_key(folder / KEY))
    (folder / KEY).write_bytes(old)
    assert parties.federation.identity.public == link.after
    (folder / KEY).write_bytes(old)
    with pytest.raises(IdentityError):
        parties.federation.identity.sign(b"")


def test_a_backup_keeps_the_chain(parties: Parties, tmp_path: Path) -> None:
    """And one from before the renewal is refused by holders that met it, with words that say so."""
    back_up(parties.federation, tmp_path / "before.backup")
    renew(parties)
    another_round(parties)
    back_up(parties.federation, tmp_path / "after.backup")
    restore(tmp_path / "after.backup", tmp_path / "after")
    after = Federation(tmp_path / "after", encoder=parties.encoder)
    assert after.keys == parties.federation.keys
    assert asked(parties, after) == "here"
    restore(tmp_path / "before.backup", tmp_path / "before")
    before = Federation(tmp_path / "before", encoder=parties.encoder)
    assert asked(parties, before) == "key_handed_over"


# The commands


def test_the_operator_renews_and_holders_follow_by_commands(
    parties: Parties, tmp_path: Path
) -> None:
    """`renew --signing-key` writes a new invitation; `accept`, `members` and `init` take it up."""
    shop, home = Workshop(tmp_path), parties.homes["law"]
    folder = parties.federation.folder
    renewed = ("coordinator renew --signing-key", folder)
    keep_installed(parties.federation)
    write_invite(parties.federation)
    shutil.copy(folder / "invite" / INVITE, home)  # as `init` keeps it
    facts = shop.call(*renewed, "--json").json
    assert facts["after"] == parties.federation.identity.public
    assert facts["handovers"] == 1
    assert shop.call(*renewed, "--authority").code == 2
    invite = folder / "invite"
    accepted = shop.call("client accept", home, "--invite", invite)
    assert (accepted.code, facts["after"] in accepted.stderr) == (0, True)
    assert shop.call("client members", home, "--invite", invite).code == 0
    status = shop.call("client status", home, "--json").json
    assert status["coordinator"] == facts["after"]
    assert [(link["whose"], link["after"]) for link in status["handovers"]] == [
        ("the coordinator", facts["after"])
    ]
    assert "handed over to" in shop.call("client status", home).stderr
    assert shop.call("client verify", home).code == 0
    options = ("--invite", invite, "--corpus", folder, "--coordinator-key")
    words = ("client init --domain law --accept-mode masked", *options)
    assert shop.call(*words, facts["before"], tmp_path / "one").code == 0
    assert shop.call(*words, facts["after"], tmp_path / "two").code == 0
    assert shop.call(*words, "1" * 64, tmp_path / "three").code == 2


def test_a_holder_renews_and_is_admitted_by_commands(
    parties: Parties, tmp_path: Path
) -> None:
    """`renew --identity` writes a card with the hand-over; `admit` knows the holder by any key."""
    shop, folder = Workshop(tmp_path), parties.federation.folder
    law = parties.homes["law"]
    facts = shop.call("client renew", law, "--identity", "--json").json
    assert facts["key"] == parties.holder("law").identity.public != facts["before"]
    assert (
        shop.call(
            "coordinator admit", folder, law / "holder.pub", "--name", "other"
        ).code
        == 2
    )
    assert (
        shop.call("coordinator admit", folder, law / "holder.pub", "--name", "law").code
        == 0
    )
    assert parties.standing.roster["law"].key == facts["key"]
    assert "(you)" in {
        link["whose"]
        for link in shop.call("client status", law, "--json").json["handovers"]
    }
