"""`ingot kernels`: prints the kernels that are emitted for an optimizer."""

from __future__ import annotations

import argparse
import inspect

from ingot.declare.language import Refused

DTYPES = ("float32", "bfloat16", "float16")


def main(arguments: list[str]) -> int:
    """Prints the text of the kernels of one optimizer; nothing needs to be installed for it."""
    from ingot.optim import CLASSES

    specs = {kind.spec.name: kind.spec for kind in CLASSES.values()}
    parser = argparse.ArgumentParser(prog="ingot kernels", description=__doc__)
    parser.add_argument(
        "optimizer", choices=sorted(specs), help="one of %(choices)s", metavar="optimizer"
    )
    parser.add_argument(
        "--target", choices=["triton"], default="triton", help="the language (triton)"
    )
    parser.add_argument(
        "--with",
        nargs="*",
        default=[],
        metavar="OPTION",
        dest="on",
        help="options that change the formula",
    )
    parser.add_argument("--param", choices=DTYPES, default="float32", help="type of the parameters")
    parser.add_argument(
        "--grad", choices=DTYPES, help="type of the gradients (that of the parameters)"
    )
    parser.add_argument(
        "--state", choices=[*DTYPES, "8bit"], default="float32", help="type of the states"
    )
    parser.add_argument(
        "--master", action="store_true", help="with float32 copies of the parameters"
    )
    parser.add_argument("--stochastic", action="store_true", help="with stochastic rounding")
    chosen = parser.parse_args(arguments)
    spec = specs[chosen.optimizer]
    unknown = [name for name in chosen.on if name not in spec.flags]
    if unknown:
        known = ", ".join(spec.flags) or "none"
        parser.error(
            f"{unknown[0]!r} does not change the formula of {spec.name}; those that do: {known}"
        )
    from ingot.backends.triton_kernels import build
    from ingot.backends.triton_kernels.tile import Types
    from ingot.declare.live import formula

    variant = spec.variant(dict.fromkeys(chosen.on, True))
    scalars = inspect.getmodule(spec.scalars).Scalars._fields  # type: ignore[union-attr]
    grad = chosen.grad or chosen.param
    types = Types.of(variant, chosen.param, grad, chosen.state, chosen.master, chosen.stochastic)
    try:
        texts = build.texts(formula(variant, scalars), types, frozenset())
    except Refused as refused:
        parser.error(str(refused))
    print("\n\n".join(texts.values()).rstrip())
    return 0
