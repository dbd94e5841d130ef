"""Holders that fall away in the middle of a round, as a simulation was asked to let them.

A ClientApp around the holders' own: it answers so many requests, then fails for good, as a machine does whose network
is cut. Which holders, and when, is the same in every run.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import InputError

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp

FALLS = "falls.json"
APP = "simulations.falling_app:app"
STAGES = {1: "before sharing", 2: "after sharing", 3: "after sending", 4: "before opening"}
"""After how many answers a holder falls away, and what that means in a masked round."""


def choose_falls(names: Sequence[str], rate: float, seed: int = 0) -> dict[str, int]:
    """Who falls away, and after how many answers: so great a part of the holders, spread over the stages.

    seed: another one chooses others, and begins with another stage.
    """
    if not 0 <= rate < 1:
        raise InputError(f"a drop rate lies between 0 and 1, not at {rate:g}")
    order = sorted(names)
    random.Random(f"ridgeway falls {seed}" if seed else "ridgeway falls").shuffle(order)
    chosen = order[: round(rate * len(order))]
    return {name: 1 + (place + seed) % len(STAGES) for place, name in enumerate(chosen)}


def write_falls(folder: Path, falls: Mapping[str, int]) -> None:
    (folder / FALLS).write_text(json.dumps(dict(falls)), encoding="utf-8")


def falling_app(falls: Mapping[str, int]) -> ClientApp:
    """The holders' ClientApp, in which some fall away."""
    from flwr.app import ConfigRecord, Context, Error, Message
    from flwr.clientapp import ClientApp

    from client.app import CANNOT_ANSWER, holder_folder
    from client.app import app as plain

    app = ClientApp()

    @app.query("ridgeway")
    def ridgeway(message: Message, context: Context) -> Message:
        left = falls.get(holder_folder(context).name)
        given = context.state.config_records.get("given") or ConfigRecord({"answers": 0})
        answers = int(str(given["answers"]))
        if left is not None and answers >= left:
            return Message(Error(code=CANNOT_ANSWER, reason="fell away, as asked for"), reply_to=message)
        context.state["given"] = ConfigRecord({"answers": answers + 1})
        return plain(message, context)

    return app


def falls_of_this_run() -> dict[str, int]:
    """What stands in the folder that the environment names."""
    path = Path(os.environ["RIDGEWAY_SIMULATION"]) / FALLS
    return {str(name): int(left) for name, left in json.loads(path.read_text(encoding="utf-8")).items()}
