"""Each SuperNode answers for one holder of the folder that the server app has made."""

from __future__ import annotations

import os

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from ridgeway.client.client_app import SIMULATION, holder_app

app = ClientApp()
answers = holder_app()


@app.query("ridgeway")
def ridgeway(message: Message, context: Context) -> Message:
    """Answer one packet of a round; nothing but sums and counts leaves."""
    os.environ[SIMULATION] = str(context.run_config["work"])
    return answers(message, context)
