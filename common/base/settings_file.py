"""Settings files: TOML in, checked records out, with one clear sentence where something is
wrong.
"""

from __future__ import annotations

import json
import math
import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.settings import SAMPLING, Sampling

_Model = TypeVar("_Model", bound=BaseModel)

KNOWN = {
    "extra_forbidden": "unknown setting; check its spelling, or remove it",
    "missing": "missing; add it",
}
"""What is said in our own words."""


def read_settings(path: Path, model: type[_Model]) -> _Model:
    """The settings of a file; an unknown name, a missing one or a wrong value is an error that
    names it.
    """
    try:
        return model.model_validate_json(_as_json(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise InputError(f"{path} not found; create it with `init`") from None
    except RecursionError:
        raise InputError(f"{path} is nested too deeply for a settings file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid TOML: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        reason = KNOWN.get(first["type"]) or plain_reason(first["msg"])
        raise InputError(": ".join(filter(None, (str(path), where, reason)))) from None


def _as_json(text: str) -> str:
    return json.dumps(tomllib.loads(text), default=str)


def plain_reason(words: str) -> str:
    """What a check said, without the library's own preface."""
    words = words.removeprefix("Value error, ")
    return f"{words[:1].lower()}{words[1:]}"


def toml_literal(value: str | float | Sequence[str | float]) -> str:
    """A string, a number, a truth value or a list of them, as TOML writes it."""
    if value == math.inf:
        return "inf"
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace(
        "\x7f", "\\u007f"
    )


def template_literals(values: Mapping[str, Any]) -> dict[str, str]:
    """Each value as TOML writes it, by its name; without tables and what is not set."""
    return {
        name: toml_literal(value)
        for name, value in values.items()
        if not isinstance(value, BaseModel | Sampling | None)
    }


def sampling_toml(sampling: Sampling) -> str:
    """A line for every parameter of a sampling, with what it means above it."""
    lines = []
    for name, about in SAMPLING.items():
        lines += textwrap.wrap(f"# {about['meaning']}", 98, subsequent_indent="# ")
        lines.append(f"{name} = {getattr(sampling, name)}")
    return "\n".join(lines)
