"""What the record "gpu_image_limit" says. No GPU is needed."""

from experiments.lab import results

TITLE = f"{'us a step, by batch size':<32}"


def of(record, kind, **wanted):
    """Return the one run of a kind that has all of the given values. Raises LookupError where there is none."""
    for run in results.runs(record, kind=kind, **wanted):
        return run
    which = " and ".join(f"{name} {value!r}" for name, value in wanted.items())
    raise LookupError(f"this record has no run of the kind {kind!r}" + (f" with {which}." if which else "."))


def step_us(record, variant, batch_size=128, clock="samples_us"):
    """Return the median of the microseconds of a step. clock: samples_us, the GPU's, or host_us."""
    return results.median(of(record, "step", way=variant, batch_size=batch_size), clock)


@results.reads
def table(record):
    """Return the record as a table for the terminal."""
    sizes = record["settings"]["plan"]["batch_sizes"]
    lines = [TITLE + "".join(f"{size:>8}" for size in sizes)]
    steps = results.runs(record, kind="step")
    for variant in dict.fromkeys(run["way"] for run in steps):
        found = {run["batch_size"]: results.median(run) for run in steps if run["way"] == variant}
        lines.append(f"{variant:<32}" + "".join(_us(found.get(size)) for size in sizes))
    for run in results.runs(record, kind="changed"):
        name = f"one kernel, {run['macro']}={run['value']}"
        lines.append(
            f"{name:<32}" + "".join(_us(results.median(run) if run["batch_size"] == n else None) for n in sizes)
        )
    for run in results.runs(record, kind="apart"):
        name = f"kernel {run['kernel']} alone"
        lines.append(
            f"{name:<32}" + "".join(_us(results.median(run) if run["batch_size"] == n else None) for n in sizes)
        )
    for run in results.runs(record, kind="stages"):
        lines += ["", f"blocks {run['block']}, batch {run['batch_size']}", *_stage_lines(run)]
    return "\n".join(lines)


def _us(us):
    return f"{'-':>8}" if us is None else f"{us:>8.2f}"


def _stage_lines(run):
    facts = zip(run["names"], run["ns"], run["when"], run["last"], strict=True)
    return [f"    {name:<54}{ns:>7,.0f} ns, at {when:>7,.0f}, last {last:>7,.0f}" for name, ns, when, last in facts]
