"""`ingot bench`: times the optimizers against other implementations and the memory floor."""

from __future__ import annotations

import argparse
from pathlib import Path

from ingot.cli import checks
from ingot.cli.bench import machine
from ingot.cli.bench.models import LISTS, QUICK
from ingot.cli.bench.peers import TITLES
from ingot.cli.bench.shapes import DEFAULT, SHAPES

PARTS = ("race", "precision", "8bit", "clip", "scaling", "small", "memory")
COUNTED = ("traffic",)  # not timed, and not part of a run unless asked for
CHOICE = (
    "race: the optimizers against other implementations. precision: bfloat16 against float32, on the largest of "
    "the shapes. 8bit: states in 8 and 16 bits against float32 ones, on the same. clip: unscaling and clipping with "
    "AdamW, on the same. scaling: how the cost grows. small: the step and a whole iteration of small models, on one "
    "thread and on --threads. memory: time and memory of an iteration with normal steps and with release_gradients(). "
    "traffic: bytes moved and operators launched by the optimizers, counted. "
    "Without --parts the first seven run; with --shapes, --optimizers or --lists only the races asked for."
)
PATIENCE = "seconds to wait before each race until the machine is quiet (default %(default)s)"

DRAW = "measure nothing: draw the pictures again from the files in DIR"


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="ingot bench", description=__doc__, epilog=CHOICE)
    parser.add_argument(
        "--quick", action="store_true", help="few rounds, no large models: a few minutes"
    )
    parser.add_argument("--shapes", help=f"some of {', '.join(SHAPES)}, with commas")
    parser.add_argument("--optimizers", help=f"some of {', '.join(TITLES)}, with commas")
    parser.add_argument("--lists", help=f"small models: some of {', '.join(LISTS)}, with commas")
    parser.add_argument(
        "--parts", help=f"some of {', '.join(PARTS + COUNTED)}, with commas; see below"
    )
    parser.add_argument("--without", default="", help="packages to leave out, with commas")
    parser.add_argument("--rounds", type=int, help="rounds per race (default: by the clock)")
    parser.add_argument(
        "--seconds", type=float, default=14.0, help="per race (default %(default)s)"
    )
    parser.add_argument("--minutes", type=float, default=17.0, help="in all (default %(default)s)")
    parser.add_argument("--patience", type=float, default=0.0, help=PATIENCE)
    parser.add_argument("--threads", type=int, default=machine.cores(), help="default: all cores")
    parser.add_argument(
        "--backend", type=checks.backend, help="Ingot's backend (default: its own choice)"
    )
    parser.add_argument(
        "--out", type=checks.folder, default=Path("out/bench"), help="default %(default)s"
    )
    parser.add_argument("--draw", type=Path, metavar="DIR", help=DRAW)
    chosen = parser.parse_args(arguments)
    if chosen.draw is not None and not (chosen.draw / "bench.csv").is_file():
        parser.error(f"--draw {chosen.draw}: there is no bench.csv in it")
    default_parts = parts_asked_for(chosen)
    quick_shapes = tuple(name for name in DEFAULT if name != "bert-base")
    chosen.shapes = pick(
        parser, chosen.shapes, tuple(SHAPES), quick_shapes if chosen.quick else DEFAULT
    )
    chosen.optimizers = pick(parser, chosen.optimizers, tuple(TITLES), tuple(TITLES))
    chosen.lists = pick(parser, chosen.lists, tuple(LISTS), QUICK if chosen.quick else tuple(LISTS))
    chosen.parts = pick(parser, chosen.parts, PARTS + COUNTED, default_parts)
    if chosen.quick:
        chosen.seconds = min(chosen.seconds, 2.0)
    if chosen.rounds is not None and chosen.rounds < 1:
        parser.error("--rounds must be at least 1")
    if chosen.threads < 1:
        parser.error("--threads must be at least 1")
    return chosen


def parts_asked_for(chosen: argparse.Namespace) -> tuple[str, ...]:
    """The parts to run if ``--parts`` does not say."""
    if chosen.shapes is None and chosen.lists is None:
        return PARTS if chosen.optimizers is None else ("race",)
    return (*(["race"] if chosen.shapes else []), *(["small"] if chosen.lists else []))


def pick(
    parser: argparse.ArgumentParser,
    text: str | None,
    known: tuple[str, ...],
    default: tuple[str, ...],
) -> tuple[str, ...]:
    """The names in a list with commas, in the order they are known; as for create_optimizer, "bertadam" will do."""
    if text is None:
        return default
    spelled = {plain(name): name for name in known}
    asked = [spelled.get(plain(name), name.strip()) for name in text.split(",") if name.strip()]
    strange = [name for name in asked if name not in known]
    if strange or not asked:
        parser.error(f"{', '.join(strange) or 'nothing'}: choose from {', '.join(known)}")
    return tuple(name for name in known if name in asked)


def plain(name: str) -> str:
    """A name without what does not matter."""
    return name.strip().lower().replace("-", "").replace("_", "")


def main(arguments: list[str]) -> int:
    """Runs the benchmark, prints its tables, and writes bench.csv and pictures to ``--out``."""
    chosen = parse(arguments)
    # Only now: --help and a wrong option need no more than torch.
    status: int = checks.load("bench", "ingot.cli.bench.run").run(chosen)
    return status
