"""Honest students, each in their own style: what earns its points in JupyterLab earns them here."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell
from submissions import answer, cell, solved

pytest.importorskip("nbgrader", reason="`make test-labs` adds what these tests need")
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

from labs.grading import submission
from labs.grading.cells import EMPTY, merge, role
from labs.grading.judge import BY_HAND

LAB = "lab01"
FUNCTIONS = ("relu", "relu-backward", "softmax", "cross-entropy", "linear-backward", "slope")
TESTS = {name: [f"test-{name}", f"test-{name}-large"] for name in ("softmax", "cross-entropy")}


def code(name, lab=LAB):
    return cell(solved(lab), name).source


def beside(notebook, name, made, after=1):
    """Put a cell behind another one, or with after=0 before it, and return the notebook."""
    notebook.cells.insert(notebook.cells.index(cell(notebook, name)) + after, made)
    return notebook


def copy_of(made, text):
    """Return a copy of a cell as JupyterLab makes it, with all of its marks, and then another text in it."""
    copied = nbformat.from_dict(made)
    copied.id, copied.source = f"{made.id}-copy", text
    return copied


def assert_right(result, but=()):
    """Check that each test of a function says "right", but those of some."""
    left = {test for name in but for test in TESTS.get(name, [f"test-{name}"])}
    says = {name: says for name, (_, says) in result.items() if name not in left}
    assert says.pop("explain") == f"{BY_HAND}: an answer in words."
    assert set(says.values()) == {"right."}, says


def assert_looked_at(result, name, words):
    for test in TESTS.get(name, [f"test-{name}"]):
        points, says = result[test]
        assert points is None
        assert says.startswith(BY_HAND)
        assert words in says


# What runs in JupyterLab. NAME is the function of the cell.

STYLES = {
    "a timed cell": "%%time\nCODE",
    "a timed line": "%time x = 80\nassert x == 80\nCODE",
    "a command": "!ls\nCODE",
    "a command's output": "x = !echo 1\nassert x == ['1']\nCODE",
    "a question": "np.maximum?\nCODE\nNAME??",
    "in a loop": "for _ in range(2):\n    !true\n    %time pass\nCODE",
    "await": "import asyncio\nawait asyncio.sleep(0)\nasyncio.create_task(asyncio.sleep(0))\nCODE",
    "shown": "display(np.zeros(3))\nCODE\nNAME",
    "pip": "%pip install --quiet nosuchpackage\n!pip --version\nCODE",
    "no such magic": "%autosave 60\n%load_ext line_profiler\n%nosuch\nCODE",
    "a measurement": "CODE\n%timeit NAME\nbest = %timeit -o -n 1 NAME\nassert best.best > 0",
    "a plot": "%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nCODE",
    "another plot": "import matplotlib.pyplot as plt\nplt.imshow(np.eye(2))\nplt.show()\nplt.figure()\nCODE",
    "exit": "exit\nCODE\nexit()",
    "its source": "CODE\nimport inspect\nassert 'def NAME' in inspect.getsource(NAME)",
    "a child": "import os\nif os.fork():\n    os.wait()\nCODE",
    "a pool": "CODE\nimport multiprocessing as m\nwith m.Pool(2) as pool: assert pool.map(abs, [-1]) == [1]",
    "reloaded": "%load_ext autoreload\n%autoreload 2\nCODE",
    "sharp figures": "%config InlineBackend.figure_format = 'retina'\nCODE",
    "figures that move": "%matplotlib widget\nCODE",
    "a table": "numbers = [" + "1.5, " * 5000 + "]\nCODE",
    "careful": "np.seterr(all='raise')\nCODE",
    "captured": "%%capture out\nCODE",
    "a class": "from dataclasses import dataclass\n@dataclass\nclass Point:\n    x: float = 0.0\nPoint()\nCODE",
}
SHARES = [list(STYLES)[first : first + len(FUNCTIONS)] for first in range(0, len(STYLES), len(FUNCTIONS))]


@pytest.mark.parametrize("styles", SHARES, ids=", ".join)
def test_what_runs_in_jupyterlab_runs_here(earned, styles):
    """Each in a cell of its own."""
    notebook = solved(LAB)
    for name, style in zip(FUNCTIONS, styles, strict=True):
        text = STYLES[style].replace("CODE", code(name)).replace("NAME", name.replace("-", "_"))
        answer(notebook, name, text)
    assert_right(earned(LAB, notebook))


def test_files_beside_the_notebook_and_numbas_cache_work(earned):
    notebook = beside(solved(LAB), "relu", new_code_cell("%%writefile helper.py\nfrom numpy import maximum"), 0)
    answer(notebook, "relu", "import helper\ndef relu(z): return helper.maximum(z, 0)")
    compiled = "import numba\n@numba.njit(cache=True)\ndef double(z): return z + z\ndouble(1.0)\n"
    answer(notebook, "slope", compiled + code("slope"))
    assert_right(earned(LAB, notebook))


# What the box lacks is not the student's fault

LACKS = {
    "relu": "import nosuchpackage",
    "relu-backward": "import urllib.request\nurllib.request.urlopen('http://example.org')",
    "softmax": "open('/home/ada/mine.txt')",
    "cross-entropy": "rate = input('rate?')",
}
MAGICS = {
    "relu": "%run mine.py",
    "relu-backward": "%run mine.ipynb",
    "softmax": "%%cython\nimport numpy as np",
    "cross-entropy": "breakpoint()",
}


@pytest.mark.parametrize("lacks", [LACKS, MAGICS])
def test_what_the_box_lacks_is_looked_at_and_costs_nothing_else(earned, lacks):
    notebook = solved(LAB)
    for name, lines in lacks.items():
        answer(notebook, name, f"{lines}\n{code(name)}")
    answer(notebook, "slope", "def slope(f, x, i):\n    import nosuchpackage\n    return 0.0")
    result = earned(LAB, notebook)
    for name in (*lacks, "slope"):
        assert_looked_at(result, name, ", perhaps it runs elsewhere (")
    assert_right(result, (*lacks, "slope"))


def test_a_helper_that_needs_what_the_box_lacks_is_looked_at_with_its_task_alone(earned):
    notebook = answer(solved(LAB), "relu", "def relu(z): return top(z)")
    beside(notebook, "relu", new_code_cell("import nosuchpackage\ndef top(z): return nosuchpackage.maximum(z, 0)"), 0)
    answer(notebook, "slope", "def slope(f, x, i): return 0.0")
    result = earned(LAB, notebook)
    assert_looked_at(result, "relu", "(A cell of their own stopped: ModuleNotFoundError")
    assert result["test-slope"][0] == 0
    assert_right(result, ("relu", "slope"))


def test_a_cell_that_ran_at_home_and_stops_here_is_looked_at(earned):
    notebook = solved(LAB)
    for number, name in enumerate(("relu", "slope")):
        answer(notebook, name, f"import numba as n{number}\nn{number}.set_num_threads(64)\n{code(name)}")
        cell(notebook, name).execution_count = 3
    failed = nbformat.v4.new_output("error", ename="ValueError", evalue="", traceback=[])
    cell(notebook, "slope").outputs = [failed]
    result = earned(LAB, notebook)
    assert_looked_at(result, "relu", ", perhaps it runs elsewhere (ValueError: The number of threads")
    assert result["test-slope"][0] == 0
    assert_right(result, ("relu", "slope"))


@pytest.mark.slow
def test_a_function_that_never_ends_costs_its_own_task_alone(earned):
    result = earned(LAB, answer(solved(LAB), "relu", "def relu(z):\n    while True: pass"))
    assert_looked_at(result, "relu", "TooLong")
    assert_right(result, ("relu",))


# Cells copied, split, deleted, moved, joined, and changed


def test_answers_in_several_cells_and_in_another_order(earned):
    notebook = answer(solved(LAB), "relu", "def relu(z): return top(z, LOWEST)")
    beside(notebook, "relu", copy_of(cell(notebook, "relu"), "def top(a, b): return np.maximum(a, b)"))
    answer(notebook, "relu-backward", "needed = LOWEST\n" + code("relu-backward"))
    notebook.cells.append(new_code_cell("LOWEST = 0"))
    answer(notebook, "softmax", "def softmax(z):\n    # Your code here.\n    pass")
    beside(notebook, "test-softmax-large", new_code_cell(code("softmax")))
    answer(notebook, "cross-entropy", "cross_entropy = 3")
    beside(notebook, "cross-entropy", copy_of(cell(notebook, "cross-entropy"), code("cross-entropy")))
    answer(notebook, "linear-backward", "def linear_backward(x, W, dz): return 0")
    notebook.cells.append(copy_of(cell(notebook, "linear-backward"), code("linear-backward")))
    notebook.cells.append(copy_of(cell(notebook, "slope"), "slope = 3"))
    assert_right(earned(LAB, notebook))


def test_a_deleted_answer_is_looked_at_and_costs_nothing_else(earned):
    notebook = solved(LAB)
    notebook.cells.remove(cell(notebook, "softmax"))
    notebook.cells.remove(cell(notebook, "explain"))
    result = earned(LAB, notebook)
    assert_looked_at(result, "softmax", "the cell 'softmax' is missing, or lost its mark.")
    assert result["explain"] == (None, f"{BY_HAND}: the cell 'explain' is missing, or lost its mark.")
    assert_right(result | {"explain": (None, f"{BY_HAND}: an answer in words.")}, ("softmax",))


@pytest.mark.parametrize("names", [["softmax"], ["setup", "softmax", "train", "test-slope"], None])
def test_cells_that_lost_their_marks(earned, names):
    """None: as in a notebook into which all were copied."""
    notebook = solved(LAB)
    for made in [cell(notebook, name) for name in names] if names else notebook.cells:
        made.metadata.clear()
    assert_right(earned(LAB, notebook))


def test_imports_and_helpers_in_cells_that_were_given_and_in_tests(earned):
    notebook = answer(solved(LAB), "relu", "def relu(z): return top(math.floor(0.5), z)")
    cell(notebook, "setup").source += "\nimport math"
    cell(notebook, "test-predict").source += "\ndef top(a, b): return np.maximum(a, b)\nlab.check = None"
    assert_right(earned(LAB, notebook))


# Answers in words, and pictures


def explained(notebook):
    """Return the cell that a person sees as the answer in words."""
    (found,) = [made for made in merge(solved(LAB), notebook) if role(made) == "written"]
    return found


def with_words(*cells, template=EMPTY):
    notebook = answer(solved(LAB), "explain", template)
    for number, made in enumerate(cells, 1):
        beside(notebook, "explain", made, number)
    return notebook


def test_an_answer_in_a_new_cell_is_looked_at(earned):
    notebook = with_words(new_markdown_cell("It is n times too long."))
    assert earned(LAB, notebook)["explain"] == (None, f"{BY_HAND}: an answer in words.")


def test_an_answer_beside_its_cell_is_put_into_it():
    one, two = new_markdown_cell("One."), new_markdown_cell("Two.")
    assert explained(with_words(one, two)).source == "One.\n\nTwo."
    assert explained(with_words(two, template="One.")).source == "One.\n\nTwo."
    assert explained(with_words(new_code_cell("It is n times too long."))).source == "It is n times too long."
    assert explained(with_words(new_code_cell("1 + 1"), template="One.")).source == "One."
    assert explained(with_words()).source == EMPTY
    assert explained(solved(LAB)).source == code("explain")


def test_an_answer_in_words_anywhere_is_found():
    notebook = with_words()
    notebook.cells[0].source += "\nMy answer."
    notebook.cells.append(new_markdown_cell("And more."))
    assert explained(notebook).source.endswith("My answer.\n\nAnd more.")


def test_a_picture_in_the_text_is_one_that_is_attached(tmp_path):
    """Colab pastes it so: a hundred thousand characters of one line."""
    data, path = "QUFB" * 50_000, tmp_path / "lab01.ipynb"
    nbformat.write(with_words(template=f"![a](data:image/png;base64,{data}) is **my** answer."), path)
    shown = explained(submission.read(path))
    assert shown.source == "![a](attachment:in-the-text-0) is **my** answer."
    assert shown.attachments == {"in-the-text-0": {"image/png": data}}


def page_of(made):
    """Return what Formgrader shows of a cell."""
    return MarkdownWithMath(IPythonRenderer(attachments=made.get("attachments"))).render(made.source)


def test_pictures_are_kept_and_one_that_is_missing_breaks_no_page():
    """Formgrader shows none where a text names a picture that is not attached."""
    pictures = {"image.png": "QUFBQQ==", "image.png ": "QkJCQg==", "my own.png": "Q0NDQw=="}
    cells = [new_markdown_cell(f"![a](attachment:{n.strip().replace(' ', '%20')})") for n in (*pictures, "gone.png")]
    for made, (name, data) in zip(cells, pictures.items(), strict=False):
        made.attachments = {name.strip(): {"image/png": data}}
    shown = explained(with_words(*cells))
    page = page_of(shown)
    assert all(data in page for data in pictures.values())
    for broken in (5, {"image.png": {}}, {"image.png": 5}):
        cells[0].attachments = broken
        for made in merge(solved(LAB), beside(solved(LAB), "relu", nbformat.from_dict(cells[0]))):
            if made.cell_type == "markdown":
                page_of(made)
