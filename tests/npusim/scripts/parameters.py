"""What the scripts share: parameters as the documents have them, and a report of the results."""

import json
import sys

import torch


def make_params() -> list[torch.Tensor]:
    """Tensors of float32 and float16 in one list; the last of them has no gradient."""
    params = []
    for number, (rows, dtype) in enumerate(
        [(3, "float"), (5, "half"), (1, "float"), (4, "half"), (2, "float")]
    ):
        values = getattr(torch.linspace(-2.0, number + 1.0, rows * 4).reshape(rows, 4), dtype)()
        # The comparison runs the same script on CPU tensors.
        params.append(values.cpu() if "cpu" in sys.argv else values.npu())
    for param in params[:-1]:
        param.requires_grad = True
        param.grad = param.clone().detach() / 50.0
    return params


def report(params: list[torch.Tensor]) -> None:
    """Prints where the parameters are, and their values."""
    result = {
        "devices": sorted({str(p.device) for p in params}),
        "values": [p.detach().cpu().tolist() for p in params],
    }
    print(json.dumps(result))
