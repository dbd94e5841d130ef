"""Try routers on folders of text, on this machine or another: `python -m simulations.lab.routers DIR … --out CACHE`.

What is written under --out are files of the laboratory's shelf: copied into the folder `cache` of a report, they are
taken over by it. Needs numpy, tokenizers and safetensors, and torch and transformers for kNN and the classifier.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from common.errors import RidgewayError
from simulations.lab.plan import Plan
from simulations.lab.routers.registry import METHODS, method
from simulations.lab.routers.trying import evaluation, tried
from simulations.lab.setting import builtin_setting, folder_setting
from simulations.lab.shelf import Shelf


def main(words: list[str] | None = None) -> int:
    given = _parser().parse_args(words)
    try:
        methods = [method(key) for key in given.methods.split(",")]
        settings = tuple(folder_setting(folder) for folder in given.folders) or (builtin_setting(),)
        with tempfile.TemporaryDirectory(prefix="ridgeway-") as work:
            plan = Plan(settings, Path(work), Shelf(given.out), given.encoder, given.full, given.device, given.seed)
            for setting in settings:
                for each in methods:
                    outcome = tried(plan, setting, each)
                    for row in outcome["rows"]:
                        accuracy = evaluation(setting.domains, row["routed"]).accuracy
                        print(f"{setting.name}\t{row['name']}\t{row['variant']}\t{accuracy:.1f} %", flush=True)
                    print(f"{setting.name}\t{each.key}\t{outcome['seconds']:.1f} s\t{outcome['machine']}", flush=True)
    except RidgewayError as error:
        print(f"ridgeway: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m simulations.lab.routers", description="Try routers on text.")
    add = parser.add_argument
    add(
        "folders",
        nargs="*",
        type=Path,
        help="folders with DOMAIN.train.jsonl and DOMAIN.test.jsonl; else this machine's",
    )
    add("--methods", default=",".join(METHODS), help="with commas between them (default: %(default)s)")
    add("--full", action="store_true", help="on all text, with all that is to be chosen among")
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    add("--encoder", default="smollm2", help="where tables over tokens come from")
    add("--seed", type=int, default=1)
    add("--out", type=Path, required=True, help="a folder for the shelf's files")
    return parser


if __name__ == "__main__":
    sys.exit(main())
