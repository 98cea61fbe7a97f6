"""What the record "sharpen" says. No pictures are needed."""

import numpy as np

from experiments.lab import results

# Means of Set14, PSNR in dB. Bicubic and SRCNN, trained on ImageNet: Dong, Loy, He and Tang (TPAMI 2016), table 3; from
# Kim, Lee and Lee (CVPR 2016) on most have 30.24, 27.55, 26.00 and 32.42, 29.28, 27.49. FSRCNN, trained on T91 and
# General-100: Dong, Loy and Tang (ECCV 2016), table 4. All are quoted as others quote them.
PUBLISHED = {
    "bicubic": {2: 30.23, 3: 27.54, 4: 26.00},
    "SRCNN, 9-5-5": {2: 32.45, 3: 29.30, 4: 27.50},
    "FSRCNN": {2: 32.63, 3: 29.43, 4: 27.59},
}


def published(name, scale):
    """Return what a paper has as the mean of Set14, in dB."""
    return PUBLISHED[name][scale]


def mean(record, kind, scale, data="t91", quality="psnr"):
    """Return the means over the pictures, one a seed, of a kind of network."""
    return np.array(
        [
            np.mean(list(run[quality].values()))
            for run in record["runs"]
            if (run["kind"], run["scale"]) == (kind, scale) and run["data"] in (None, data)
        ]
    )


@results.reads
def table(record):
    """Return the record as a table for the terminal: means of all pictures, and of seeds, dB."""
    kinds = dict.fromkeys((run["kind"], run["data"]) for run in record["runs"])
    scales = sorted({run["scale"] for run in record["runs"]})
    lines = [f"{'mean PSNR, dB':<24}" + "".join(f"{f'x{scale}':>16}" for scale in scales)]
    for kind, data in kinds:
        cells = [mean(record, kind, scale, data) for scale in scales]
        told = ["-" if not len(cell) else f"{cell.mean():.2f}" + (f" ±{cell.std(ddof=1):.2f}" if len(cell) > 1 else "")
                for cell in cells]  # fmt: skip
        lines.append(f"{kind + (f', {data}' if data else ''):<24}" + "".join(f"{each:>16}" for each in told))
    lines += [f"{name + ', published':<24}" + "".join(f"{of[scale]:>16.2f}" for scale in scales)
              for name, of in PUBLISHED.items()]  # fmt: skip
    return "\n".join(lines)
