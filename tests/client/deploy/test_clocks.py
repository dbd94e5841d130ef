"""Clocks that differ: what Flower's SuperLink makes of the time that a SuperNode signs with each
request.
"""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def is_taken(ahead_s: float, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a SuperLink takes a request of a SuperNode whose clock is so far ahead of its own."""
    node_auth: Any = pytest.importorskip("flwr.superlink.routers.fleet.node_auth")
    asymmetric: Any = pytest.importorskip("flwr.supercore.primitives.asymmetric")
    private, public = asymmetric.generate_key_pairs()
    key, signed_at = (
        asymmetric.public_key_to_bytes(public),
        (NOW + timedelta(seconds=ahead_s)).isoformat(),
    )
    headers = {
        node_auth.FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(key).decode(),
        node_auth.FLEET_HTTP_SIGNATURE_HEADER: b64encode(
            asymmetric.sign_message(private, signed_at.encode())
        ).decode(),
        node_auth.TIMESTAMP_HEADER: signed_at,
    }
    asked = SimpleNamespace(
        protobuf_request=node_auth.RegisterNodeFleetRequest(public_key=key)
    )
    monkeypatch.setattr(node_auth, "now", lambda: NOW)
    try:
        node_auth.authenticate_node(SimpleNamespace(headers=headers, state=asked))
    except node_auth.HTTPException:
        return False
    return True


@pytest.mark.parametrize(
    ("ahead_s", "taken"),
    [
        (0, True),
        (4.9, True),
        (5.1, False),
        (60, False),
        (-60, True),
        (-304, True),
        (-306, False),
    ],
)
def test_a_holders_clock_may_be_minutes_behind_and_seconds_ahead(
    ahead_s: float, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/operator/first-federation.md tells holders and operators; another Flower may allow
    something else.
    """
    assert is_taken(ahead_s, monkeypatch) is taken
