"""The words of declared math, on torch tensors; other backends give the same words their own meaning."""

from torch import abs as absolute
from torch import maximum, sqrt, where

__all__ = ["absolute", "maximum", "sqrt", "where"]
