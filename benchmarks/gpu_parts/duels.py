"""Our step and a peer's: the same job in two processes on the same device, checked first and then timed in turn."""

import contextlib
import json
import math
import pathlib
import select
import statistics
import subprocess
import tempfile

from gpu_parts.context import Failure, OutOfTime, started, what_went_wrong

# The allowed difference of the losses in the first steps, relative to the loss. Both sides call the same
# kernels of the same libtorch and request its deterministic algorithms in these steps, so equal bits are
# expected; the row reports whether they are equal. Where libtorch has no such algorithm, or torch.compile
# rounds at other places, the effect is smaller than the rounding of the products. The bounds are therefore
# two units in the last place of the dtype in which the products are computed. For float32 they are some
# thousand units, because AdamW makes a full step from any gradient, however small.
TOLERANCE = {"32-true": 2**-13, "tf32": 2**-9, "16-mixed": 2**-9, "16-true": 2**-9, "bf16-mixed": 2**-6,
             "bf16-true": 2**-6}
FIRST_STEPS = 10
# Batch norm amplifies differences. With gradients changed by a millionth, smaller models of these kinds on a
# CPU differed by 4e-5 in the third loss of a ResNet and by 1e-2 in its fifth, but by 3e-7 in a transformer's
# ninth. Twice the learning rate changed the ResNet's third loss by 5 %, and the transformers' ninth by 7 %
# and 10 %. Noise of fp16's rounding on every product of a GPT changed its sixth loss by 8e-4 and its tenth by
# 5e-3.
COMPARED_STEPS = {"resnet": 3, "gpt": 5, "vit": 5}
ROUND_SECONDS = {"full": 0.7, "small": 0.05}  # duration of a round, unless two steps take longer
ROUND_LIMIT = 180  # seconds after which a round has failed; the first one includes torch.compile

JOB = {"tf32": False, "channels_last": False, "optimizer": "fused-adamw", "lr": 1e-3, "eps": 1e-8, "weight_decay": 0.01,
       "clip": 1.0, "batches_on": "device", "backend": "inductor", "first_steps": FIRST_STEPS, "deterministic_first": True,
       "count_syncs": False}


class Side:
    """A process that trains in rounds."""

    def __init__(self, context, name, command, folder, job):
        self.context, self.name = context, name
        self.job_file, self.error_file = folder / f"{name}.json", folder / f"{name}.errors"
        self.job_file.write_text(json.dumps(job))
        self.command = [str(word) for word in (*command, self.job_file)]

    @contextlib.contextmanager
    def running(self, **environment):
        with open(self.error_file, "w") as errors, \
                started(self.command, self.context.environment(**environment), stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE, stderr=errors) as self.child:
            yield self

    def answer(self):
        """Returns its report at the end of a round."""
        left = self.context.seconds_left()
        if not select.select([self.child.stdout], [], [], min(left, ROUND_LIMIT))[0]:
            why = OutOfTime if left < ROUND_LIMIT else Failure
            raise why(f"{self.name} had not finished its round after {min(left, ROUND_LIMIT):.0f} s")
        line = self.child.stdout.readline()
        if not line:
            errors = self.error_file.read_text()
            raise Failure(f"{self.name}: {what_went_wrong(errors)}", errors)
        return json.loads(line)

    def round(self, steps):
        self.child.stdin.write(f"{steps}\n")
        self.child.stdin.flush()
        return self.answer()


class Duels:
    """Makes the files that the jobs name, once for each model, and keeps them for the duration of a part."""

    def __init__(self, context):
        self.context = context
        self._prepared = {}

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="mantissa-gpu-")
        self.folder = pathlib.Path(self._folder.name)
        return self

    def __exit__(self, *_):
        self._folder.cleanup()

    def _files(self, job):
        sizes = json.dumps([job["model"], job["batch"]])
        if sizes not in self._prepared:
            name = self.folder / str(len(self._prepared))
            files = {"weights": f"{name}.weights.safetensors", "data": f"{name}.data.safetensors"}
            file = self.folder / f"{name}.json"
            file.write_text(json.dumps({**job, **files}))
            self.context.run_python("-m", "gpu_parts.peers", "--prepare", file)
            self._prepared[sizes] = files
        return self._prepared[sizes]

    def whole(self, job):
        """Returns `job` with defaults for its missing keys, and makes its files."""
        job = {**JOB, **job, "device": self.context.device, "threads": 1 if self.context.rehearsal else 8}
        return {**job, **self._files(job)}

    def our_side(self, job):
        return Side(self.context, "mantissa", [self.context.program("gpu_train")], self.folder, job)

    def their_side(self, job):
        return Side(self.context, job["loop"], [self.context.python, "-m", "gpu_parts.peers"], self.folder, job)

    def run(self, job, *, ours, theirs, tolerance, rounds=5):
        """Runs `job` with the settings of each side in `ours` and `theirs`; returns the row of the two."""
        context = self.context
        job = self.whole(job)
        a, b = self.our_side({**job, **ours}), self.their_side({**job, **theirs})
        with a.running(), b.running():  # they start side by side; then one computes while the other waits
            row, disagreement = compare(a.answer(), b.answer(), COMPARED_STEPS[job["model"]["kind"]], tolerance)
            for side in (a, b):
                side.round(3)  # cuDNN tries its algorithms in this round
            probe = max(side.round(2)["ms"] for side in (a, b))
            steps = min(max(round(context.size(**ROUND_SECONDS) * 1e3 / probe), 2), 100)
            times, peaks = [], []
            for i in range(context.size(full=rounds, small=2)):
                first, second = (a, b) if i % 2 == 0 else (b, a)  # so that neither always finds the device warmer
                reports = {first: first.round(steps), second: second.round(steps)}
                answers = reports[a], reports[b]
                if not all(math.isfinite(loss) for answer in answers for loss in answer["losses"]):
                    raise Failure("a loss is not finite in a timed round; no time counts")
                times.append([answer["ms"] for answer in answers])
                peaks = [answer["peak_bytes"] / 2**20 for answer in answers]
        ratios = [mine / other for mine, other in times]
        ours_ms, theirs_ms = (statistics.median(side) for side in zip(*times))
        measured = {"ours_ms": ours_ms, "theirs_ms": theirs_ms, "ratio": statistics.median(ratios),
                    "ratio_min": min(ratios), "ratio_max": max(ratios), "ours_peak_mib": peaks[0],
                    "theirs_peak_mib": peaks[1], "rounds": len(times), "steps_a_round": steps, "batch": job["batch"]}
        if disagreement:  # the times are kept, so that they are not lost if the difference can be explained
            raise Failure(f"{disagreement}; no time counts", row={**row, "not_counted": measured})
        return {**row, **measured}


def compare(ours, theirs, steps, tolerance):
    """Compares the first rounds; reports a difference above `tolerance` in one of the first `steps` losses."""
    disagreement, differences = None, []
    for step, (mine, other) in enumerate(zip(ours["losses"][:steps], theirs["losses"][:steps])):
        differences.append(abs(mine - other) / abs(other))
        if not differences[-1] <= tolerance and not disagreement:  # nan does not count as agreement
            disagreement = (f"the losses differ at step {step}: {mine:.6g} and {other:.6g}, by {differences[-1]:.1e} "
                            f"where {tolerance:.1e} is allowed")
    return {"loss_difference": max(differences), "tolerance": tolerance, "compared_steps": steps,
            "equal_bits": ours["losses"] == theirs["losses"], "losses": [ours["losses"], theirs["losses"]],
            "scales": [ours["scale"], theirs["scale"]]}, disagreement
