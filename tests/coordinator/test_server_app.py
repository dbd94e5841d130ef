"""Flower's Grid as the transport of a round: answers are fetched as they come, by looks that follow
the wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from ridgeway.common.base.errors import RoundFailed
from ridgeway.common.deploy.flower_patches import PART_PAUSE_S
from ridgeway.common.protocol.packet import Packet
from tests.support.flower_parts import ClientApp, FlowerMessage, LocalGrid, to_record

server_app: Any = pytest.importorskip("ridgeway.coordinator.server_app")
QUESTION, ANSWER = Packet(b"question", "s"), Packet(b"answer", "s")


class SlowGrid:
    """A Grid whose nodes answer at given seconds, with a clock that goes on when somebody
    sleeps.
    """

    def __init__(self, answers_at: dict[int, float]) -> None:
        LocalGrid(ClientApp(), {})  # messages can be made only in a run
        self._answers_at = answers_at
        self._peers: dict[str, int] = {}
        self.now = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def push_messages(self, messages: Iterable[FlowerMessage]) -> list[str]:
        sent = {
            f"m{number}": message.metadata.dst_node_id
            for number, message in enumerate(messages, len(self._peers))
        }
        self._peers |= sent
        return list(sent)

    def pull_messages(self, numbers: list[str]) -> list[Any]:
        return [
            SimpleNamespace(has_error=lambda: False, content=to_record(ANSWER))
            for number in numbers
            if self._answers_at[self._peers[number]] <= self.now
        ]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Any:
    def ask(
        answers_at: dict[int, float], seconds: float
    ) -> tuple[SlowGrid, list[tuple[int, float]]]:
        grid = SlowGrid(answers_at)
        monkeypatch.setattr(server_app, "time", grid)
        transport = server_app.GridTransport(grid)
        answers = transport.exchange(dict.fromkeys(answers_at, QUESTION), seconds)
        return grid, [
            (peer, grid.now)
            for peer, packet in answers
            if packet.header == ANSWER.header
        ]

    return ask


def test_an_answer_waits_no_longer_than_a_tenth_of_the_time_it_took(asked: Any) -> None:
    """Or the least pause, if that is longer; and no answer delays another's."""
    _, answers = asked({1: 0.0, 2: 0.9, 3: 17.0}, 600.0)
    assert [peer for peer, _ in answers] == [1, 2, 3]
    for (_, fetched), came in zip(answers, (0.0, 0.9, 17.0), strict=True):
        pause = max(server_app._LEAST_PAUSE_S, came / 10)
        assert came <= fetched <= came + pause + 1e-9


def test_a_long_wait_costs_few_looks_and_ends_with_the_time(asked: Any) -> None:
    grid, answers = asked({1: 0.0, 2: 601.0}, 600.0)
    assert [peer for peer, _ in answers] == [1]
    assert grid.now == pytest.approx(600.0)
    assert max(grid.slept) == server_app.MOST_PAUSE_S and len(grid.slept) < 350


def test_parts_of_an_answer_that_is_still_being_sent_are_asked_for_again_soon() -> None:
    utils: Any = pytest.importorskip("flwr.supercore.inflatable.inflatable_utils")
    assert utils.pull_objects.__kwdefaults__["initial_backoff"] == PART_PAUSE_S


def test_an_answer_that_comes_after_its_time_is_handed_over_with_the_next_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever asks refuses it as late: it names the request that it answers."""
    grid = SlowGrid({1: 0.0, 2: 90.0})
    monkeypatch.setattr(server_app, "time", grid)
    transport = server_app.GridTransport(grid)

    def answering(*asked: int) -> list[int]:
        answers = transport.exchange(dict.fromkeys(asked, QUESTION), 60.0)
        return sorted(peer for peer, _ in answers)

    assert answering(1, 2) == [1]
    assert grid.now == pytest.approx(60.0)
    grid.now = 100.0
    assert answering(1) == [1, 2]
    assert answering(1) == [1]


def test_a_superlink_that_is_away_for_a_while_costs_that_while(
    asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks for answers fail until it is back; none of them is lost."""
    plain = SlowGrid.pull_messages

    def pull(grid: SlowGrid, numbers: list[str]) -> list[Any]:
        if 1.0 < grid.now < 9.0:
            raise httpx.ConnectError("away")
        return plain(grid, numbers)

    monkeypatch.setattr(SlowGrid, "pull_messages", pull)
    _, answers = asked({1: 0.0, 2: 3.0, 3: 4.0}, 600.0)
    assert [peer for peer, _ in answers] == [1, 2, 3]
    assert all(9.0 <= fetched <= 10.0 for _, fetched in answers[1:])


def test_a_superlink_that_stays_away_is_one_sentence() -> None:
    """As everything is that an operator can mend."""
    wanted = r"^the SuperLink refuses .*accepted data is kept$"
    with pytest.raises(RoundFailed, match=wanted), server_app.superlink_answers():
        raise httpx.ConnectError("away")
