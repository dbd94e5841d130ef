"""What is known of the request being served beside its body: its id, its trace, and whose key it
came with.

 Holds nothing of what is asked.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

from ridgeway.common.http.key_budgets import KeyAccount

REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
TRACE_PARENT = re.compile(
    rb"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)
MAX_TRACE_STATE = 512


@dataclass(slots=True)
class RequestContext:
    """id: the client's own, if it gave one that can stand in a header and a log; else one that was
    made here.

    trace: the headers of the client's trace, as they came.
    key:   the name of the key that came with it; empty if there is none.
    account: where is counted what the request spends, if its key has a budget.
    told:  what the log may say of the request: the expert that answered, and the like.
    """

    id: str
    trace: Mapping[str, str] = field(default_factory=dict)
    key: str = ""
    account: KeyAccount | None = None
    told: dict[str, str | int | float] = field(default_factory=dict)


_current: ContextVar[RequestContext | None] = ContextVar("request", default=None)


def begin_request(headers: Mapping[bytes, bytes]) -> RequestContext:
    """The context of the request that this task serves from now on."""
    given = headers.get(b"x-request-id", b"")
    made = RequestContext(
        given.decode() if REQUEST_ID.fullmatch(given) else secrets.token_hex(16),
        _trace(headers),
    )
    _current.set(made)
    return made


def current_request() -> RequestContext:
    """That of the request being served; outside of any, an empty one."""
    return _current.get() or RequestContext("")


def _trace(headers: Mapping[bytes, bytes]) -> Mapping[str, str]:
    parent = headers.get(b"traceparent", b"")
    if not TRACE_PARENT.fullmatch(parent) or parent.startswith(b"ff"):
        return {}
    state = headers.get(b"tracestate", b"")
    is_fit = (
        0 < len(state) <= MAX_TRACE_STATE
        and state.isascii()
        and state.decode().isprintable()
    )
    return {"traceparent": parent.decode()} | (
        {"tracestate": state.decode()} if is_fit else {}
    )
