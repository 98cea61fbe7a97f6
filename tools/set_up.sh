#!/bin/sh
# Make .venv and install into it what pyproject.toml asks for, at the versions in constraints.txt.
# `make` calls this; the stamp it looks for is the last thing written here.
set -eu
cd "$(dirname "$0")/.."

suitable='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'
find_python() {
    if [ -n "${PYTHON:-}" ]; then
        set -- "$PYTHON"
    else
        set -- python3 python3.13 python3.12 python3.11 python
    fi
    for candidate; do
        "$candidate" -c "$suitable" >/dev/null 2>&1 || continue
        without_venv=$candidate
        "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1 || continue
        echo "$candidate"
        return
    done
    if [ -n "${without_venv:-}" ]; then
        echo "$without_venv cannot make virtual environments:" \
            "on Debian and Ubuntu, 'sudo apt-get install python3-venv' adds what is missing." >&2
    elif [ -n "${PYTHON:-}" ]; then
        echo "$PYTHON is not a Python 3.11, 3.12 or 3.13, which the workbook needs." >&2
    else
        echo "The workbook needs Python 3.11, 3.12 or 3.13, and there is none on the PATH:" \
            "install one, or name it with 'make run PYTHON=/path/to/python3'." >&2
    fi
    return 1
}

if [ -x .venv/bin/python ] && [ "$(cat .venv/set-up-complete 2>/dev/null)" = "$(pwd -P)" ]; then
    echo "pyproject.toml or constraints.txt changed: updating .venv"
else
    # A half-made environment can look whole to pip, so start over; downloads are kept in its cache.
    python=$(find_python)
    echo "Setting up .venv with $("$python" --version) (once, about a minute and 1.4 GB)"
    "$python" -m venv --clear .venv
fi
rm -f .venv/set-up-complete .venv/cuda-complete

# A driver before 525 can't run CUDA 12, whose libraries would be 2 GB in vain; a broken one can answer anything, or
# never. `python -m mlpkit doctor` says what is wrong with it.
extras=test
case "${GPU:-auto}" in
no) ;;
yes) extras=test,gpu ;;
*)
    driver=$(timeout 60 nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)
    case "${driver%%.*}" in
    '' | *[!0-9]*) ;;
    *)
        if [ "${driver%%.*}" -ge 525 ]; then
            echo "Found an NVIDIA GPU ('GPU=no' leaves the CUDA libraries out)"
            extras=test,gpu
        else
            echo "Found an NVIDIA GPU, but its driver $driver is too old for CUDA 12: install 525 or newer," \
                "then 'make run GPU=yes'"
        fi
        ;;
    esac
    ;;
esac
if [ "$extras" = test,gpu ]; then
    echo "Adding the CUDA libraries (2 GB more)"
fi

# A pip that is set to install with --user would fail in .venv. PYTHONWARNINGS: the build backend
# warns, at length, of what an editable install is.
export PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1
pip() { PYTHONWARNINGS=ignore .venv/bin/python -m pip "$@"; }
# pip first: from 25.1 on it shows a progress bar while it installs, too. With setuptools in place
# there is nothing to download for building mlpkit.
pip install --quiet --upgrade -c constraints.txt pip setuptools
pip install --no-build-isolation -c constraints.txt -e ".[$extras]"

# Matplotlib lists the fonts once; in a notebook it would say so, in the middle of a page.
.venv/bin/python -c 'import matplotlib.font_manager'

if [ "$extras" = test,gpu ]; then
    touch .venv/cuda-complete
fi
pwd -P >.venv/set-up-complete
