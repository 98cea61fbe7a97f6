"""What a kernel takes of a multiprocessor, as the assembler `ptxas` says it: for a chip that need not be here."""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from mlpkit import kernels


@dataclass(frozen=True)
class Resources:
    """What a kernel takes: registers a thread, bytes of shared memory a block, and bytes a thread spilled to memory."""

    registers: int
    shared_bytes: int
    spilled_bytes: int


def resources(name, arch="sm_90", **macros):
    """Return the `Resources` of each kernel in `<name>.cu` on a chip, a dict by the kernel's name in the PTX.

    Raises FileNotFoundError where `ptxas` is not installed.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "code.ptx"
        path.write_text(kernels.ptx(name, arch, **macros))
        chip = kernels.exactly(name, arch)
        command = [kernels.ptxas(), "-v", f"-arch={chip}", str(path), "-o", f"{folder}/code.cubin"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return dict(_read_report(said))


def _read_report(said):
    """Yield (kernel, Resources) from what `ptxas -v` printed."""
    for part in said.split("Compiling entry function '")[1:]:
        numbers = [
            int(found[1]) if (found := re.search(pattern, part)) else 0
            for pattern in (r"Used (\d+) registers", r"(\d+) bytes smem", r"(\d+) bytes spill stores")
        ]
        yield part.partition("'")[0], Resources(*numbers)
