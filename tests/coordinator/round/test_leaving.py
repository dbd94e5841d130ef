"""A holder that leaves: rounds do not wait for it, its domain is not lost in silence, its folder
keeps its record.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from ridgeway.client.deploy.holder_folder import has_left, leaving, renew_node_key
from ridgeway.client.deploy.notices import Gate
from ridgeway.common.base.errors import InputError, NodeError
from ridgeway.common.protocol.cohort import LEAVE_PATH, Leaving, check_signed_json
from ridgeway.coordinator.federation_page import problems
from ridgeway.coordinator.round.membership import retire
from tests.support.commands import Workshop
from tests.support.simulated_federation import (
    DOMAINS,
    Direct,
    Parties,
    found,
    names_of,
    populate,
    round_fails,
    round_of,
)

NOW = datetime.now(UTC)
PEOPLE = {"code-1": "code", "code-2": "code", "law": "law", "medicine": "medicine"}


@pytest.fixture
def parties(tmp_path: Path, haste_with_changes: None) -> Parties:
    """Four holders of three domains, with a first release in the clear."""
    made = populate(found(tmp_path), PEOPLE)
    round_of(made)
    return made


def next_domains(parties: Parties, *allow: str) -> tuple[str, ...]:
    """The domains of the release of a round with new epochs."""
    parties.new_epochs()
    there = Direct(parties, parties.standing.active)
    made = round_of(parties, there, allow_missing=allow, accept_worse=DOMAINS)
    return made.domains


def signed(parties: Parties, name: str) -> Leaving:
    return check_signed_json(leaving(parties.holder(name)), Leaving, "what was sent")


def leave(parties: Parties, name: str) -> str | None:
    return parties.ledger.leave(signed(parties, name))


def test_another_holder_keeps_the_domain_and_nobody_waits(parties: Parties) -> None:
    """The next release is without the sums of who has left."""
    assert leave(parties, "code-1") == "code-1"
    assert leave(parties, "code-1") is None
    assert next_domains(parties) == DOMAINS
    assert names_of(parties.standing.releases[-1]) == {"code-2", "law", "medicine"}


@pytest.mark.parametrize("for_good", [False, True])
def test_a_domain_that_nobody_has_any_more_is_named_until_the_operator_lets_it_go(
    parties: Parties, for_good: bool
) -> None:
    """For one round, or for good with `retire`; until then no release is without it."""
    leave(parties, "law")
    with round_fails(
        r"would lose law, which release 0001 has: law has left the federation; `ri"
    ):
        next_domains(parties)
    [problem] = [
        problem
        for problem in problems(parties.federation, set(PEOPLE), None, NOW)
        if "has left" in problem.words
    ]
    assert problem.stops and problem.names == ("law",)
    if for_good:
        retire(parties.federation, "law")
    left = ("code", "medicine")
    assert next_domains(parties, *([] if for_good else ["law"])) == left
    assert next_domains(parties) == left


def test_whoever_comes_back_has_another_key_for_its_supernode_and_the_same_journal(
    parties: Parties,
) -> None:
    """Its old card, and its old word that it leaves, count no more."""
    old = signed(parties, "law")
    assert leave(parties, "law") == "law"
    with pytest.raises(InputError, match="cannot be admitted again"):
        parties.admit("law")
    spent = parties.holder("law").account.to_json()
    renew_node_key(parties.homes["law"])
    parties.admit("law")
    assert "law" in parties.standing.active
    assert parties.ledger.leave(old) is None
    assert parties.holder("law").account.to_json() == spent
    assert next_domains(parties) == DOMAINS


def test_a_word_to_another_coordinator_counts_for_nothing(parties: Parties) -> None:
    word = signed(parties, "law").model_copy(update={"coordinator": "1" * 64})
    assert parties.ledger.leave(word) is None


def test_the_command_tells_the_coordinator_first(
    parties: Parties, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it cannot be told, nothing has changed; afterwards `join` refuses until the SuperNode has
    another key.
    """
    shop, home = Workshop(tmp_path), parties.homes["law"]
    sent: list[bytes] = []

    def away(gate: Gate, path: str, content: bytes) -> None:
        raise NodeError("away")

    monkeypatch.setattr(Gate, "tell", away)
    assert shop.call("client leave", home).code == 2
    assert not has_left(parties.holder("law").journal)
    monkeypatch.setattr(Gate, "tell", lambda gate, path, content: sent.append(content))
    assert shop.call("client leave", home).code == 0
    word = check_signed_json(sent[0], Leaving, LEAVE_PATH)
    assert word.key == parties.holder("law").identity.public
    assert shop.call("client status", home, "--json").json["left"]
    assert "has left already" in shop.call("client leave", home).stderr
    joined = shop.call("client join", home)
    assert (
        joined.code != 0
        and "has left the federation; to come back: ridgeway client renew"
        in joined.stderr
    )
    assert shop.call("client renew", home).code == 0
    assert not has_left(parties.holder("law").journal)
