"""Each SuperNode answers for one holder, whose epoch is open: no corpus is read here."""

from __future__ import annotations

import os

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from ridgeway.client.client_app import SIMULATION, holder_app
from ridgeway.common.protocol.messages import CANNOT_ANSWER
from ridgeway_app import run_folder

app = ClientApp()
answers = holder_app()
NO_HOLDER = "this SuperNode was started without --node-config 'holder=\"DIR\"'"


@app.query("ridgeway")
def ridgeway(message: Message, context: Context) -> Message:
    """Answer one packet of a round; nothing but sums and counts leaves."""
    if "holder" not in context.node_config:
        if "partition-id" not in context.node_config:
            return Message(Error(CANNOT_ANSWER, NO_HOLDER), reply_to=message)
        os.environ[SIMULATION] = str(run_folder(context))
    return answers(message, context)
