"""Optimizers, and all that can be done to one between two steps, for the tests of remembered plans."""

import torch

from ingot.optim import NpuFusedAdamP, NpuFusedAdamW, NpuFusedLamb, NpuFusedSGD


def unnoticed(*names):
    """Marks a change that leads to the same numbers as none: with these optimizers, with all if none is named."""

    def mark(change):
        change.unnoticed = names or tuple(BUILDS)
        return change

    return mark


BUILDS = {
    "adamw": lambda params, **kw: NpuFusedAdamW(params, lr=0.1, **kw),
    "sgd": lambda params, **kw: NpuFusedSGD(params, lr=0.1, momentum=0.9, dampening=0.5, **kw),
    "lamb": lambda params, **kw: NpuFusedLamb(params, lr=0.1, **kw),
    "adamp": lambda params, **kw: NpuFusedAdamP(params, lr=0.1, weight_decay=0.1, **kw),
}


def set_grads(params, seed):
    generator = torch.Generator().manual_seed(seed)
    for param in params:
        param.grad = torch.randn(param.shape, generator=generator).to(param.dtype)


def first_state(optimizer, param):
    name = next(name for name in optimizer.state[param] if name != "step")
    return name, optimizer.state[param][name]


def drop_grad(optimizer, params):
    params[1].grad = None


def drop_all_grads(optimizer, params):
    for param in params:
        param.grad = None


def replace_data(optimizer, params):
    params[0].data = torch.full_like(params[0], 0.5)


def replace_one_by_bfloat16(optimizer, params):
    params[0].data = params[0].data.bfloat16()
    params[0].grad = torch.ones_like(params[0])


def replace_all_by_float64(optimizer, params):
    for param in params:
        param.data = param.data.double()
        param.grad = torch.ones_like(param)


@unnoticed()
def transpose_data(optimizer, params):
    grad = params[0].grad
    params[0].data = params[0].data.t().contiguous().t()
    params[0].grad = grad


@unnoticed()
def slice_data(optimizer, params):
    wide = torch.zeros(4, 6)
    wide[:, ::2] = params[0].data
    params[0].data = wide[:, ::2]


def expand_grad(optimizer, params):
    params[0].grad = torch.tensor([[0.5]]).expand(4, 3)


def replace_state_tensor(optimizer, params):
    name, value = first_state(optimizer, params[0])
    optimizer.state[params[0]][name] = value * 2


def lower_state_tensor(optimizer, params):
    name, value = first_state(optimizer, params[0])
    optimizer.state[params[0]][name] = value.bfloat16()


def delete_state_tensor(optimizer, params):
    name, _ = first_state(optimizer, params[0])
    del optimizer.state[params[0]][name]


def replace_state_entry(optimizer, params):
    entry = optimizer.state[params[0]]
    copies = {k: v.clone() * 2 if isinstance(v, torch.Tensor) else v for k, v in entry.items()}
    optimizer.state[params[0]] = copies


def clear_state_entry(optimizer, params):
    optimizer.state[params[0]].clear()


def pop_state_entry(optimizer, params):
    optimizer.state.pop(params[0])


def reset_state(optimizer, params):
    optimizer.state.clear()


@unnoticed("sgd", "lamb")  # LAMB's update without bias correction does not depend on its step count
def change_one_step(optimizer, params):
    if "step" in optimizer.state[params[0]]:
        optimizer.state[params[0]]["step"] += 5


def reload_state(optimizer, params):
    saved = optimizer.state_dict()
    for slots in saved["state"].values():
        for name in slots:
            slots[name] = slots[name] * 2
    optimizer.load_state_dict(saved)


@unnoticed()
def swap_params(optimizer, params):
    group = optimizer.param_groups[0]["params"]
    group[0], group[3] = group[3], group[0]


def move_to_next_group(optimizer, params):
    extra = torch.ones(3, requires_grad=True)
    extra.grad = torch.ones(3)
    optimizer.add_param_group({"params": [extra], "lr": 0.01})
    params.append(extra)
    set_grads(params, 10)
    optimizer.step()
    set_grads(params, 11)
    optimizer.step()
    first, second = optimizer.param_groups
    second["params"].insert(0, first["params"].pop())


def remove_param(optimizer, params):
    optimizer.param_groups[0]["params"].pop(2)


def add_group(optimizer, params):
    extra = torch.ones(3, requires_grad=True)
    extra.grad = torch.ones(3)
    optimizer.add_param_group({"params": [extra], "lr": 0.01})
    params.append(extra)


def change_lr(optimizer, params):
    optimizer.param_groups[0]["lr"] = 0.01


def turn_around(optimizer, params):
    optimizer.param_groups[0]["maximize"] = True


@unnoticed("lamb")  # LAMB has no such option
def switch_on(optimizer, params):
    for flag in ("amsgrad", "nesterov"):
        if flag in optimizer.param_groups[0]:
            optimizer.param_groups[0][flag] = True
            optimizer.param_groups[0]["dampening"] = 0.0


def wake_idle(optimizer, params):
    optimizer.param_groups[0]["params"][-1].grad = torch.ones_like(params[-1])


CHANGES = [
    drop_grad,
    drop_all_grads,
    replace_data,
    replace_one_by_bfloat16,
    replace_all_by_float64,
    transpose_data,
    slice_data,
    expand_grad,
    replace_state_tensor,
    lower_state_tensor,
    delete_state_tensor,
    replace_state_entry,
    clear_state_entry,
    pop_state_entry,
    reset_state,
    change_one_step,
    reload_state,
    swap_params,
    remove_param,
    move_to_next_group,
    add_group,
    change_lr,
    turn_around,
    switch_on,
    wake_idle,
]
