"""Hooks of schemathesis: most requests that name a model name one that there is, so that they reach
an expert.

The name of a model is any text to the description, and hardly any text is the name of one.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import schemathesis

NAMES = ("auto", "code", "auto", "law", None)
"""None: what was made up stays."""
_turns = count()


@schemathesis.hook
def map_body(context: schemathesis.HookContext, body: Any) -> Any:
    if isinstance(body, dict) and isinstance(body.get("model"), str):
        return {**body, "model": _known(body["model"])}
    return body


@schemathesis.hook
def map_path_parameters(context: schemathesis.HookContext, path_parameters: Any) -> Any:
    if isinstance(path_parameters, dict) and isinstance(
        path_parameters.get("name"), str
    ):
        return {**path_parameters, "name": _known(path_parameters["name"])}
    return path_parameters


def _known(name: str) -> str:
    return NAMES[next(_turns) % len(NAMES)] or name
