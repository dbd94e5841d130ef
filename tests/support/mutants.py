"""Does a test notice each check on the holder's side? `python -m tests.support.mutants [PATTERN]`
removes them in turn.

A mutant is the source with one condition made false, one operand of an `or` made false, one `raise`
or call of a check left out, or one statement left out that remembers or forgets (MEMORY). First all
tests run on a copy of the tree that writes down which tests meet which check; a mutant is then run,
in a copy, against the tests that meet it, those that meet the fewest checks first, and against all
if none of these fails, since tests share sessions that were played once. A check that no test meets
is noticed by none.

Knows `ast` and pytest. Knows nothing of what checks mean, nor of limits in the fields of records.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory

from ridgeway.common.base.operating_system import cores
from ridgeway.common.cli.terminal import TextTable, count, show, ticking

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    "client": "ready",
    "client/round": (
        "answers masked_answers policy spending epochs session_store holder"
    ),
    "common/privacy": "noise",
    "common/masking": "agreement member shares",
    "common/protocol": "packet cohort",
}
FILES = [
    f"{folder}/{name}.py" for folder, names in FOLDERS.items() for name in names.split()
]
TESTS = (
    "tests/client/round",
    "tests/client/test_ready.py",
    "tests/client/test_evidence.py",
    "tests/client/deploy/test_holder_backup.py",
    "tests/common/masking",
    "tests/vectors/test_masking.py",
    *(f"tests/laws/test_{name}_laws.py" for name in ("messages", "masking", "privacy")),
    *(
        f"tests/coordinator/round/test_{name}.py"
        for name in ("membership", "private_rounds")
    ),
)
MEMORY = re.compile(
    r"(totals\.(sign|open)|account\.(pay|carry)|sessions\.(save|erase)|journal\.append|keep_noisy|"
    r"note_cohort|note_solved|forget_session|write_whole)$"
)
CHECK = re.compile(r"(^|[._])check(_\w+)?$")
JUDGES = ("overlap", "has_signed", "is_paid")
"""Functions that do not raise: whoever calls them refuses by what they return."""
PYTEST = (
    sys.executable,
    "-m",
    "pytest",
    "-q",
    "-x",
    "-m",
    "not slow",
    *"--hypothesis-profile=quick --hypothesis-seed=0 -p no:xdist -p no:cacheprovider".split(),
)
"""All parameters of a test, since each may be for a check of its own, and few examples of a law."""
SEEN = "RIDGEWAY_SEEN"
"""The environment variable that names the file in which met checks are written down."""
NOTICED, PASSED = (1, 2), 0
MAX_SECONDS = 900


@dataclass(frozen=True)
class Check:
    """A range of bytes in a file, the text that stands there, and what takes its place in the
    mutant.
    """

    file: str
    line: int
    start: int
    end: int
    text: str
    instead: str

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line} {' '.join(self.text.split())}"


def find_checks(file: str, source: bytes) -> Iterator[Check]:
    """Every check in a file, in no particular order."""
    starts = [0, *accumulate(map(len, source.splitlines(keepends=True)))]
    tree = ast.parse(source)
    decided = {
        id(statement)
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        for statement in node.body
    }
    for node in ast.walk(tree):
        for part, instead in _removable(node, decided):
            assert part.end_lineno is not None and part.end_col_offset is not None
            start = starts[part.lineno - 1] + part.col_offset
            end = starts[part.end_lineno - 1] + part.end_col_offset
            yield Check(
                file, part.lineno, start, end, source[start:end].decode(), instead
            )


def _removable(
    node: ast.AST, decided: set[int]
) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """What can be removed of a node, and what is put there. decided: statements that a condition
    decides upon.
    """
    match node:
        case ast.If(test=test) if any(
            isinstance(inner, ast.Raise)
            for part in node.body
            for inner in ast.walk(part)
        ):
            operands = (
                test.values
                if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or)
                else [test]
            )
            yield from ((operand, "False") for operand in operands)
        case ast.FunctionDef(name=name) if name in JUDGES:
            yield from (
                (inner.test, "False")
                for inner in ast.walk(node)
                if isinstance(inner, ast.If)
            )
        case ast.Raise() if id(node) not in decided:
            yield node, "pass"
        case ast.Expr(value=ast.Call(func=called)):
            name = ast.unparse(called)
            if MEMORY.search(name) or CHECK.search(name):
                yield node, "pass"


def changed(source: bytes, places: Iterable[tuple[Check, str]]) -> bytes:
    """A source with other text in some places."""
    for check, text in sorted(places, key=lambda place: place[0].start, reverse=True):
        source = source[: check.start] + text.encode() + source[check.end :]
    return source


# Which tests meet which check


def seen(number: int, value: object) -> object:
    """Write down that a test meets a check: that its condition holds, or that its statement
    runs.
    """
    if value and (test := os.environ.get("PYTEST_CURRENT_TEST")):
        _note(number, test.rpartition(" ")[0])
    return value


@cache
def _note(number: int, test: str) -> None:
    with Path(os.environ[SEEN]).open("a") as file:
        file.write(f"{number} {test}\n")


def _probe(number: int, check: Check) -> str:
    noting = f'__import__("tests.support.mutants").support.mutants.seen({number}, '
    return (
        f"{noting}({check.text}))"
        if check.instead == "False"
        else f"{noting}True); {check.text}"
    )


def tests_that_meet(checks: Sequence[Check], folder: Path) -> Mapping[Check, list[str]]:
    """The tests that meet each check; those that meet fewest checks come first."""
    for file in FILES:
        places = [
            (check, _probe(number, check))
            for number, check in enumerate(checks)
            if check.file == file
        ]
        (folder / file).write_bytes(changed((folder / file).read_bytes(), places))
    notes = folder / "seen.txt"
    notes.touch()
    done = subprocess.run(
        [*PYTEST, *TESTS], cwd=folder, env={**os.environ, SEEN: str(notes)}
    )
    if done.returncode != PASSED:
        sys.exit("the tests fail without any mutant; mend them first")
    met: dict[Check, list[str]] = defaultdict(list)
    for line in dict.fromkeys(notes.read_text().splitlines()):
        number, _, test = line.partition(" ")
        met[checks[int(number)]].append(test)
    rank = Counter(test for tests in met.values() for test in tests)
    return {check: sorted(tests, key=rank.__getitem__) for check, tests in met.items()}


def is_noticed(check: Check, tests: Sequence[str], folder: Path) -> bool:
    """Whether one of the tests fails, or never ends, once the check is removed from this copy of
    the tree.
    """
    path = folder / check.file
    source = path.read_bytes()
    path.write_bytes(changed(source, [(check, check.instead)]))
    try:
        done = subprocess.run(
            [*PYTEST, *tests], cwd=folder, capture_output=True, timeout=MAX_SECONDS
        )
    except subprocess.TimeoutExpired:
        return True
    finally:
        path.write_bytes(source)
    if done.returncode not in (*NOTICED, PASSED):
        raise RuntimeError(
            f"pytest could not run for {check.name}:\n{done.stdout.decode()}{done.stderr.decode()}"
        )
    return done.returncode in NOTICED


def main(pattern: str = "") -> int:
    """Remove every check whose file, line and text contain the pattern; 1 if nobody notices one of
    them.
    """
    checks = sorted(
        (
            check
            for file in FILES
            for check in find_checks(file, (ROOT / file).read_bytes())
            if pattern in check.name
        ),
        key=lambda check: (check.file, check.start),
    )
    with TemporaryDirectory(prefix="ridgeway-mutants-") as home:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(cores() + 1):
            ignored = shutil.ignore_patterns(".*", "__pycache__")
            copies.put(
                shutil.copytree(
                    ROOT, Path(home) / str(number), symlinks=True, ignore=ignored
                )
            )
        met = tests_that_meet(checks, copies.get())

        def survives(check: Check) -> bool:
            folder = copies.get()
            try:
                return not any(
                    is_noticed(check, tests, folder) for tests in (met[check], TESTS)
                )
            finally:
                copies.put(folder)

        with ThreadPoolExecutor(cores()) as pool, ticking("mutants", len(met)) as tick:
            running = {pool.submit(survives, check): check for check in met}
            passed = set()
            for future in as_completed(running):
                tick()
                if future.result():
                    passed.add(running[future])
                    print("not noticed:", running[future].name, flush=True)
    unmet = [(check.name, "meets it") for check in checks if check not in met]
    survivors = unmet + [
        (check.name, f"of {len(met[check])} fails")
        for check in checks
        if check in passed
    ]
    if survivors:
        show(survivors, TextTable(("removed", "no test"), survivors), json=False)
    print(f"{count(len(checks), 'mutant')}, {len(survivors)} not noticed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
