"""The endpoints of OpenAI's API that the gateway has, and what they say where no experts are configured.

Knows HTTP and OpenAPI. What is done with a request is the gateway's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from coordinator.serve.asked import AnyRequest, ChatRequest, CompletionRequest, EmbeddingRequest
from coordinator.serve.bodies import ERRORS, described, json_answer
from coordinator.serve.gateway import Gateway
from coordinator.serve.link import Path
from coordinator.serve.problems import Problem
from coordinator.serve.service import Service
from coordinator.serve.shortcut import Handler
from coordinator.serve.wire import ErrorReply

REQUESTS: Mapping[Path, type[AnyRequest]] = {
    "/chat/completions": ChatRequest,
    "/completions": CompletionRequest,
    "/embeddings": EmbeddingRequest,
}
FAILURES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorReply, "description": words}
    for status, words in {
        404: "There is no such model, or there are no experts.",
        422: "The expert cannot use the body.",
        429: "Too many requests, here or at the expert.",
        502: "The expert failed.",
        503: "The expert is down.",
        504: "The expert did not answer in time.",
    }.items()
}
ANSWER: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The expert's own answer. The headers x-ridgeway-… say which expert it was, and why.",
        "content": {"application/json": {"schema": {"type": "object"}}, "text/event-stream": {}},
    }
}


class ModelCard(BaseModel):
    """A name that can be asked for."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "ridgeway"


class ModelList(BaseModel):
    object: str = "list"
    data: list[ModelCard]


def gateway_handlers(gateway: Gateway | None) -> dict[str, Handler]:
    """What answers POST requests, by path."""
    return {f"/v1{path}": _handler(gateway, path, model) for path, model in REQUESTS.items()}


def _handler(gateway: Gateway | None, path: Path, model: type[AnyRequest]) -> Handler:
    async def passed_on(request: Request) -> Response:
        if gateway is None:
            words = "no experts are configured here; start `ridgeway serve` with --experts to pass requests on to them"
            raise Problem(404, words, code="no_experts")
        return await gateway.answer(request, path, model)

    passed_on.__name__ = path.strip("/").replace("/", "_")
    passed_on.__doc__ = f"{model.__doc__} It goes to an expert, and the expert's answer comes back."
    return passed_on


def gateway_api(service: Service, gateway: Gateway | None, handlers: Mapping[str, Handler]) -> APIRouter:
    api = APIRouter(tags=["gateway"])
    for path, model in REQUESTS.items():
        api.post(
            f"/v1{path}",
            responses={**ERRORS, **FAILURES, **ANSWER},
            openapi_extra=described(model),
            response_class=Response,
        )(handlers[f"/v1{path}"])

    def cards() -> list[ModelCard]:
        created = int(service.current.live.since)
        return [ModelCard(id=name, created=created) for name in (gateway.models() if gateway else [])]

    @api.get("/v1/models", responses={200: {"model": ModelList}, **ERRORS}, response_class=Response)
    async def models() -> Response:
        """The names that a request can give as its model."""
        return json_answer(ModelList(data=cards()))

    @api.get("/v1/models/{name:path}", responses={200: {"model": ModelCard}, 404: FAILURES[404], **ERRORS})
    async def one_model(name: str) -> ModelCard:
        """One of those names."""
        for card in cards():
            if card.id == name:
                return card
        raise Problem(404, "there is no model of this name", code="model_not_found", param="model")

    return api
