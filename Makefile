# Every target first sets up .venv, once: a target that finds it up to date starts at once.
#
#   make run PYTHON=/path/to/python3.12    chooses the Python that .venv is made from
#   make run GPU=no                        leaves the CUDA libraries out where there is a GPU
#   make run GPU=yes                       adds them, to a .venv that lacks them, too
#   make test NOTEBOOKS=notebooks/00*      compares fewer notebooks with what they show
#   make grade INBOX=folder PATTERN=...    takes files whose names say student and lab in a way of their own
#   make site PDF=no                       leaves out the printed chapters, which take half of the time
#
# Works with GNU make 3.81 (macOS) and later.

.DEFAULT_GOAL := help
.PHONY: help run test test-all test-gpu test-labs lab labs grade serve site colab wheelhouse data
.PHONY: check notebooks readme constraints clean
.NOTPARALLEL:

PYTHON ?=
GPU ?= auto
NOTEBOOKS ?= notebooks
PDF ?= yes
ifeq "$(origin GPU)$(filter yes no auto,$(GPU))" "command line"
$(error GPU must be yes, no or auto, not '$(GPU)')
endif
VENV_PYTHON := .venv/bin/python
READY := .venv/set-up-complete

# The stamp is written last and holds this folder's path, so a set-up that was interrupted, a
# checkout that was moved and a Python that is gone, or another, all lead to a new set-up.
ifneq "$(shell $(VENV_PYTHON) -c 'import pip' >/dev/null 2>&1 && cat $(READY) 2>/dev/null)" "$(CURDIR)"
.PHONY: $(READY)
else ifeq "$(GPU)$(wildcard .venv/cuda-complete)" "yes"
.PHONY: $(READY)
endif

# Python's own settings could lead .venv's to packages, or to a library, of another Python, or hide this folder from it;
# or have each of hundreds of processes compile all modules anew, as containers of Python do. And Matplotlib does not start
# where MPLBACKEND names a backend that it has no more, nor shows a figure in the page where it names another.
unexport MPLBACKEND $(filter-out PYTHON PYTHONUTF8 PYTHONIOENCODING,$(filter PYTHON%,$(.VARIABLES)))

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

run: $(READY)  ## time each way to compute one network, train with the fast ones, print the table
	@$(VENV_PYTHON) -m mlpkit bench

# One thread: several that share a small piece of work wait for each other, and on a busy machine for long.
ONE_THREAD := OPENBLAS_NUM_THREADS=1 NUMBA_NUM_THREADS=1
# A process for each core, but no more than a laptop has memory for: one may take two gigabytes.
PYTEST := $(ONE_THREAD) $(VENV_PYTHON) -m pytest -n logical --maxprocesses 4

TESTS = $(PYTEST) --dist loadfile --nbval tests $(NOTEBOOKS) --ignore tests/labs

test: $(READY)  ## run the tests but for slow ones, the notebooks' stored outputs included
	@$(TESTS) -m 'not slow'

test-all: $(READY)  ## run the slow tests, too: sweeps over seeds, sizes and chips, a fresh clone, the site
	@$(TESTS)

test-gpu: $(READY)  ## run the tests that need an NVIDIA GPU, and fail where there is none
	@$(VENV_PYTHON) -c 'import sys; from mlpkit.kernels import gpu; sys.exit(gpu.why_not())'
	@$(VENV_PYTHON) -m pytest -m gpu tests --ignore tests/labs

# JupyterLab refuses root, whom a container or a rented machine may have and nobody else. The kernel `python3` is the
# workbook's, whatever a home folder has under that name, where .venv belongs to somebody else, too.
AS_ROOT = $(if $(filter 0,$(shell id -u 2>/dev/null)),--allow-root)

lab: $(READY)  ## open the workbook in JupyterLab
	@if ! test -w "$${HOME:-}"; then \
	    HOME=$$(mktemp -d) && export HOME; \
	    echo "The home folder can't be written: what Jupyter, CuPy and Numba keep is in $$HOME this time."; \
	fi; \
	for name in JUPYTER_CONFIG_DIR JUPYTER_DATA_DIR JUPYTER_RUNTIME_DIR JUPYTERLAB_SETTINGS_DIR \
	        JUPYTERLAB_WORKSPACES_DIR IPYTHONDIR XDG_CONFIG_HOME XDG_DATA_HOME XDG_CACHE_HOME; do \
	    eval "folder=\$${$$name:-}"; \
	    if test "$$folder" && ! { mkdir -p "$$folder" && test -w "$$folder"; } 2>/dev/null; then \
	        echo "$$name leads to $$folder, which can't be written: it counts for nothing this time."; \
	        unset $$name; \
	    fi; \
	done; \
	$(VENV_PYTHON) -m jupyter trust notebooks/*.ipynb >/dev/null; \
	JUPYTER_PREFER_ENV_PATH=1 $(VENV_PYTHON) -m jupyterlab $(AS_ROOT) notebooks/00_start_here.ipynb

# A network that is trained in a minute, the first time; another one: python -m mlpkit serve NETWORK.npz
serve: .venv/serve-complete  ## train LeNet-5 for two epochs, once, and serve it: a page to draw digits on
	@test -f build/lenet5.npz || { mkdir -p build && $(VENV_PYTHON) -m mlpkit train --model lenet5 --engine numba_conv \
	    --optimizer adam --lr 0.003 --batch-size 32 --epochs 2 --save build/lenet5.npz; }
	@$(ONE_THREAD) $(VENV_PYTHON) -m mlpkit serve build/lenet5.npz

site: .venv/site-complete  ## build the book as a web site, in build/site
	@$(VENV_PYTHON) site/build.py $(if $(filter no,$(PDF)),--no-pdf)

colab: .venv/site-complete  ## write the chapters for Colab, in colab, once site/conf.py has the repository's address
	@$(VENV_PYTHON) site/colab.py

labs: .venv/labs-complete  ## make the labs' student versions, in labs/release
	@$(VENV_PYTHON) -m labs.grading.release

grade: .venv/labs-complete labs  ## collect from the folder INBOX=..., grade each submission in a box, write tables into labs/grades
	@$(VENV_PYTHON) -m labs.grading $(if $(PATTERN),--pattern "$$PATTERN") $(if $(INBOX),"$$INBOX")

test-labs: .venv/labs-complete  ## test the labs: what solutions, mistakes and hostile submissions earn
	@$(PYTEST) --dist worksteal tests/labs

wheelhouse: $(READY)  ## download all packages for machines with no internet: labs/INSTRUCTORS.md says how to use them
	@$(VENV_PYTHON) -m pip download --quiet -c constraints.txt -d build/wheelhouse '.[test,labs]' pip setuptools
	@rm -f build/wheelhouse/mlpkit-*
	@du -sh build/wheelhouse

data: $(READY)  ## download Fashion-MNIST, a second data set, 31 MB
	@$(VENV_PYTHON) -m mlpkit download

check: $(READY)  ## lint, format check, types
	@$(VENV_PYTHON) -m ruff check
	@$(VENV_PYTHON) -m ruff format --check
	@$(VENV_PYTHON) -m mypy

notebooks: $(READY)  ## run every notebook from top to bottom and store its outputs
	@$(VENV_PYTHON) tools/execute_notebooks.py

readme: $(READY)  ## write what README.md and results/README.md have from records and chapters
	@$(VENV_PYTHON) tools/update_readme.py

# One file for Python 3.11-3.13 on Linux, macOS and Windows. `fewest` keeps one version of a package
# for all of them where there is one. An Intel Mac is named where it has no wheel of the newest.
INTEL_MAC := sys_platform == "darwin" and platform_machine == "x86_64"
constraints:  ## renew the pins in constraints.txt (needs uv)
	@printf '%s\n' pip setuptools 'argon2-cffi-bindings<26; $(INTEL_MAC)' | uv pip compile pyproject.toml - \
	    --extra test --extra gpu --extra site --extra labs --extra onnx --extra serve --extra search --universal --python-version 3.11 \
	    --fork-strategy fewest --upgrade --quiet --custom-compile-command 'make constraints' \
	    --output-file constraints.txt

clean:  ## remove .venv and every cache
	@rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
	@find mlpkit experiments notebooks tests tools labs site \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune \
	    -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@PYTHON='$(PYTHON)' GPU='$(GPU)' sh tools/set_up.sh

# What one target alone needs, by the name of its extra in pyproject.toml.
.venv/%-complete: $(READY)
	@sh tools/set_up.sh $*
