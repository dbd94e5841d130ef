"""Lines of the log: one for each thing that happened, as text or as JSON, with its level and its
time in UTC.

No line holds a traceback, which could show what was asked or where files are; nor a prompt, since
none is ever logged.
"""

from __future__ import annotations

import asyncio
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


def line_facts(record: logging.LogRecord) -> dict[str, Any]:
    """What a line tells: its time, level, logger and words, and what stands beside them."""
    when = datetime.fromtimestamp(record.created, UTC).isoformat(
        timespec="milliseconds"
    )
    words = record.getMessage().partition("\n")[0]
    kind = record.exc_info[0] if record.exc_info else None
    return {
        "time": when.replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": f"{words}: {kind.__name__}" if kind else words,
        **record.__dict__.get(FIELDS, {}),
    }


class LineFormatter(logging.Formatter):
    """Time, level, message, then name=value; or one JSON object."""

    def __init__(self, form: LogFormat) -> None:
        super().__init__()
        self.form = form

    def format(self, record: logging.LogRecord) -> str:
        facts = line_facts(record)
        if self.form == "json":
            return to_json(facts).decode()
        first = [facts.pop("time"), facts.pop("level").upper(), facts.pop("message")]
        del facts["logger"]
        return " ".join([*first, *(f"{name}={value}" for name, value in facts.items())])


def set_up_logs(form: LogFormat, level: LogLevel) -> None:
    """From now on this process, and those that it starts, log so; if it was not done before."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter(form))
    handler.addFilter(_is_worth_logging)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("ridgeway").setLevel(level.upper())
    # its warnings show what stands in clients' headers
    logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)


def is_json() -> bool:
    """Whether every line on stderr is to be JSON."""
    forms = [handler.formatter for handler in logging.getLogger().handlers]
    return any(isinstance(f, LineFormatter) and f.form == "json" for f in forms)


def _is_worth_logging(record: logging.LogRecord) -> bool:
    """Not that a request was cut off because the service stops, which uvicorn tells at length."""
    cut = record.exc_info is not None and record.exc_info[0] is asyncio.CancelledError
    return not cut and not record.getMessage().startswith("Traceback")
