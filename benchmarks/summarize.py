"""Writes the tables of docs/benchmarks.md from benchmarks/results/bench.csv.

python benchmarks/summarize.py
"""

from __future__ import annotations

import csv
from pathlib import Path

from ingot.cli.bench.models import LISTS
from ingot.cli.bench.peers import TITLES
from ingot.cli.bench.records import FLOOR
from ingot.cli.bench.shapes import DEFAULT, SHAPES

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- results: written by benchmarks/summarize.py -->", "<!-- end of results -->"
# Pictures of `ingot bench`; those that are not in the results are left out.
PICTURES = {
    "race.png": "Nanoseconds per parameter of everybody, on one scale",
    "scaling.png": "Time per parameter and per tensor as the model grows",
    "small.png": "Microseconds of a step of small models",
    "8bit.png": "Time and bytes of states in 8 and 16 bits",
    "memory.png": "Memory over one iteration, with normal steps and with released gradients",
}
RATIOS = [
    "The time of the fastest other implementation divided by ours: medians, and in parentheses the best ones. Bold",
    "where the medians say that ours is the faster.",
]
STEP = ["The last number: the floor's time divided by ours, of the best ones; it can be above 1."]
SHARES = [
    "In each field: the best step, the median in parentheses, then the time of the memory floor divided by that of",
    "the best step. How such a share can be above 1 is said above, where the memory floor is described.",
    "",
]
LINK = ["The file behind these tables: [bench.csv](../benchmarks/results/bench.csv).", ""]

Row = dict[str, str]


def number(text: str) -> str:
    value = float(text)
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def lines_of_table(heading: list[str], body: list[list[str]]) -> list[str]:
    lines = [heading, ["---", *["---:"] * (len(heading) - 1)], *body]
    return ["| " + " | ".join(line) + " |" for line in lines] + [""]


def circumstances(rows: list[Row]) -> list[str]:
    row = rows[0]
    threads = max(int(r["threads"]) for r in rows)  # small models are timed on one, too
    busy = max(float(r["others_cpu"] or 0) for r in rows)
    # A part that was measured again stands beside older ones.
    days = " and ".join(sorted({r["date"][:10] for r in rows}))
    commits = ", ".join(f"`{commit}`" for commit in dict.fromkeys(r["commit"] for r in rows))
    return [
        f"Measured on {days} at commit {commits}: {row['cpu']}, {row['cores']} cores, "
        f"{threads} threads, {row['instructions']}, Python {row['python']}, torch {row['torch']}, "
        f"backend `{row['backend']}`. Other processes used at most {busy:.0%} of the machine during a race.",
        "",
    ]


def ratios(race: list[Row]) -> list[str]:
    """How many times as fast as the fastest other implementation."""
    ours = {(r["optimizer"], r["shapes"]): r for r in race if r["ours"] == "True"}
    keys = [key for key in DEFAULT if any(shapes == key for _, shapes in ours)]
    body = []
    for optimizer, title in TITLES.items():
        found = [ours.get((optimizer, key)) for key in keys]
        if any(found):
            body.append([title, *map(ratio, found)])
    lines = ["### How many times as fast as the fastest other implementation", "", *RATIOS, ""]
    return [*lines, *lines_of_table(["", *(SHAPES[key].title for key in keys)], body)]


def ratio(row: Row | None) -> str:
    """The ratio of medians, bold where ours is the faster, and that of the best steps."""
    if row is None:
        return "-"
    median = f"{float(row['peer_ratio_median']):.2f}"
    return f"{f'**{median}**' if float(median) > 1 else median} ({float(row['peer_ratio']):.2f})"


def with_share(row: Row | None) -> str:
    """The same, and the share of the floor where there is one."""
    return ratio(row) + (f" {float(row['floor_share']):.2f}" if row and row["floor_share"] else "")


def times(race: list[Row]) -> list[str]:
    """Milliseconds of everybody."""
    heading = "### Milliseconds per step, best (median), and the share of the memory floor"
    lines = [heading, "", *SHARES]
    keys = [key for key in DEFAULT if any(row["shapes"] == key for row in race)]
    for optimizer, title in TITLES.items():
        rows = [row for row in race if row["optimizer"] == optimizer]
        if not rows:
            continue
        names = list(dict.fromkeys(row["contestant"] for row in rows))
        names.sort(key=lambda name: (name == FLOOR, not name.startswith("ingot")))
        body = []
        for name in names:
            mine = {row["shapes"]: row for row in rows if row["contestant"] == name}
            version = next(iter(mine.values()))["version"]
            label = f"{name} {version}" if version and name != FLOOR else name
            body.append([f"**{label}**" if name.startswith("ingot") else label])
            for key in keys:
                row = mine.get(key)
                text = "-"
                if row is not None:
                    text = f"{number(row['best_ms'])} ({number(row['median_ms'])})"
                    if row["floor_share"] and name != FLOOR:
                        text += f" {float(row['floor_share']):.2f}"
                body[-1].append(text)
        lines += lines_of_table([title, *(SHAPES[key].title for key in keys)], body)
    return lines


def others(rows: list[Row]) -> list[str]:
    """Precision and clipping."""
    body = []
    for row in rows:
        if row["part"] not in ("precision", "clip") or row["ours"] != "True":
            continue
        group = [r for r in rows if (r["part"], r["optimizer"]) == (row["part"], row["optimizer"])]
        peer = next(r for r in group if r["contestant"] == row["peer"])
        body.append(
            [
                f"{TITLES.get(row['optimizer'], '')} {row['contestant']}".strip(),
                number(row["best_ms"]),
                peer["contestant"],
                number(peer["best_ms"]),
                f"{float(row['peer_ratio']):.2f}",
            ]
        )
    if not body:
        return []
    shapes = next(row["shapes"] for row in rows if row["part"] in ("precision", "clip"))
    lines = [f"### bfloat16 and clipping, on {SHAPES[shapes].title}", ""]
    heading = ["ours", "best ms", "compared with", "best ms", "ratio of the best"]
    return [*lines, *lines_of_table(heading, body)]


def small(rows: list[Row]) -> list[str]:
    """Small models: the step alone, and a whole iteration."""
    lines = []
    for part, title in (("step", "the step"), ("iteration", "a whole iteration")):
        found = [r for r in rows if (r["part"], r["threads"], r["ours"]) == (part, "1", "True")]
        own = {(row["optimizer"], row["shapes"]): row for row in found}
        keys = [key for key in LISTS if any(shapes == key for _, shapes in own)]
        # An iteration's floor has no step: there, the share is not of what can be reached.
        cell, after = (with_share, STEP) if part == "step" else (ratio, [])
        body = [
            [name, *(cell(own.get((optimizer, key))) for key in keys)]
            for optimizer, name in TITLES.items()
            if any(first == optimizer for first, _ in own)
        ]
        if body:
            lines += [f"### Small models: {title}", "", "On one thread.", *RATIOS, *after, ""]
            lines += lines_of_table(["", *(LISTS[key].title for key in keys)], body)
    return lines


def eight_bit(rows: list[Row]) -> list[str]:
    """States in 8 and 16 bits."""
    found = [row for row in rows if row["part"] == "8bit" and row["contestant"] != FLOOR]
    if not found:
        return []
    body = [
        [
            f"{TITLES[row['optimizer']]}, {row['contestant']}",
            f"{number(row['best_ms'])} ({number(row['median_ms'])})",
            f"{int(row['state_bytes']) / int(row['parameters']):.2f}",
        ]
        for row in found
    ]
    lines = [f"### States in 8 and 16 bits, on {SHAPES[found[0]['shapes']].title}", ""]
    heading = ["", "ms per step, best (median)", "bytes of state per parameter"]
    return [*lines, *lines_of_table(heading, body)]


def memory(rows: list[Row]) -> list[str]:
    """One iteration with normal steps and with released gradients."""
    found = [row for row in rows if row["part"] == "memory"]
    if not found:
        return []
    body = [
        [
            f"{TITLES[row['optimizer']]}, {row['contestant'].removeprefix('ingot ')}",
            f"{number(row['best_ms'])} ({number(row['median_ms'])})",
            number(row["peak_mb"]),
            f"{float(row['grads_saved']):.0%}" if row["grads_saved"] else "",
        ]
        for row in found
    ]
    size = f"{int(found[0]['parameters']) / 1e6:.1f}"
    lines = [f"### The step inside backward, a transformer of {size} M parameters", ""]
    heading = [
        "",
        "ms per iteration, best (median)",
        "MB at the peak",
        "of the gradients' memory saved",
    ]
    return [*lines, *lines_of_table(heading, body)]


def growth(rows: list[Row]) -> list[str]:
    """Nanoseconds per element and per tensor along the two ladders."""
    lines = []
    for part, unit in (("parameters", "ns per parameter"), ("tensors", "µs per tensor of 1024")):
        found = [row for row in rows if row["part"] == part]
        if not found:
            continue
        sizes = sorted({int(row[part]) for row in found})
        factor = 1e6 if part == "parameters" else 1e3
        body = []
        for who in dict.fromkeys((row["optimizer"], row["contestant"]) for row in found):
            mine = {int(r[part]): r for r in found if (r["optimizer"], r["contestant"]) == who}
            costs = [float(mine[n]["median_ms"]) * factor / n if n in mine else None for n in sizes]
            title = f"{TITLES[who[0]]}, {who[1]}"
            body.append([title, *("-" if cost is None else f"{cost:.2f}" for cost in costs)])
        body.sort(key=lambda line: list(TITLES.values()).index(line[0].rpartition(", ")[0]))
        heading = [f"{size // 10**6} M" if part == "parameters" else f"{size:,}" for size in sizes]
        lines += [f"### Growth with the number of {part}: {unit}, medians", ""]
        lines += lines_of_table(["", *heading], body)
    return lines


def main() -> None:
    with (HERE / "results" / "bench.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    race = [row for row in rows if row["part"] == "race"]
    lines = []
    for name, words in PICTURES.items():
        if (HERE / "results" / name).exists():
            lines += [f"![{words}](../benchmarks/results/{name})", ""]
    lines += [*circumstances(rows), *ratios(race), *small(rows), *times(race), *eight_bit(rows)]
    lines += [*memory(rows), *others(rows), *growth(rows)]
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    text = "\n".join([BEGIN, "", *lines, *LINK]) + END
    PAGE.write_text(before + text + after, encoding="utf-8")


if __name__ == "__main__":
    main()
