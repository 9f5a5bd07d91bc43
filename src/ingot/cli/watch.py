"""`ingot watch`: draws what `optimizer.track_metrics(to="run.jsonl")` has written, and names what stands out."""

from __future__ import annotations

import argparse
from pathlib import Path

from ingot.cli import checks


def main(arguments: list[str]) -> int:
    """Reads the file, prints the parameters that stand out, writes the picture."""
    from ingot.metrics import read
    from ingot.metrics.verdict import RULE, stand_out

    parser = argparse.ArgumentParser(prog="ingot watch", description=__doc__, epilog=RULE)
    parser.add_argument("run", type=Path, help="a .jsonl or .csv file of optimizer.track_metrics")
    parser.add_argument(
        "--output", type=checks.picture, help="the picture (default: beside the file, .png)"
    )
    chosen = parser.parse_args(arguments)
    try:
        run = read(chosen.run)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if not run:
        parser.error(f"{chosen.run}: no tracked step in it yet")
    if not any(run):
        parser.error(
            f"{chosen.run}: no parameter had a gradient in any of the {len(run)} tracked steps"
        )
    output = chosen.output or chosen.run.with_suffix(".png")
    verdicts = stand_out(run)
    print(f"{len(run)} tracked steps, {run[0].step} to {run[-1].step}, {len(run[-1])} parameters")
    width = max(map(len, verdicts), default=0)
    for name, verdict in verdicts.items():
        print(f"  {verdict.kind:<9}  {name.ljust(width)}  {verdict.why}")
    print("No parameter stands out." if not verdicts else RULE, flush=True)
    # Only now: what stands out needs no package.
    plot = checks.load("watch", "ingot.cli.watch_plot")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        plot.draw(run, verdicts, output)
    except OSError as error:
        parser.error(f"--output {output}: {error}")
    print(f"Picture: {output}")
    return 0
