"""`ingot memory`: how much memory training takes on the device and on the host, worked out from the declarations."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim.optimizer import required

from ingot.cli import checks
from ingot.factory import _named, _options
from ingot.optimizer import FusedOptimizer
from ingot.step.release_refusals import refuse_options
from ingot.storage.floats import floats

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
STATE_DTYPES = {**DTYPES, "param": "param", "8bit": "8bit"}
del STATE_DTYPES["float64"]


class Row(NamedTuple):
    """One kind of tensors: how many bytes of it are on the device of the model, and how many on the host."""

    name: str
    device: int
    host: int


class Plan(NamedTuple):
    """Where things are kept."""

    offload: bool = False  # offload="cpu"; with several shards FSDP2's CPUOffloadPolicy
    release: bool = False  # release_gradients()
    shards: int = 1  # processes that share the model


def account(optimizer: FusedOptimizer, plan: Plan) -> list[Row]:
    """What one process keeps between the steps of an optimizer, whose parameters may be on the meta device.

    Nothing is allocated: formats are asked for tensors on the meta device.
    """
    params = [param.detach().to("meta") for param in optimizer.all_params()]
    weights = sum(map(size, params))
    states, masters = states_of(optimizer, params)
    grads = 0 if plan.release else weights
    if plan.shards > 1 and plan.offload:  # a shard lives on the host, with its gradient
        rows = [Row("parameters", 0, weights), Row("gradients", 0, grads)]
    elif plan.offload:
        rows = [Row("parameters", weights, 0), Row("gradients", grads, 0)]
        rows.append(Row("host copies", 0, 2 * weights))
    else:
        rows = [Row("parameters", weights, 0), Row("gradients", grads, 0)]
    for name, count in (("states", states), ("master weights", masters)):
        rows.append(Row(name, 0, count) if plan.offload else Row(name, count, 0))
    shared = (Row(row.name, *(-(-n // plan.shards) for n in row[1:])) for row in rows)
    return [row for row in shared if row.device or row.host]


def states_of(optimizer: FusedOptimizer, params: Sequence[Tensor]) -> tuple[int, int]:
    """The bytes of all states, and of the master copies."""
    groups = [group for group in optimizer.param_groups for _ in group["params"]]
    spec, precision = optimizer.spec, optimizer.precision
    states = masters = 0
    for param, group in zip(params, groups, strict=True):
        for name in spec.variant(group).states:
            state = spec.states[name]
            tensors = precision.format(param, state).new(param, state.start)
            states += sum(map(size, tensors))
        if precision.master(param.dtype):
            masters += sum(map(size, floats(torch.float32).new(param, 0.0)))
    return states, masters


def size(tensor: Tensor) -> int:
    """The bytes of a tensor."""
    return tensor.numel() * tensor.element_size()


def imagined(name: str, count: int, dtype: torch.dtype, options: Mapping[str, Any]) -> Any:
    """An optimizer over one parameter of so many elements, which takes no memory."""
    kind = _named(name)
    known = _options(kind)
    if known.get("lr") is required:  # any will do: it decides nothing here
        options = {"lr": 1e-3, **options}
    param = Parameter(torch.empty(count, dtype=dtype, device="meta"))
    return kind([param], **options)


def why_not_released(optimizer: FusedOptimizer) -> str | None:
    """Why ``release_gradients()`` refuses this optimizer; None if it does not."""
    try:
        refuse_options(optimizer)
    except ValueError as error:
        return str(error)
    return None


def main(arguments: list[str]) -> int:
    """Prints the table and, with ``--output``, draws the picture."""
    parser = make_parser()
    chosen = parser.parse_args(arguments)
    precision = {
        "state_dtype": STATE_DTYPES.get(chosen.state_dtype),
        "master_weights": chosen.master_weights,
    }
    dtype = DTYPES[chosen.param_dtype]
    try:
        optimizer = imagined(
            chosen.optimizer, chosen.params, dtype, {**dict(chosen.set), **precision}
        )
    except (TypeError, ValueError) as error:
        parser.error(str(error))
    plan = Plan(chosen.offload == "cpu", chosen.release, chosen.shards)
    refusal = why_not_released(optimizer)
    if plan.release and refusal is not None:
        parser.error(f"--release: {refusal}")
    print(f"{heading(chosen)}; {words(plan)}\n")
    print(table(account(optimizer, plan), chosen.params))
    print(*notes(plan), sep="\n")
    if chosen.output is not None:
        releases = (False, True) if refusal is None else (False,)
        plans = [plan._replace(offload=o, release=r) for o in (False, True) for r in releases]
        accounts = {words(each): account(optimizer, each) for each in plans}
        plot = checks.load("memory", "ingot.cli.memory_plot")
        try:
            chosen.output.parent.mkdir(parents=True, exist_ok=True)
            plot.draw(accounts, words(plan), heading(chosen), chosen.output)
        except OSError as error:
            parser.error(f"--output {chosen.output}: {error}")
        print(f"\n{chosen.output}")
    return 0


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="ingot memory", description=__doc__)
    parser.add_argument("--params", type=positive, required=True, help="how many: 7e9, for example")
    parser.add_argument("--optimizer", default="adamw", help="its short name (default: adamw)")
    parser.add_argument("--param-dtype", choices=DTYPES, default="float32")
    parser.add_argument("--state-dtype", choices=STATE_DTYPES, help="default: float32")
    parser.add_argument("--master-weights", action="store_true")
    parser.add_argument("--offload", choices=["cpu"], help="keep states in host memory")
    parser.add_argument("--release", action="store_true", help="step inside backward")
    parser.add_argument("--shards", type=positive, default=1, help="processes that share the model")
    parser.add_argument(
        "--set",
        type=assignment,
        action="append",
        default=[],
        metavar="OPTION=VALUE",
        help="another option of the optimizer, such as momentum=0.9 or amsgrad=True",
    )
    parser.add_argument(
        "--output", type=checks.picture, help="draw bars into this file; needs matplotlib"
    )
    return parser


def positive(text: str) -> int:
    """A whole number above 0, which may be written as 7e9."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 1 <= number <= 1e15 or number != int(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 1e15")
    return int(number)


def assignment(text: str) -> tuple[str, Any]:
    """An option and its value."""
    name, sign, value = text.partition("=")
    try:
        return name, ast.literal_eval(value)
    except (SyntaxError, ValueError):
        wrong = (
            "has no value" if not sign else f"has the value {value!r}, which is no Python literal"
        )
        raise argparse.ArgumentTypeError(f"{text!r} {wrong}") from None


def heading(chosen: argparse.Namespace) -> str:
    """What is trained, in a line."""
    states = chosen.state_dtype or "float32"
    extra = ", master weights" if chosen.master_weights else ""
    return (
        f"{chosen.optimizer}, {chosen.params:,} parameters in {chosen.param_dtype}, {states} states"
        f"{extra}"
    )


def words(plan: Plan) -> str:
    """A plan in words."""
    parts = ["offloaded"] * plan.offload + ["released"] * plan.release
    shared = f", a process of {plan.shards}" if plan.shards > 1 else ""
    return (" and ".join(parts) or "normal") + shared


def table(rows: Sequence[Row], count: int) -> str:
    """The rows and their sum: bytes per parameter, and gigabytes, on the device and on the host."""
    total = Row("together", sum(row.device for row in rows), sum(row.host for row in rows))
    units = f"{'bytes/param':>13}{'GB':>10}"
    lines = [f"{'':16}{'device':>23}{'host':>23}", f"{'':16}{units}{units}"]
    for row in [*rows, total]:
        cells = "".join(f"{n / count:>13.4g}{n / 1e9:>10.4g}" for n in (row.device, row.host))
        lines.append(f"{row.name:16}{cells}")
    return "\n".join(lines)


def notes(plan: Plan) -> list[str]:
    """What the table does not count."""
    lines = ["", "1 GB is 1e9 bytes. Activations and what torch keeps for itself come on top."]
    if plan.release:
        lines.append(
            "Released gradients: at any time those of the parameters in work, at least the largest."
        )
    if plan.shards > 1:
        lines.append("Shards: the layers that are gathered for computation come on top.")
    return lines
