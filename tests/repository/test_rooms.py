"""A file's folder says what it may import, no import climbs back up or in a circle, and files can be read."""

import ast
import json
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

LONGEST, LONGEST_CUDA = 40, 80  # lines of a function
AN_EVENING = 3_000  # lines that are not blank, of what one training imports
NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|^[ \t]*#(?:\\\n|[^\n])*', re.DOTALL | re.MULTILINE)
HAS_MEMBERS = re.compile(r"\b(namespace|struct|class|union|enum|extern)\b")
ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "mlpkit"
FLOORS = (  # the lowest first
    "checks files npz paths words interrupts",
    "kernels",
    "engines",
    "boxes data nn machine",
    "optim",
    "executors",
    "course onnx_io plots serving training",
    "parallel search",
    "__main__",
    "experiments",
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms.split()}
MODULES = {
    path.relative_to(ROOT).with_suffix("").parts: path
    for package in ("mlpkit", "experiments")
    for path in (ROOT / package).rglob("*.py")
}
MODULES = {parts[:-1] if parts[-1] == "__init__" else parts: path for parts, path in MODULES.items()}


def imported(parts, path, top_level=False):
    """Yield the modules of the package that one imports, as tuples of names; top_level: as it is imported itself."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body if top_level else ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            package = parts if path.stem == "__init__" else parts[:-1]
            start = package[: len(package) - node.level + 1] if node.level else ()
            base = (*start, *(node.module or "").split(".")) if node.module else start
            for found in [(*base, alias.name) for alias in node.names] + [base]:
                if found in MODULES and found != parts:
                    yield found


def room(parts):
    return parts[1] if len(parts) > 1 and parts[0] == "mlpkit" else parts[0]


def test_every_room_has_its_floor():
    assert {room(parts) for parts in MODULES} - {"mlpkit"} == set(FLOOR)


def test_no_import_climbs_back_up():
    arrows = {(parts, found) for parts, path in MODULES.items() for found in imported(parts, path)}
    assert len(arrows) > 300
    climbing = [
        f"{'.'.join(one)} imports {'.'.join(other)}"
        for one, other in sorted(arrows)
        if len(one) > 1 and len(other) > 1 and FLOOR[room(one)] < FLOOR[room(other)]
    ]
    assert not climbing


def test_no_files_import_each_other_in_a_circle():
    """A package's own file may import what lies in it: that arrow is left out."""
    graph = {
        parts: {
            found
            for found in imported(parts, path, True)
            if found[: len(parts)] != parts and found != parts[: len(found)]
        }
        for parts, path in MODULES.items()
    }
    list(TopologicalSorter(graph).static_order())  # raises CycleError


def test_a_function_fits_a_screen():
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in MODULES.values()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= LONGEST
    ]
    assert not long


def functions(cuda):
    """Yield (first line, last line) of each function in CUDA C, from its return type or template on.

    A brace that follows a parameter list begins one, wherever it stands: in the file, a namespace, a struct or a block
    of `extern "C"`. What lies inside of a function (lambdas, loops) is a part of it.
    """
    code = NOT_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), cuda)
    begin, parentheses, around = 0, 0, []  # begin: of what is being read; around: the braces that it stands in
    for at, character in enumerate(code):
        parentheses += {"(": 1, ")": -1}.get(character, 0)
        if character == "{":
            head = code[begin:at]
            first = begin + len(head) - len(head.lstrip())
            kind = "function" if re.search(r"\)\s*(const)?\s*$", head) else HAS_MEMBERS.search(head) and "members"
            around.append((kind, first))
        elif character == "}":
            kind, first = around.pop()
            if kind == "function" and all(outer == "members" for outer, _ in around):
                yield code.count("\n", 0, first) + 1, code.count("\n", 0, at) + 1
        if character in "{}" or (character == ";" and not parentheses):
            begin = at + 1
    assert not around


CUDA = """// void comment() {
#define LOOP(i) for (;;) { \\
    i
template <int N>
inline void first(int (&x)[N])
{
    auto lambda = [&](int i) { return "}"; };
    for (int i = 0; i < N; ++i) { lambda(i); }
}
namespace inside {
constexpr int SIZES[] = {1, 2};
struct Tile {
    float at[2] = {};
    __device__ Tile(int x, int y)
        : x(x), y(y)
    {
    }
    int rows() const {
        return 1;
    }
};
}  // namespace inside
extern "C" {
__global__ __launch_bounds__(256, 1)
void kernel(const int* x) {
    /* } */
}
}
"""


def test_functions_in_namespaces_and_structs_are_found():
    assert list(functions(CUDA)) == [(4, 9), (14, 17), (18, 20), (24, 27)]


def test_a_function_of_cuda_c_fits_two_screens():
    files = [path for suffix in ("cu", "cuh") for path in PACKAGE.rglob(f"*.{suffix}")]
    found = [(path, *lines) for path in files for lines in functions(path.read_text(encoding="utf-8"))]
    assert len(found) > 700
    long = [f"{path.name}:{first} {last - first + 1}" for path, first, last in found if last - first >= LONGEST_CUDA]
    assert not long


TRAINING = """
import json, sys
from mlpkit import data
from mlpkit.training.recipe import Recipe
digits = data.load()
few = [data.Split(part.X[:128], part.y[:128]) for part in (digits.train, digits.validation)]
Recipe(epochs=1).train(digits._replace(train=few[0], validation=few[1]))
print(json.dumps([module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "mlpkit"]))
"""


def test_what_a_student_reads_in_an_evening_stays_that_long():
    """Counted is what is imported for one training with NumPy, whichever folder it is in."""
    found = subprocess.run([sys.executable, "-c", TRAINING], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = json.loads(found.stdout)
    assert len(paths) > 20
    lines = sum(bool(line.strip()) for path in paths for line in Path(path).read_text(encoding="utf-8").splitlines())
    assert lines <= AN_EVENING
