"""The words of which the fuzzer's scripts are made; a script that it prints begins with this file.

Every tensor lies in memory with canaries before it, after it and in the gaps between its elements.
"""

import copy  # noqa: F401
import pickle  # noqa: F401

import torch
from torch.nn import Parameter

import ingot.optim  # noqa: F401

GUARD = 37  # elements before and after a tensor; odd, so that addresses are not aligned
CANARY = 93.0  # every type has it, that of 8-bit codes as well
watched = []  # (buffer, which of its elements belong to no tensor)
p = {}  # the parameters by number


def strides_of(shape, layout):
    """Strides of a layout: dense, permuted (dimensions the other way round), gaps, channels_last, expanded."""
    order = list(range(len(shape)))[::-1]
    if layout == "permuted":
        order = order[::-1]
    elif layout == "channels_last":
        order = [1, 3, 2, 0]
    strides, length = [0] * len(shape), 2 if layout == "gaps" else 1
    for dim in order:
        if layout == "expanded" and dim == 0:
            continue
        strides[dim] = length
        length *= max(shape[dim], 1)
    return strides


def guarded(values, layout="dense"):
    """The same values in guarded memory."""
    shape, strides = tuple(values.shape), strides_of(values.shape, layout)
    steps = zip(shape, strides, strict=True)
    extent = 1 + sum((size - 1) * stride for size, stride in steps if size > 1)
    buffer = torch.full((extent + 2 * GUARD,), CANARY, dtype=values.dtype)
    outside = torch.ones(len(buffer), dtype=torch.bool)
    outside.as_strided(shape, strides, GUARD).fill_(False)
    result = buffer.as_strided(shape, strides, GUARD)
    if layout == "expanded":
        result.select(0, 0).copy_(values.select(0, 0))
    else:
        result.copy_(values)
    watched.append((buffer, outside))
    return result


def intact():
    """Raise unless every canary lives."""
    for buffer, outside in watched:
        assert (buffer[outside] == CANARY).all(), "memory outside a tensor was written to"


def numbers(seed, shape, dtype, scale=1.0, fill="normal"):
    """Values that depend on the seed alone; the fill says what is special about some of them."""
    generator = torch.Generator().manual_seed(seed)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    values = torch.randn(shape, generator=generator, dtype=wide) * scale
    chosen = torch.rand(shape, generator=generator) < 0.3
    if fill == "zeros":
        values = torch.zeros_like(values)
    elif fill == "some zeros":
        values = values.masked_fill(chosen, 0.0)
    elif fill == "tiny":
        values = torch.where(chosen, values * 1e-30, values)
    elif fill == "infinite":
        values = values.masked_fill(chosen, torch.inf)
    return values.to(dtype)


def tensor(seed, shape, dtype, layout="dense", scale=1.0, fill="normal"):
    """A new tensor in guarded memory."""
    return guarded(numbers(seed, shape, dtype, scale, fill), layout)


def give(param, grad):
    """Set a gradient of any type or layout; None for none."""
    param.grad = None
    if grad is not None:
        param.grad_dtype = grad.dtype
        param.grad = grad


def put(param, data):
    """Other memory, and perhaps another type or shape, under the same parameter."""
    param.grad = None
    param.grad_dtype = None
    param.data = data


def regroup(optimizer, param, source, target):
    """Take a parameter from one group to another."""
    params = optimizer.param_groups[source]["params"]
    at = next(i for i, each in enumerate(params) if each is param)
    optimizer.param_groups[target]["params"].append(params.pop(at))


def replace(optimizer, number, keep):
    """Put a new Parameter with the same values where the old one was, with its state or without."""
    old, new = p[number], Parameter(guarded(p[number].detach()))
    for group in optimizer.param_groups:
        group["params"] = [new if each is old else each for each in group["params"]]
    state = optimizer.state.pop(old, None)
    if keep and state is not None:
        optimizer.state[new] = state
    p[number] = new


def guard_states(optimizer, layout):
    """Put every state tensor into guarded memory, of another layout perhaps."""
    for slots in optimizer.state.values():
        for name, value in slots.items():
            if isinstance(value, torch.Tensor) and name != "step":
                fits = layout != "channels_last" or value.ndim == 4
                slots[name] = guarded(value, layout if fits else "dense")


def share(one, other, shape, offset, dtype, seed):
    """Let two parameters of one shape be parts of one memory, ``offset`` rows apart."""
    base = tensor(seed, (shape[0] + offset, *shape[1:]), dtype)
    put(one, base[: shape[0]])
    put(other, base[offset:])


def scaled_step(optimizer, scale, overflow):
    """A step through torch's GradScaler; the gradients are scaled already."""
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    scaler.scale(torch.zeros(()))
    if overflow is not None and p[overflow].grad is not None:
        p[overflow].grad.fill_(torch.inf)
    scaler.step(optimizer)


def refused(optimizer):
    """A step that must fail."""
    try:
        optimizer.step()
    except (RuntimeError, ValueError):
        return
    raise AssertionError("the step was not refused")
