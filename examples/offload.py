"""Trains a small network with the states of its optimizer in host memory; see docs/memory.md.

On whatever torch has here:    python examples/offload.py
On a simulated NPU:            python -m ingot.npusim examples/offload.py
"""

import torch
from torch import nn

import ingot


def make_model(device: torch.device) -> nn.Module:
    """Returns the network, always with the same weights."""
    torch.manual_seed(0)
    layers = [nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 4)]
    return nn.Sequential(*layers).to(device, torch.bfloat16)


def main() -> None:
    """Trains on the accelerator if there is one, and says where everything is."""
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    model = make_model(device)
    optimizer = ingot.AdamW(
        model.parameters(), lr=3e-4, master_weights=True, max_grad_norm=1.0, offload="cpu"
    )
    inputs = torch.randn(128, 64).to(device, torch.bfloat16)
    labels = inputs[:, :4].argmax(1)
    for step in range(1, 61):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs).float(), labels)
        loss.backward()  # gradients start to travel here
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step:3}  loss {loss.item():.3f}  norm {optimizer.grad_norm:.2f}")
    weight = model[0].weight
    places = {
        name: state.device.type for name, state in optimizer.state[weight].items() if name != "step"
    }
    print(f"parameters on {weight.device.type}, states: {places}")


if __name__ == "__main__":
    main()
