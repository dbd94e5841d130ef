"""An expert that costs next to nothing: fixed words at a fixed pace, so that what is measured is the gateway.

    python -m simulations.bench.serving.expert PORT

`max_tokens` of the request says how many pieces a stream has; `pace` (a field of ours) the seconds between them. Each
piece carries the time at which it was sent, so that a client sees how long it was on the way.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from typing import Any

import uvicorn

WHOLE = {
    "id": "chatcmpl-0",
    "object": "chat.completion",
    "created": 0,
    "model": "steady",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "word " * 20}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
}
ANSWER = json.dumps(WHOLE).encode()
JSON = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]
STREAM = [(b"content-type", b"text/event-stream")]


def piece(text: str) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    event = {
        "id": "chatcmpl-0",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": "steady",
        "choices": [choice],
    }
    return b"data: " + json.dumps(event | {"sent": time.time()}).encode() + b"\n\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
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
        await send({"type": "http.response.start", "status": 200, "headers": JSON})
        await send({"type": "http.response.body", "body": ANSWER})
        return
    await send({"type": "http.response.start", "status": 200, "headers": STREAM})
    for number in range(asked.get("max_tokens", 20)):
        if number:
            await asyncio.sleep(asked.get("pace", 0.0))
        await send({"type": "http.response.body", "body": piece(f"word{number} "), "more_body": True})
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


def main() -> None:
    gc.collect()
    gc.freeze()
    uvicorn.run(
        app,
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        lifespan="off",
        access_log=False,
        log_level="warning",
        backlog=4096,
    )


if __name__ == "__main__":
    main()
