"""What `python -m ingot.npusim --help` prints below the usage: all that is simulated, by name."""

import textwrap
import types

from ingot.npusim import standin

_HEADER = """\
environment:
  INGOT_NPUSIM=1          simulate an NPU in every program that imports torch
  INGOT_NPUSIM_DEVICES=n  how many device indices there are (torchrun: one per process; else 1)

simulated: a torch device called npu with all operators that the CPU has for dense tensors; the
process group backend hccl, on gloo; and these names:"""


def describe() -> str:
    """Returns the list, made from the modules themselves."""
    lines = [_HEADER]
    for name, module in standin.make_modules().items():
        names = [n for n in module.__all__ if not isinstance(vars(module).get(n), types.ModuleType)]
        title = f"{name} (torch.npu)" if name == "torch_npu.npu" else name
        lines.append(f"  {title}: {module.__doc__}")
        text = ", ".join(sorted(names))
        lines += textwrap.wrap(text, 96, initial_indent="      ", subsequent_indent="      ")
    lines.append("Anything else of torch_npu raises an error that says it is simulated.")
    return "\n".join(lines)
