"""Sums over rows, tensors and whole optimizers."""
