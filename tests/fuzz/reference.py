"""One step of every optimizer, written from its formula and from nothing else; the fuzzer's ground truth.

A formula has two parts: ``advance`` makes the new states from the old ones, ``update`` makes the new parameter from the
new states *as they are stored*. Both compute with bounded errors, see bounds.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuzz.bounds import DOUBLE, SUBNORMAL, Bounded, absolute, maximum, minimum, sqrt, total

Options = dict[str, Any]
States = dict[str, Bounded]


@dataclass
class Element:
    """What a formula is told: options, the number of the step from 1, one parameter and its gradient."""

    o: Options
    t: int
    p: Bounded
    g: Bounded
    old: States  # lacks what does not exist yet
    unit: float
    kept: Callable[[Bounded], Bounded]  # what becomes of a state when it is stored
    dimensions: int  # of the parameter; complex numbers have one more in ``p``, for their two parts

    def scalar(self, value: Bounded | float) -> Bounded:
        """A scalar, computed in double precision and rounded once."""
        return (value if isinstance(value, Bounded) else Bounded(value)).to(self.unit)

    def state(self, name: str, start: float = 0.0) -> Bounded:
        """A state as it was before the step."""
        return self.old.get(name) or Bounded(np.full_like(self.p.value, start), 0.0, self.unit)

    def decayed(self) -> Bounded:
        """The gradient with the decay added to it."""
        decay = self.o["weight_decay"]
        return self.g + self.scalar(decay) * self.p if decay else self.g


def complement(beta: float, t: int) -> Bounded:
    """1 - beta^t."""
    return 1 - Bounded(beta**t, 4 * DOUBLE * beta**t)


def moments(e: Element) -> States:
    """The two averages of Adam, and the maximum of the second with amsgrad."""
    return adam_moments(e, e.g)


def adam_moments(e: Element, g: Bounded) -> States:
    b1, b2 = e.o["betas"]
    m = e.scalar(b1) * e.state("exp_avg") + e.scalar(1 - Bounded(b1)) * g
    v = e.scalar(b2) * e.state("exp_avg_sq") + e.scalar(1 - Bounded(b2)) * g * g
    new = {"exp_avg": m, "exp_avg_sq": v}
    if e.o.get("amsgrad"):
        new["max_exp_avg_sq"] = maximum(e.state("max_exp_avg_sq"), e.kept(v))
    return new


def denominator(e: Element, new: States) -> Bounded:
    """sqrt(v) / sqrt(1 - b2^t) + eps."""
    v = new["max_exp_avg_sq" if e.o["amsgrad"] else "exp_avg_sq"]
    return sqrt(v) / e.scalar(sqrt(complement(e.o["betas"][1], e.t))) + e.scalar(e.o["eps"])


def adam_rate(e: Element) -> Bounded:
    return e.scalar(Bounded(e.o["lr"]) / complement(e.o["betas"][0], e.t))


def adam_step(e: Element, new: States) -> Bounded:
    """The rate times the first moment over the denominator.

    An implementation may multiply the rate and the denominator by sqrt(1 - b2^t), as the lists backend does to save an
    operator: where rate * m is a subnormal number, it is rounded so much more coarsely.
    """
    step = adam_rate(e) * new["exp_avg"]
    root = sqrt(complement(e.o["betas"][1], e.t)).value
    coarse = Bounded(step.value, step.error + SUBNORMAL[step.unit] / root, step.unit)
    return coarse / denominator(e, new)


def rated(rate: Bounded, u: Bounded, divisor: Bounded) -> Bounded:
    """The rate times an update that was divided by something.

    An implementation may multiply before it divides, as torch's addcdiv does: where the rate times the dividend is a
    subnormal number, it is rounded so much more coarsely.
    """
    step = rate * u
    return Bounded(step.value, step.error + SUBNORMAL[step.unit] / divisor.value, step.unit)


def adamw(e: Element, new: States) -> Bounded:
    keep = e.scalar(1 - Bounded(e.o["lr"]) * e.o["weight_decay"])
    p = e.p * keep if e.o["weight_decay"] else e.p
    return p - adam_step(e, new)


def adam_advance(e: Element) -> States:
    return adam_moments(e, e.decayed())


def adam(e: Element, new: States) -> Bounded:
    return e.p - adam_step(e, new)


def sgd_advance(e: Element) -> States:
    momentum = e.o["momentum"]
    if not momentum:
        return {}
    g = e.decayed()
    if "momentum_buffer" not in e.old:
        return {"momentum_buffer": g}
    damped = e.scalar(1 - Bounded(e.o["dampening"])) * g
    return {"momentum_buffer": e.scalar(momentum) * e.old["momentum_buffer"] + damped}


def sgd(e: Element, new: States) -> Bounded:
    d = e.decayed()
    if e.o["momentum"]:
        buf = new["momentum_buffer"]
        d = d + e.scalar(e.o["momentum"]) * buf if e.o["nesterov"] else buf
    return e.p - e.scalar(e.o["lr"]) * d


def norm(x: Bounded) -> Bounded:
    """The 2-norm of each row."""
    return sqrt(total(x * x))


def lamb(e: Element, new: States) -> list[Bounded]:
    """Both results where a norm is so small that the squares in it may vanish: a norm of 0 means a ratio of 1."""
    o, m, v = e.o, new["exp_avg"], new["exp_avg_sq"]
    root = sqrt(v)
    if o["bias_correction"]:
        m = m / e.scalar(complement(o["betas"][0], e.t))
        root = root / e.scalar(sqrt(complement(o["betas"][1], e.t)))
    u = m / (root + e.scalar(o["eps"]))
    if o["weight_decay"]:
        u = u + e.scalar(o["weight_decay"]) * e.p
    w = norm(e.p.reshape(1, -1))
    w = minimum(w, math.inf if o["max_weight_norm"] is None else e.scalar(o["max_weight_norm"]))
    n = norm(u.reshape(1, -1))
    plain = e.p - e.scalar(o["lr"]) * u
    if o["adam"] or w.value.item() == 0 or n.value.item() == 0:
        return [plain]
    ratio = (w / n).reshape(*[1] * e.p.value.ndim)
    scaled = e.p - e.scalar(o["lr"]) * ratio * u
    least = math.sqrt(SUBNORMAL[e.unit] * max(e.p.value.size, 1) / e.unit)
    return [scaled, plain] if min(w.value.item(), n.value.item()) < least else [scaled]


def adamp(e: Element, new: States) -> list[Bounded]:
    """All results that rounding may lead to: the projection is a choice, and a cosine may lie at its limit."""
    o, rate = e.o, adam_rate(e)
    m, b1 = new["exp_avg"], o["betas"][0]
    if o["nesterov"]:
        m = e.scalar(b1) * m + e.scalar(1 - Bounded(b1)) * e.g
    divisor = denominator(e, new)
    u = m / divisor
    shape, results = e.p.value.shape, []
    for rows in [(shape[0], -1), (1, -1)] if e.dimensions > 1 and e.p.value.size else []:
        verdict, projected = project(e, u, rows)
        if verdict is not False:
            # The radial part may be folded into the factor of the parameter, which is then rounded twice.
            p = e.p * e.scalar(1 - Bounded(o["lr"]) * o["weight_decay"] * o["wd_ratio"])
            results.append(p - rate * projected.reshape(*shape))
        if verdict is True:
            return results
    p = e.p * e.scalar(1 - Bounded(o["lr"]) * o["weight_decay"]) if o["weight_decay"] else e.p
    results.append(p - rated(rate, u, divisor))
    return results


def project(e: Element, u: Bounded, rows: tuple[int, int]) -> tuple[bool | None, Bounded]:
    """Whether all rows are nearly orthogonal (None: within rounding of the limit), and the projected update."""
    p, g, u, eps = e.p.reshape(*rows), e.g.reshape(*rows), u.reshape(*rows), e.scalar(e.o["eps"])
    length = norm(p) + eps
    cosine = absolute(total(g * p)) / (norm(g) + eps) / length
    limit = e.o["delta"] / math.sqrt(p.value.shape[1])
    unit_row = p / length
    projected = u - unit_row * total(unit_row * u)
    near, margin = cosine.value < limit, 4 * cosine.error
    if not near.all():
        # Zero is below no limit, whatever the rounding.
        doubtful = (np.abs(cosine.value - limit) <= margin) & (limit > 0)
        return (None if (near | doubtful).all() else False), projected
    return (None if (cosine.value + margin >= limit).any() else True), projected


def schedule(o: Options, done: int) -> float:
    """BertAdam's factor of the rate."""
    if o["t_total"] == -1:
        return 1.0
    x, warmup = done / o["t_total"], max(o["warmup"], 0.0)
    if x < warmup:
        return x / warmup
    return {
        "warmup_linear": lambda: max((x - 1) / (warmup - 1), 0.0),
        "warmup_constant": lambda: 1.0,
        "warmup_cosine": lambda: (1 + math.cos(math.pi * x)) / 2,
        "warmup_poly": lambda: math.sqrt(max(1 - x, 0.0)),
    }[o["schedule"]]()


def bert_adam(e: Element, new: States) -> Bounded:
    o = e.o
    v = new["max_exp_avg_sq" if o["amsgrad"] else "exp_avg_sq"]
    divisor = sqrt(v) + e.scalar(o["eps"])
    u = new["exp_avg"] / divisor
    if o["weight_decay"] > 0:
        u = u + e.scalar(o["weight_decay"]) * e.p
    rate = o["lr"] * schedule(o, e.t - 1)
    return e.p - rated(e.scalar(Bounded(rate, 8 * DOUBLE * o["lr"])), u, divisor)


def adadelta_parts(e: Element) -> tuple[Bounded, Bounded, Bounded]:
    """The gradient, the new square average and the step before the rate."""
    rho, g, eps = e.scalar(e.o["rho"]), e.decayed(), e.scalar(e.o["eps"])
    square = rho * e.state("square_avg") + e.scalar(1 - Bounded(e.o["rho"])) * g * g
    return g, square, sqrt(e.state("acc_delta") + eps) / sqrt(e.kept(square) + eps) * g


def adadelta_advance(e: Element) -> States:
    _, square, delta = adadelta_parts(e)
    rho, rest = e.scalar(e.o["rho"]), e.scalar(1 - Bounded(e.o["rho"]))
    return {
        "square_avg": square,
        "acc_delta": rho * e.state("acc_delta") + rest * delta * delta,
    }


def adadelta(e: Element, new: States) -> Bounded:
    """With acc_delta as it was before the step."""
    return e.p - e.scalar(e.o["lr"]) * adadelta_parts(e)[2]
