"""Defects that are known and not mended yet; the one place to look when a strict xfail passes.

A row goes away in the change that mends its defect: ``strict=True`` fails the suite until it does.
"""

# What the fuzzer leaves out, and why; `make fuzz FUZZ_ARGS=--all` leaves nothing out.
AVOIDED: dict[str, str] = {
    "shared two-pass": "LAMB and AdamP take the norms of all parameters before any update",
    "gradient views its parameter": "a gradient that views its parameter in another order is misread",
    "infinite parameter without decay": "0 * inf: SGD and BertAdam compute a decay of 0",
    "nonsense options": "an lr of NaN, set in a group after some steps, is not refused",
    "tensor lr of 1 or 2 dimensions": "an lr tensor with one element in 1 or 2 dimensions is refused",
}
