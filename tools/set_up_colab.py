"""What a chapter runs first in Colab: install what it imports, into the Python that Colab has.

The chapters in `colab/`, which `make colab` writes, call this. Jupyter's own parts stay as Colab has them, and so does
each package that pyproject.toml's ranges allow.
"""

import importlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COLABS_OWN = ("jupyterlab", "ipywidgets")
MODULES = {"pillow": "PIL", "cupy-cuda12x": "cupy"}  # where a package's name is not its module's


def main() -> None:
    if not in_colab():  # any other Python would be changed, for all who use it
        sys.exit("This changes the Python that runs it, and is for Colab alone; elsewhere, `make lab` sets up .venv.")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = requirements(project, gpu=shutil.which("nvidia-smi") is not None)
    pip("install", *wanted)
    pip("install", "--no-deps", "--editable", str(ROOT))
    sys.path.insert(0, str(ROOT))  # this process began before that
    if old := outdated(wanted):
        print(f"Loaded before it was renewed: {', '.join(old)}. So the session ends here; choose 'Run all' once more.")
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)  # Colab starts another
    print("The workbook is ready.")


def in_colab() -> bool:
    """Say whether this Python is Colab's, which alone has Colab's own package."""
    return importlib.util.find_spec("google") is not None and importlib.util.find_spec("google.colab") is not None


def requirements(project: dict, gpu: bool) -> list[str]:
    """Return what to install: what the chapters import, CUDA's compiler, and with a GPU CUDA's other libraries."""
    extras = project["optional-dependencies"]
    lines = [line for line in project["dependencies"] if not line.startswith(COLABS_OWN)]
    return lines + [line for line in extras["test"] if line.startswith("nvidia-")] + (extras["gpu"] if gpu else [])


def pip(*arguments: str) -> None:
    """Run pip, which has nothing to say unless it fails. Raises SystemExit with its last lines then."""
    done = subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"pip could not install what the workbook needs:\n{done.stderr[-2000:]}")


def outdated(requirements: list[str]) -> list[str]:
    """Return the modules that this process has loaded in another version than is installed now."""
    importlib.invalidate_caches()
    names = [name[0] for line in requirements if (name := re.match(r"[\w-]+", line))]
    loaded = {name: sys.modules.get(MODULES.get(name, name)) for name in names}
    return [
        MODULES.get(name, name)
        for name, module in loaded.items()
        if module and getattr(module, "__version__", None) not in (None, importlib.metadata.version(name))
    ]


if __name__ == "__main__":
    main()
