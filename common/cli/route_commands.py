"""The commands of anyone with a release: route, evaluate, encoder.

Knows options and how results are shown; the work is done elsewhere and imported when it is needed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from ridgeway.common.base.errors import InputError
from ridgeway.common.cli.options import EncoderSource, Fields, Json, Key, Model, ReleaseFolder, RunsOn
from ridgeway.common.cli.terminal import command_group, emit_json, step, table

if TYPE_CHECKING:
    from ridgeway.common.routing.router import Decision, Explanation, Router

encoder = command_group("The tokenizer and integer table that all parties share.")


def route(
    release: ReleaseFolder,
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads prompts from standard input, one a line.")],
    explain: Annotated[
        bool, typer.Option("--explain", help="Show the tokens that decided, and how much each weighed.")
    ] = False,
    json: Json = False,
    threshold: Annotated[float | None, typer.Option(help="Abstain below this confidence.")] = None,
    fallback: Annotated[str | None, typer.Option(help="Where prompts go when the router abstains.")] = None,
    key: Key = None,
    model: Model = None,
    device: RunsOn = "auto",
) -> None:
    """Route PROMPT to the expert it belongs to, by the release in the folder RELEASE.

    With - as the prompt, prompts are read from standard input, one a line, and each is answered by one line: the domain
    and the confidence, or a JSON object with --json or --explain. Before a prompt that begins with a dash, write --.
    """
    from ridgeway.common.routing.router import Router

    router = Router.load(release, key=key, model=model, device=device)
    changes = {name: value for name, value in (("threshold", threshold), ("fallback", fallback)) if value is not None}
    if changes:
        router = router.with_confidence(**changes)
    if prompt != "-":
        _show_one(router, prompt, explain, json)
    else:
        if sys.stdin is None:
            raise InputError("standard input is closed, so no prompts can be read from it")
        _show_many(router, _arriving_lines(cast(BufferedReader, sys.stdin.buffer)), explain, json)


def _show_one(router: Router, prompt: str, explain: bool, json: bool) -> None:
    from ridgeway.common.routing.decision_json import decision_json, explanation_json

    explanation = router.explain(prompt) if explain else None
    decision = explanation.decision if explanation else router.route(prompt)
    if json:
        emit_json(explanation_json(explanation, router) if explanation else decision_json(decision, router))
        return
    print(_words(decision, router))
    if explanation:
        _show_explanation(explanation)


def _show_many(router: Router, prompts: Iterable[list[str]], explain: bool, json: bool) -> None:
    """One line of output a prompt, as prompts come in."""
    import json as codec

    from ridgeway.common.routing.decision_json import decision_json, explanation_json

    for batch in prompts:
        if explain:
            results = [explanation_json(router.explain(prompt), router) for prompt in batch]
        else:
            results = [decision_json(decision, router) for decision in router.route_many(batch)]
        for result in results:
            plain = f"{result['domain']}\t{result['confidence']:.3f}"
            print(codec.dumps(result, ensure_ascii=False) if json or explain else plain)
        sys.stdout.flush()


def _arriving_lines(stream: BufferedReader) -> Iterator[list[str]]:
    """The lines of a stream, as many at a time as have arrived, so that both a file and a conversation are answered."""
    rest = b""
    while block := stream.read1(1 << 20):
        *lines, rest = (rest + block).split(b"\n")
        if lines:
            yield [_text(line) for line in lines]
    if rest:
        yield [_text(rest)]


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace").rstrip("\r")


def _words(decision: Decision, router: Router) -> str:
    sure = "confidence" if router.confidence.calibrated else "confidence (not calibrated)"
    ranked = sorted(decision.scores.items(), key=lambda item: -item[1])
    rest = ", ".join(f"{name} {100 * score:.1f} %" for name, score in ranked if name != decision.best)
    why = f"  (abstained; ahead: {decision.best})" if decision.abstained else ""
    return f"{decision.domain}{why}   {sure} {100 * decision.confidence:.1f} %   then {rest}"


def _show_explanation(explanation: Explanation, most: int = 12) -> None:
    best, runner_up = explanation.decision.best, explanation.runner_up
    merged: dict[tuple[str, str], tuple[int, float]] = {}
    for token in explanation.tokens:
        count, weight = merged.get((token.text, token.domain), (0, 0.0))
        merged[token.text, token.domain] = (count + 1, weight + token.weight)
    ranked = sorted(merged.items(), key=lambda item: -abs(item[1][1]))
    shown = [(repr(text), domain, str(times), weight) for (text, domain), (times, weight) in ranked[:most] if weight]
    if len(ranked) > most:
        rest = sum(weight for _, (_, weight) in ranked[most:])
        shown.append((f"{len(ranked) - most} other tokens", "", "", rest))
    margin = explanation.margin
    rows = [[*words, f"{weight:+.4f}", f"{weight / margin:+.0%}" if margin else "–"] for *words, weight in shown]
    table(
        ["token", "speaks for", "times", "weight", "of margin"],
        rows,
        numbers_from=2,
        title=f"{best} over {runner_up}, margin {margin:.4f}: what each token added",
    )


def evaluate(
    release: ReleaseFolder,
    data: Annotated[
        Path, typer.Argument(metavar="DATA_DIR", help="A folder that holds DOMAIN.test.jsonl for every domain.")
    ],
    text_field: Fields = "text",
    selector: Annotated[str | None, typer.Option(help="Try another selector: average, entropy or all.")] = None,
    k: Annotated[int | None, typer.Option(help="How many tokens vote under the entropy selector.")] = None,
    json: Json = False,
    key: Key = None,
    model: Model = None,
    device: RunsOn = "auto",
) -> None:
    """Measure a release on labelled text: accuracy by domain, in percent, and the confusion matrix.

    DATA_DIR holds DOMAIN.test.jsonl for every domain of the release.
    """
    from dataclasses import replace

    from ridgeway.common.base.jsonl import field_names, labelled_texts
    from ridgeway.common.routing.evaluation import evaluate as measure
    from ridgeway.common.routing.router import Router

    router = Router.load(release, key=key, model=model, device=device)
    if selector is not None or k is not None:
        changes: dict[str, Any] = {"name": selector, "k": k}
        changed = replace(router.selector, **{name: value for name, value in changes.items() if value is not None})
        router = router.with_selector(changed)
    texts = labelled_texts(data, router.domains, field_names(text_field))
    result = measure(router, texts)
    if json:
        emit_json(result.to_json())
        return
    show_evaluation(result)


def show_evaluation(result: Any) -> None:
    """Accuracy by domain beside the confusion matrix."""
    accuracy = {name: f"{share:.1f} %" for name, share in result.by_domain.items()}
    rows = [
        [name, f"{sum(row):,}", accuracy.get(name, "–"), *(str(count) for count in row)]
        for name, row in zip(result.domains, result.confusion, strict=True)
    ]
    mean = f"{result.accuracy:.1f} %" if accuracy else "–"
    rows.append(["mean over domains", f"{sum(map(sum, result.confusion)):,}", mean])
    table(["domain", "texts", "accuracy", *(f"→ {name}" for name in result.domains)], rows)


@encoder.command("list")
def list_encoders(json: Json = False) -> None:
    """The kinds of encoder there are, and those already converted on this machine."""
    from ridgeway.common.encoding.encoder_sources import SOURCES, cached_encoders

    cards = cached_encoders()
    if json:
        emit_json({"sources": SOURCES, "converted": cards})
        return
    table(["source", "what it is"], [[name, words] for name, words in SOURCES.items()], numbers_from=2)
    if cards:
        rows = [
            [card["name"], card.get("kind", "table"), f"{card['rows']:,}", str(card["width"]), card["fingerprint"]]
            for card in cards
        ]
        table(["converted", "kind", "tokens", "width", "fingerprint"], rows)


@encoder.command()
def show(source: EncoderSource, json: Json = False) -> None:
    """An encoder's size, scale and fingerprint."""
    from ridgeway.common.encoding.encoder_sources import find_encoder
    from ridgeway.common.encoding.transformer_encoder import ContextualEncoder

    found = find_encoder(source)
    facts: dict[str, Any] = {
        "name": found.name,
        "kind": "contextual" if isinstance(found, ContextualEncoder) else "table",
        "tokens": found.rows,
        "width": found.width,
        "scale": found.scale,
        "bytes": (0 if isinstance(found, ContextualEncoder) else found.table.nbytes) + len(found.definition),
        "fingerprint": found.fingerprint,
    }
    if isinstance(found, ContextualEncoder):
        facts["weights"] = found.weights
    if json:
        emit_json(facts)
        return
    for name, value in facts.items():
        print(f"{name:<13}{value:,}" if isinstance(value, int) else f"{name:<13}{value}")


@encoder.command()
def save(
    source: EncoderSource, folder: Annotated[Path, typer.Argument(help="A new folder.")], json: Json = False
) -> None:
    """Write an encoder to a folder that can be carried to other machines and used as dir:PATH.

    Of a contextual encoder it holds the tokenizer and a card with the hash of the model, but not the model.
    """
    from ridgeway.common.encoding.encoder_files import save_encoder
    from ridgeway.common.encoding.encoder_sources import find_encoder

    if folder.is_file():
        raise InputError(f"{folder} is a file; an encoder is saved as a folder")
    found = find_encoder(source)
    save_encoder(found, folder)
    if json:
        emit_json({"folder": str(folder), "fingerprint": found.fingerprint})
    else:
        step("saved", str(folder), f"{found.rows:,} tokens", f"fingerprint {found.fingerprint[:12]}")
