"""pip, of whose settings only those count that say how to reach packages: what to install, and where, is not theirs.

In a variable or in a pip.conf, `target`, `prefix` and `root` would lead past .venv, `no-deps` leave out half of it,
`no-binary` compile for hours, `python` take another Python, and `quiet` hide what went wrong.
"""

import ast
import os
import re
import subprocess
import sys

REACH = (
    *("index-url", "extra-index-url", "no-index", "find-links", "trusted-host", "keyring-provider"),
    *("proxy", "cert", "client-cert", "timeout", "default-timeout", "retries", "resume-retries"),
    *("cache-dir", "no-cache-dir", "use-feature", "use-deprecated"),
)
SET_UPS_OWN = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_CONFIG_FILE": os.devnull}


def reach(listed: str) -> dict[str, str]:
    """Return as variables what `pip config list` has of REACH: of the environment, else for installing, else of all."""
    found = {}
    for kind in ("global", "install", ":env:"):
        for name, value in re.findall(rf"^{kind}\.([\w-]+)=(['\"].*)$", listed, re.MULTILINE):
            if name in REACH:
                found[f"PIP_{name.upper().replace('-', '_')}"] = ast.literal_eval(value)
    return found


def main() -> None:
    pip = [sys.executable, "-m", "pip"]
    asked = {name: value for name, value in os.environ.items() if name not in ("PIP_QUIET", "PIP_PYTHON")}
    done = subprocess.run([*pip, "config", "list", "-vvv"], capture_output=True, text=True, env=asked)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    others = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    os.execve(sys.executable, [*pip, *sys.argv[1:]], others | reach(done.stdout) | SET_UPS_OWN)


if __name__ == "__main__":
    main()
