"""A FastAPI application that routes chats.

    RELEASE=release uvicorn --app-dir examples fastapi_app:app
    curl http://127.0.0.1:8000/ask -H 'Content-Type: application/json' \
      -d '[{"role": "user", "content": "How do I appeal a parking fine?"}]'

answers

    {"domain": "law", "confidence": 0.992, "reason": null}

`ridgeway serve` is the whole of this: keys, limits, metrics, a gateway to the experts.
"""

from __future__ import annotations

import os
from typing import Any

from fastapi import FastAPI, HTTPException

from ridgeway import RidgewayError, Router

app = FastAPI()
# Takes new releases as they appear in this folder, without a restart.
router = Router.follow(os.environ["RELEASE"], threshold=0.6, fallback="generalist")


@app.post("/ask")
def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """A plain function: FastAPI runs it in a thread, so a long chat holds up nobody."""
    try:
        decision = router.route(messages)
    except RidgewayError as error:
        raise HTTPException(422, str(error)) from error
    confidence = round(decision.confidence, 3)
    return {
        "domain": decision.domain,
        "confidence": confidence,
        "reason": decision.reason,
    }
