"""The table of reductions: what may be summed over a row or a tensor between two passes.

Standard library only: the generator reads it while the native core is built. Bit ``k`` of a mask in the
core stands for the ``k``-th row.
"""

# The name of a sum and the two factors whose products it adds up.
SUMS = {
    "pp": ("param", "param"),
    "gg": ("grad", "grad"),
    "uu": ("update", "update"),
    "pg": ("param", "grad"),
    "pu": ("param", "update"),
}
