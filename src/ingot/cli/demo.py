"""`ingot demo`: trains one small network on handwritten digits with every optimizer."""

from __future__ import annotations

import argparse
from pathlib import Path

from ingot.cli import checks


def main(arguments: list[str]) -> int:
    """Runs the comparison, prints the table and writes the picture."""
    parser = argparse.ArgumentParser(prog="ingot demo", description=__doc__)
    parser.add_argument(
        "--output", type=checks.picture, default=Path("ingot-demo.png"), help="the picture"
    )
    parser.add_argument("--quick", action="store_true", help="2 epochs instead of 15")
    parser.add_argument(
        "--backend", type=checks.backend, help="for the fused optimizers (default: automatic)"
    )
    chosen = parser.parse_args(arguments)
    # Only now: --help and a wrong option need no more than torch.
    checks.load("demo", "ingot.cli.demo_train").run(chosen.output, chosen.quick, chosen.backend)
    return 0
