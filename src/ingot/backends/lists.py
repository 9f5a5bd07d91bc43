"""The lists backend: torch's list operators on any device, emitted from the declared math.

Elementwise optimizers are a handful of in-place ``torch._foreach_*`` operators on the tensors where they are: no
buffers, no copies of parameters. LAMB and AdamP copy their updates (AdamP also parameters and gradients) into one piece
of memory, where rows of equal length are one matrix. So the number of operators does not grow with the number of
tensors, every sum has one writer, and nothing is kept between steps but the places of rows.
"""

from __future__ import annotations

import weakref
from functools import cache, cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ingot.backends.backend import Backend, reserve
from ingot.backends.emit import Program, Purpose, facts, program
from ingot.backends.matrices import Matrices, matrices
from ingot.backends.operands import Operands, rounds_of
from ingot.backends.patterns import complement_candidates
from ingot.backends.pieces import Piece
from ingot.declare.spec import Variant
from ingot.declare.trace import Untraceable, trace
from ingot.reductions.rows import PerRow
from ingot.sharding.dtensor import sum_dtype
from ingot.storage.floats import FloatFormat
from ingot.storage.precision import math_dtype

if TYPE_CHECKING:
    from ingot.step.bucket import Bucket

# Temporaries beside those of a program, in elements of the math: copies of operands, the matrices of a two-pass
# optimizer and a product of two of them; what rounds stochastically works with int64.
COPIES, MATRICES, BITS, BLOCKS = 4, 4, 16, 6
ROOM = 128  # elements that a tensor may take beside its own, because allocators round up


class Lists(Backend):
    """Runs on any torch device that has the ordinary operators; fast where it has the foreach ones."""

    name = "lists"

    def prepare(self, bucket: Bucket) -> str | None:
        """It takes plain tensors and any declared math; see that there is room for the temporaries."""
        if not bucket.plain:
            return "a tensor subclass or a lazily negated view can only be updated one by one"
        try:
            bucket.prepared = work = Work(bucket)
        except Untraceable as reason:
            return f"{bucket.variant.name} is not declared math: {reason}"
        work.reserve()
        return None

    def run(self, bucket: Bucket) -> None:
        """Update all tensors of a bucket that is complete in this process."""
        work: Work = bucket.prepared
        if bucket.variant.two_pass:
            for each in work.matrices:
                operands, update, flat = work.first(each)
                each.rows.add_up(bucket.scalars)
                each.apply(operands, update, *each.rows.factors(bucket.scalars), flat)
            return
        for members, _ in work.rounds:
            operands = Operands(bucket, members)
            work.call(operands, "param")
            operands.store_param()

    def first(self, bucket: Bucket) -> Tensor:
        """Advance the states; return the sums of every row."""
        work: Work = bucket.prepared
        sums = work.sums
        for each in work.matrices:
            work.first(each)
            sums.index_copy_(1, each.row_index, each.rows.sums)
        return sums

    def second(self, bucket: Bucket, keep: PerRow, rate: PerRow) -> None:
        """Apply one (keep, rate) per row, with the update computed again from what is stored."""
        work: Work = bucket.prepared
        for each in work.matrices:
            operands = Operands(bucket, each.members)
            update = work.run(operands, ("update",), advanced=False)
            own_keep, own_rate = (
                f.index_select(0, each.row_index) if isinstance(f, Tensor) else f
                for f in (keep, rate)
            )
            each.apply(operands, update, own_keep, own_rate)


class Work:
    """One bucket in one step: its rounds and programs."""

    def __init__(self, bucket: Bucket) -> None:
        # The bucket holds this object: a reference back would be a cycle, which keeps its tensors after the step.
        self._bucket = weakref.ref(bucket)
        self.dtype = math_dtype(bucket.params[0].dtype)
        self.facts = facts(bucket.scalars, complements(bucket.variant))
        self.exact = bucket.rounding is not None or any(form.block > 1 for form in bucket.formats)
        self.splits = not bucket.variant.spec.looks_back and self._loses_digits()
        last = "update" if bucket.variant.two_pass else "param"
        self.largest = self.program((*bucket.variant.states, last))
        self.matrices: list[Matrices] = []
        if bucket.variant.two_pass:
            self.matrices = matrices(bucket)
            if bucket.members.sharded:
                self.sums.zero_()  # made here, before the commit
            self.rounds = [(each.members, each.size) for each in self.matrices]
        else:
            self.rounds = rounds_of(bucket)
        if bucket.rounding is not None:
            assert bucket.rounding.keys

    @property
    def bucket(self) -> Bucket:
        """The bucket, which is alive as long as anything is asked of it."""
        bucket = self._bucket()
        assert bucket is not None
        return bucket

    @cached_property
    def sums(self) -> Tensor:
        """Room for the sums of all rows, in the order of the bucket."""
        stored = self.bucket.params[0]
        shape = len(self.bucket.variant.spec.sums), sum(self.bucket.row_counts)
        return torch.zeros(shape, dtype=sum_dtype(stored), device=stored.device)

    def _loses_digits(self) -> bool:
        """Whether the update must be computed from states that storing has rounded."""
        bucket = self.bucket
        if any(not isinstance(form, FloatFormat) for form in bucket.formats):
            return bucket.variant.two_pass or not all(form.unrounded for form in bucket.formats)
        return any(tensors[0].dtype is not self.dtype for tensors in bucket.states)

    def _in_place(self) -> bool:
        """Whether every operand is stored in the type of the math, so that none but the gradients is copied."""
        bucket = self.bucket
        if bucket.masters is not None or any(
            not isinstance(f, FloatFormat) for f in bucket.formats
        ):
            return False
        lists = (bucket.params, bucket.grads, *bucket.states)
        return all(tensors[0].dtype is self.dtype for tensors in lists)

    def reserve(self) -> None:
        """See that there is room for the temporaries of a round."""
        count = self.largest.temporaries + 1  # the gradients, scaled
        count += 0 if self._in_place() else COPIES + len(self.bucket.formats)
        count += MATRICES if self.bucket.variant.two_pass else 0
        count += BITS if self.bucket.rounding is not None else 0
        count += BLOCKS if any(form.block > 1 for form in self.bucket.formats) else 0
        elements = max((size + ROOM * len(each) for each, size in self.rounds), default=0)
        reserve(self.bucket.params[0].device, elements, self.dtype, count)

    def program(
        self, results: tuple[str, ...], *, own_grad: bool = False, advanced: bool = True
    ) -> Program:
        """The list operators that compute some results of the formula."""
        purpose = Purpose(results, advanced, self.exact, own_grad, self.facts)
        return program(self.bucket.variant, purpose)

    def call(self, operands: Operands, last: str) -> Piece:
        """Advance and store the states, then compute ``param`` or ``update``; see ``run``."""
        states, own = self.bucket.variant.states, operands.own_grad and last == "param"
        if not self.splits:
            result = self.run(operands, (*states, last), own_grad=own)
            operands.store_states(reload=False)
            return result
        self.run(operands, states)
        operands.store_states(reload=True)
        return self.run(operands, (last,), own_grad=own, advanced=False)

    def run(self, operands: Operands, results: tuple[str, ...], **purpose: bool) -> Piece:
        """Run one program over the operands of a round; returns the update, empty if it computes none."""
        program = self.program(results, **purpose)
        lists = [operands.param.tensors, operands.grad, *(each.tensors for each in operands.states)]
        update = Piece([])
        if "update" in results:
            update = Piece.new(operands.param.tensors, self.dtype, zero=program.adds)
            lists.append(update.tensors)
        program.call(*lists, self.bucket.scalars)
        return update

    def first(self, each: Matrices) -> tuple[Operands, Piece, Tensor | None]:
        """First pass over some tensors: their states advanced, the sums of their rows in ``each.rows``."""
        operands = Operands(self.bucket, each.members)
        update = self.call(operands, "update")
        return operands, update, each.add_up(operands, update)


@cache
def complements(variant: Variant) -> list[tuple[str, str]]:
    """Pairs of scalars of which a lerp can be made, if they add up to 1."""
    return complement_candidates([*trace(variant).values()])
