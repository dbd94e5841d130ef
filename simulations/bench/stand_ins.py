"""The server that serving is held against: an echo, and an expert that costs next to nothing.

    python -m ridgeway.simulations.bench.stand_ins PORT

The expert answers with fixed words; `max_tokens` of a request says how many pieces a stream has,
`pace` the seconds between them.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

CHAT = "/v1/chat/completions"
ANSWER = {
    "id": "chatcmpl-0",
    "object": "chat.completion",
    "created": 0,
    "model": "steady",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "word " * 20},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
}
PIECE = ANSWER | {
    "object": "chat.completion.chunk",
    "choices": [{"index": 0, "delta": {"content": "word "}, "finish_reason": None}],
    "usage": None,
}


class EchoBody(BaseModel):
    prompt: str


def echo_and_expert() -> FastAPI:
    app = FastAPI()

    @app.post("/echo")
    async def echo(body: EchoBody) -> EchoBody:
        return body

    @app.post(CHAT)
    async def chat(request: Request) -> Response:
        asked = await request.json()
        if asked.get("stream"):
            return StreamingResponse(_pieces(asked), media_type="text/event-stream")
        return Response(json.dumps(ANSWER), media_type="application/json")

    return app


async def _pieces(asked: dict[str, Any]) -> AsyncIterator[bytes]:
    for number in range(asked["max_tokens"]):
        if number:
            await asyncio.sleep(asked["pace"])
        yield b"data: " + json.dumps(PIECE).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


def main(port: int) -> None:
    app = echo_and_expert()
    gc.collect()
    gc.freeze()  # as the service does, so that neither has an advantage
    uvicorn.run(app, port=port, loop="uvloop", http="httptools", access_log=False)


if __name__ == "__main__":
    main(int(sys.argv[1]))
