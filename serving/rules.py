"""Rules before the router: a pattern, a header or a tool's name that decides the domain.

google-re2 matches patterns, in a time linear in the text. Python's `re` may take exponential time,
in which no other thread runs; where google-re2 is missing, `re` runs in another process, which the
system ends at a limit.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from typing import Annotated, Any

from pydantic import AfterValidator, model_validator

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.records import Record
from ridgeway.common.routing.decision import Decision
from ridgeway.common.routing.router import Router
from ridgeway.common.web.http_errors import Problem

re2: Any
try:
    re2 = import_module("re2")
    _options = re2.Options()  # other packages of the name re2 have none
    _options.log_errors = False
    _options.never_capture = True
except (ImportError, AttributeError):
    re2 = None

MAX_QUICK_CHARACTERS = 4096
"""In a text of this length, a hostile pattern takes google-re2 a few milliseconds."""
PATTERN_CPU_S = 0.5
"""The most that `re` may take for one pattern and text."""
PATTERN_WAIT_S = 10.0
"""The most that a request waits for the patterns of others, one after the other."""
ASCII_CLASSES = re.compile(r"\\[bBwW]")
_SEARCHES = """
import json, re, signal, sys
for line in sys.stdin:
    pattern, text = json.loads(line)
    signal.setitimer(signal.ITIMER_VIRTUAL, float(sys.argv[1]))  # then SIGVTALRM ends this process
    found = re.search(pattern, text) is not None
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    print(int(found), flush=True)
"""

log = logging.getLogger("ridgeway.serve")


@cache
def _linear(pattern: str) -> Any:
    return re2.compile(pattern.encode(), _options)


def _pattern(text: str) -> str:
    if re2 is None:
        try:
            re.compile(text)
        except re.error as error:
            raise ValueError(f"it is no regular expression: {error}") from None
        return text
    if not text.isascii() and ASCII_CLASSES.search(text):
        raise ValueError(
            r"it has \b or \w beside letters outside ASCII, which RE2 takes for the end"
            r" of a word; write (^|\PL) and (\PL|$) for \b, and \pL for \w"
        )
    try:
        _linear(text)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace")
        raise ValueError(
            f"it is no regular expression of RE2's syntax, which has no lookaround and"
            f" no backreferences: {reason}"
        ) from None
    return text


class RoutingRule(Record):
    """What decides a domain; exactly one of pattern, header and tool.

    pattern: a regular expression that is found in the last user message.
    header:  a request's header and its value, as `x-team: legal`.
    tool:    the name of a tool that the request offers.
    """

    domain: str
    pattern: Annotated[str, AfterValidator(_pattern)] | None = None
    header: str | None = None
    tool: str | None = None

    @model_validator(mode="after")
    def _one_of_three(self) -> RoutingRule:
        if (self.pattern is None) + (self.header is None) + (self.tool is None) != 2:
            raise ValueError("a rule has exactly one of pattern, header and tool")
        if self.header is not None and ":" not in self.header:
            raise ValueError('a header is written with its value, as "x-team: legal"')
        return self

    def names(self, headers: Mapping[str, str], tools: Collection[str]) -> bool:
        """Whether a request has the rule's header or tool."""
        if self.header is not None:
            name, _, value = self.header.partition(":")
            return headers.get(name.strip().lower()) == value.strip()
        return self.tool in tools


class SearchProcess:
    """Python's `re` in a process of its own, one search at a time. Close it."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "rules")
        self._process: subprocess.Popen[str] | None = None

    async def is_found(self, pattern: str, text: str) -> bool | None:
        """None if that took too long."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._ask, pattern, text)

    def _ask(self, pattern: str, text: str) -> bool | None:
        process = self._process
        if process is None:
            command = [sys.executable, "-I", "-S", "-c", _SEARCHES, str(PATTERN_CPU_S)]
            process = self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,  # Ctrl+C is not for it
            )
        assert process.stdin is not None and process.stdout is not None
        answer = ""
        try:
            process.stdin.write(json.dumps([pattern, text]) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            pass
        if not answer:
            self._end()
            return None
        return answer == "1\n"

    def _end(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            process.communicate()

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._end()


class RoutingRules:
    """The first rule that applies decides."""

    def __init__(self, rules: Sequence[RoutingRule] = ()) -> None:
        self._rules = tuple(rules)
        self._searches = SearchProcess()
        if re2 is None and any(rule.pattern is not None for rule in rules):
            log.warning(
                "google-re2 is not installed: the patterns of rules are Python's, and"
                " a request whose pattern takes more than %g s is refused",
                PATTERN_CPU_S,
            )

    def check(self, router: Router) -> None:
        """Raise if a rule names a domain that the router has not."""
        for rule in self._rules:
            if rule.domain not in router.domains:
                raise InputError(
                    f"a rule names the domain {rule.domain!r}; there are"
                    f" {', '.join(router.domains)}"
                )

    async def domain(
        self, text: str, headers: Mapping[str, str], tools: Collection[str]
    ) -> str | None:
        """The domain that a rule decides; None if none applies. Raises Problem if a pattern took
        too long.
        """
        try:
            async with asyncio.timeout(PATTERN_WAIT_S):
                for number, rule in enumerate(self._rules, 1):
                    if rule.pattern is None:
                        applies = rule.names(headers, tools)
                    else:
                        applies = await self._is_found(number, rule.pattern, text)
                    if applies:
                        return rule.domain
        except TimeoutError:
            log.warning("a request was refused: its rules waited for those of others")
            raise Problem(
                503,
                "the rules before the router are overloaded; try again soon",
                code="overloaded",
                headers={"retry-after": "1"},
            ) from None
        return None

    async def _is_found(self, number: int, pattern: str, text: str) -> bool:
        if re2 is None:
            is_match = await self._searches.is_found(pattern, text)
        else:
            search = _linear(pattern).search
            content = text.encode(errors="replace")
            is_quick = len(text) <= MAX_QUICK_CHARACTERS
            # google-re2 lets other threads run
            is_match = (
                search(content)
                if is_quick
                else await asyncio.to_thread(search, content)
            ) is not None
        if is_match is None:
            log.warning(
                "a request was refused: the pattern of rule %d took more than %g s;"
                " install google-re2, or write it with fewer repetitions",
                number,
                PATTERN_CPU_S,
            )
            words = (
                "a pattern of this service's rules could not be matched in time on this"
                " prompt; shorten it, or name an expert as model"
            )
            raise Problem(400, words, code="rule_too_slow")
        return is_match

    def close(self) -> None:
        self._searches.close()


def ruled_decision(router: Router, domain: str) -> Decision:
    """A decision without doubt."""
    scores = {name: float(name == domain) for name in router.domains}
    return Decision(domain, 1.0, scores, False, domain, 0, router="rule")
