"""The servers that serving is held against: a bare FastAPI application that sends back what it was
sent, and an expert that costs next to nothing, so that what is measured is the framework or the
gateway.

    python -m ridgeway.simulations.bench.serving.stand_ins echo|expert PORT

The expert answers with fixed words. `max_tokens` of the request says how many pieces a stream has;
`pace` (a field of ours) the seconds between them. Each piece carries the time at which it was sent,
so that a client sees how long it was on the way.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

CHUNK = {
    "id": "chatcmpl-0",
    "object": "chat.completion.chunk",
    "created": 0,
    "model": "steady",
}
WHOLE = {
    **CHUNK,
    "object": "chat.completion",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "word " * 20},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
}
ANSWER = json.dumps(WHOLE).encode()
JSON_HEADERS = [
    (b"content-type", b"application/json"),
    (b"content-length", b"%d" % len(ANSWER)),
]
STREAM_HEADERS = [(b"content-type", b"text/event-stream")]


class EchoBody(BaseModel):
    prompt: str


async def echo(body: EchoBody) -> EchoBody:
    return body


async def expert(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    body = b""
    more = True
    while more:
        event = await receive()
        body += event.get("body", b"")
        more = event.get("more_body", False)
    asked = json.loads(body or b"{}")
    if not asked.get("stream"):
        await send(
            {"type": "http.response.start", "status": 200, "headers": JSON_HEADERS}
        )
        await send({"type": "http.response.body", "body": ANSWER})
        return
    await send(
        {"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS}
    )
    for number in range(asked.get("max_tokens", 20)):
        if number:
            await asyncio.sleep(asked.get("pace", 0.0))
        await send(
            {
                "type": "http.response.body",
                "body": _piece(f"word{number} "),
                "more_body": True,
            }
        )
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


def _piece(text: str) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return (
        b"data: "
        + json.dumps({**CHUNK, "choices": [choice], "sent": time.time()}).encode()
        + b"\n\n"
    )


def main(kind: str, port: int) -> None:
    app: Any = expert
    if kind == "echo":
        app = FastAPI()
        app.post("/echo")(echo)
    gc.collect()
    gc.freeze()  # as the service does, so that neither has an advantage
    uvicorn.run(
        app,
        port=port,
        loop="uvloop",
        http="httptools",
        lifespan="auto" if kind == "echo" else "off",
        access_log=False,
        log_level="warning",
        backlog=2048 if kind == "echo" else 4096,
    )


if __name__ == "__main__":
    if sys.argv[1] not in ("echo", "expert"):
        sys.exit(f"there is no stand-in {sys.argv[1]!r}")
    main(sys.argv[1], int(sys.argv[2]))
