"""The invitation as holders take it up, and what an operator hears of a coordinator that is not
up.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.commands import Workshop, workshop

pytestmark = pytest.mark.usefixtures("private_sentences")


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    """Two coordinators, each with an invitation."""
    made = workshop(tmp_path)
    for name, port in (("co", 9443), ("other", 9444)):
        listen = f"--listen 127.0.0.1:{port}"
        made.do(f"coordinator init {name} {listen} --encoder", made.private_encoder)
        made.do(f"coordinator invite {name}")
    return made


def test_an_invitation_with_another_authority_is_refused(shop: Workshop) -> None:
    """Whoever exchanges ca.crt on the way could stand in for the coordinator's machine; the
    signature covers it.
    """
    init = "client init law --invite co/invite --domain law --corpus law.jsonl"
    words = f"{init} --encoder", shop.private_encoder
    kept = (shop / "co/invite/ca.crt").read_bytes()
    shutil.copy(shop / "other/invite/ca.crt", shop / "co/invite/ca.crt")
    refused = shop.call(*words)
    assert (
        refused.code == 2
        and "is not the one that the invitation was signed with" in refused.stderr
    )
    assert not (shop / "law").exists()
    (shop / "co/invite/ca.crt").write_bytes(kept)
    shop.do(*words)
    assert (shop / "law/ca.crt").read_bytes() == kept


def test_the_status_of_a_coordinator_that_is_down_says_so_by_its_exit_code(
    shop: Workshop,
) -> None:
    """In words and as JSON; and holders cannot be asked, which is another code."""
    assert shop.call("coordinator status co").code == 1
    status = shop.call("coordinator status co --json")
    assert status.code == 1 and status.json["up"] is False
    asked = shop.call("coordinator round co --dry-run")
    assert asked.code == 2 and "the coordinator is not running" in asked.stderr
