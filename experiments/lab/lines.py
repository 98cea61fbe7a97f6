"""How much code is an engine? The lines that it adds to NumPy's version, counted from the files themselves.

Counted are the engine's module, its executor's, where there is one of its name, what these import from `engines`,
`executors` and `kernels`, directly or not, and the CUDA C files whose kernels any of them names, with their headers.
Not counted is what all engines share: the baseline, from which each takes what it does not change, and the executor
`plain`; and what only finds a GPU and compiles for it: `gpu`, `driver`, and `mlpkit.kernels` itself. A line counts if
it holds code: blank lines, comments and docstrings are free. A peer's lines are counted in the same way, and include
what the workbook's engines share in `nn`, `optim` and `training`.
"""

import ast
import io
import re
import tokenize
from functools import cache
from pathlib import Path

from mlpkit import engines, kernels

PACKAGE = Path(kernels.__file__).parents[1]
FOLDERS = (PACKAGE / "engines", Path(__file__).parent / "peers")
OURS = (PACKAGE / "engines", PACKAGE / "executors")
COUNTED = (*OURS, *FOLDERS[1:], kernels.FOLDER)
SHARED = [kernels.FOLDER / "gpu.py", kernels.FOLDER / "driver.py", *(folder / "__init__.py" for folder in COUNTED)]
NOT_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
LONGEST = 100  # letters of a name: file systems refuse to look for much longer ones
COMMENT_IN_C = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def of(name):
    """Return how many lines of code the engine or peer called `name` adds to the baseline; 0 for the baseline."""
    return sum(count(path) for path in files(name))


def files(name):
    """Return the paths of the files that are counted for an engine or a peer, sorted by name.

    Nothing is imported: an engine need not be able to run here. Raises ValueError where there is no such module.
    """
    if not place(name):
        raise ValueError(f"there is no engine and no peer {name!r} in {' or '.join(map(str, FOLDERS))}.")
    return with_needed(file for folder in (*FOLDERS, *OURS[1:]) if (file := folder / f"{name}.py").is_file())


def with_needed(paths):
    """Return files of Python with all that is counted of what they need, directly or not, sorted by name."""
    found, waiting = set[Path](), list(paths)
    while waiting:
        path = waiting.pop()
        if path not in found and not _shared(path):
            found.add(path)
            waiting += _needs(path)
    return sorted(found, key=lambda path: (path.name, path))


def count(path):
    """Return how many lines of a Python or CUDA C file hold code."""
    return count_text(path.read_text(encoding="utf-8"), path.suffix == ".py")


@cache
def count_text(text, python=True):
    """Return how many lines of a text in Python, or else in CUDA C, hold code."""
    if not python:
        return sum(bool(line.strip()) for line in COMMENT_IN_C.sub(_newlines, text).splitlines())
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {line for token in tokens if token.type not in NOT_CODE for line in range(token.start[0], token.end[0] + 1)}
    return len(lines - _docstrings(text))


def place(name):
    """Return the file of an engine or a peer, None where there is none. name: any object, such as a record's."""
    if not isinstance(name, str) or not name.isidentifier() or len(name) > LONGEST:
        return None
    return next((file for folder in FOLDERS if (file := folder / f"{name}.py").is_file()), None)


def _shared(path):
    """Say whether a file is the baseline, in the engines' or executors' folder and no engine's, or what all share."""
    no_engine = path.parent in OURS and path.stem not in engines.names()
    return path.stem == engines.BASELINE or no_engine or path in SHARED


def _needs(path):
    """Return the files that one needs: modules that it imports, CUDA C whose kernels it names, and headers."""
    if path.suffix != ".py":
        return kernels.headers(path)
    return _named(path, path.read_text(encoding="utf-8"))


@cache
def _named(path, text):
    """Return the files that a file of Python with that text needs."""
    needed, files = [], {file.stem: file for file in kernels.FOLDER.glob("*/*.cu")}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            needed += _modules(path, node)
        needed += [files[name] for name in _said(node) if name in files]
    return needed


def _modules(path, node):
    """Return the counted files that an import statement of a file names, as modules or as what they hold."""
    start = path.parents[node.level - 1] if node.level else PACKAGE.parent
    base = start.joinpath(*(node.module or "").split("."))
    named = [base / f"{alias.name}.py" for alias in node.names]
    found = [base.with_suffix(".py"), *(file if file.is_file() else base / "__init__.py" for file in named)]
    return [file for file in found if file.is_file() and any(folder in file.parents for folder in COUNTED)]


def _said(node):
    """Return the constants that a call is given first, or that an assignment gives names to."""
    values = node.args[:1] if isinstance(node, ast.Call) else [node.value] if isinstance(node, ast.Assign) else []
    values = [each for value in values for each in (value.elts if isinstance(value, ast.Tuple) else [value])]
    return [value.value for value in values if isinstance(value, ast.Constant)]


def _docstrings(text):
    """Return the numbers of the lines of a Python text that are docstrings."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    bodies = [node.body for node in ast.walk(ast.parse(text)) if isinstance(node, kinds) and node.body]
    firsts = [body[0] for body in bodies if isinstance(body[0], ast.Expr)]
    strings = [first for first in firsts if isinstance(getattr(first.value, "value", None), str)]
    return {line for first in strings for line in range(first.lineno, (first.end_lineno or 0) + 1)}


def _newlines(match):
    return "\n" * match[0].count("\n")
