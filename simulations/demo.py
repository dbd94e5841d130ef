"""A whole federation on one machine, on real text: what `make demo` runs.

Runs the same commands that a newcomer would type, and shows them. Everything it writes lies in
demo-run/.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from ridgeway.common.base.errors import RidgewayError
from ridgeway.common.base.settings import PRIVATE_ENCODER

FOLDER = Path("demo-run")
_COMMAND = Path(sys.executable).with_name("ridgeway")
_ENCODER = PRIVATE_ENCODER
_PROMPTS = (
    "May I sell this program if I keep the copyright notice and give no warranty?",
    (
        "Find all eigenvalues of the symmetric matrix and an orthonormal basis of"
        " eigenvectors."
    ),
    "for name in sorted(os.listdir(folder)): print(name)",
    "What should I cook for six friends tonight?",
)


def main() -> int:
    started = time.monotonic()
    for name in ("federation", "release"):
        shutil.rmtree(FOLDER / name, ignore_errors=True)
    _say(
        "Seven holders: six with questions, and with text that is on this machine anyway"
        " (source code, headers, licences, documentation), one with everyday questions,"
        " which no expert is for."
    )
    _say(
        "Each sums its own files and sends the sums under masks; the coordinator learns"
        " their exact total."
    )
    _say(
        "So rounds are in the published method. A deployment's are private unless it is"
        " told otherwise: under noise."
    )
    places = ("--out", FOLDER / "release", "--work", FOLDER / "federation")
    _run("simulate", *places, "--encoder", _ENCODER)
    _say("All that one holder has sent:")
    _run("client", "status", min((FOLDER / "federation" / "holders").iterdir()))
    _say("Anyone with the release routes prompts:")
    for prompt in _PROMPTS:
        _run("route", FOLDER / "release", prompt)
    _run("route", FOLDER / "release", _PROMPTS[0], "--explain")
    _say(
        f"Done in {time.monotonic() - started:.0f} s. The release lies in"
        f" {FOLDER / 'release'}."
    )
    _say(
        f"To see on a page why prompts go where they go: {os.path.relpath(_COMMAND)}"
        f" serve {FOLDER / 'release'}"
    )
    return 0


def _say(words: str) -> None:
    print(f"\n{words}", file=sys.stderr, flush=True)


def _run(*words: str | Path) -> None:
    """Show a command and run it, with a cache, a key and a record of spending of the demo's own."""
    arguments = [str(word) for word in words]
    print(f"\n$ ridgeway {shlex.join(arguments)}", file=sys.stderr, flush=True)
    folders = {
        f"RIDGEWAY_{name.upper()}": str(FOLDER / name)
        for name in ("cache", "config", "state")
    }
    subprocess.run([str(_COMMAND), *arguments], check=True, env=os.environ | folders)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RidgewayError as error:
        sys.exit(f"demo: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
