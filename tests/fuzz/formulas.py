"""The RMSprops, and the table of all formulas with their defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import ingot.optim
from fuzz import reference
from fuzz.bounds import Bounded, sqrt
from fuzz.reference import Element, Options, States


def averages(e: Element, start: float) -> States:
    """square_avg, and grad_avg if centered."""
    g, alpha = e.decayed(), e.scalar(e.o["alpha"])
    rest = e.scalar(1 - Bounded(e.o["alpha"]))
    new = {"square_avg": alpha * e.state("square_avg", start) + rest * g * g}
    if e.o["centered"]:
        new["grad_avg"] = alpha * e.state("grad_avg") + rest * g
    return new


def rmsprop_advance(e: Element) -> States:
    new = averages(e, 0.0)
    if e.o["momentum"] > 0:
        step = e.decayed() / rmsprop_denominator(e, {k: e.kept(v) for k, v in new.items()})
        new["momentum_buffer"] = e.scalar(e.o["momentum"]) * e.state("momentum_buffer") + step
    return new


def rmsprop_denominator(e: Element, new: States) -> Bounded:
    """sqrt(square_avg [- grad_avg^2]) + eps."""
    square = new["square_avg"]
    if e.o["centered"]:
        square = square - new["grad_avg"] * new["grad_avg"]
    return sqrt(square) + e.scalar(e.o["eps"])


def rmsprop(e: Element, new: States) -> Bounded:
    if e.o["momentum"] > 0:
        return e.p - e.scalar(e.o["lr"]) * new["momentum_buffer"]
    return e.p - e.scalar(e.o["lr"]) * e.decayed() / rmsprop_denominator(e, new)


def undecayed(e: Element) -> Element:
    """With decoupled decay the gradient stays as it is."""
    if not e.o["decoupled_decay"]:
        return e
    return replace(e, o={**e.o, "weight_decay": 0})


def tf_denominator(e: Element, new: States) -> Bounded:
    """sqrt(square_avg [- grad_avg^2] + eps)."""
    square = new["square_avg"]
    if e.o["centered"]:
        square = square - new["grad_avg"] * new["grad_avg"]
    return sqrt(square + e.scalar(e.o["eps"]))


def rmsprop_tf_advance(e: Element) -> States:
    """square_avg starts at one."""
    e = undecayed(e)
    new = averages(e, 1.0)
    if e.o["momentum"] > 0:
        step = e.decayed() / tf_denominator(e, {k: e.kept(v) for k, v in new.items()})
        step = e.scalar(e.o["lr"]) * step if e.o["lr_in_momentum"] else step
        new["momentum_buffer"] = e.scalar(e.o["momentum"]) * e.state("momentum_buffer") + step
    return new


def rmsprop_tf(e: Element, new: States) -> Bounded:
    p, decay = e.p, e.o["weight_decay"]
    if decay and e.o["decoupled_decay"] and float(e.o["lr"]):  # lr=0 changes nothing
        p = p * e.scalar(1 - Bounded(decay))
    e, lr = undecayed(e), e.scalar(e.o["lr"])
    if e.o["momentum"] > 0:
        buf = new["momentum_buffer"]
        return p - (buf if e.o["lr_in_momentum"] else lr * buf)
    return p - lr * e.decayed() / tf_denominator(e, new)


class Formula(NamedTuple):
    """An optimizer: its two parts, its defaults, and whether it counts its steps."""

    advance: Callable[[Element], States]
    update: Callable[[Element, States], Any]
    defaults: Options
    counted: bool = True


ADAM = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0, "amsgrad": False}
RMSPROP = {
    "lr": 1e-2,
    "alpha": 0.99,
    "eps": 1e-8,
    "weight_decay": 0,
    "momentum": 0,
    "centered": False,
}

FORMULAS = {
    "NpuFusedAdamW": Formula(reference.moments, reference.adamw, {**ADAM, "weight_decay": 1e-2}),
    "NpuFusedSGD": Formula(
        reference.sgd_advance,
        reference.sgd,
        {"momentum": 0, "dampening": 0, "weight_decay": 0, "nesterov": False},
        counted=False,
    ),
    "NpuFusedLamb": Formula(
        reference.moments,
        reference.lamb,
        {
            "lr": 1e-3,
            "betas": (0.9, 0.999),
            "eps": 1e-6,
            "weight_decay": 0,
            "adam": False,
            "use_global_grad_norm": False,
            "bias_correction": False,
            "max_weight_norm": 10.0,
        },
    ),
    "NpuFusedAdamP": Formula(
        reference.moments,
        reference.adamp,
        {**ADAM, "delta": 0.1, "wd_ratio": 0.1, "nesterov": False},
    ),
    "NpuFusedBertAdam": Formula(
        reference.moments,
        reference.bert_adam,
        {
            "lr": 1e-3,
            "warmup": -1,
            "t_total": -1,
            "schedule": "warmup_linear",
            "betas": (0.9, 0.999),
            "eps": 1e-6,
            "weight_decay": 0.01,
            "max_grad_norm": 1.0,
            "amsgrad": False,
            "clip_scope": "group",
        },
    ),
    "NpuFusedAdam": Formula(reference.adam_advance, reference.adam, ADAM),
    "NpuFusedAdadelta": Formula(
        reference.adadelta_advance,
        reference.adadelta,
        {"lr": 1.0, "rho": 0.9, "eps": 1e-6, "weight_decay": 0},
    ),
    "NpuFusedRMSprop": Formula(rmsprop_advance, rmsprop, RMSPROP),
    "NpuFusedRMSpropTF": Formula(
        rmsprop_tf_advance,
        rmsprop_tf,
        {**RMSPROP, "alpha": 0.9, "eps": 1e-10, "decoupled_decay": False, "lr_in_momentum": True},
    ),
}
KINDS = [name for name in FORMULAS if hasattr(ingot.optim, name)]
