"""Lines of the log: one for each thing that happened, as text or as JSON, with its level and its
time in UTC.

No line holds a traceback, which could show what was asked or where files are; nor a prompt, since
none is ever logged.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic_core import to_json

LogFormat = Literal["text", "json"]
LogLevel = Literal["error", "warning", "info"]
FIELDS = "ridgeway.fields"
"""Where a record holds what is told beside its words: `log.info("…", extra={FIELDS: {"status":
200}})`.
"""


def told(record: logging.LogRecord) -> dict[str, Any]:
    """What a line tells: its time, level, logger and words, and what stands beside them."""
    when = (
        datetime.fromtimestamp(record.created, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )
    words = record.getMessage().partition("\n")[0]
    kind = record.exc_info[0] if record.exc_info else None
    facts: dict[str, Any] = {
        "time": when,
        "level": record.levelname.lower(),
        "logger": record.name,
    }
    facts |= {"message": f"{words}{f': {kind.__name__}' if kind else ''}"}
    return {**facts, **record.__dict__.get(FIELDS, {})}


class OneLineFormatter(logging.Formatter):
    """Time, level, words, then name=value."""

    def format(self, record: logging.LogRecord) -> str:
        facts = told(record)
        own = [
            f"{name}={value}"
            for name, value in facts.items()
            if name not in ("time", "level", "logger", "message")
        ]
        return " ".join([facts["time"], facts["level"].upper(), facts["message"], *own])


class JsonLineFormatter(logging.Formatter):
    """One JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        return to_json(told(record)).decode()


def log_handler(form: LogFormat) -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLineFormatter() if form == "json" else OneLineFormatter())
    return handler
