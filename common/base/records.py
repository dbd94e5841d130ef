"""Records: values that are checked when they are made, read and stored."""

from __future__ import annotations

import ipaddress
import json
import math
import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
)
from pydantic_core import to_json

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.files import canonical_json
from ridgeway.common.base.settings import (
    DOMAIN_NAME,
    MAX_EXPERT_LETTERS,
    MAX_EXPERTS,
    SAMPLING,
    Sampling,
)

# Checked records: the base of everything that is read from a file or a message, and the names and
# keys in it.


STRINGS = frozenset((str,))
PLAIN = frozenset((str, int, bool, NoneType))
_ROWS = frozenset((list, tuple))
"""What both encoders write alike; of floats they do most."""


def check_port(address: str) -> str:
    if not 1 <= int(address.rpartition(":")[2]) <= 65535:
        raise ValueError("a port is between 1 and 65535")
    return address


def check_name(name: str) -> str:
    if not DOMAIN_NAME.fullmatch(name):
        raise ValueError(
            "a name has at most 64 letters, digits, dots, dashes and underscores"
        )
    return name


def check_printable(text: str) -> str:
    if not text.isprintable() or text != text.strip():
        raise ValueError("a name has no line breaks, and no spaces at its ends")
    return text


def check_distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError("duplicate name")
    return names


def check_sampling_numbers(given: Any) -> Sampling:
    if isinstance(given, Sampling):
        return given
    if not isinstance(given, dict):
        raise ValueError("sampling must be a table of numbers")
    try:
        return Sampling.of_json(given)
    except InputError as error:
        raise ValueError(str(error)) from None


def sampling_terms(sampling: Sampling) -> dict[str, int]:
    """As terms have it. `documents` is always 0: the ids of terms depend on these bytes."""
    always = {
        "window": sampling.window,
        "max_tokens": sampling.max_tokens,
        "stride": sampling.stride,
        "documents": 0,
    }
    return always | sampling.to_json()


Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
PublicKey = Digest
DomainName = Annotated[str, AfterValidator(check_name)]
HolderName = DomainName
ExpertName = Annotated[
    str,
    Field(min_length=1, max_length=MAX_EXPERT_LETTERS),
    AfterValidator(check_printable),
]
ExpertNames = Annotated[
    tuple[ExpertName, ...],
    Field(max_length=MAX_EXPERTS),
    AfterValidator(check_distinct),
]
Example = Annotated[
    str, Field(min_length=1, max_length=500), AfterValidator(check_printable)
]
"""A prompt that a release offers to the visitors of its page."""
EncoderName = Annotated[
    str, Field(max_length=200, pattern=r"^[0-9A-Za-z_][0-9A-Za-z_.:/+-]*$")
]
Address = Annotated[
    str, Field(pattern=r"^[^\s/@]{1,250}:[0-9]{1,5}$"), AfterValidator(check_port)
]
SamplingNumbers = Annotated[
    Sampling,
    PlainValidator(check_sampling_numbers),
    PlainSerializer(sampling_terms, return_type=dict[str, int]),
]
Mode = Literal["private", "masked", "clear"]
"""private: sums under noise. masked: exact sums under masks. clear: exact sums."""
MODE_SENTENCES: Mapping[Mode, str] = {
    "private": (
        "each document is bounded, and its holder adds noise before anything leaves"
    ),
    "masked": (
        "exact sums under masks: the coordinator learns the exact total of each "
        "epoch, and the change between two totals"
    ),
    "clear": "exact sums: the coordinator sees the sums of every holder",
}
"""What each mode means, in one sentence."""


class Record(BaseModel):
    """A value that is checked as it is made: no unknown fields, no silent conversions, no change
    afterwards.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False
    )

    def model_copy(
        self, *, update: Mapping[str, Any] | None = None, deep: bool = False
    ) -> Self:
        """A changed copy, checked like any other: the library's own would keep what was computed of
        the original.
        """
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**{**fields, **(update or {})})


def record_json(value: Any) -> bytes:
    """`canonical_json` several times as fast, by pydantic's encoder: for what holds a thousand
    members.
    """
    try:
        return to_json(_in_order(value), indent=1) + b"\n"
    except TypeError:
        return canonical_json(value)


def _in_order(value: Any) -> Any:
    """The value with its names in order; raises TypeError where the encoders would differ."""
    kind = type(value)
    if kind in PLAIN or (kind is float and to_json(value) == repr(value).encode()):
        return value
    if kind is dict and STRINGS.issuperset(map(type, value)):
        return {name: _in_order(value[name]) for name in sorted(value)}
    if kind in (list, tuple):
        kinds = set(map(type, value))
        # a table, looked through at once
        if kinds <= _ROWS and PLAIN.issuperset(map(type, chain.from_iterable(value))):
            return value
        return value if kinds <= PLAIN else [_in_order(item) for item in value]
    raise TypeError(kind)


# Whom an address stands for


def client_network(address: str) -> str:
    """Whom a client's address stands for: itself, or in IPv6 the network of 64 bits that one
    household is given.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))


# Settings files: TOML in, checked records out, with one clear sentence where something is wrong.


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
