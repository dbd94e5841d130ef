"""The chart as Helm renders it, as far as its templates use Go's language: if, else, with, range,
define, include, toYaml, quote, nindent, hasKey, fail and required. Anything else fails.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ACTION = re.compile(r"(\s*)\{\{(-?)\s*(.*?)\s*(?:\}\}|-\}\}\s*)")


class ChartRefused(Exception):
    """The chart does not take these values, and says why."""


class ChartTemplates:
    """The templates of a chart's folder, and its values with others in their place."""

    def __init__(self, folder: Path, values: Mapping[str, Any]) -> None:
        defaults = yaml.safe_load((folder / "values.yaml").read_text())
        self._top = {"Values": _merged(defaults, values), "Release": {"Name": "test"}}
        self._parts: dict[str, list[tuple[str, str]]] = {}
        self._folder = folder / "templates"
        for path in self._folder.glob("*.tpl"):
            self._render(_pieces(path.read_text()), self._top)

    def resources(self, name: str) -> list[dict[str, Any]]:
        """What a template makes."""
        text = self._render(_pieces((self._folder / name).read_text()), self._top)
        return [resource for resource in yaml.safe_load_all(text) if resource]

    def _render(self, pieces: list[tuple[str, str]], dot: Any) -> str:
        out = ""
        position = 0
        while position < len(pieces):
            kind, text = pieces[position]
            word = text.partition(" ")[0]
            position += 1
            if kind == "text":
                out += text
            elif word in ("if", "with", "range", "define"):
                yes, no, position = _block(pieces, position)
                rest = text.partition(" ")[2]
                if word == "define":
                    self._parts[json.loads(rest)] = yes
                    continue
                value = self._value(rest, dot)
                if word == "range":
                    out += "".join(self._render(yes, item) for item in value)
                else:
                    out += self._render(
                        yes if value else no, value if word == "with" and value else dot
                    )
            else:
                out += str(self._value(text, dot))
        return out

    def _value(self, expression: str, dot: Any) -> Any:
        first, *rest = expression.split(" | ")
        value = self._call(shlex.split(first, posix=False), dot)
        for step in rest:
            name, *arguments = step.split()
            if name == "quote":
                value = json.dumps(str(value))
            elif name == "nindent":
                space = " " * int(arguments[0])
                value = "\n" + "\n".join(
                    space + line if line else line for line in str(value).split("\n")
                )
            else:
                raise NotImplementedError(step)
        return value

    def _call(self, words: list[str], dot: Any) -> Any:
        name, *arguments = words
        if name == "include":
            return self._render(self._parts[json.loads(arguments[0])], dot).strip("\n")
        if name == "toYaml":
            return yaml.safe_dump(self._atom(arguments[0], dot)).strip("\n")
        if name == "hasKey":
            return json.loads(arguments[1]) in self._atom(arguments[0], dot)
        if name == "fail":
            raise ChartRefused(json.loads(" ".join(arguments)))
        if name == "required":
            value = self._atom(arguments[1], dot)
            assert value, arguments[0]
            return value
        [name] = words
        return self._atom(name, dot)

    def _atom(self, word: str, dot: Any) -> Any:
        if word == ".":
            return dot
        if not word.startswith("."):
            return json.loads(word)
        value: Any = self._top
        for name in word[1:].split("."):
            value = value[name]
        return value


def _merged(defaults: Any, given: Any) -> Any:
    if isinstance(defaults, dict) and isinstance(given, Mapping):
        return {
            **defaults,
            **{
                name: _merged(defaults.get(name), value)
                for name, value in given.items()
            },
        }
    return given


def _pieces(text: str) -> list[tuple[str, str]]:
    """Texts and actions; `{{-` takes the space before it away, and `-}}` that after it."""
    pieces = []
    last = 0
    for match in ACTION.finditer(text):
        before = "" if match[2] else match[1]
        pieces += [("text", text[last : match.start()] + before), ("action", match[3])]
        last = match.end()
    return [*pieces, ("text", text[last:])]


def _block(
    pieces: list[tuple[str, str]], position: int
) -> tuple[list[tuple[str, str]], list[tuple[str, str]], int]:
    """What lies before an else, what lies after it, and where the block ends."""
    depth = 0
    parts: tuple[list[tuple[str, str]], list[tuple[str, str]]] = ([], [])
    part = parts[0]
    while True:
        kind, text = pieces[position]
        word = text.partition(" ")[0] if kind == "action" else ""
        position += 1
        if word == "end" and depth == 0:
            return (*parts, position)
        if word == "else" and depth == 0:
            part = parts[1]
            continue
        depth += (word in ("if", "with", "range", "define")) - (word == "end")
        part.append((kind, text))
