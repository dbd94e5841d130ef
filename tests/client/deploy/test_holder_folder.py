"""A holder's folder: its SuperNode's key can be replaced, and only that; what it takes of an
operator.
"""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ridgeway.client.deploy.holder_folder import renew_node_key
from ridgeway.client.round.holder import CARD
from ridgeway.common.base.errors import FormatError
from ridgeway.common.base.files import canonical_json
from ridgeway.common.base.identity import public_line
from ridgeway.common.protocol.cohort import (
    Card,
    Invite,
    read_signed_json,
    write_signed_json,
)
from tests.support.simulated_federation import found, populate


def test_a_renewed_supernode_key_is_on_a_card_that_the_holders_own_key_signs(
    tmp_path: Path,
) -> None:
    """The identity that others have pinned, the settings and the journal stay; the operator can
    admit the card.
    """
    parties = found(tmp_path)
    populate(parties, {"law": "law"})
    law = parties.homes["law"]
    before = {
        path.name: path.read_bytes()
        for path in law.iterdir()
        if path.is_file() and "journal" not in path.name
    }
    old = read_signed_json(law / CARD, Card)
    line = renew_node_key(law)
    new = read_signed_json(law / CARD, Card)
    assert (new.key, new.domain) == (
        old.key,
        old.domain,
    ) and old.node != new.node == line == public_line(law / "node.key")
    assert stat.S_IMODE((law / "node.key").stat().st_mode) == 0o600
    changed = {
        name for name, content in before.items() if (law / name).read_bytes() != content
    }
    assert changed == {"node.key", CARD}
    assert parties.admit("law").node == line


def test_an_invitation_of_an_earlier_version_is_refused_in_a_sentence(
    tmp_path: Path,
) -> None:
    """Such as one that names members, though its own coordinator has signed it."""
    federation = found(tmp_path).federation
    key = federation.identity.public
    paper = Invite(
        coordinator=key,
        address="localhost:1",
        terms=federation.terms,
        bundle="0" * 64,
        authority="1" * 64,
    )
    path = tmp_path / "invite.json"
    write_signed_json(paper, federation.identity, path)
    assert read_signed_json(path, Invite) == paper
    body = {**paper.model_dump(mode="json"), "members": []}
    path.write_bytes(
        canonical_json(
            {**body, "signature": federation.identity.sign(canonical_json(body))}
        )
    )
    with pytest.raises(
        FormatError,
        match="is not an invitation, is damaged, or is of another version; ask for it again",
    ):
        read_signed_json(path, Invite)
