"""Load made by wrk, a program in C that takes little of the machine itself.

Knows wrk's scripts and what they print. Knows nothing of what is served.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import ProcessError

SCRIPT = """
local bodies = {{
{bodies}
}}
local place = 0
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
request = function()
  place = place % #bodies + 1
  return wrk.format(nil, nil, nil, bodies[place])
end
done = function(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format('{{"requests": %d, "us": %d, "p50": %f, "p99": %f, "failed": %d}}\\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
"""


@dataclass(frozen=True, slots=True)
class Load:
    """What a while of load gave: requests a second, and milliseconds at the middle and near the end."""

    rate: float
    p50_ms: float
    p99_ms: float


def is_here() -> bool:
    return shutil.which("wrk") is not None


def write_script(path: Path, bodies: Sequence[Any]) -> Path:
    """A script that sends these bodies in turn."""
    lines = ",\n".join(_quoted(json.dumps(body, ensure_ascii=False)) for body in bodies)
    path.write_text(SCRIPT.format(bodies=lines), encoding="utf-8")
    return path


def _quoted(text: str) -> str:
    """A string as Lua writes it: every byte but plain letters as its number."""
    plain = set(range(32, 127)) - {ord('"'), ord("\\")}
    return '"' + "".join(chr(byte) if byte in plain else f"\\{byte:03}" for byte in text.encode()) + '"'


def load(url: str, script: Path, *, connections: int, seconds: int) -> Load:
    """So many connections, each sending its next request when it has its answer."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s", "-s", str(script), url]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.strip().splitlines()[-1])
    if found["failed"]:
        raise ProcessError(f"{found['failed']} of {found['requests']} requests of a measurement failed")
    return Load(found["requests"] / found["us"] * 1e6, found["p50"] / 1000, found["p99"] / 1000)
