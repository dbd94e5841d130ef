"""Flower's Grid in this very process: no Ray, no network, but every message goes through Flower's serialisation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

RUN, SERVER = 1, 1


class LocalGrid(Grid):
    """Nodes are ClientApps over holders' folders; a node does its work when its reply is fetched."""

    def __init__(self, app: ClientApp, holders: Mapping[int, Path]) -> None:
        TaskIdentity.run_id = TaskIdentity.task_id = RUN
        TaskIdentity.node_id = SERVER
        self._app = app
        self._contexts = {
            node: Context(
                run_id=RUN, node_id=node, node_config={"holder": str(folder)}, state=RecordDict(), run_config={}
            )
            for node, folder in holders.items()
        }
        self._waiting: dict[str, Message] = {}

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        numbers = []
        for message in messages:
            number = message.object_id
            message.metadata.__dict__["_message_id"] = number
            self._waiting[number] = message
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        for number in message_ids:
            if message := self._waiting.pop(number, None):
                context = self._contexts[message.metadata.dst_node_id]
                yield travelled(self._app(travelled(message), context))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


def travelled(message: Message) -> Message:
    """The message as it arrives: taken apart to bytes and put together again by Flower's own code."""
    contents = {number: part.deflate() for number, part in get_all_nested_objects(message).items()}
    arrived = cast(Message, inflate_object_from_contents(message.object_id, contents))
    arrived.metadata.__dict__["_message_id"] = message.metadata.message_id
    return arrived
