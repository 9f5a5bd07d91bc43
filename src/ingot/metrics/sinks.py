"""Where metrics go: a function, a dictionary, a TensorBoard writer, a JSON Lines or CSV file; and reading them back."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from ingot.metrics.record import PER_PARAMETER, Metrics

Sink = Callable[[Metrics], object]
COLUMNS = ["step", "total_norm", "parameter", *PER_PARAMETER]  # of a CSV file
ALWAYS = PER_PARAMETER[:4]  # what every parameter has
PIECE = 4096  # bytes of a file that are looked at together for its last line break
# A path, a writer, a dictionary, a function, or several of them.
Target = Any


def sinks_of(owner: str, to: Target) -> list[Sink]:
    """The sinks that ``track_metrics`` was asked for."""
    if to is None:
        return []
    if isinstance(to, (list, tuple)):
        return [sink for each in to for sink in sinks_of(owner, each)]
    if isinstance(to, (str, os.PathLike)):
        return [file_sink(owner, Path(to))]
    if isinstance(to, MutableMapping):
        return [History(to)]
    if hasattr(to, "add_scalar"):
        return [TensorBoard(to)]
    if callable(to):
        return [to]
    raise TypeError(
        f"{owner}: to must be the path of a .jsonl or .csv file, a dict, a SummaryWriter, a function, or a list of "
        f"these; got {type(to).__name__}"
    )


def file_sink(owner: str, path: Path) -> Sink:
    """The sink that a file name asks for. The folder must be there: a run should not end at its first tracked step."""
    kinds: dict[str, Callable[[Path], Sink]] = {".jsonl": JsonLines, ".csv": Csv}
    if path.suffix not in kinds:
        raise ValueError(f"{owner}: to={str(path)!r} must end in {' or '.join(kinds)}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{owner}: to={str(path)!r}: there is no folder {path.parent}")
    return kinds[path.suffix](path.absolute())


class History:
    """Keeps the metrics of every tracked step in a dictionary, by the number of the step."""

    def __init__(self, history: MutableMapping[int, Metrics]) -> None:
        self.history = history

    def __call__(self, metrics: Metrics) -> None:
        """Take the metrics of one step."""
        self.history[metrics.step] = metrics


class TensorBoard:
    """Writes to a ``torch.utils.tensorboard.SummaryWriter``: one chart per quantity and parameter."""

    def __init__(self, writer: Any) -> None:
        self.writer = writer

    def __call__(self, metrics: Metrics) -> None:
        """Take the metrics of one step."""
        self.writer.add_scalar("total_norm", metrics.total_norm, metrics.step)
        if metrics.clip_coefficient is not None:
            self.writer.add_scalar("clip_coefficient", metrics.clip_coefficient, metrics.step)
        for parameter, values in metrics.items():
            for quantity, value in values.items():
                self.writer.add_scalar(f"{quantity}/{parameter}", value, metrics.step)


class Appended:
    """A file that is appended to. What an earlier run left half-written is dropped before the first line."""

    def __init__(self, path: Path) -> None:
        self.path, self.whole, self.begun = path, False, False

    @contextmanager
    def opened(self) -> Iterator[TextIO]:
        """The file at its end; after a write that failed, half of a line may stand there again."""
        if not self.whole and self.path.is_file():  # a pipe cannot be cut off
            drop_half_line(self.path)
        self.whole = False
        with self.path.open("a", encoding="utf-8", newline="") as file:
            yield file
        self.whole = self.begun = True


class JsonLines(Appended):
    """Appends one line per tracked step to a file.

    JSON has no infinity and no NaN; they are written as the strings "Infinity" and "NaN", which ``float`` reads.
    The file is opened for each line, so a run that is killed leaves all lines it has written. Half of a line, which it
    was writing then, is dropped by the next run.
    """

    def __call__(self, metrics: Metrics) -> None:
        """Take the metrics of one step."""
        line = json.dumps(spelled(metrics.as_dict()), allow_nan=False)
        with self.opened() as file:
            file.write(line + "\n")


class Csv(Appended):
    """Appends one row per parameter and tracked step to a file; a new file begins with the names of the columns.

    Half of a row, left by a run that was killed, is dropped as in JSON Lines.
    """

    def __call__(self, metrics: Metrics) -> None:
        """Take the metrics of one step."""
        with self.opened() as file:
            writer = csv.writer(file)
            if file.tell() == 0 if file.seekable() else not self.begun:
                writer.writerow(COLUMNS)
            for parameter, values in metrics.items():
                found = [values.get(name, "") for name in PER_PARAMETER]
                writer.writerow([metrics.step, metrics.total_norm, parameter, *found])


def drop_half_line(path: Path) -> None:
    """Cut a file off after its last line break: what stands behind it was being written when a run ended."""
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            begin = max(end - PIECE, 0)
            file.seek(begin)
            found = file.read(end - begin).rfind(b"\n")
            if found >= 0:
                end = begin + found + 1
                break
            end = begin
        file.truncate(end)


def spelled(value: Any) -> Any:
    """A value with strings in the place of numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: spelled(each) for key, each in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def read(path: str | os.PathLike[str]) -> list[Metrics]:
    """The metrics of a JSON Lines or CSV file, in order of their steps.

    Where a run was resumed from a checkpoint, or started again into the same file, later lines replace earlier ones
    of the same and of later steps. A last line that was cut off while it was written is left out.

    Args:
        path: a file that ``track_metrics(to="....jsonl")`` or ``track_metrics(to="....csv")`` has written.
    """
    path, found = Path(path), list[Metrics]()
    try:
        for metrics in (parsed_csv if path.suffix == ".csv" else parsed)(path):
            while found and found[-1].step >= metrics.step:
                found.pop()
            found.append(metrics)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text in UTF-8 ({error})") from None
    except csv.Error as error:
        raise ValueError(
            f"{path}: not rows that optimizer.track_metrics writes ({error})"
        ) from None
    return found


def not_ours(path: Path, number: int) -> ValueError:
    """What is said of a line that cannot be read."""
    return ValueError(f"{path}, line {number}: not a line that optimizer.track_metrics writes")


def refuse_lacking(parameters: Mapping[str, Mapping[str, float]]) -> None:
    """Raise KeyError where a parameter lacks a number that every one has."""
    for values in parameters.values():
        for quantity in ALWAYS:
            values[quantity]


def parsed(path: Path) -> Iterator[Metrics]:
    """The lines of a JSON Lines file."""
    lines: Iterable[str] = path.read_text(encoding="utf-8").splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            parameters = {
                name: {quantity: float(value) for quantity, value in values.items()}
                for name, values in entry["parameters"].items()
            }
            refuse_lacking(parameters)
            clip = entry["clip_coefficient"]
            total = float(entry["total_norm"])
            yield Metrics(
                parameters, int(entry["step"]), total, None if clip is None else float(clip)
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            if not line.endswith("\n"):
                return
            raise not_ours(path, number) from None


def parsed_csv(path: Path) -> Iterator[Metrics]:
    """The steps of a CSV file: rows that follow each other and have the same step."""
    with path.open(encoding="utf-8", newline="") as file:
        text = file.read()
    # A row that was cut off could hold half a number.
    rows = csv.reader(io.StringIO(text[: text.rfind("\n") + 1], newline=""))
    if next(rows, COLUMNS) != COLUMNS:
        raise not_ours(path, 1)
    step = Metrics()
    for row in rows:
        try:
            number, total, name, *found = row
            values = {
                quantity: float(value)
                for quantity, value in zip(PER_PARAMETER, found, strict=True)
                if value
            }
            refuse_lacking({name: values})
            # A name that the step has already begins the same step again: of a run that was resumed.
            if int(number) != step.step or name in step:
                if step:
                    yield step
                step = Metrics({}, int(number), float(total))
        except (ValueError, KeyError):
            raise not_ours(path, rows.line_num) from None
        step[name] = values
        if "clip_coefficient" in values:
            clip, least = values["clip_coefficient"], step.clip_coefficient
            step.clip_coefficient = clip if least is None else min(clip, least)
    if step:
        yield step
