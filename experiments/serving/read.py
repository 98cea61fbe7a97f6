"""What the record "serving" says: latency by rate, and the highest rate that a service bears."""

import numpy as np

from experiments.lab import results


def latency(record, share="p99", **wanted):
    """Return a dict by rate of a latency in ms, the median of the rounds; infinity where requests were refused."""
    found: dict = {}
    for run in results.runs(record, kind="rate", **wanted):
        found.setdefault(run["offered"], []).append(run[share] / 1e3 if _is_whole(run) else np.inf)
    return {rate: float(np.median(values)) for rate, values in sorted(found.items())}


def best(record, limit_ms=20, share="p99", **wanted):
    """Return the highest rate at which so many percent take at most `limit_ms`, and less than 1 % is refused; or 0."""
    return max((rate for rate, ms in latency(record, share, **wanted).items() if ms <= limit_ms), default=0)


def cpu_us(record, rate, **wanted):
    """Return the CPU time of an answer in us at a rate, the median of the rounds; NaN where 1 % or more was refused."""
    found = [run["cpu_us"] for run in results.runs(record, kind="rate", offered=rate, **wanted) if _is_whole(run)]
    return float(np.median(found)) if found else np.nan


def _is_whole(run):
    return run["codes"].get("200", 0) >= 0.99 * sum(run["codes"].values()) and not run["unanswered"]


@results.reads
def table(record):
    """Return the record as text for the terminal: a row a service, a body and a rate."""
    lines = [f"{'service':<20}{'body':<6}{'rate':>7}{'p50 ms':>9}{'p99 ms':>9}{'p99.9':>9}{'CPU us':>8}"]
    keys = dict.fromkeys((run["service"], run["body"]) for run in results.runs(record, kind="rate"))
    for name, body in keys:
        columns = [latency(record, share, service=name, body=body) for share in ("p50", "p99", "p99.9")]
        for rate in columns[0]:
            cpu = np.median(
                [r["cpu_us"] for r in results.runs(record, kind="rate", service=name, body=body, offered=rate)]
            )
            times = "".join(f"{column[rate]:9.1f}" for column in columns)
            lines.append(f"{name:<20}{body:<6}{rate:>7,}{times}{cpu:8.0f}")
    for run in (*results.runs(record, kind="closed"), *results.runs(record, kind="open")):
        stalls = "stalls" if run["stalls"] else "as it is"
        p50, p99 = run["p50"] / 1e3, run["p99"] / 1e3
        lines.append(f"{run['kind']:<8}{stalls:<10}{run['got']:8.0f}/s  p50 {p50:.1f}  p99 {p99:.1f} ms")
    for run in results.runs(record, kind="grpc"):
        times = f"p50 {run['p50'] / 1e3:.1f}  p99 {run['p99'] / 1e3:.1f} ms"
        lines.append(f"gRPC, {run['offered']:,.0f}/s  {times}, CPU us {run['cpu_us']:.0f}")
    for run in results.runs(record, kind="overload"):
        lines.append(
            f"overload, {run['offered']:,}/s: {run['codes']}, p99 {run['p99'] / 1e3:.1f} ms, MiB {run['rss_mib']}"
        )
    return "\n".join(lines)
