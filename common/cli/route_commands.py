"""The commands of anyone with a release: route, evaluate, encoder."""

from __future__ import annotations

import json as codec
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from io import BufferedReader
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, cast

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.files import field_names, labelled_texts, other_domains
from ridgeway.common.base.identity import load_identity
from ridgeway.common.base.settings import Confidence
from ridgeway.common.cli.terminal import (
    DataFolder,
    EncoderSource,
    Fallback,
    Fields,
    Json,
    Key,
    KeyFile,
    ReleaseFolder,
    Sentences,
    TextTable,
    argument,
    command_group,
    given,
    option,
    refuse_without,
    show,
    signing_key,
    step,
)
from ridgeway.common.routing import evaluation
from ridgeway.common.routing.coverage import (
    MIN_ANSWERED_TEXTS,
    Outcomes,
    Point,
    curve,
    equal_domains,
    proposal,
)
from ridgeway.common.routing.decision import DECIDERS, REASONS, Decision
from ridgeway.common.routing.evaluation import (
    Calibration,
    Evaluation,
    beginnings_routed,
)
from ridgeway.common.routing.release import (
    PRIVACY,
    Release,
    check_signer,
    load_release,
    sign_confidence,
)
from ridgeway.common.routing.router import Explanation, Router, origin, router_of
from ridgeway.common.routing.sentence_table import Cascade, ChosenMargin, choose_margin
from ridgeway.common.text.encoder_files import (
    SOURCES,
    cached_encoders,
    find_encoder,
    save_encoder,
)

if TYPE_CHECKING:
    from ridgeway.common.routing.expert_choice import ExpertChoice, ExpertChooser

encoder = command_group()


def route(
    release: ReleaseFolder,
    prompt: Annotated[
        str,
        argument("The prompt; - reads prompts from standard input, one per line."),
    ],
    explain: Annotated[
        bool,
        option("Show the words that decided, with their weights.", "--explain"),
    ] = False,
    json: Json = False,
    threshold: Annotated[
        float | None, option("Abstain below this confidence; 0: never.")
    ] = None,
    scope: Annotated[
        float | None,
        option("Abstain below this probability of being in scope; 0: never."),
    ] = None,
    fallback: Annotated[
        str | None, option("Domain or expert for prompts on which the router abstains.")
    ] = None,
    experts: Annotated[
        Path | None,
        option(
            "Also name the expert: experts.toml, as docs/application/experts-toml.md"
            " shows.",
            metavar="FILE",
        ),
    ] = None,
    key: Key = None,
    sentences: Sentences = "auto",
) -> None:
    """Route PROMPT to the expert that it belongs to.

    With - as the prompt, prompts are read from standard input, one a line, and each is answered by
    one line: the domain (- for none) and the confidence (with --experts also the expert; with a
    sentence encoder also which router decided), or a JSON object with --json or --explain. Before a
    prompt that begins with a dash, write --.
    """
    router = Router.load(
        release,
        key=key,
        sentences=sentences,
        threshold=threshold,
        fallback=fallback,
        scope=scope,
    )
    chooser = _chooser(experts, router) if experts else None
    if prompt != "-":
        _show_one(router, prompt, explain, json, chooser)
    elif sys.stdin is None:
        raise InputError("standard input is closed; no prompts to read")
    else:
        lines = _arriving_lines(cast(BufferedReader, sys.stdin.buffer))
        _show_many(router, lines, explain, json, chooser)


def _chooser(experts: Path, router: Router) -> ExpertChooser:
    # imported here: pydantic takes as long to import as all else that routing a prompt needs
    from ridgeway.common.routing.expert_choice import ExpertChooser

    return ExpertChooser.load(experts, router)


def _routed(
    answer: Decision | Explanation, router: Router, chooser: ExpertChooser | None
) -> tuple[Decision, ExpertChoice | None, dict[str, Any]]:
    """A decision, the expert that it leads to, and both for programs."""
    decision = answer if isinstance(answer, Decision) else answer.decision
    choice = chooser.choose(decision) if chooser else None
    expert = choice.to_json() if choice else {}
    return decision, choice, answer.to_json() | expert | origin(router)


def _show_one(
    router: Router,
    prompt: str,
    explain: bool,
    json: bool,
    chooser: ExpertChooser | None,
) -> None:
    explanation = router.explain(prompt) if explain else None
    answer = explanation or router.route(prompt)
    decision, choice, facts = _routed(answer, router, chooser)
    lines: list[str | TextTable] = [_words(decision, router)]
    if router.has_sentences:
        lines.append(f"decided by {DECIDERS[decision.router]}")
    if choice:
        quality = choice.quality
        expected = (
            "" if quality is None else f", expected quality {100 * quality:.1f} %"
        )
        lines.append(f"expert {choice.expert}   because: {choice.reason}{expected}")
    if explanation:
        lines.append(_explanation_table(explanation))
    show(facts, *lines, json=json)


def _show_many(
    router: Router,
    prompts: Iterable[list[str]],
    explain: bool,
    json: bool,
    chooser: ExpertChooser | None,
) -> None:
    """One line of output a prompt, as prompts come in."""
    for batch in prompts:
        many = map(router.explain, batch) if explain else router.route_many(batch)
        for answer in many:
            decision, choice, facts = _routed(answer, router, chooser)
            plain = [decision.domain or "-", f"{decision.confidence:.3f}"]
            plain += [choice.expert] if choice else []
            plain += [decision.router] if router.has_sentences else []
            as_json = json or explain
            print(
                codec.dumps(facts, ensure_ascii=False) if as_json else "\t".join(plain)
            )
        sys.stdout.flush()


def _arriving_lines(stream: BufferedReader) -> Iterator[list[str]]:
    """The lines of a stream, as many at a time as have arrived, so that both a file and a
    conversation are answered.
    """
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
    sure = (
        "confidence" if router.confidence.calibrated else "confidence (not calibrated)"
    )
    ranked = sorted(decision.scores.items(), key=lambda item: -item[1])
    rest = ", ".join(
        f"{name} {100 * score:.1f} %" for name, score in ranked if name != decision.best
    )
    why = (
        f"  (abstained: {REASONS[decision.reason]}; ahead: {decision.best})"
        if decision.reason
        else ""
    )
    return (
        f"{decision.domain or 'no domain'}{why}   {sure} {100 * decision.confidence:.1f} %   then"
        f" {rest}"
    )


def _explanation_table(explanation: Explanation, most: int = 12) -> TextTable:
    best = explanation.decision.best
    runner_up = explanation.runner_up
    merged: dict[tuple[str, str], tuple[int, float]] = {}
    for word in explanation.words:
        count, weight = merged.get((word.text, word.domain), (0, 0.0))
        merged[word.text, word.domain] = (count + 1, weight + word.weight)
    ranked = sorted(merged.items(), key=lambda item: -abs(item[1][1]))
    shown = [
        (repr(text), domain, str(times), weight)
        for (text, domain), (times, weight) in ranked[:most]
        if weight
    ]
    if len(ranked) > most:
        rest = sum(weight for _, (_, weight) in ranked[most:])
        shown.append((f"{len(ranked) - most} other words", "", "", rest))
    margin = explanation.margin
    rows = [
        [*words, f"{weight:+.4f}", f"{weight / margin:+.0%}" if margin else "–"]
        for *words, weight in shown
    ]
    return TextTable(
        ["word", "speaks for", "times", "weight", "of margin"],
        rows,
        f"{best} over {runner_up}, margin {margin:.4f}: weight of each word",
    )


def evaluate(
    release: ReleaseFolder,
    data: DataFolder,
    text_field: Fields = "text",
    json: Json = False,
    key: Key = None,
    sentences: Sentences = "auto",
    propose: Annotated[
        bool,
        option(
            "Also fit the confidence on this text and propose a threshold.",
            "--propose",
        ),
    ] = False,
    accuracy: Annotated[
        float | None,
        option("Target accuracy among answered prompts, in percent. (default: 99)"),
    ] = None,
    tokens: Annotated[
        int | None,
        option(
            "Propose for the first N tokens of each text. (default: all)",
            metavar="N",
            min=0,
        ),
    ] = None,
    sign: Annotated[
        bool,
        option("Add the fitted confidence to the release and sign it again.", "--sign"),
    ] = False,
    threshold: Annotated[
        float | None, option("Sign with this threshold of confidence; 0: none.")
    ] = None,
    fallback: Fallback = None,
    public_text: Annotated[
        bool,
        option("Declare the text public; required to sign releases of private rounds."),
    ] = False,
    sentence_share: Annotated[
        float | None,
        option("Share of such text that the sentence encoder reads.", min=0.0, max=1.0),
    ] = None,
    sentence_accuracy: Annotated[
        float | None,
        option(
            "Accuracy for which the sentence encoder reads as much text as needed.",
            min=0.0,
            max=1.0,
        ),
    ] = None,
    key_file: KeyFile = None,
) -> None:
    """Measure the accuracy of a release on labelled text.

    Accuracy and confusion by domain, and the calibration error.

    DATA_DIR holds DOMAIN.test.jsonl for every domain of the release.

    --propose also fits the confidence on this text, and shows for each threshold how many prompts
    are answered, and how often the answer is right. Nothing is changed, unless --sign adds the
    fitted confidence to the release. If it has a sentence encoder, --sentence-share or
    --sentence-accuracy also choose the margin from which its table decides alone.
    """
    changes = given(threshold=threshold, fallback=fallback)
    margins = given(sentence_share=sentence_share, sentence_accuracy=sentence_accuracy)
    signing = {**changes, **margins, "key_file": key_file}
    if not propose:
        refuse_without(
            "--propose", {"accuracy": accuracy, "tokens": tokens, "sign": sign or None}
        )
    if not sign:
        refuse_without("--sign", signing | {"public_text": public_text or None})
    wish = 99.0 if accuracy is None else accuracy
    if not 1 < wish <= 100:
        raise InputError(
            f"an accuracy is in percent, above 1 and at most 100, not {wish:g}"
        )
    if len(margins) > 1:
        raise InputError("give --sentence-share or --sentence-accuracy, not both")
    if sign and sentences != "auto":
        raise InputError("--sign fits the confidence in all prompts; omit --sentences")

    loaded = load_release(release, key=key, sentences=sentences)
    identity = load_identity(signing_key(key_file)) if sign else None
    if identity is not None:
        check_signer(loaded, identity)
        if PRIVACY in loaded.manifest and not public_text:
            raise InputError(
                "the release comes from a private round, and calibration publishes"
                " exact counts of the text; if the text is public, add --public-text"
            )
        loaded = replace(loaded, confidence=replace(loaded.confidence, **changes))
    texts = labelled_texts(data, loaded.domains, field_names(text_field))
    tell_left_out(data, loaded.domains)
    margin = None
    if margins:
        loaded, margin = _with_margin(loaded, texts, sentence_share, sentence_accuracy)
    fitted = evaluation.calibrate(router_of(loaded), texts) if propose else None
    if identity is not None and fitted is not None:
        loaded = replace(loaded, confidence=fitted.confidence(loaded.confidence))

    router = router_of(loaded)
    result = evaluation.evaluate(router, texts)
    facts = result.to_json()
    lines: list[str | TextTable | tuple[str, ...]] = [*evaluation_lines(result)]
    if router.has_sentences:
        read = [
            use
            for domain_texts in texts.values()
            for use in router.reads_sentences(domain_texts)
        ]
        decided = {"table": read.count(False), "sentences": read.count(True)}
        facts["decided_by"] = decided
        shown = ", ".join(
            f"{number:,} by {DECIDERS[name]}" for name, number in decided.items()
        )
        lines.append(("decided", shown))
    if fitted is not None:
        answered = outcomes(router, texts, tokens or 0)
        points = curve(answered)
        chosen = proposal(answered, wish / 100)
        facts["proposal"] = {
            "confidence": asdict(fitted),
            "cascade": asdict(margin) if margin else None,
            "tokens": tokens or None,
            "wished_accuracy": wish / 100,
            "curve": [point._asdict() for point in points],
            "threshold": chosen._asdict() if chosen else None,
            "unit": "share",
        }
        lines += _fitted_lines(fitted, margin)
        lines += [_coverage_table(points), *advice(router.confidence, chosen, wish)]
        if chosen and chosen.threshold not in (0, router.confidence.threshold):
            lines += ways_to_set(router.confidence, fitted, release, data, chosen)
    if identity is not None and fitted is not None:
        figures = asdict(fitted) | replace(result, gap=None).to_json()
        facts["release"] = sign_confidence(release, loaded, figures, identity)
        lines.append(("release", str(release), facts["release"][:12], "calibrated"))
    show(facts, *lines, json=json)


def _with_margin(
    loaded: Release,
    texts: Mapping[str, Sequence[str]],
    share: float | None,
    accuracy: float | None,
) -> tuple[Release, ChosenMargin]:
    """A release with the margin of its cascade that was chosen for a share or an accuracy."""
    if not isinstance(loaded.compiled, Cascade):
        raise InputError(
            "the release has no sentence encoder, so it has no margin; omit"
            " --sentence-share and --sentence-accuracy"
        )
    chosen = choose_margin(
        loaded.compiled, loaded.reader, texts, share=share, accuracy=accuracy
    )
    cascade = replace(loaded.compiled, margin=chosen.margin)
    return replace(loaded, compiled=cascade), chosen


def _fitted_lines(
    fitted: Calibration, margin: ChosenMargin | None
) -> Iterator[tuple[str, ...]]:
    yield (
        "fitted",
        f"{fitted.texts:,} held-out texts",
        f"temperature {fitted.temperature:.3g}",
        f"half length {fitted.half:g}, tail {fitted.tail:g}",
    )
    if margin:
        yield (
            "sentences",
            f"{100 * margin.share:.0f} % of the texts are read",
            f"accuracy {100 * margin.accuracy:.1f} %",
            f"margin {margin.margin:.3g}",
        )
    yield (
        "calibration error",
        f"{fitted.gap_before:.1f} % before",
        f"{fitted.gap_after:.1f} % after",
    )


def tell_left_out(data: Path, domains: Sequence[str]) -> None:
    """Say which test files are not used: an accuracy on domains that a release cannot name would be
    none.
    """
    if others := other_domains(data, domains):
        step(
            "note",
            "test files skipped, since the release does not know their domains: "
            f"{', '.join(others)}",
        )


MAX_MATRIX_DOMAINS = 12
"""With more domains than this, a confusion matrix is no longer read: the most frequent confusions
are named instead.
"""
MAX_ROWS_SHOWN = 20


def evaluation_lines(
    result: Evaluation, accuracies: Mapping[str, str] | None = None, mean: str = ""
) -> list[TextTable | tuple[str, str]]:
    """Accuracy by domain beside the confusion matrix; of many domains the weakest, beside what they
    are taken for.

    accuracies, mean: in words, by domain and in all, where the counts do not tell them.
    """
    accuracy = accuracies or {
        name: f"{share:.1f} %" for name, share in result.by_domain.items()
    }
    many = len(result.domains) > MAX_MATRIX_DOMAINS
    rows = []
    for name, row in zip(result.domains, result.confusion, strict=True):
        taken_for = [_taken_for(result, name)] if many else row
        rows.append([name, sum(row), accuracy.get(name, "–"), *taken_for])
    columns = [f"→ {name}" for name in result.domains]
    shown = rows
    if many:
        columns = ["most confused with"]
        weakest = sorted(rows, key=lambda row: result.by_domain.get(str(row[0]), 101.0))
        shown = weakest[:MAX_ROWS_SHOWN]
    mean = mean or (f"{result.accuracy:.1f} %" if accuracy else "–")
    total = ["mean over domains", sum(map(sum, result.confusion)), mean]
    lines: list[TextTable | tuple[str, str]] = [
        TextTable(["domain", "texts", "accuracy", *columns], [*shown, total])
    ]
    if result.gap is not None:
        bins = f"{result.gap:.1f} points (10 bins)"
        lines.append(("sure", f"calibration error {bins}"))
    if len(shown) < len(rows):
        words = f"the {len(shown)} weakest of {len(rows):,} domains are shown"
        lines.append(("note", f"{words}; `--json` has all of them"))
    return lines


def _taken_for(result: Evaluation, name: str) -> str:
    """The three domains to which most of a domain's texts went wrongly, with how many."""
    return ", ".join(f"{other} {count:,}" for other, count in result.mistakes(name)[:3])


# Coverage and thresholds


def outcomes(
    router: Router, texts: Mapping[str, Sequence[str]], tokens: int = 0
) -> Outcomes:
    """How a router fares on labelled texts or on their beginnings, every domain weighing the
    same.
    """
    parts = []
    for column, name in enumerate(router.domains):
        confidence, best = beginnings_routed(router, texts[name], tokens)
        parts.append((confidence, best == column))
    return equal_domains(parts)


def _coverage_table(points: Sequence[Point]) -> TextTable:
    rows = []
    for point in points:
        within = f"{100 * point.low:.1f} to {100 * point.high:.1f} %"
        unknown = point.accuracy is None
        rows.append(
            [
                f"{point.threshold:g}",
                f"{100 * point.coverage:.1f} %",
                "–" if point.accuracy is None else f"{_percent(point.accuracy)} %",
                "–" if unknown else within,
                point.texts,
            ]
        )
    headings = ["threshold", "answered", "accuracy", "95 % interval", "texts"]
    return TextTable(headings, rows)


def _percent(share: float) -> str:
    """With one digit behind the point; what is not quite all is not called 100."""
    return f"{min(100 * share, 99.9 if share < 1 else 100.0):.1f}"


def advice(confidence: Confidence, chosen: Point | None, accuracy: float) -> list[str]:
    notes = (
        []
        if confidence.calibrated
        else ["The confidence of this release is not calibrated."]
    )
    if chosen is None or chosen.accuracy is None:
        missed = (
            f"No threshold with at least {MIN_ANSWERED_TEXTS} answered texts reaches"
            f" {accuracy:g} %"
        )
        return [*notes, f"{missed}: lower the target, or use more or longer text."]
    figures = (
        f"{100 * chosen.coverage:.1f} % of prompts are answered,"
        f" {_percent(chosen.accuracy)} % of them right"
    )
    within = f"95 % interval {100 * chosen.low:.1f} to {100 * chosen.high:.1f} %"
    if chosen.threshold == 0:
        return [
            *notes,
            f"No threshold is needed for {accuracy:g} %: {figures} ({within}).",
        ]
    return [
        *notes,
        f"For {accuracy:g} %, abstain below {chosen.threshold}: {figures} ({within}).",
        (
            "The threshold was chosen on this same text; expect slightly less on "
            "other text."
        ),
    ]


def ways_to_set(
    confidence: Confidence,
    fitted: Calibration,
    release: Path,
    data: Path,
    chosen: Point,
) -> Iterator[str]:
    """The commands that set a threshold.

    To fit a release's confidence anew changes what a threshold means, so one that was not fitted on
    this text is to be fitted before its threshold is chosen.
    """
    from ridgeway.common.base.records import toml_literal

    fallback = confidence.fallback or "NAME"
    option = f"--threshold {chosen.threshold} --fallback {quote(fallback)}"
    folders = f"{quote(str(release))} {quote(str(data))}"
    fit = f"ridgeway evaluate {folders} --propose --sign"
    if confidence == fitted.confidence(confidence):
        yield f"To set it in the release:  {fit} {option}"
    else:
        yield (
            f"To set it in the release, fit it to this text, then choose again: {fit}"
        )
    yield (
        f"To set it for serving:     threshold = {chosen.threshold} and fallback ="
        f" {toml_literal(fallback)} in serve.toml"
    )


# Encoders


@encoder.command("list")
def list_encoders(json: Json = False) -> None:
    """The kinds of encoder there are, and those already converted on this machine."""

    cards = cached_encoders()
    columns = ("name", "rows", "width", "fingerprint")
    rows = [[card[column] for column in columns] for card in cards]
    headings = ["converted", "tokens", "width", "fingerprint"]
    show(
        {"sources": SOURCES, "converted": cards},
        TextTable(["source", "what it is"], list(SOURCES.items())),
        TextTable(headings, rows) if cards else None,
        json=json,
    )


@encoder.command()
def save(
    source: EncoderSource,
    folder: Annotated[Path, argument("A new folder.")],
    json: Json = False,
) -> None:
    """Write an encoder to a folder that can be carried to other machines and used as dir:PATH."""

    if folder.is_file():
        raise InputError(f"{folder} is a file; an encoder is saved as a folder")
    encoder = find_encoder(source)
    save_encoder(encoder, folder)
    facts: dict[str, Any] = {
        "folder": str(folder),
        "name": encoder.name,
        "tokens": encoder.rows,
        "width": encoder.width,
        "scale": encoder.scale,
        "fingerprint": encoder.fingerprint,
    }
    mark = f"fingerprint {encoder.fingerprint[:12]}"
    show(facts, ("saved", str(folder), f"{encoder.rows:,} tokens", mark), json=json)
