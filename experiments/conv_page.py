"""What does Nsight Compute say of the convolution in which a step of the garments spends most of its time?

Two pages of `ncu`: of the second convolution's forward pass in bfloat16, and with float32's accuracy, by the kernels
that the graph launches. Clock and caches are left as they are in a training. `python -m experiments.conv_page` is what
the profiler runs: each pass twice, of which it looks at the second one.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from itertools import chain

from experiments.conv_ladder import LAYERS, ladder, problem
from experiments.inside.measure import FOLDERS, SECTIONS
from experiments.lab import results
from mlpkit import engines

LAYER, PASS = "64 to 128, 13 x 13", "forward"
RUNGS = ("planes_bf16", "planes_fp16x3")
KERNEL = "convolve"  # of both rungs; what splits float32 before it has another name


@dataclass(frozen=True)
class Plan:
    """sections: groups of the profiler's counters. seconds: that it may take. most: letters that are kept."""

    sections: tuple[str, ...] = (*SECTIONS, "ComputeWorkloadAnalysis", "SchedulerStats")
    seconds: float = 90.0
    most: int = 80_000


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL):
    """Let the profiler look, and return the record. Raises `engines.EngineUnavailable` where there is no GPU."""
    engines.load("cupy_naive")  # or why there is none
    record = results.new("conv_page", plan=asdict(plan), layer=LAYER, which=PASS)
    progress("the profiler, some twenty passes a kernel")
    return results.collect(record, [{"rungs": RUNGS} | _said(plan)], save)


def command(plan):
    """Return the profiler's command line, which names no folder of this machine."""
    options = ["--clock-control", "none", "--cache-control", "none", "--print-details", "all"]
    options += ["--kernel-name", KERNEL, "--launch-skip", str(len(RUNGS)), "--launch-count", str(len(RUNGS))]
    return ["ncu", *options, *chain.from_iterable(("--section", name) for name in plan.sections)]


def _said(plan):
    """Return what the profiler prints, without this machine's paths; or why it prints nothing."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *FOLDERS])
    tool, *options = command(plan)
    program = [sys.executable, "-m", __name__]
    try:
        done = subprocess.run(
            [shutil.which(tool, path=path) or tool, *options, *program],
            cwd=results.ROOT, timeout=plan.seconds, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return {"command": "", "text": "", "why_not": f"{type(error).__name__}: {error}"[:300]}
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "", done.stdout)
    text = re.sub(r"/\S*/(?=[\w.-]+)", "", text)
    text = re.sub(r"\n +[\d.,; ]+\)?(?=\n)", "", text)[: plan.most]  # a number for each count of registers
    said = " ".join([tool, *options, "python", "-m", __name__])
    return {
        "command": said,
        "text": text,
        "why_not": None if done.returncode == 0 else f"it ended with {done.returncode}",
    }


@results.reads
def table(record):
    """Return the record as text for the terminal."""
    return "\n".join(run["text"] or run["why_not"] for run in record["runs"])


def main():
    """Run each pass twice."""
    a, b, _ = problem(LAYERS[LAYER], PASS)
    prepared = [ladder.RUNGS[name].prepare(LAYERS[LAYER], PASS, a, b) for name in RUNGS]
    for each in 2 * prepared:
        each.call()
    print(f"results of {len(prepared)} rungs, {prepared[0].result().shape}")


if __name__ == "__main__":
    main()
