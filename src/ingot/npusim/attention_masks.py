"""Which keys a query of npu_fusion_attention does not see: its sparse modes, as the document has them.

A mask is True where a score is left out. Without `atten_mask` nothing is left out, whatever the
mode: so does the real operator.
"""

import dataclasses
from collections.abc import Sequence

import torch

from ingot.npusim.attention_layouts import refuse

# The triangle that the modes for compressed masks are given, and what mode 6 puts below it.
_SIDE, _PREFIX_ROWS = 2048, 1024
_COMPRESSED = (2, 3, 4, 6, 7, 8)


@dataclasses.dataclass(frozen=True)
class Masking:
    """What the caller said about masks; the names are the operator's.

    Attributes:
        atten_mask: True or 1 where a score is left out; for some modes a compressed triangle.
        sparse_mode: 0 to 8.
        pre_tockens: how many keys before its own a query sees, in the modes 0, 4, 7 and 8.
        next_tockens: how many keys after its own.
        prefix: for each batch, how many keys all queries see, in the modes 5 and 6.
    """

    atten_mask: torch.Tensor | None
    sparse_mode: int
    pre_tockens: int
    next_tockens: int
    prefix: Sequence[int] | None

    def check(self, varlen: bool) -> None:
        """Raises RuntimeError for what the operator does not take."""
        mode = self.sparse_mode
        if mode not in range(9):
            refuse(f"sparse_mode must be 0 to 8, not {mode}")
        if mode in (7, 8) and not varlen:
            refuse(f"sparse_mode {mode} needs input_layout 'TND'")
        if mode == 5 and varlen:
            refuse("'TND' does not take sparse_mode 5")
        if self.atten_mask is None:
            return
        if self.atten_mask.dtype not in (torch.bool, torch.uint8):
            refuse(f"atten_mask must be bool or uint8, not {self.atten_mask.dtype}")
        if mode in (5, 6) and self.prefix is None:
            refuse(f"sparse_mode {mode} needs prefix")
        if mode in _COMPRESSED:
            self._check_compressed(self.atten_mask)

    def _check_compressed(self, mask: torch.Tensor) -> None:
        rows = _SIDE + _PREFIX_ROWS if self.sparse_mode == 6 else _SIDE
        expected = torch.ones(rows, _SIDE, dtype=torch.bool, device=mask.device)
        expected[:_SIDE].triu_(1)
        expected[_SIDE:, : _SIDE // 2] = False
        right_shape = mask.shape[-2:] == expected.shape
        if not right_shape or not bool((mask.bool() == expected).all()):
            fault = "other values" if right_shape else f"the shape {tuple(mask.shape)}"
            refuse(
                f"sparse_mode {self.sparse_mode} needs the compressed atten_mask of {rows} x "
                f"{_SIDE}, True above the diagonal; the one given has {fault}"
            )

    def hidden(
        self, queries: int, keys: int, batch: int, batches: int, device: torch.device
    ) -> torch.Tensor | None:
        """Returns the mask of one batch for `[heads, queries, keys]`, or None.

        Args:
            queries: number of queries.
            keys: number of keys.
            batch: the batch's index.
            batches: how many there are.
            device: where to make it.
        """
        if self.atten_mask is None:
            return None
        outside = self._outside(queries, keys, batch, batches, device)
        if self.sparse_mode in _COMPRESSED:
            return outside
        given = self.atten_mask.bool()
        if given.dim() == 4 and len(given) in (1, batches):
            given = given[batch % len(given)]
        # One mask for all sequences of a varlen call is made for the longest.
        if given.dim() not in (2, 3) or given.shape[-2] < queries or given.shape[-1] < keys:
            refuse(
                f"atten_mask of shape {tuple(self.atten_mask.shape)} does not cover "
                f"{batches} batches of {queries} queries and {keys} keys"
            )
        given = given[..., :queries, :keys]
        return given if outside is None else given | outside

    def _outside(
        self, queries: int, keys: int, batch: int, batches: int, device: torch.device
    ) -> torch.Tensor | None:
        """Returns what the mode itself leaves out."""
        distance = (
            torch.arange(keys, device=device)[None, :]
            - torch.arange(queries, device=device)[:, None]
        )
        from_the_end = distance - (keys - queries)
        mode = self.sparse_mode
        band = distance if mode == 0 else from_the_end
        in_band = (band <= self.next_tockens) & (band >= -self.pre_tockens)
        if mode == 1:
            return None
        if mode in (0, 4) or (mode == 7 and batch == batches - 1) or (mode == 8 and batch == 0):
            return ~in_band
        if mode in (2, 8):
            return distance > 0
        causal = from_the_end > 0
        if mode in (5, 6) and self.prefix is not None:
            return causal & (torch.arange(keys, device=device)[None, :] >= self.prefix[batch])
        return causal
