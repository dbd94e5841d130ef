"""Modes on the operator's command line: which one a new federation has, what that means, and what
invitations carry.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeway.client.round import holder as holder_module
from ridgeway.common.base.records import MODE_SENTENCES
from ridgeway.common.base.settings import DEFAULT, PRIVATE_ENCODER
from ridgeway.common.privacy.public_prior import make_prior, write_prior
from ridgeway.common.protocol.cohort import Invite, read_signed_json
from ridgeway.common.text.encoder_files import find_encoder, save_encoder
from ridgeway.coordinator.cli import federation_commands
from ridgeway.coordinator.deploy.coordinator_folder import keep_installed
from ridgeway.coordinator.round.federation import PRIOR, Federation
from ridgeway.coordinator.round.membership import retire
from tests.support.commands import Workshop
from tests.support.simulated_federation import (
    ONE_EACH,
    found,
    own_texts,
    populate,
    round_of,
)
from tests.support.tiny import private_encoder, tiny_encoder

pytestmark = pytest.mark.usefixtures("private_sentences")


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    save_encoder(tiny_encoder(), tmp_path / "encoder")
    return Workshop(tmp_path)


def test_a_new_federation_is_private_unless_told_otherwise(shop: Workshop) -> None:
    """The mode and its sentence are printed, and stand in the settings; of private rounds, where
    the prior is from.
    """
    encoder = ("--encoder", shop.private_encoder)
    made = shop.do("coordinator init", shop / "one", *encoder)
    assert MODE_SENTENCES["private"] in made.stderr
    assert "built-in text" in made.stderr and "prior.safetensors" in made.stderr
    assert Federation(shop / "one").settings.mode == "private"
    for mode in ("masked", "clear"):
        other = shop.call("coordinator init", shop / mode, "--mode", mode, *encoder)
        assert MODE_SENTENCES[Federation(shop / mode).settings.mode] in other.stderr
        assert Federation(shop / mode).settings.mode == mode
        assert "built-in text" not in other.stderr
    command = "coordinator init --mode masked --json"
    assert shop.do(command, shop / "json", *encoder).json["mode"] == "masked"


def test_an_address_that_no_holder_can_reach_is_warned_of(shop: Workshop) -> None:
    """Where invitations would name every address of the machine, and only there."""
    encoder = ("--encoder", f"dir:{shop / 'encoder'}")
    made = ("coordinator init --mode masked --listen 0.0.0.0:9443", *encoder)
    warned = shop.call(*made, shop / "one").stderr
    assert "warning   invitations contain an address that no holder" in warned
    named = ("--address", "router.example.org:9443")
    assert "warning" not in shop.call(*made, shop / "two", *named).stderr


def test_results_are_on_stdout_and_changes_have_plain_words(shop: Workshop) -> None:
    """`verify` of both sides, and a rollback, which says how long it holds."""
    parties = populate(found(shop / "federation"), ONE_EACH)
    round_of(parties)
    retire(parties.federation, "code")
    parties.admit("code")
    folder = parties.federation.folder
    verified = shop.call("coordinator verify", folder).stdout
    assert verified.startswith(f"verified  {folder}: ")
    verified = shop.call("client verify", parties.homes["law"]).stdout
    assert "verified  journal" in verified
    done = shop.call("coordinator rollback", folder, "1")
    assert "rolled    back to 0001" in done.stderr and "--end-rollback" in done.stderr


def test_a_mode_that_there_is_not_is_one_sentence(shop: Workshop) -> None:
    """And no folder is made."""
    wrong = shop.call("coordinator init", shop / "one", "--mode", "loud")
    assert (wrong.code, wrong.stdout) == (2, "")
    assert wrong.stderr == (
        "ridgeway: Invalid value for '--mode': 'loud' is not one of 'private', 'masked', 'clear';"
        " see ridgeway coordinator init --help\n"
    )
    assert not (shop / "one").exists()


def test_private_federations_have_an_encoder_of_their_own(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others have that of the presets; what is named is taken."""
    asked: list[str] = []

    def find(source: str) -> object:
        asked.append(source)
        return private_encoder()

    monkeypatch.setattr(federation_commands, "find_encoder", find)
    for mode in ("private", "masked", "clear"):
        assert shop.call("coordinator init", shop / mode, "--mode", mode).code == 0
    assert asked == [PRIVATE_ENCODER, DEFAULT.encoder, DEFAULT.encoder]


def test_an_invitation_to_private_rounds_carries_the_prior(shop: Workshop) -> None:
    """Under the name by which a holder's folder has it, and the terms name its fingerprint; no
    other needs one.
    """
    assert holder_module.PRIOR == PRIOR
    public = [
        text for name in ("code", "law") for text in own_texts("public", name, 20)
    ]
    for mode in ("private", "masked"):
        folder = shop / mode
        init = f"coordinator init --mode {mode} --encoder", shop.private_encoder
        shop.do(*init, folder)
        prior = make_prior(find_encoder(shop.private_encoder), public)
        write_prior(prior, folder / PRIOR)
        keep_installed(Federation(folder))
        done = shop.do("coordinator invite", folder)
        assert MODE_SENTENCES[Federation(folder).settings.mode] in done.stderr
        terms = read_signed_json(folder / "invite" / "invite.json", Invite).terms
        carried = folder / "invite" / PRIOR
        assert carried.exists() == (terms.privacy is not None)
        if terms.privacy is not None:
            assert terms.privacy.prior == prior.fingerprint
            assert carried.read_bytes() == (folder / PRIOR).read_bytes()
