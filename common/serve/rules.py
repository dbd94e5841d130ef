"""Rules before the router: a pattern, a header or a tool's name that decides the domain."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated

from pydantic import AfterValidator, model_validator

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.schema import Record
from ridgeway.common.routing.decision import Decision
from ridgeway.common.routing.router import Router


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"it is no regular expression: {error}") from None
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

    def applies(
        self, text: str, headers: Mapping[str, str], tools: Collection[str]
    ) -> bool:
        if self.pattern is not None:
            return re.search(self.pattern, text) is not None
        if self.header is not None:
            name, _, value = self.header.partition(":")
            return headers.get(name.strip().lower()) == value.strip()
        return self.tool in tools


class RoutingRules:
    """The first rule that applies decides."""

    def __init__(self, rules: Sequence[RoutingRule] = ()) -> None:
        self._rules = tuple(rules)

    def check(self, router: Router) -> None:
        """Raise if a rule names a domain that the router has not."""
        for rule in self._rules:
            if rule.domain not in router.domains:
                raise InputError(
                    f"a rule names the domain {rule.domain!r}; there are"
                    f" {', '.join(router.domains)}"
                )

    def domain(
        self, text: str, headers: Mapping[str, str], tools: Collection[str]
    ) -> str | None:
        """The domain that a rule decides; None if none applies."""
        for rule in self._rules:
            if rule.applies(text, headers, tools):
                return rule.domain
        return None


def ruled_decision(router: Router, domain: str) -> Decision:
    """A decision without doubt."""
    scores = {name: float(name == domain) for name in router.domains}
    return Decision(domain, 1.0, scores, False, domain, 0, router="rule")
