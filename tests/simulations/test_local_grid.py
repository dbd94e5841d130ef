"""Holders that are shared out over processes: the same answers, from others than this process."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.flower_parts import (
    ClientApp,
    ConfigRecord,
    FlowerMessage,
    RecordDict,
    process_grid,
)

TYPE = "query.who"


def app() -> ClientApp:
    """Says which process answers, and for the how many-th time for this node; one node ends its
    process.
    """
    made = ClientApp()

    @made.query("who")
    def who(message: FlowerMessage, context: Any) -> FlowerMessage:
        if "end" in message.content:
            os.kill(os.getpid(), signal.SIGKILL)
        times = (
            int(context.state["given"]["times"]) + 1 if "given" in context.state else 1
        )
        context.state["given"] = ConfigRecord({"times": times})
        answer = ConfigRecord(
            {"process": os.getpid(), "times": times, "node": context.node_id}
        )
        return FlowerMessage(RecordDict({"answer": answer}), reply_to=message)

    return made


def asked(nodes: Sequence[int], ending: int = 0) -> list[FlowerMessage]:
    plain = RecordDict({"question": ConfigRecord({"bulk": bytes(1 << 20)})})
    last = RecordDict({"end": ConfigRecord({})})
    return [
        FlowerMessage(last if node == ending else plain, node, TYPE) for node in nodes
    ]


def test_every_holder_answers_in_a_process_that_is_its_own_for_good() -> None:
    """Two processes, neither of them this one; and what a holder's context holds is there the next
    time.
    """
    nodes = {node: Path(f"holder-{node}") for node in range(1, 6)}
    with process_grid(app, nodes, 2) as grid:
        for times in (1, 2):
            answers = [
                reply.content["answer"]
                for reply in grid.send_and_receive(asked(list(nodes)))
            ]
            assert [(answer["node"], answer["times"]) for answer in answers] == [
                (node, times) for node in nodes
            ]
            processes = [answer["process"] for answer in answers]
            assert (
                processes[0]
                == processes[2]
                == processes[4]
                != processes[1]
                == processes[3]
            )
            assert os.getpid() not in processes
    for process in set(processes):
        with pytest.raises(ProcessLookupError):
            os.kill(int(str(process)), 0)


def test_a_process_that_ends_takes_only_its_own_holders_with_it() -> None:
    """To fetch one of their answers fails, as with a machine that is gone; the others answer."""
    nodes = {node: Path(f"holder-{node}") for node in range(1, 6)}
    with process_grid(app, nodes, 2) as grid:
        numbers = list(grid.push_messages(asked(list(nodes), ending=3)))
        for node, number in enumerate(numbers, start=1):
            if node in (3, 5):
                with pytest.raises((EOFError, OSError)):
                    list(grid.pull_messages([number]))
            else:
                [reply] = grid.pull_messages([number])
                assert reply.content["answer"]["node"] == node
