"""Kernels for Triton: their text, emitted from the declared math, and the tables they read."""
