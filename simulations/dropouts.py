"""Holders that drop out in the middle of a round, as a simulation was asked to let them.

A ClientApp around the holders' own: it answers a number of requests, then fails for good, as a
machine does whose network is cut. Which holders drop out, and when, is the same in every run.
Flower's simulation engine loads `app`.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeway.common.base.errors import InputError

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp

DROPOUTS_FILE = "dropouts.json"
APP = "ridgeway.simulations.dropouts:app"
APP_FILES = ("simulations/__init__.py", "simulations/dropouts.py")
"""What the bundle of a simulation holds beside the rooms of a round."""

STAGES = {
    1: "before sharing",
    2: "after sharing",
    3: "after sending",
    4: "before opening",
}
UNMASKED_STAGES = {1: "before sending", 2: "before counting", 3: "before the delivery"}
"""After how many answers a holder drops out, and what that means: in a round under masks, and in
one without.
"""


def choose_dropouts(
    names: Sequence[str], rate: float, stages: Mapping[int, str] = STAGES
) -> dict[str, int]:
    """Which holders drop out, and after how many answers: the given part of them, spread over the
    stages.
    """
    if not 0 <= rate < 1:
        raise InputError(f"a drop rate lies between 0 and 1, not at {rate:g}")
    order = sorted(names)
    random.Random("ridgeway falls").shuffle(order)
    chosen = order[: round(rate * len(order))]
    return {name: 1 + index % len(stages) for index, name in enumerate(chosen)}


def write_dropouts(folder: Path, dropouts: Mapping[str, int]) -> None:
    (folder / DROPOUTS_FILE).write_text(json.dumps(dict(dropouts)), encoding="utf-8")


def dropout_app(
    dropouts: Mapping[str, int], plain: ClientApp | None = None
) -> ClientApp:
    """The holders' ClientApp, in which some drop out. plain: one in its place."""
    from flwr.app import ConfigRecord, Context, Error, Message
    from flwr.clientapp import ClientApp

    from ridgeway.client.client_app import app, holder_folder
    from ridgeway.common.protocol.messages import CANNOT_ANSWER

    answering = plain or app
    wrapped = ClientApp()

    @wrapped.query("ridgeway")
    def ridgeway(message: Message, context: Context) -> Message:
        limit = dropouts.get(holder_folder(context).name)
        given = context.state.config_records.get("given") or ConfigRecord(
            {"answers": 0}
        )
        answers = int(str(given["answers"]))
        if limit is not None and answers >= limit:
            return Message(
                Error(code=CANNOT_ANSWER, reason="fell away, as asked for"),
                reply_to=message,
            )
        context.state["given"] = ConfigRecord({"answers": answers + 1})
        return answering(message, context)

    return wrapped


def __getattr__(name: str) -> ClientApp:
    """`app`, made when Flower asks for it, of what stands in the folder that the environment
    names.
    """
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    path = Path(os.environ["RIDGEWAY_SIMULATION"]) / DROPOUTS_FILE
    # Flower looks for an assignment to this name
    app = dropout_app(json.loads(path.read_text(encoding="utf-8")))
    return app  # noqa: RET504
