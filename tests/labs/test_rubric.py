"""What solutions, empty labs and typical mistakes earn, and what a student is told."""

import csv
import json
import re
import subprocess
import sys
import tomllib

import nbformat
import pytest
from submissions import LABS, NAMES, ROOT, answer, cell, solved, source

pytest.importorskip("nbgrader", reason="`make test-labs` adds what these tests need")
from labs.grading import release, table
from labs.grading.collect import collect
from labs.grading.judge import BY_HAND, EMPTY, role


@pytest.fixture(scope="session")
def released(tmp_path_factory):
    """Return a folder of labs of its own, with the student versions made."""
    root = tmp_path_factory.mktemp("labs")
    (root / "source").symlink_to(LABS / "source")
    assert release.release(root) == NAMES
    return root


def empty(released, lab):
    return nbformat.read(released / "release" / lab / f"{lab}.ipynb", as_version=4)


@pytest.mark.parametrize("lab", NAMES)
def test_a_solution_earns_full_marks(earned, lab):
    result = earned(lab, solved(lab))
    for made in solved(lab).cells:
        name = made.metadata.get("nbgrader", {}).get("grade_id")
        if role(made) == "test":
            assert result[name] == (made.metadata["nbgrader"]["points"], "right.")
        elif role(made) == "written":
            assert result[name] == (None, f"{BY_HAND}: an answer in words.")


@pytest.mark.parametrize("lab", NAMES)
def test_an_empty_lab_earns_nothing_and_says_why(earned, released, lab):
    for points, says in earned(lab, empty(released, lab)).values():
        assert points == 0
        assert re.search(r"None: is a `return` missing|returns None|left empty|still missing", says)


MISTAKES = {  # what somebody wrote: lab, cell, text, and what it costs, with a piece of what is said
    "little-endian": (
        *("lab00", "shape", "def shape(raw):\n    return np.frombuffer(raw, '<i4', raw[3], 4).tolist()"),
        {"test-shape": "should be", "test-shape-large": "should be"},
    ),
    "only the last byte of each number": (
        *("lab00", "shape", "def shape(raw):\n    return [raw[7 + 4 * i] for i in range(raw[3])]"),
        {"test-shape-large": "more than 255"},
    ),
    "a dimension too few": (
        *("lab00", "shape"),
        "def shape(raw):\n    return [int.from_bytes(raw[4*i:4*i+4], 'big') for i in range(1, raw[3])]",
        {"test-shape": "one too few along axis 0", "test-shape-large": "one too few"},
    ),
    "float64": (
        *("lab00", "scale", "def scale(images):\n    return images.reshape(len(images), -1) / 255"),
        {"test-scale": "float64, and should have float32"},
    ),
    "one mean of all pixels": (
        *("lab00", "means"),
        "def means(X, y, classes=10):\n    return np.array([X[y == c].mean() for c in range(classes)])",
        {"test-means": "added up"},
    ),
    "without the length of the means": (
        *("lab00", "scores", "def scores(X, m):\n    return X @ m.T"),
        {"test-scores": "should be"},
    ),
    "hard-wired to the visible check": (
        *("lab00", "accuracy", "def accuracy(z, y):\n    return 0.75"),
        {"test-accuracy": "all right"},
    ),
    "ReLU in place": (
        *("lab01", "relu", "def relu(z):\n    z[z < 0] = 0\n    return z"),
        {"test-relu": "changed its argument number 1"},
    ),
    "softmax as the formula stands": (
        *("lab01", "softmax", "def softmax(z):\n    e = np.exp(z)\n    return e / e.sum(axis=1, keepdims=True)"),
        {"test-softmax-large": "NaN"},
    ),
    "softmax with one maximum for all rows": (
        *("lab01", "softmax"),
        "def softmax(z):\n    e = np.exp(z - z.max())\n    return e / e.sum(axis=1, keepdims=True)",
        {"test-softmax-large": "NaN"},
    ),
    "softmax over the wrong axis": (
        *("lab01", "softmax", "def softmax(z):\n    e = np.exp(z - z.max(axis=0))\n    return e / e.sum(axis=0)"),
        {"test-softmax": "should be", "test-softmax-large": "large logits"},
    ),
    "the sum of the losses": (
        *("lab01", "cross-entropy"),
        "def cross_entropy(z, labels):\n    z = z - z.max(axis=1, keepdims=True)\n"
        "    return np.sum(np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(z)), labels])",
        {"test-cross-entropy": "two images", "test-cross-entropy-large": "should be"},
    ),
    "the logarithm of a softmax": (
        *("lab01", "cross-entropy"),
        "def cross_entropy(z, labels):\n    e = np.exp(z - z.max(axis=1, keepdims=True))\n"
        "    return -np.log(e[np.arange(len(z)), labels] / e.sum(axis=1)).mean()",
        {"test-cross-entropy-large": "infinite"},
    ),
    "keepdims in the bias gradient": (
        *("lab01", "linear-backward"),
        "def linear_backward(x, W, dz):\n    return x.T @ dz, dz.sum(axis=0, keepdims=True), dz @ W.T",
        {"test-linear-backward": "axis of length 1"},
    ),
    "a one-sided difference": (
        *("lab01", "slopes"),
        "def slopes(f, x, h=1e-5):\n    r = np.zeros_like(x)\n    for i in np.ndindex(x.shape):\n"
        "        u = x.copy()\n        u[i] += h\n        r[i] = (f(u) - f(x)) / h\n    return r",
        {"test-slopes": "should be"},
    ),
    "slopes that leave x nudged": (
        *("lab01", "slopes"),
        "def slopes(f, x, h=1e-5):\n    r = np.zeros_like(x)\n    for i in np.ndindex(x.shape):\n"
        "        x[i] += h\n        up = f(x)\n        x[i] -= 2 * h\n        r[i] = (up - f(x)) / 2e-5\n    return r",
        {"test-slopes": "changed its argument number 2"},
    ),
    "the variance instead of its root": (
        *("lab02", "standard-error", "def standard_error(p, n):\n    return p * (1 - p) / n"),
        {"test-standard-error": "should be"},
    ),
    "ddof forgotten": (
        *("lab02", "resolved"),
        "def resolved(a, b):\n    e = np.sqrt(a.var() / len(a) + b.var() / len(b))\n"
        "    return bool(abs(a.mean() - b.mean()) > 2 * e)",
        {"test-resolved": "just below"},
    ),
    "a difference with a sign": (
        *("lab02", "resolved"),
        "def resolved(a, b):\n    e = np.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b))\n"
        "    return bool(a.mean() - b.mean() > 2 * e)",
        {"test-resolved": "the second one is ahead"},
    ),
    "the old velocity": (
        *("lab02", "momentum", "def momentum(theta, v, g, rate, beta=0.9):\n    return theta - rate * v, v * beta + g"),
        {"test-momentum": "number 1"},
    ),
    "momentum in place": (
        *("lab02", "momentum"),
        "def momentum(theta, v, g, rate, beta=0.9):\n    v *= beta\n    v += g\n    return theta - rate * v, v",
        {"test-momentum": "changed its argument number 2"},
    ),
    "Adam counts from 0": (
        *("lab02", "adam"),
        "def adam(theta, m, v, g, t, rate, beta1=0.9, beta2=0.999, eps=1e-8):\n"
        "    m = beta1 * m + (1 - beta1) * g\n    v = beta2 * v + (1 - beta2) * g**2\n    t = t + 1\n"
        "    return theta - rate * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps), m, v",
        {"test-adam": "first step", "test-adam-later": "third step"},
    ),
    "Adam without its correction": (
        *("lab02", "adam"),
        "def adam(theta, m, v, g, t, rate, beta1=0.9, beta2=0.999, eps=1e-8):\n"
        "    m = beta1 * m + (1 - beta1) * g\n    v = beta2 * v + (1 - beta2) * g**2\n"
        "    return theta - rate * m / (np.sqrt(v) + eps), m, v",
        {"test-adam": "first step", "test-adam-later": "third step"},
    ),
    "Adam right in its first step only": (
        *("lab02", "adam"),
        "def adam(theta, m, v, g, t, rate, beta1=0.9, beta2=0.999, eps=1e-8):\n"
        "    return theta - rate * np.sign(g), (1 - beta1) * g, (1 - beta2) * g**2",
        {"test-adam-later": "third step"},
    ),
    "a cosine that reaches 0": (
        *("lab02", "cosine"),
        "def cosine(peak, steps):\n    return peak * (1 + np.cos(np.linspace(0, np.pi, steps))) / 2",
        {"test-cosine": "should be"},
    ),
    "a mean for a median": (
        *("lab03", "summary"),
        "def summary(seconds, warm_up=1):\n    r = seconds[warm_up:]\n"
        "    return r.mean(), np.quantile(r, 0.75) - np.quantile(r, 0.25)",
        {"test-summary": "late one"},
    ),
    "sorted before the warm-up is left out": (
        *("lab03", "summary"),
        "def summary(seconds, warm_up=1):\n    r = np.sort(seconds)[warm_up:]\n"
        "    return np.median(r), np.quantile(r, 0.75) - np.quantile(r, 0.25)",
        {"test-summary": "should be"},
    ),
    "always the same order": (
        *("lab03", "turns", "def turns(rounds):\n    return np.tile([0, 1], rounds)"),
        {"test-turns": "should be"},
    ),
    "a round too few": (
        *("lab03", "turns", "def turns(rounds):\n    return np.tile([0, 1, 1, 0], rounds // 2)"),
        {"test-turns": "should have"},
    ),
    "the pixels' gradient counted": (
        *("lab03", "flops"),
        "def flops(sizes, n):\n    return sum(6 * n * k * m for k, m in zip(sizes, sizes[1:]))",
        {"test-flops": "is 36, and should be 24"},
    ),
    "additions forgotten": (
        *("lab03", "flops"),
        "def flops(s, n):\n    return sum(3 * n * k * m for k, m in zip(s, s[1:])) - n * s[0] * s[1]",
        {"test-flops": "1/2 of what it should be"},
    ),
    "min for an array": (
        *("lab03", "attainable"),
        "def attainable(intensity, peak, bandwidth):\n    return min(peak, intensity * bandwidth)",
        {"test-attainable": "it raised ValueError"},
    ),
    "the longer of the two sums": (
        *("lab03", "floor"),
        "def floor(operations, bytes_moved, peak, bandwidth):\n"
        "    return max((operations / peak).sum(), (bytes_moved / bandwidth).sum())",
        {"test-floor": "is 6, and should be 7"},
    ),
}


def rounds(lab):
    """Return the mistakes of a lab in lists: each is one submission, with at most one mistake in a cell."""
    result = []
    for name, (which, where, *rest) in MISTAKES.items():
        if which == lab:
            for one in result:
                if where not in {place for _, place, *_ in one}:
                    break
            else:
                one = []
                result.append(one)
            one.append((name, where, *rest))
    return result


@pytest.mark.parametrize(("lab", "mistakes"), [(lab, mistakes) for lab in NAMES for mistakes in rounds(lab)])
def test_a_typical_mistake_costs_what_the_rubric_says(earned, lab, mistakes, subtests):
    notebook = solved(lab)
    for _, where, text, _ in mistakes:
        answer(notebook, where, text)
    result = earned(lab, notebook)
    for name, _, _, costs in mistakes:
        with subtests.test(name):
            for test, said in costs.items():
                assert result[test][0] == 0
                assert said in result[test][1]
    lost = {test for *_, costs in mistakes for test in costs}
    assert {test for test, (points, _) in result.items() if points == 0} == lost
    assert {test for test, (points, _) in result.items() if points is None} == {"explain"}


def test_each_lab_has_typical_mistakes():
    for lab in NAMES:
        assert sum(which == lab for which, *_ in MISTAKES.values()) >= 6


@pytest.mark.parametrize("lab", NAMES)
def test_the_student_version_has_no_solution_in_it(released, lab):
    text = (released / "release" / lab / f"{lab}.ipynb").read_text()
    given = empty(released, lab)
    assert "HIDDEN" not in text
    assert "SOLUTION" not in text
    for made in solved(lab).cells:
        found = [c for c in given.cells if c.id == made.id]
        if role(made) == "solution":
            inner = made.source.split("### BEGIN SOLUTION\n")[1].split("### END SOLUTION")[0]
            for line in filter(None, map(str.strip, inner.split("\n"))):
                assert line not in text
            assert "# Your code here." in found[0].source
        elif role(made) == "written":
            assert found[0].source == EMPTY
        elif role(made) == "test" and "HIDDEN" in made.source:
            assert made.source.split("### BEGIN HIDDEN")[0].strip() == found[0].source.strip()


@pytest.mark.parametrize("lab", NAMES)
def test_a_sheet_keeps_its_promises(lab):
    """90 minutes in all, 20 points, the minutes of each heading, a hint in three steps for each task."""
    cells = solved(lab).cells
    rows = re.findall(r"^\| (\d) \| .+ \| (\d+) \| (\d*) ?\|$", cells[0].source, re.MULTILINE)
    minutes = {number: int(count) for number, count, _ in rows}
    assert 80 <= sum(minutes.values()) <= 90
    stated = re.findall(r"^## (\d)\. .+\((\d+) minutes\)$", "\n".join(c.source for c in cells), re.MULTILINE)
    assert {number: int(count) for number, count in stated} == minutes
    points = sum(c.metadata.get("nbgrader", {}).get("points", 0) for c in cells)
    assert points == sum(int(count or 0) for *_, count in rows) == 20
    hints = tomllib.loads((source(lab).parent / "hints.toml").read_text())
    tasks = re.findall(r'"(\w+)"', cell(solved(lab), "setup").source.split("lab = Lab(")[1].split(")")[0])
    assert list(hints) == tasks
    assert all(len(steps) == 3 for steps in hints.values())


@pytest.mark.parametrize("lab", NAMES)
def test_an_empty_lab_runs_from_top_to_bottom(released, lab):
    """Restart and run all: what is not written yet is named, and nothing stops."""
    folder = released / "release" / lab
    code = "\n".join(c.source for c in empty(released, lab).cells if c.cell_type == "code")
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=100)
    assert not done.returncode, done.stderr
    assert "finish that first" in done.stdout
    assert "0 of " in done.stdout
    assert "measured" not in done.stdout


def test_a_class_is_collected_graded_and_entered(released, tmp_path):
    """Two labs' worth of names, a file that is nobody's, and one that a person must look at."""
    inbox = tmp_path / "inbox"
    (inbox / "ben").mkdir(parents=True)
    nbformat.write(solved("lab01"), inbox / "ada_lab01.ipynb")
    nbformat.write(empty(released, "lab01"), inbox / "ben" / "lab01.ipynb")
    (inbox / "cleo_lab01 (1).ipynb").write_text("{")
    (inbox / "holiday.ipynb").write_text("{}")
    left = collect(inbox, released)
    assert [path.name for path, _ in left] == ["holiday.ipynb"]
    shown = []
    table.grade_all(released, show=shown.append)
    assert sorted(line.split(maxsplit=2)[1:] for line in shown) == [
        ["ada", "17 of 20, and 3 to look by hand"],
        ["ben", "0 of 20"],
        ["cleo", "0 of 20, and 20 to look by hand"],
    ]
    with open(released / "grades" / "lab01.csv") as file:
        rows = list(csv.DictReader(file))
    assert [(row["student"], row["certain"], row[BY_HAND]) for row in rows] == [
        *(("ada", "17", "3"), ("ben", "0", "0"), ("cleo", "0", "20"))
    ]
    assert rows[2]["test-softmax"] == BY_HAND
    page = (released / "feedback" / "ben" / "lab01.md").read_text()
    assert "| test-relu | 0 of 1 | relu: what it returns is None" in page
    with table.Gradebook(f"sqlite:///{released / 'gradebook.db'}", "mlpkit") as book:
        grade = book.find_grade("test-softmax", "lab01", "lab01", "ada")
        assert (grade.auto_score, grade.needs_manual_grade) == (2, False)
        for student, name in (("ada", "explain"), ("cleo", "test-softmax")):
            grade = book.find_grade(name, "lab01", "lab01", student)
            assert (grade.auto_score, grade.needs_manual_grade) == (None, True)
    laid_out = json.loads((released / "autograded" / "ada" / "lab01" / "lab01.ipynb").read_text())
    assert "HIDDEN" not in json.dumps(laid_out)


def test_grading_again_keeps_what_a_person_gave(released):
    with table.Gradebook(f"sqlite:///{released / 'gradebook.db'}", "mlpkit") as book:
        book.find_grade("explain", "lab01", "lab01", "ada").manual_score = 2
        book.db.commit()
    table.grade_all(released, show=lambda line: None)
    with table.Gradebook(f"sqlite:///{released / 'gradebook.db'}", "mlpkit") as book:
        grade = book.find_grade("explain", "lab01", "lab01", "ada")
        assert (grade.manual_score, grade.needs_manual_grade) == (2, False)


def test_an_empty_desk_is_said_so(tmp_path):
    (tmp_path / "source").symlink_to(LABS / "source")
    line = [sys.executable, "-m", "labs.grading", "--labs", str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1
    assert "Nothing to grade" in done.stderr
