"""Flower's processes that are killed in a masked round, at each exchange: what answers for a
holder, and the SuperLink.

Every message goes through Flower's own serialisation; the kills are told as Flower tells them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import httpx
import pytest

from ridgeway.coordinator.round.progress import ExchangeDone
from ridgeway.coordinator.round.round import deliver_newest
from tests.support.flower_parts import FlowerMessage, LocalGrid, put_together
from tests.support.hostile import MEMBERS, VICTIM
from tests.support.simulated_federation import (
    DOMAINS,
    Direct,
    Parties,
    names_of,
    no_watch,
    of_kind,
    round_of,
)

server_app: Any = pytest.importorskip("ridgeway.coordinator.server_app")
client_app: Any = pytest.importorskip("ridgeway.client.client_app")
error_of: Any = pytest.importorskip("flwr.app").Error
CRASHED = 2
"""Flower's code for a ClientApp whose process has ended."""
SUM = ["confirm_sum", "open_sum"]
EXCHANGES = ["announce", "share", "seal", *SUM, "evaluate", *SUM, "deliver"]
LOCKED = ["confirm_sum", "lock_sum", "open_sum"]
LARGE_EXCHANGES = ["announce", "share", "seal", *LOCKED, "evaluate", *LOCKED, "deliver"]


class Shaky(LocalGrid):
    """Looks for answers fail at first in every exchange; in one exchange a holder's process ends,
    and then another comes in its place.

    killed: the number of that exchange. answered: whether the process had done its work.
    """

    def __init__(
        self, parties: Parties, killed: int = -1, answered: bool = False
    ) -> None:
        names = sorted(MEMBERS)
        super().__init__(
            client_app.app,
            {peer: parties.homes[name] for peer, name in enumerate(names, start=1)},
        )
        self._victim = names.index(VICTIM) + 1
        self._killed, self._answered = killed, answered
        self._exchange, self._away = -1, 0

    def push_messages(self, messages: Iterable[FlowerMessage]) -> Iterable[str]:
        self._exchange += 1
        self._away = 2
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[FlowerMessage]:
        self._away -= 1
        if self._away >= 0:
            raise httpx.ConnectError("the SuperLink is started again")
        for number in message_ids:
            asked = self._waiting.get(number)
            dies = (
                asked is not None
                and self._exchange == self._killed
                and asked[0] == self._victim
            )
            if not dies or self._answered:
                replies = list(super().pull_messages([number]))
            if not dies:
                yield from replies
            elif asked is not None:
                self._waiting.pop(number, None)
                died = error_of(code=CRASHED, reason="the process has ended")
                yield FlowerMessage(died, reply_to=put_together(asked[1]))


def round_over(parties: Parties, grid: Shaky) -> tuple[Any, list[ExchangeDone]]:
    seen: list[Any] = []
    transport = server_app.GridTransport(grid, least_pause_s=0.0)
    return round_of(parties, transport, seen.append), of_kind(ExchangeDone, seen)


def test_a_superlink_that_goes_away_at_every_exchange_changes_nothing(
    parties: Parties, tmp_path: Any
) -> None:
    """The release is that of a round without Flower, bit for bit, and no exchange was repeated."""
    plain = parties.copy(tmp_path / "plain")
    wanted = round_of(plain, Direct(plain, list(MEMBERS)))
    made, exchanges = round_over(parties, Shaky(parties))
    assert made.release == wanted.release
    assert [exchange.step for exchange in exchanges] == EXCHANGES
    assert {exchange.answers for exchange in exchanges} == {len(MEMBERS)}


@pytest.mark.parametrize(
    ("dealing", "killed", "answered"),
    [
        *(("everybody", number, number % 2 == 1) for number in range(len(EXCHANGES))),
        *(
            ("neighbours", number, number % 2 == 1)
            for number, step in enumerate(LARGE_EXCHANGES)
            if step in LOCKED
        ),
    ],
    indirect=["dealing"],
)
def test_a_holder_whose_process_is_killed_at_any_exchange_spoils_no_round(
    parties: Parties, dealing: str, killed: int, answered: bool
) -> None:
    """Whoever has signed is in the sum, nobody is asked twice for the same, and a later delivery
    brings the release.
    """
    steps = EXCHANGES if dealing == "everybody" else LARGE_EXCHANGES
    made, exchanges = round_over(parties, Shaky(parties, killed, answered))
    assert made.domains == DOMAINS
    assert names_of(made) == set(MEMBERS) - ({VICTIM} if killed <= 3 else set())
    # the others are asked to sign for the smaller set
    again = ["confirm_sum"] if steps[killed] == "confirm_sum" else []
    expected = [*steps[:killed], *again, *steps[killed:]]
    assert [exchange.step for exchange in exchanges] == expected
    federation = parties.federation
    federation.ledger.verify()
    holder = parties.holder(VICTIM)
    assert holder.journal.verify() == len(holder.journal.entries())
    assert holder.newest == 0
    assert deliver_newest(federation, Direct(parties, MEMBERS), no_watch) == {VICTIM}
    assert parties.holder(VICTIM).newest == 1
