"""Make `.venv` for `make demo` or `make test`: by uv, from requirements.lock, every hash checked.

A cut-off set-up is begun anew by the next one; two at once wait for each other.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
PROJECT = ROOT / "pyproject.toml"
VENV = ROOT / ".venv"
PYTHON = VENV / "bin/python"
UNFINISHED = VENV / "unfinished"
READY = VENV / "ready.json"
SETS = {
    "demo": "what the demo needs: some 140 MB to fetch, 430 MB on disk",
    "test": "what tests and checks need: some 550 MB to fetch, 1.1 GB on disk",
}
TORCH = "torch: CPU build 200 MB, CUDA build 3 GB; TORCH_BACKEND=cpu chooses the first on Linux"


def main() -> None:
    if sys.version_info < (3, 11) or sys.version_info >= (3, 15):
        stop(
            f"this is Python {sys.version.split()[0]}, and the tested versions are for"
            " 3.11 to 3.14; name one of them with: make PYTHON=python3.12"
        )
    wanted = sys.argv[1]
    try:
        with (ROOT / ".venv.lock").open("w") as held:
            wait_for(held.fileno())
            if not is_ready(wanted):
                make(wanted)
    except KeyboardInterrupt:
        stop("interrupted; the next make begins anew")
    except OSError as error:
        stop(f"cannot write to the checkout: {error.strerror} ({error.filename})")


def wait_for(lock: int) -> None:
    """Until no other set-up of this checkout runs."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        tell("another make is setting up this checkout; waiting for it")
        fcntl.flock(lock, fcntl.LOCK_EX)


def digest() -> str:
    """What an environment is made of: the lock, the project's requirements, the Python."""
    parts = [LOCK.read_bytes(), PROJECT.read_bytes(), sys.version.encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def read_ready() -> dict[str, str]:
    """The digest of each set that is installed."""
    return json.loads(READY.read_text()) if READY.exists() else {}


def is_ready(wanted: str) -> bool:
    ready = read_ready()
    installed = digest() in (ready.get(wanted), ready.get("test"))
    return installed and not UNFINISHED.exists() and PYTHON.exists()


def make(wanted: str) -> None:
    begun = time.monotonic()
    if UNFINISHED.exists() or not PYTHON.exists():
        shutil.rmtree(VENV, ignore_errors=True)
    if not PYTHON.exists():
        make_venv()
    UNFINISHED.touch()
    install_uv()
    install_demo()
    if wanted == "test":
        install_tests()
    READY.write_text(json.dumps({**read_ready(), wanted: digest()}))
    UNFINISHED.unlink()
    tell(f"done in {time.monotonic() - begun:.0f} s")


def make_venv() -> None:
    tell(f"Python {sys.version.split()[0]} in .venv")
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ModuleNotFoundError as error:
        stop(
            f"this Python has no module {error.name}; install it (Debian and Ubuntu:"
            " apt install python3-venv) and run make again"
        )
    VENV.mkdir()
    UNFINISHED.touch()
    run([sys.executable, "-m", "venv", str(VENV)], "Python's venv failed")


def install_uv() -> None:
    """The uv of the lock: its hashes, too."""
    pinned = re.search(r"^uv==[^\\\n]+(\\\n[^\\\n]+)+", LOCK.read_text(), re.MULTILINE)
    assert pinned
    wanted = VENV / "uv.txt"
    wanted.write_text(pinned[0] + "\n")
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--no-cache-dir"]
    pip += ["--disable-pip-version-check", "--retries=2", "--no-deps"]
    run([*pip, "-r", str(wanted)], "uv could not be fetched")


def install_demo() -> None:
    tell(SETS["demo"])
    locked = ["--constraints", str(LOCK), "--build-constraints", str(LOCK)]
    editable = ["--config-settings", "editable_mode=compat", "--group", "encoders"]
    uv([*locked, *editable, "--editable", ".[coordinator,serve]"])


def install_tests() -> None:
    tell(SETS["test"])
    uv(["--no-deps", "--requirements", str(LOCK)])
    tell(TORCH)
    import tomllib

    torch = tomllib.loads(PROJECT.read_text())["dependency-groups"]["torch"]
    backend = os.environ.get("TORCH_BACKEND")
    if backend:
        uv([f"--torch-backend={backend}", *torch])
    else:  # pip looks where this machine keeps wheels of its own
        pip = [str(PYTHON), "-m", "pip", "install", "--quiet"]
        run([*pip, "--disable-pip-version-check", *torch], "torch could not be fetched")


def uv(arguments: list[str]) -> None:
    command = [str(VENV / "bin/uv"), "pip", "install", "--python", str(PYTHON)]
    bars = [] if sys.stderr.isatty() else ["--quiet"]
    run([*command, *bars, *arguments], "packages could not be installed")


def run(command: list[str], failure: str) -> None:
    """Run a command in the checkout; stop with its reason where it fails."""
    shown = None if sys.stderr.isatty() else subprocess.PIPE
    done = subprocess.run(command, cwd=ROOT, stderr=shown, text=True)
    if done.returncode:
        lines = [line.strip() for line in (done.stderr or "").splitlines()]
        errors = [line for line in lines if line.lower().startswith("error")]
        reason = f" ({errors[0]})" if errors else ""
        stop(f"{failure}{reason}; see to the network and the disk, then run make again")


def tell(sentence: str) -> None:
    print(f"set-up: {sentence}", file=sys.stderr, flush=True)


def stop(sentence: str) -> None:
    tell(sentence)
    sys.exit(2)


if __name__ == "__main__":
    main()
