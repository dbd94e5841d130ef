"""Small real experts in a process of their own: language models of this moment behind the addresses of OpenAI's API.

    python -m tests.support.real_expert PORT NAME...

Each has its own address, /NAME/v1. A model is made with `tests.support.tiny_experts`; its tokens are single characters.
Text is drawn greedily, so two experts made of other seeds answer the same question otherwise, and each answers it the
same way every time.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, Thread
from typing import Any

import torch
import transformers
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from tests.support.tiny import SPECIAL
from tests.support.tiny_experts import make_language_model

ROOM = 128
"""So many tokens of a question are read; the model sees 160 in all."""
USUAL = 12
END = "data: [DONE]\n\n"


class ExpertModel:
    """The model and its tokenizer; one question at a time."""

    def __init__(self, folder: Path) -> None:
        library: Any = transformers
        self._model = library.LlamaForCausalLM.from_pretrained(str(folder)).eval()
        self._tokenizer = library.PreTrainedTokenizerFast(
            tokenizer_file=str(folder / "tokenizer.json"), unk_token="<unk>", eos_token=SPECIAL, pad_token=SPECIAL
        )
        self._lock = Lock()

    def read(self, text: str) -> torch.Tensor:
        ids = self._tokenizer(text or " ", add_special_tokens=False)["input_ids"]
        return torch.tensor([ids[-ROOM:]])

    def write(self, text: str, most: int) -> Iterator[str]:
        """The answer, token by token, while it is being made."""
        library: Any = transformers
        streamer = library.TextIteratorStreamer(self._tokenizer, skip_prompt=True)
        options: dict[str, Any] = {"max_new_tokens": min(most, 24), "do_sample": False, "eos_token_id": None}
        ids = self.read(text)
        with self._lock:
            working = Thread(
                target=self._model.generate,
                args=(ids,),
                kwargs={**options, "attention_mask": torch.ones_like(ids), "pad_token_id": 0, "streamer": streamer},
            )
            working.start()
            for piece in streamer:
                if piece:
                    yield piece
            working.join()

    def vector(self, text: str) -> list[float]:
        """The mean of the last hidden states."""
        with self._lock, torch.no_grad():
            states = self._model.model(self.read(text)).last_hidden_state[0]
        return [float(value) for value in states.mean(dim=0)]


def expert(model: ExpertModel, name: str) -> FastAPI:
    app = FastAPI()
    numbers = count()

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": name, "object": "model", "created": 0, "owned_by": name}]}

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        asked = await request.json()
        if asked.get("model") != name:
            return _unknown(asked.get("model"))
        text = "\n".join(str(message.get("content") or "") for message in asked["messages"])
        frame = _frame(name, f"chatcmpl-{name}-{next(numbers)}")
        pieces = model.write(text, asked.get("max_tokens") or USUAL)
        if asked.get("stream"):
            return _stream(frame | {"object": "chat.completion.chunk"}, pieces, _delta)
        answer = await _all(pieces)
        choice = {"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": "length"}
        return JSONResponse(frame | {"object": "chat.completion", "choices": [choice], "usage": _usage(text, answer)})

    @app.post("/v1/completions")
    async def complete(request: Request) -> Response:
        asked = await request.json()
        if asked.get("model") != name:
            return _unknown(asked.get("model"))
        frame = _frame(name, f"cmpl-{name}-{next(numbers)}") | {"object": "text_completion"}
        pieces = model.write(str(asked["prompt"]), asked.get("max_tokens") or USUAL)
        if asked.get("stream"):
            return _stream(frame, pieces, lambda piece: {"text": piece})
        text = await _all(pieces)
        choice = {"index": 0, "text": text, "finish_reason": "length", "logprobs": None}
        return JSONResponse(frame | {"choices": [choice], "usage": _usage(asked["prompt"], text)})

    @app.post("/v1/embeddings")
    async def embed(request: Request) -> Response:
        asked = await request.json()
        texts = [asked["input"]] if isinstance(asked["input"], str) else asked["input"]
        rows = [{"object": "embedding", "index": at, "embedding": model.vector(text)} for at, text in enumerate(texts)]
        used = sum(map(len, texts))
        usage = {"prompt_tokens": used, "total_tokens": used}
        return JSONResponse({"object": "list", "model": name, "data": rows, "usage": usage})

    return app


def _frame(name: str, identity: str) -> dict[str, Any]:
    return {"id": identity, "created": int(time.time()), "model": name}


def _delta(piece: str) -> dict[str, Any]:
    return {"delta": {"role": "assistant", "content": piece}}


def _usage(text: str, answer: str) -> dict[str, int]:
    asked, answered = len(text), len(answer)
    return {"prompt_tokens": asked, "completion_tokens": answered, "total_tokens": asked + answered}


def _unknown(model: object) -> Response:
    error = {"message": f"this expert has no model {model!r}", "type": "invalid_request_error", "param": "model"}
    return JSONResponse({"error": {**error, "code": "model_not_found"}}, 404)


async def _all(pieces: Iterator[str]) -> str:
    return await asyncio.to_thread("".join, pieces)


def _stream(frame: dict[str, Any], pieces: Iterator[str], shown: Any) -> Response:
    def events() -> Iterator[str]:
        for piece in pieces:
            yield _event(frame, {"index": 0, **shown(piece), "finish_reason": None})
        yield _event(frame, {"index": 0, **shown(""), "finish_reason": "length"})
        yield END

    return StreamingResponse(events(), media_type="text/event-stream")


def _event(frame: dict[str, Any], choice: dict[str, Any]) -> str:
    return f"data: {json.dumps(frame | {'choices': [choice]})}\n\n"


def main(port: str, *names: str) -> None:
    torch.set_num_threads(1)
    app = FastAPI()

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    for seed, name in enumerate(names):
        with TemporaryDirectory() as folder:
            app.mount(f"/{name}", expert(ExpertModel(make_language_model(Path(folder), seed)), name))
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    main(*sys.argv[1:])
