"""How far a backend may be from the reference backend, and why."""

import torch

from cases import Case, Options

# Both compute in float32 (float64) with the same formula. Only the sums of LAMB and AdamP may be added in another
# order, and the clip coefficient with them; everything else is the same operations on the same numbers.
# In 16 bits a rounding apart before storing may become an ulp of the stored number.
TOLERANCES = {
    torch.float32: (1e-6, 1e-7),
    torch.float64: (1e-14, 1e-15),
    torch.bfloat16: (2.0**-7, 1e-6),
    torch.float16: (2.0**-10, 1e-6),
    torch.complex64: (1e-6, 1e-7),
    torch.complex128: (1e-14, 1e-15),
}


def tolerance(
    case: Case, options: Options, dtype: torch.dtype, backend: str
) -> tuple[float, float]:
    """Wider where numbers cancel."""
    relative, absolute = TOLERANCES[dtype]
    if backend == "lists":
        # lerp and additions with a factor round once where the reference rounds twice. Averages and buffers of
        # numbers of either sign, up to 10 here, show that near zero; a 16-bit parameter may be rounded another way
        # in two steps.
        absolute *= 10
        relative *= 2 if dtype in (torch.float16, torch.bfloat16) else 1
    # The buffer of RMSprop adds up updates of either sign, as large as 10. A root that differs in its last bit
    # (torch's on the CPU is not correctly rounded) shows where they cancel.
    sums_updates = case.name in ("rmsprop", "rmsprop_tf") and "momentum" in options
    return relative, absolute * (10 if sums_updates else 1)
