"""Are installed packages known to be vulnerable? `python -m tests.support.vulnerabilities` asks
pip-audit.

Fails on findings alone. Where the package index gives out no such knowledge, it says that nothing
was audited.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

FINDINGS = 1


def main() -> int:
    """Audit what is installed beside this Python; the exit code of the check."""
    words = "-m pip_audit --local --skip-editable --format json --progress-spinner off"
    done = subprocess.run(
        [sys.executable, *words.split()], capture_output=True, text=True
    )
    code, sentence = judged(done.stdout, done.stderr)
    print(sentence)
    return code


def judged(report: str, complaints: str = "") -> tuple[int, str]:
    """The exit code that pip-audit's JSON deserves, and a sentence that says what is known."""
    try:
        packages: list[dict[str, Any]] = json.loads(report)["dependencies"]
    except (ValueError, KeyError, TypeError):
        last = complaints.strip().rpartition("\n")[2] or "it said nothing"
        return (
            0,
            f"audit: NOTHING WAS AUDITED; pip-audit could not ask the package index ({last[:200]})",
        )
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    findings = [finding for package in packages for finding in _findings(package)]
    if findings:
        return FINDINGS, "\n".join(
            [
                f"audit: {len(findings)} known vulnerabilities; raise the versions",
                *findings,
            ]
        )
    if len(skipped) == len(packages):
        return (
            0,
            (
                "audit: NOTHING WAS AUDITED; the package index of this machine knows of "
                "no vulnerabilities at all"
            ),
        )
    rest = f"; not audited: {', '.join(skipped)}" if skipped else ""
    return (
        0,
        f"audit: no known vulnerability in {len(packages) - len(skipped)} packages{rest}",
    )


def _findings(package: dict[str, Any]) -> list[str]:
    return [
        f"  {package['name']} {package['version']}: {each['id']}, "
        f"mended in {', '.join(each['fix_versions']) or 'none'}"
        for each in package.get("vulns", [])
    ]


if __name__ == "__main__":
    sys.exit(main())
