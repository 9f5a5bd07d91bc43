"""Whether a step, or a clipping, came out as the formulas say, within the bounds of rounding."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import torch
from torch import Tensor

from fuzz import codes
from fuzz.bounds import DOUBLE, SAFETY, Bounded, clipping, minimum, sqrt, total
from fuzz.reference import Element
from fuzz.sources import Operation
from fuzz.tensors import array, loaded, unit_of
from fuzz.world import Difference, Model, Snapshot, equal, same

MASTER = "master_param"
SUBNORMALS = {torch.float16: 2.0**-24, torch.bfloat16: 2.0**-133}


class Judge:
    """Compares one step with the formulas; ``closest`` is the largest part of a bound that was used."""

    def __init__(self, model: Model, before: Snapshot, after: Snapshot) -> None:
        self.model, self.before, self.after = model, before, after
        self.closest = 0.0
        self.elements = self.unbounded = 0  # compared, and compared with no bound
        self.group_of = {k: i for i, group in enumerate(before.groups) for k in group}

    def storage(self, dtype: torch.dtype) -> tuple[float, float]:
        """Roundoff and subnormal spacing of a type narrower than the math."""
        if dtype not in SUBNORMALS:
            return 0.0, 0.0
        share = 1.0 if self.model.stochastic else 0.5
        return torch.finfo(dtype).eps * share, SUBNORMALS[dtype] * share

    def compare(self, what: str, source: str, actual: Tensor, expected: Bounded) -> None:
        """Raise unless every element is within the bound."""
        roundoff, subnormal = self.storage(actual.dtype)
        value, got = np.broadcast_to(expected.value, array(actual).shape), array(actual)
        error = np.broadcast_to(SAFETY * expected.error, got.shape)
        tolerance = error + roundoff * (np.abs(value) + error) + subnormal
        with np.errstate(invalid="ignore"):
            off = np.abs(got - value)
            fine = (off <= tolerance) | (got == value) | (np.isnan(got) & np.isnan(value))
        # torch's lerp, of the lists backend, makes NaN of an infinite average and a finite number.
        fine |= np.isinf(value) & np.isnan(got)
        # What 16 bits cannot hold becomes infinite.
        limit = torch.finfo(actual.dtype).max
        fine |= np.isfinite(value) & (np.abs(value) * (1 + 2 * roundoff) + error >= limit)
        if not fine.all():
            at = int(np.flatnonzero(~fine.reshape(-1))[0])
            flat = f"{source}.resolve_conj()"
            flat = f"torch.view_as_real({flat})" if actual.is_complex() else flat
            wanted, allowed = float(value.reshape(-1)[at]), float(tolerance.reshape(-1)[at])
            raise Difference(
                f"{what}: element {at} is {float(got.reshape(-1)[at])!r} instead of {wanted!r}, "
                f"allowed is a difference of {allowed:.3g}",
                f"torch.testing.assert_close({flat}.double().flatten()[{at}], "
                f"torch.tensor({wanted!r}, dtype=torch.float64), rtol=0, atol={allowed!r})",
            )
        self.elements += value.size
        self.unbounded += int((np.isfinite(value) & ~np.isfinite(tolerance)).sum())
        usual = (error > 0) & np.isfinite(tolerance) & np.isfinite(off)
        if usual.any():
            beyond_storage = np.maximum(off - (tolerance - error), 0)[usual]
            self.closest = max(self.closest, float((beyond_storage / error[usual]).max()))

    def norm(self, keys: list[int]) -> Bounded:
        """The norm of some gradients as they are, added up in double precision.

        Each by itself: among the numbers of others, those of an expanded gradient would not show to be equal.
        """
        squares = [array(self.before.grads[k]).reshape(-1) ** 2 for k in keys]
        totals = [total(Bounded(each, 0.0, DOUBLE)).reshape() for each in squares if each.size]
        return sqrt(sum(totals, start=Bounded(0.0)))

    def factor(self, k: int, scale: float) -> Bounded:
        """What the gradient of a parameter is multiplied by: GradScaler, clipping and the sign of maximize."""
        given = [i for i, grad in self.before.grads.items() if grad is not None]
        group, dtype = self.group_of[k], self.before.values[k].dtype
        options = self.model.options[group]
        factor = Bounded(1.0) / scale
        whole, limit = self.norm(given), options["max_grad_norm"]
        if options.get("use_global_grad_norm"):
            factor = factor * clipping(1.0, whole * factor, 0.0) if whole.value else factor
        if self.model.kind == "NpuFusedBertAdam":
            scope = [
                i
                for i in given
                if self.group_of[i] == group and self.before.values[i].dtype is dtype
            ]
            whole = whole if options["clip_scope"] == "global" else self.norm(scope)
        if limit is not None and limit > 0:
            factor = factor * clipping(limit, whole * factor, 1e-6)
        return -factor if options["maximize"] else factor

    def element(self, k: int, param: Bounded | None, scale: float) -> Element:
        """What the formula is told about one parameter."""
        before, unit = self.before, unit_of(self.before.values[k].dtype)
        slots = before.states[k]
        states = {n: self.old(k, n, unit) for n in codes.states_of(slots)}
        if param is None:
            value = before.values[k]
            if MASTER in slots and self.has_master(k):
                copy = slots[MASTER]
                value = torch.where(copy.to(value.dtype) == value, copy, value.to(copy.dtype))
            param = loaded(value, unit)
        factor = self.factor(k, scale)
        grad = loaded(before.grads[k], unit)
        grad = grad if abs(factor.value) == 1 and not factor.error else grad * factor.to(unit)
        if factor.value == -1 and not factor.error:
            grad = -grad
        kept = self.storage(
            next((v.dtype for n, v in self.after.states[k].items() if n != "step"), None)
        )
        options = self.model.options[self.group_of[k]]
        t = slots.get("step", 0) + 1
        dimensions = before.values[k].ndim
        return Element(options, t, param, grad, states, unit, lambda x: x.kept(*kept), dimensions)

    def old(self, k: int, name: str, unit: float) -> Bounded:
        """A state as the step found it; brought to another type first if the parameter's type changed."""
        if codes.is_coded(self.before.states[k], name):
            return codes.decoded(self.before.states[k], name)
        was, now = self.before.states[k][name], self.after.states[k].get(name)
        value = loaded(was, unit)
        if now is None or now.dtype is was.dtype:
            return value
        return value.kept(*self.storage(now.dtype))

    def has_master(self, k: int) -> bool:
        return self.model.master and self.before.values[k].dtype in SUBNORMALS

    def updated(self, k: int, scale: float, param: Bounded | None = None) -> list[Bounded]:
        """Check the states of a parameter, and return what the parameter itself may be now."""
        element, now = self.element(k, param, scale), self.after.states[k]
        new = self.model.formula.advance(element)
        for name, value in new.items():
            if name not in now:
                raise Difference(f"parameter {k}: no state {name} after the step")
            source = f"optimizer.state[p[{k}]][{name!r}]"
            if self.coded(k, name):
                codes.check(f"parameter {k}: {name}", source, now, value, self.model.stochastic)
                self.elements += value.value.size
                self.unbounded += int(
                    np.isinf(np.broadcast_to(value.error, value.value.shape)).sum()
                )
            else:
                self.compare(f"parameter {k}: {name}", source, now[name], value)
        if self.model.formula.counted and now.get("step") != element.t:
            raise Difference(f"parameter {k}: step {now.get('step')} instead of {element.t}")
        stored = codes.read(self.model.kind, now, new, element.unit)
        results = self.model.formula.update(element, stored)
        return results if isinstance(results, list) else [results]

    def coded(self, k: int, name: str) -> bool:
        """Whether a state is kept in 8 bits; raise unless it should be."""
        large = self.before.values[k].numel() >= codes.FEWEST
        coded = codes.is_coded(self.after.states[k], name)
        if coded != (large and self.model.common.get("state_dtype") == "8bit"):
            raise Difference(f"parameter {k}: {name} is {'' if coded else 'not '}kept in 8 bits")
        return coded

    def accept(self, k: int, results: list[Bounded]) -> None:
        """The parameter is one of these results."""
        value, source = self.after.values[k], f"p[{k}].detach()"
        if self.has_master(k):
            copy = self.after.states[k][MASTER]
            if not equal(copy.to(value.dtype), value):
                raise Difference(f"parameter {k} is not its rounded master copy")
            value, source = copy, f"optimizer.state[p[{k}]][{MASTER!r}]"
        for index, result in enumerate(results):
            try:
                return self.compare(f"parameter {k}", source, value, result)
            except Difference:
                if index == len(results) - 1:
                    raise

    def pair(self, first: int, second: int, offset: int, scale: float) -> None:
        """Two parameters in one memory: one after the other, in either order, as the formula allows."""
        a, b = array(self.before.values[first]), array(self.before.values[second])
        unit, rows = unit_of(self.before.values[first].dtype), len(a)
        parts = {first: slice(0, rows), second: slice(offset, offset + rows)}
        failure = None
        for order, choice in product(permutations(parts), (0, -1)):
            value = np.concatenate([a, b[rows - offset :]])
            error = np.zeros_like(value)
            try:
                for k in order:
                    if self.before.grads[k] is not None:
                        param = Bounded(value[parts[k]], error[parts[k]], unit)
                        result = self.updated(k, scale, param)[choice]
                        value[parts[k]], error[parts[k]] = result.value, result.error
                for k, part in parts.items():
                    self.accept(k, [Bounded(value[part], error[part], unit)])
                return
            except Difference as difference:
                failure = difference
        raise failure or AssertionError

    def step(self, operation: Operation) -> None:
        """Everything about one step."""
        scale = operation.get("scale") or 1.0
        infinite = self.before.grads.get(operation.get("overflow"))
        if infinite is not None and infinite.numel():
            return same(self.before, self.after)
        done: set[int] = set()
        for k, grad in self.before.grads.items():
            if k in self.model.shared and k not in done:
                first, second, offset = self.model.shared[k]
                self.pair(first, second, offset, scale)
                done |= {first, second}
            elif k in done:
                continue
            elif grad is None:
                if not equal(self.before.values[k], self.after.values[k]):
                    raise Difference(f"parameter {k} has no gradient and changed")
                if self.before.states[k].keys() != self.after.states[k].keys():
                    raise Difference(f"parameter {k} has no gradient and its states changed")
            else:
                self.accept(k, self.updated(k, scale))
        for k, grad in self.before.grads.items():
            now = self.after.grads[k]
            if (operation["grads"].get(k) or {}).get("layout") == "itself transposed":
                continue  # it lies in the memory of its parameter, which the step changes
            if (grad is None) != (now is None) or (grad is not None and not equal(grad, now)):
                raise Difference(
                    f"parameter {k}: the step changed its gradient", f"print(p[{k}].grad)"
                )

    def clip(self, operation: Operation, reported: Tensor) -> None:
        """Clipping in place: the norm and every gradient."""
        same(self.before, self.after)
        given = {k: grad for k, grad in self.before.grads.items() if grad is not None}
        norm = self.norm(list(given))
        if operation["norm_type"] != 2.0:
            largest = [np.longdouble(g.abs().max().item()) for g in given.values() if g.numel()]
            norm = Bounded(max(largest, default=0.0), 0.0, DOUBLE)
        self.compare("norm", "norm", reported, norm.to(unit_of(reported.dtype)))
        factor = minimum(operation["max_norm"] / (norm.to(unit_of(reported.dtype)) + 1e-6), 1.0)
        for k, grad in given.items():
            unit = unit_of(grad.dtype)
            expected = loaded(grad, unit) * factor.to(unit)
            self.compare(f"gradient {k}", f"p[{k}].grad", self.after.grads[k], expected)
