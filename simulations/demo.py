"""The whole path on one machine, on real text: what `make demo` runs.

Harvests the built-in corpora, then runs the same commands that holders, operator and users would type, and shows them.
Everything it writes lies in demo-run/.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from common.errors import RidgewayError
from common.terminal import step
from simulations import corpora

FOLDER = Path("demo-run")
COMMAND = Path(sys.executable).with_name("ridgeway")
PROMPTS = (
    "May I sell this program if I keep the copyright notice and give no warranty?",
    "Find all eigenvalues of the symmetric matrix and an orthonormal basis of eigenvectors.",
    "for name in sorted(os.listdir(folder)): print(name)",
)


def main() -> int:
    started = time.monotonic()
    for name in ("holders", "stats", "held-out", "test", "release"):
        shutil.rmtree(FOLDER / name, ignore_errors=True)
    domains = _lay_out_corpora()
    _say("Each holder turns its own files into sums, and keeps a share of its documents for evaluation.")
    for domain in domains:
        corpus = FOLDER / "holders" / domain
        _run("client", "prepare", corpus, "--domain", domain, "--out", FOLDER / "stats" / f"{domain}.stats")
        _run("client", "held-out", corpus, "--out", FOLDER / "held-out" / f"{domain}.test.jsonl")
    _say("This is all that leaves a holder's machine:")
    _run("client", "inspect", FOLDER / "stats" / f"{domains[0]}.stats")
    _say("The operator adds the sums up, solves, signs a release, and fits its confidence on held-out text.")
    _run("coordinator", "solve", *sorted((FOLDER / "stats").iterdir()), "--out", FOLDER / "release")
    _run("coordinator", "calibrate", FOLDER / "release", FOLDER / "held-out")
    _say("On test files that nobody has used so far:")
    _run("evaluate", FOLDER / "release", FOLDER / "test")
    _say("Anyone with the release routes prompts:")
    for prompt in PROMPTS:
        _run("route", FOLDER / "release", prompt)
    _run("route", FOLDER / "release", PROMPTS[0], "--explain")
    _say(f"Done in {time.monotonic() - started:.0f} s. The release lies in {FOLDER / 'release'}.")
    return 0


def _lay_out_corpora() -> list[str]:
    """Every holder gets a folder with its training text; the test files lie apart."""
    _say("Real text that is on this machine anyway: source code, headers, licences, documentation.")
    found = corpora.builtin()
    corpora.write(found, FOLDER / "test")
    for corpus in found:
        train = FOLDER / "test" / f"{corpus.name}.train.jsonl"
        holder = FOLDER / "holders" / corpus.name
        holder.mkdir(parents=True)
        train.rename(holder / "documents.jsonl")
        size = f"{sum(len(text.encode()) for text in corpus.train) / 1e6:.1f} MB"
        step("holder", corpus.name, f"{len(corpus.train):,} documents", size, f"{len(corpus.test):,} to test")
    return [corpus.name for corpus in found]


def _say(words: str) -> None:
    print(f"\n{words}", file=sys.stderr, flush=True)


def _run(*words: str | Path) -> None:
    """Show a command and run it, with a cache and a key of the demo's own."""
    arguments = [str(word) for word in words]
    print(f"\n$ ridgeway {shlex.join(arguments)}", file=sys.stderr, flush=True)
    folders = {"RIDGEWAY_CACHE": str(FOLDER / "cache"), "RIDGEWAY_CONFIG": str(FOLDER / "config")}
    subprocess.run([str(COMMAND), *arguments], check=True, env=os.environ | folders)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RidgewayError as error:
        sys.exit(f"demo: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
