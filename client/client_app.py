"""The Flower ClientApp of a domain holder: decode, ask the holder, encode; nothing else."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from ridgeway.client.round.answers import answer
from ridgeway.client.round.holder import Holder
from ridgeway.common.base.errors import is_disk_full
from ridgeway.common.protocol.flower import from_record, to_record
from ridgeway.common.protocol.messages import CANNOT_ANSWER, DISK_FULL
from ridgeway.common.protocol.packet import Packet

SIMULATION = "RIDGEWAY_SIMULATION"


def holder_app(answer: Callable[[Holder, Packet], Packet] = answer) -> ClientApp:
    """The app that answers for a holder. answer: something around the holder's own answers, where
    they are measured.
    """
    made = ClientApp()

    @made.query("ridgeway")
    def ridgeway(message: Message, context: Context) -> Message:
        """Answer one packet. Flower would send an exception's text to the coordinator, so none may
        leave here.
        """
        try:
            reply = answer(Holder(holder_folder(context)), from_record(message.content))
            return Message(to_record(reply), reply_to=message)
        except Exception as error:
            traceback.print_exc()  # into the holder's own log
            error_reply = Error(
                code=CANNOT_ANSWER, reason="this holder could not answer"
            )
            if is_disk_full(error):
                error_reply = Error(code=DISK_FULL, reason="this holder's disk is full")
            return Message(error_reply, reply_to=message)

    return made


def holder_folder(context: Context) -> Path:
    """The holder that this node was started for: the holder's own settings say so, never what was
    received.
    """
    named = context.node_config.get("holder")
    if named is not None:
        return Path(str(named))
    folders = sorted((Path(os.environ[SIMULATION]) / "holders").iterdir())
    return folders[int(context.node_config["partition-id"])]


app = holder_app()
