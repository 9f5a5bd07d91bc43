"""Reading and writing optimizer states in the form torch.optim and torch_npu.optim share."""

from ingot.checkpoint.reading import load
from ingot.checkpoint.writing import packed

__all__ = ["load", "packed"]
