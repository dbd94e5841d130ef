"""A coordinator's folder as an upgrade finds it: with another bundle than the present one, which
holders approved.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from ridgeway.common.base.files import write_whole
from ridgeway.common.deploy.bundle import (
    _CLIENT_APP,
    SERVER_FILE,
    _pack,
    _pyproject,
    source_files,
)
from ridgeway.coordinator.deploy.coordinator_folder import server_folder

CHANGED = "ridgeway/common/base/errors.py"
PROJECT_FILE = {"pyproject.toml": _pyproject(_CLIENT_APP)}
EARLIER = _pack(
    PROJECT_FILE
    | source_files()
    | {CHANGED: source_files()[CHANGED] + b"# as it was\n"}
)
"""The code before an upgrade: that of now but for a line."""
EARLIER_SHA256 = hashlib.sha256(EARLIER).hexdigest()


def keep_earlier(link: Path) -> None:
    write_whole(link / "bundles" / f"{EARLIER_SHA256}.fab", EARLIER)
    for name, source in source_files([SERVER_FILE]).items():
        write_whole(server_folder(link, EARLIER_SHA256) / name, source)
    write_whole(
        link / "bundles.json", json.dumps([{"sha256": EARLIER_SHA256}]).encode()
    )
