"""A hook for LiteLLM's proxy: the model `auto` becomes the model group of the domain that a release
decides.

A file beside LiteLLM's config.yaml, named under `litellm_settings: {callbacks: routing.hook}`:

    # routing.py
    from ridgeway.serving.litellm_adapter import RidgewayHook
    hook = RidgewayHook("/srv/release", fallback="generalist")

config.yaml has a model group for each domain, for the fallback, and one called `auto`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from litellm.integrations.custom_logger import CustomLogger

from ridgeway import Conversations, RidgewayError, Router

_TOLD = "ridgeway"


class RidgewayHook(CustomLogger):
    """Routes requests for one model name; a conversation stays with its model group.

    release:  the folder of a release, or a coordinator's: new releases are taken as they come.
    fallback: the model group where the router abstains, where a domain has no group, and for what
              cannot be routed, such as token ids.
    key:      the coordinator's public key.
    model:    the name that is routed; all others pass as they are.
    options:  others of `Router.load`.
    """

    def __init__(
        self,
        release: str | Path,
        *,
        fallback: str,
        key: str | None = None,
        model: str = "auto",
        **options: Any,
    ) -> None:
        super().__init__()
        router = Router.follow(release, key=key, fallback=fallback, **options)
        self._conversations = Conversations(router)
        self._fallback = fallback
        self._model = model

    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: str
    ) -> dict[str, Any]:
        """LiteLLM calls it with each request before a model group is looked up."""
        if data.get("model") != self._model:
            return data
        facts: dict[str, str] = {}
        try:
            turn = await asyncio.to_thread(
                self._conversations.route,
                _messages(data),
                names=_names(user_api_key_dict, data),
                session=_headers(data).get("x-session-id", ""),
            )
        except RidgewayError:
            expert = self._fallback
            reason = "not_routed"
        else:
            expert = turn.domain or self._fallback
            reason = "sticky" if turn.stayed else turn.decision.reason or "best"
            facts["confidence"] = f"{turn.decision.confidence:.4f}"
            facts["domain"] = turn.decision.best
        if expert not in _model_groups():
            expert = self._fallback
            reason = "missing"
        data["model"] = expert
        facts |= {"expert": expert, "reason": reason}
        data.setdefault("metadata", {})[_TOLD] = facts
        return data

    async def async_post_call_response_headers_hook(
        self, data: dict[str, Any], *arguments: Any, **more: Any
    ) -> dict[str, str]:
        """What the answer's headers say."""
        facts = (data.get("metadata") or {}).get(_TOLD) or {}
        return {f"x-ridgeway-{name}": value for name, value in facts.items()}


def _messages(data: Mapping[str, Any]) -> Any:
    """What is asked, as a chat; of a prompt or an input, its text."""
    asked = data.get("messages") or data.get("input") or data.get("prompt")
    if isinstance(asked, str):
        asked = [{"role": "user", "content": asked}]
    system = data.get("system")
    if system and isinstance(asked, list):
        return [{"role": "system", "content": system}, *asked]
    return asked


def _names(user: Any, data: Mapping[str, Any]) -> list[str]:
    """Whose conversation it is."""
    metadata = data.get("metadata")
    named = [getattr(user, "api_key", None)]
    named += [
        data.get(name) for name in ("user", "safety_identifier", "prompt_cache_key")
    ]
    named.append(metadata.get("user_id") if isinstance(metadata, Mapping) else None)
    return [name if isinstance(name, str) else "" for name in named]


def _headers(data: Mapping[str, Any]) -> Mapping[str, str]:
    return (data.get("proxy_server_request") or {}).get("headers") or {}


def _model_groups() -> set[str]:
    from litellm.proxy.proxy_server import llm_router

    return set(llm_router.get_model_names()) if llm_router else set()
