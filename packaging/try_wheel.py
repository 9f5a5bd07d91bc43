"""Tries an installed wheel: every optimizer on the native core against the reference, AdamW against torch's."""

import shutil
import sys

import torch

import ingot

STEPS = 5


def trained(name: str, backend: str | None) -> list[torch.Tensor]:
    """The parameters of a small network after some steps; with torch.optim.AdamW for no backend."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(7, 33), torch.nn.Tanh(), torch.nn.Linear(33, 5))
    if backend is None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    else:
        optimizer = ingot.create_optimizer(model.parameters(), name, lr=1e-2, backend=backend)
    batch = torch.randn(16, 7)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(batch).square().sum().backward()
        optimizer.step()
    return [param.detach() for param in model.parameters()]


def main() -> None:
    """Compare."""
    assert ingot.__file__.startswith(sys.prefix), ingot.__file__
    assert not any(map(shutil.which, ("cc", "c++", "g++", "gcc", "clang"))), "a compiler is there"
    for name in ingot.list_optimizers():
        torch.testing.assert_close(trained(name, "native"), trained(name, "reference"))
    torch.testing.assert_close(trained("adamw", "native"), trained("adamw", None))
    print(
        f"ingot {ingot.__version__}, Python {sys.version.split()[0]}, torch {torch.__version__}:",
        end=" ",
    )
    print(f"{', '.join(ingot.list_optimizers())} on the native core agree with the reference")


if __name__ == "__main__":
    main()
