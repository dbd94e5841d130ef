"""Ridgeway: a router for domain-expert language models, built from corpora that never leave their
owners.

What users import. Importing this, and routing a prompt, imports neither torch nor Flower.

    from ridgeway import Router
    router = Router.load("release/")
    router.route("Is a verbal contract binding?").domain
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ridgeway.common.base.errors import RidgewayError
    from ridgeway.common.routing.conversation import Turn, weighted_turns
    from ridgeway.common.routing.conversations import Conversations, ConversationTurn
    from ridgeway.common.routing.decision import Decision
    from ridgeway.common.routing.expert_choice import ExpertChoice, ExpertChooser
    from ridgeway.common.routing.router import (
        Explanation,
        FollowedRouter,
        Router,
        WordWeight,
    )

__version__ = "0.2.0"

__all__ = [
    "ConversationTurn",
    "Conversations",
    "Decision",
    "ExpertChoice",
    "ExpertChooser",
    "Explanation",
    "FollowedRouter",
    "RidgewayError",
    "Router",
    "Turn",
    "WordWeight",
    "__version__",
    "weighted_turns",
]

_HOMES = {
    "ConversationTurn": "routing.conversations",
    "Conversations": "routing.conversations",
    "ExpertChoice": "routing.expert_choice",
    "ExpertChooser": "routing.expert_choice",
    "FollowedRouter": "routing.router",
    "RidgewayError": "base.errors",
    "Turn": "routing.conversation",
    "weighted_turns": "routing.conversation",
    "Decision": "routing.decision",
    "Explanation": "routing.router",
    "Router": "routing.router",
    "WordWeight": "routing.router",
}
"""Where each name lives in ridgeway.common; it is imported when it is first used."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ridgeway' has no attribute {name!r}")
    return getattr(import_module(f"ridgeway.common.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
