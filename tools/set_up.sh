#!/bin/sh
# Make .venv and install into it what pyproject.toml asks for, at the versions in constraints.txt.
# `make` calls this; the stamp it looks for is the last thing written here. What pip says goes into a log: a terminal
# gets one line of progress, which is written over, and a pipe only the lines that stay.
# With an argument it adds that extra of pyproject.toml, which one target alone needs, to a .venv that is set up.
set -eu
unset CDPATH # it would lead past this folder
cd "$(dirname "$0")/.."
# Python's own settings could lead it to packages, or to a library, of another Python, or have it wait for somebody who
# types; and Matplotlib does not start where this names a backend that it has no more.
unset MPLBACKEND $(env | sed -n 's/^\(PYTHON[A-Z0-9_]\{1,\}\)=.*/\1/p')
log=.venv/set-up.log
stamp=.venv/${1:-set-up}-complete
began=$(date +%s)

show() { if [ -t 1 ]; then printf '\r%-78.78s\r' "${1:+  $1}"; fi; }

unreachable() {
    echo "pip can't reach the package index: check the internet connection (and HTTPS_PROXY, where a network" \
        "needs a proxy), then give the same command again; what was downloaded is kept."
}

# Say what a student can do about trouble, which $1 tells in pip's words or Python's.
advise() {
    show
    case $1 in
    *'No space left on device'* | *'Disk quota exceeded'*)
        echo "There is no room left: set-up needs 2 GB in $(pwd -P) (4 GB with CUDA's libraries) and 1 GB in" \
            "${TMPDIR:-/tmp} and in pip's cache; make room, then give the same command again."
        ;;
    *'Permission denied'* | *'Read-only file system'* | *'Operation not permitted'*)
        if [ -w . ]; then
            echo "$(id -un) may not write in a folder that the lines above name: make it yours, or remove .venv," \
                "then give the same command again."
        else
            echo "$(id -un) may not write in $(pwd -P): move the workbook to a folder of your own, such as" \
                "${HOME:-your home}, and give the same command there."
        fi
        ;;
    *'No usable temporary directory'*)
        echo "There is no folder for temporary files: set the variable TMPDIR to one that can be written," \
            "then give the same command again."
        ;;
    *'CA certificate bundle, invalid path'*)
        echo "A variable names a file of certificates that is not there: unset PIP_CERT, REQUESTS_CA_BUNDLE and" \
            "CURL_CA_BUNDLE, or mend their path, then give the same command again."
        ;;
    *'certificate is not yet valid'* | *'certificate has expired'*)
        echo "By this machine's clock it is $(date), when a certificate on the way to the package index is not valid:" \
            "set the clock right (if it is, ask who runs the network), then give the same command again."
        ;;
    *CERTIFICATE_VERIFY_FAILED* | *'certificate verify failed'*)
        echo "Something between here and the package index answers in its place, as the filter of a school or firm" \
            "does, with a certificate that pip does not trust: ask who runs the network for that certificate's file," \
            "set the variable PIP_CERT to its path, then give the same command again."
        ;;
    *'from versions: none'* | *'Cannot install pip'*)
        if [ "${PIP_NO_INDEX:-0}" != 0 ]; then
            echo "The folder ${PIP_FIND_LINKS:-of PIP_FIND_LINKS, a variable that is not set,} lacks a package: 'make" \
                "wheelhouse' fills one, on the same system, with the same minor version of Python and this workbook."
        else
            unreachable
        fi
        ;;
    *onnect* | *'timed out'* | *SSLError* | *ProxyError*) unreachable ;;
    *) echo "The set-up failed, and the lines above say why; the same command begins it anew." ;;
    esac >&2
}

# Run a command that has nothing to say unless it fails.
quietly() {
    trouble=$("$@" 2>&1) && return
    show
    echo "$trouble" >&2
    advise "$trouble"
    exit 1
}

interrupted() {
    show
    echo "Interrupted: .venv is half made, and the same command begins it anew; what was downloaded is kept." >&2
    exit 130
}
trap interrupted INT

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

# Two at once would take each other's .venv to pieces. This file is the lock, open for writing, as NFS wants it; macOS
# has no `flock`.
if [ -w tools/set_up.sh ] && command -v flock >/dev/null; then
    exec 9<>tools/set_up.sh
    status=0
    flock -n 9 2>/dev/null || status=$?
    if [ "$status" = 1 ]; then
        echo "Another set-up is at work in this folder: waiting for its end"
        flock 9
        [ "$(cat "$stamp" 2>/dev/null)" != "$(pwd -P)" ] || exit 0
    fi
fi

if [ $# = 1 ]; then
    echo "Adding to .venv what 'make $1' needs: once"
elif [ "$(cat .venv/set-up-complete 2>/dev/null)" = "$(pwd -P)" ] && .venv/bin/python -c 'import pip' 2>/dev/null; then
    echo "pyproject.toml or constraints.txt changed: updating .venv"
else
    # A half-made environment can look whole to pip, so start over; downloads are kept in its cache.
    python=$(find_python)
    "$python" tools/why_not_here.py
    echo "Setting up .venv with $("$python" --version): once, about a minute, 0.5 GB to download, 1.4 GB on the disk"
    show 'making .venv'
    [ -d .venv ] || quietly rm -f .venv # a file, or a link to nowhere
    quietly "$python" -m venv --clear --without-pip .venv
    quietly .venv/bin/python -m ensurepip --upgrade --default-pip # venv's own call would not say what went wrong
fi
if [ $# = 0 ]; then
    quietly rm -f .venv/*-complete
fi
quietly rm -f "$stamp" "$log"
quietly touch "$log"

# A driver before 525 can't run CUDA 12, whose libraries would be 2 GB in vain; a broken one can answer anything, or
# never. `python -m mlpkit doctor` says what is wrong with it.
extras=${1:-test}
case "$#:${GPU:-auto}" in
1:* | 0:no) ;;
0:yes) extras=test,gpu ;;
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
                "then 'make run GPU=yes' (a Kepler GPU has none after 470, so it can't be used here)"
        fi
        ;;
    esac
    ;;
esac
if [ "$extras" = test,gpu ]; then
    echo "Adding the CUDA libraries (2 GB more)"
fi

# PYTHONWARNINGS: the build backend warns, at length, of what an editable install is.
pip() {
    {
        trap : INT # pip ends by itself, and what it says then is read
        status=0
        PYTHONWARNINGS=ignore .venv/bin/python tools/pip.py "$@" 2>&1 </dev/null || status=$?
        echo "pip ended with $status"
    } | follow
}

# Read what pip says, keep it in the log, and show how far it is; end as pip ended.
follow() {
    trap '' INT
    what='' counting='' trouble='' status=1
    while IFS= read -r line; do
        case $line in
        'Progress '*' of '*)
            megabytes=${line##* }
            line=${line#* }
            show "downloading $what, $((${line%% *} / 1000000)) of $((megabytes / 1000000)) MB"
            continue # of no use in a log
            ;;
        'pip ended with '*)
            status=${line##* }
            break
            ;;
        *' Downloading '*)
            what=${line#* Downloading }
            what=${what%%-*}
            ;;
        'Collecting '*)
            what=${line#* }
            show "collecting ${what%%[ <>=[]*}"
            ;;
        'Installing collected packages: '*)
            packages=$(($(printf '%s' "$line" | tr -cd , | wc -c) + 1))
            if [ "$packages" -gt 2 ]; then # not pip and setuptools
                echo "  installing $packages packages"
                count_installed &
                counting=$!
            fi
            ;;
        *'Retrying (Retry'*) show 'waiting for the network' ;;
        esac
        printf '%s\n' "$line" >>"$log"
        case $line in
        *ERROR* | *WARNING* | *rror:* | *certificate* | *KeyboardInterrupt*) trouble="$trouble $line" ;;
        esac
    done 2>/dev/null # a full disk, which pip tells of itself
    [ -z "$counting" ] || kill "$counting" 2>/dev/null || :
    show
    case $status:$trouble in
    0:*) ;;
    *'cancelled by user'* | *KeyboardInterrupt*) return 130 ;;
    *)
        tail -n 8 "$log" | cut -c 1-300 >&2
        echo "(These are the last lines of $(pwd -P)/$log.)" >&2
        advise "$trouble"
        return 1
        ;;
    esac
}

# pip installs in silence: count, once a second, what came to be. `follow` ends this, or the script's end.
count_installed() {
    [ -t 1 ] || return 0
    before=$(count_there)
    while kill -0 $$ 2>/dev/null; do
        show "installed $(($(count_there) - before)) of $packages"
        sleep 1
    done
}
count_there() {
    set -- .venv/lib/python3*/site-packages/*.dist-info
    echo $#
}

# pip first: one older than 24.1 can't write its progress for others to read. With setuptools in place there is
# nothing to download for building mlpkit.
pip install --progress-bar off --upgrade -c constraints.txt pip setuptools
echo '  collecting packages'
pip install --progress-bar raw --no-build-isolation -c constraints.txt -e ".[$extras]"

# Matplotlib lists the fonts once; in a notebook it would say so, in the middle of a page.
show 'listing the fonts'
quietly .venv/bin/python -c 'import matplotlib.font_manager'
show

if [ "$extras" = test,gpu ]; then
    touch .venv/cuda-complete
fi
pwd -P >"$stamp"
echo "Successfully installed in $(($(date +%s) - began)) s; pip's whole output is in $log"
