"""Python source of every operation of a scenario; the fuzzer runs this very text and prints it on failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

Scenario = dict[str, Any]
Operation = dict[str, Any]

WORDS = (Path(__file__).parent / "script.py").read_text()


def value_source(value: Any) -> str:
    """An option as source; torch's types and tensors are written as strings in scenarios."""
    return value if isinstance(value, str) and value.startswith("torch.") else repr(value)


def options_source(options: dict[str, Any]) -> str:
    """``, "lr": 0.1`` and so on."""
    return "".join(f", {name!r}: {value_source(value)}" for name, value in options.items())


def tensor_source(spec: dict[str, Any]) -> str:
    shape, dtype = tuple(spec["shape"]), spec["dtype"]
    rest = f"{spec['layout']!r}, {spec['scale']!r}, {spec['fill']!r}"
    return f"tensor({spec['seed']}, {shape}, {dtype}, {rest})"


def group_source(scenario: Scenario, group: dict[str, Any]) -> str:
    """A parameter group; named if the scenario names its parameters."""
    named = scenario["named"]
    params = ", ".join(f'("name{k}", p[{k}])' if named else f"p[{k}]" for k in group["params"])
    return f'{{"params": [{params}]{options_source(group["options"])}}}'


def params_source(scenario: Scenario, group: dict[str, Any]) -> str:
    return "\n".join(
        f"p[{k}] = Parameter({tensor_source(scenario['tensors'][k])})" for k in group["params"]
    )


def common_source(scenario: Scenario, backend: Any) -> str:
    """The options of the whole optimizer as keyword arguments."""
    options = {**scenario["common"], "backend": backend}
    return "".join(f", {name}={value_source(value)}" for name, value in options.items())


def start_source(scenario: Scenario) -> str:
    """The parameters and the optimizer."""
    lines = [params_source(scenario, group) for group in scenario["groups"]]
    groups = ", ".join(group_source(scenario, group) for group in scenario["groups"])
    backend = common_source(scenario, scenario["backend"])
    lines.append(f"optimizer = ingot.optim.{scenario['kind']}([{groups}]{backend})")
    return "\n".join(lines)


def gradients_source(operation: Operation) -> str:
    """Every parameter gets its gradient of this step, or none."""
    lines = []
    for k, spec in operation["grads"].items():
        if spec is None:
            source = "None"
        elif spec["layout"] == "itself":
            source = f"p[{k}].detach()"
        elif spec["layout"] == "itself transposed":
            source = f"p[{k}].detach().t()"
        else:
            source = tensor_source(spec)
            for lazy in ("conj", "neg"):
                if spec.get("lazy") == lazy:
                    source = {"conj": f"{source}.conj()", "neg": f"torch._neg_view({source})"}[lazy]
        lines.append(f"give(p[{k}], {source})")
    return "\n".join(lines)


def step_source(operation: Operation) -> str:
    if operation.get("scale"):
        return f"scaled_step(optimizer, {operation['scale']}, {operation.get('overflow')})"
    if operation.get("closure"):
        return "optimizer.step(lambda: torch.zeros(()))"
    return "optimizer.step()"


REFUSALS = {
    "sparse": "give(p[{k}], torch.zeros_like(p[{k}]).to_sparse())",
    "expanded": "keep = p[{k}].data; put(p[{k}], torch.ones(1).expand(keep.shape))\n"
    "give(p[{k}], torch.ones_like(keep))",
    "option": "keep = optimizer.param_groups[0]['lr']; optimizer.param_groups[0]['lr'] = float('nan')",
}
RESTORED = {
    "sparse": "p[{k}].grad = None",
    "expanded": "put(p[{k}], keep)",
    "option": "optimizer.param_groups[0]['lr'] = keep",
}


def rebuilt_source(scenario: Scenario, operation: Operation) -> str:
    """Another optimizer of the same shape that takes over the state and the options."""
    groups = ", ".join(
        group_source(scenario, {"params": params, "options": {}}) for params in operation["groups"]
    )
    made = f"ingot.optim.{scenario['kind']}([{groups}], lr=9.0"
    return (
        f"saved = copy.deepcopy(optimizer.state_dict())\n"
        f"optimizer = {made}{common_source(scenario, operation['backend'])})\n"
        "optimizer.load_state_dict(saved)"
    )


def sources(scenario: Scenario, operation: Operation) -> tuple[str, str, str]:
    """What is done before the operation, the operation itself, and what is done after it was judged."""
    k = operation.get("param")
    match operation["do"]:
        case "step":
            return gradients_source(operation), step_source(operation), ""
        case "clip":
            limits = f"{operation['max_norm']}, {operation['norm_type']}"
            clip = f"norm = optimizer.clip_grad_norm_fused_({limits})"
            return gradients_source(operation), clip, ""
        case "refuse":
            trouble = REFUSALS[operation["trouble"]].format(k=k)
            restored = RESTORED[operation["trouble"]].format(k=k)
            return f"{gradients_source(operation)}\n{trouble}", "refused(optimizer)", restored
        case "add_group":
            group = operation["group"]
            added = f"optimizer.add_param_group({group_source(scenario, group)})"
            return params_source(scenario, group), added, ""
        case "save":
            return "", "saved = copy.deepcopy(optimizer.state_dict())", ""
        case "load":
            return "", "optimizer.load_state_dict(saved)", ""
        case "rebuild":
            return "", rebuilt_source(scenario, operation), ""
        case "deepcopy":
            return "", "p, optimizer = copy.deepcopy((p, optimizer))", ""
        case "pickle":
            return "", "p, optimizer = pickle.loads(pickle.dumps((p, optimizer)))", ""
        case "move":
            return "", f"put(p[{k}], guarded(p[{k}].detach(), {operation['layout']!r}))", ""
        case "cast":
            cast = f"p[{k}].detach().to({operation['dtype']})"
            return "", f"put(p[{k}], guarded({cast}))", ""
        case "resize":
            new = f"put(p[{k}], {tensor_source(operation['tensor'])})"
            return "", f"{new}\noptimizer.state.pop(p[{k}], None)", ""
        case "replace":
            return "", f"replace(optimizer, {k}, {operation['keep']})", ""
        case "regroup":
            return "", f"regroup(optimizer, p[{k}], {operation['from']}, {operation['to']})", ""
        case "clear":
            state = "optimizer.state"
            return "", f"{state}.clear()" if k is None else f"{state}.pop(p[{k}], None)", ""
        case "share":
            spec, other = operation["tensor"], operation["other"]
            rest = f"{tuple(spec['shape'])}, {operation['offset']}, {spec['dtype']}, {spec['seed']}"
            return "", f"share(p[{k}], p[{other}], {rest})", ""
        case "option":
            group = f"optimizer.param_groups[{operation['group']}]"
            value = value_source(operation["value"])
            return "", f"{group}[{operation['name']!r}] = {value}", ""
        case "backend":
            return "", f"optimizer.backend = {operation['backend']!r}", ""
        case "guard_states":
            return "", f"guard_states(optimizer, {operation['layout']!r})", ""
        case "threads":
            return "", f"torch.set_num_threads({operation['threads']})", ""
        case "zero_grad":
            return (
                gradients_source(operation),
                f"optimizer.zero_grad({operation['set_to_none']})",
                "",
            )
    raise ValueError(operation["do"])


def script_of(scenario: Scenario, last: str = "") -> str:
    """The whole scenario as a program that needs torch and ingot alone."""
    lines = [WORDS, "\n", f"# seed {scenario['seed']}", start_source(scenario)]
    for operation in scenario["operations"]:
        lines += [text for text in sources(scenario, operation) if text]
    return "\n".join([*lines, "intact()", last])
