"""The context of a part of benchmarks/gpu: the device and its facts, programs, a clock, a table and a file of results.

A part is a module with run(context):

    COLUMNS = [Column("model", 10), Column("ms", 9, ".2f", title="ours ms")]

    def run(context):
        context.table(COLUMNS)
        for model in context.size(full=["gpt2", "resnet50"], small=["gpt2"]):
            context.case({"model": model}, lambda: {"ms": float(context.run_program("some_bench", model))})

Each case makes one row, which is printed and written to the file at once. A case that fails gets a row with its
error, a case for which no time is left gets a row that says so, and the others still run.
"""

import contextlib
import dataclasses
import datetime
import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Failure(Exception):
    """The reason why a case has no result, in one line. `errors` is the program's output, `row` has partial results."""

    def __init__(self, why, errors="", row=None):
        super().__init__(why)
        self.errors, self.row = errors, row or {}


class OutOfTime(Failure):
    """The part's time was used up."""


class LeftOut(Failure):
    """The case does not exist here, which is not an error."""


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of the table: a key of the rows, its width, the format of numbers, and the title (default: the key)."""
    key: str
    width: int
    format: str = ""
    title: str = ""

    def head(self):
        return f"{self.title or self.key:{'>' if self.format else '<'}{self.width}}"

    def cell(self, row):
        value = row.get(self.key)
        if isinstance(value, bool):
            value = "yes" if value else "no"
        text = "" if value is None else f"{value:{self.format}}" if isinstance(value, (int, float)) else str(value)
        return f"{text:{'>' if self.format else '<'}{self.width}}"


class Context:
    """The run of one part on one device."""

    def __init__(self, part, *, device, build, python, facts, results=None, json_file=None, only=None, seconds=540):
        self.part = part
        self.device = device  # "cuda:0" or "cpu"
        self.build = build  # the folder of our programs
        self.python = python  # an interpreter that has PyTorch and Lightning
        self.facts = facts  # from gpu_train --facts and peers.facts(): {"device": {...}, "versions": {...}}
        self.rows = []
        self._results, self._json_file, self._only = results, json_file, only
        self._seconds, self._begin = seconds, time.monotonic()
        self._date = datetime.datetime.now().astimezone()
        self._columns = []
        self._unwritten = set()  # files for which a warning was printed

    @property
    def rehearsal(self):
        """True on the CPU, with small sizes: the same code runs, and its numbers are not worth keeping."""
        return self.device == "cpu"

    @property
    def measured(self):
        """The number of cases with a result."""
        return sum("error" not in row and "left_out" not in row for row in self.rows)

    def size(self, full, small):
        return small if self.rehearsal else full

    def seconds_left(self):
        return max(0.0, self._begin + self._seconds - time.monotonic())

    # Programs.

    def program(self, name):
        file = self.build / name
        if not file.is_file():
            raise Failure(f"{file} is not built; cmake --build --target {name}")
        return file

    def environment(self, **more):
        """For our programs and Python's: both find the modules of the parts and the jobs of tests/parity."""
        folders = [str(ROOT / folder) for folder in ("benchmarks", "tests/parity")]
        mine = {"PYTHONPATH": os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])]),
                "OMP_WAIT_POLICY": "PASSIVE"}
        if self.rehearsal:
            mine["MANTISSA_CPU_KERNELS"] = "0"  # PyTorch's own kernels on both sides, so that bits can be equal
        return {**os.environ, **mine, **more}

    def run_program(self, name, *arguments, timeout=None, **environment):
        """Returns the output of a program of the build folder. A Failure says what went wrong."""
        return self._run([self.program(name), *arguments], timeout, environment)

    def run_python(self, *arguments, timeout=None, **environment):
        """Does the same for Python with the peers: run_python("-m", "gpu_parts.peers", "--facts")."""
        return self._run([self.python, *arguments], timeout, environment)

    def _run(self, command, timeout, environment):
        limit = min(self.seconds_left(), timeout or float("inf"))
        with started([str(word) for word in command], self.environment(**environment), stdout=subprocess.PIPE,
                     stderr=subprocess.PIPE) as child:
            try:
                output, errors = child.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                kind = Failure if limit == timeout else OutOfTime
                raise kind(f"{pathlib.Path(command[0]).name} was still running after {limit:.0f} s") from None
        if child.returncode != 0:
            name = pathlib.Path(command[0]).name
            raise Failure(f"{name} ended with {child.returncode}: {what_went_wrong(errors)}", errors)
        return output

    @contextlib.contextmanager
    def folder(self):
        """A temporary folder for the files of one case."""
        with tempfile.TemporaryDirectory(prefix="mantissa-gpu-") as name:
            yield pathlib.Path(name)

    # Results.

    def table(self, columns):
        """Begins a table. Call it before its cases, and again for a second table."""
        self._columns = columns
        print("\n" + " ".join(column.head() for column in columns).rstrip(), flush=True)

    def case(self, identity, measure):
        """Adds the row `identity` with the result of measure(); returns the row, or None if there is no result."""
        name = " ".join(str(value) for value in identity.values())
        if self._only and not re.search(self._only, name):
            return None
        begin = time.monotonic()
        row = dict(identity)
        try:
            if self.seconds_left() == 0:
                raise OutOfTime("not begun")
            row.update(measure())
        except OutOfTime as why:
            row["left_out"] = f"out of time: {why}"
        except LeftOut as why:
            row["left_out"] = str(why)
        except Exception as error:  # the other cases run in any case
            row["error"] = str(error) if isinstance(error, Failure) else f"{type(error).__name__}: {error}"
            row.update(getattr(error, "row", {}))
            row["errors"] = getattr(error, "errors", "").splitlines()[-60:]
        row["seconds"] = round(time.monotonic() - begin, 1)
        self.rows.append(row)
        self._print(row)
        self._write()
        return None if "error" in row or "left_out" in row else row

    def _print(self, row):
        word = next((word for word in ("error", "left_out") if word in row), None)
        if word:
            cells = [column.cell(row) for column in self._columns if column.key in row]
            print(" ".join(cells) + f"  {word.replace('_', ' ')}: {row[word]}", flush=True)
        else:
            print(" ".join(column.cell(row) for column in self._columns).rstrip(), flush=True)

    def files(self):
        """The files for the results."""
        files = [self._json_file] if self._json_file else []
        if self._results:
            device = re.sub(r"[^a-z0-9]+", "-", self.facts["device"]["name"].lower()).strip("-")
            files.append(self._results / f"{self._date:%Y-%m-%d-%H%M%S}-gpu-{self.part}-{device}.json")
        return files

    def _write(self):
        text = json.dumps({"benchmark": f"gpu {self.part}", "date": self._date.isoformat(timespec="seconds"),
                           "rehearsal": self.rehearsal, **self.facts,
                           "seconds": round(time.monotonic() - self._begin, 1), "seconds_allowed": self._seconds,
                           "rows": self.rows}, indent=2) + "\n"
        for file in self.files():
            try:
                write(file, text)
                self._unwritten.discard(file)
            except OSError as error:  # the cases continue and their rows are printed; the next row tries again
                if file not in self._unwritten:
                    print(f"benchmarks/gpu: warning: {file} cannot be written: {error.strerror}", file=sys.stderr)
                self._unwritten.add(file)

    def finish(self):
        """Reports on the cases; returns the exit status: 1 if one failed, or the last rows could not be written."""
        failed = sum("error" in row for row in self.rows)
        left_out = sum("left_out" in row for row in self.rows)
        self._write()
        for file in self.files():
            if file not in self._unwritten:
                print(f"written: {file}")
        if self._only and not self.rows:
            print(f"{self.part}: --only matches no case")
        print(f"{self.part}: {len(self.rows)} cases, {failed} failed, {left_out} left out, "
              f"{time.monotonic() - self._begin:.0f} s", flush=True)
        return 1 if failed or self._unwritten else 0


def write(file, text):
    """Replaces the file in one move: a run that is killed here leaves the previous file intact."""
    unfinished = file.with_suffix(".unfinished")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(text)
        unfinished.replace(file)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()


def why_not_writable(file):
    """Returns the reason why `file` cannot be written, or None."""
    try:
        if file.is_dir():
            return "it is a folder"
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=file.parent):
            return None
    except OSError as error:
        return error.strerror


def what_went_wrong(text):
    """Returns the line of a program's errors that names the error. CUDA prints advice and C++ a backtrace after it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "(it wrote no error)"
    names_it = [line for line in lines if re.search(r"(\b\w*Error|\berror|what\(\)) *:", line)]
    return names_it[-1 if "Traceback" in text else 0] if names_it else lines[-1]


@contextlib.contextmanager
def started(command, environment, **pipes):
    """A child process in its own process group. The group is ended when the block is left."""
    child = subprocess.Popen(command, env=environment, text=True, start_new_session=True, **pipes)
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        for pipe in (child.stdin, child.stdout, child.stderr):
            if pipe:
                pipe.close()


def find_build(root=ROOT):
    """Returns the folder of our programs: bin/ of a package, else a build folder of the source tree."""
    folders = [root / name for name in ("bin", "build-cuda", "build")]
    return next((folder for folder in folders if (folder / "gpu_train").is_file()), folders[-1])


PACKAGES = ("torch", "lightning", "safetensors")


def find_python(root=ROOT):
    """Returns an interpreter with PACKAGES: this one, else that of `make parity`. A Failure says what is missing."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if not missing:
        return pathlib.Path(sys.executable)
    peers = root / ".deps" / "peers" / "bin" / "python"
    if peers.is_file():
        return peers
    is_package = (root / "libexec").is_dir()
    raise Failure(f"{sys.executable} has no {', '.join(missing)}: start benchmarks/gpu with a Python that has "
                  f"{', '.join(PACKAGES[:-1])} and {PACKAGES[-1]}" + ("" if is_package else ", or run make parity, which makes one"))
