"""Checks of a lab: they name the symptom, give nothing away, and survive whatever they are handed."""

import ast
import itertools
import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from nbclient import NotebookClient
from numba import njit

from mlpkit.course import Lab, case
from mlpkit.course import __file__ as room
from mlpkit.course.differences import difference
from mlpkit.course.verdicts import judge, judge_value

M = np.arange(6.0).reshape(2, 3)


class Boom(BaseException):
    pass


def explode(*_, **__):
    raise Boom


NAMES = """__eq__ __ne__ __lt__ __bool__ __len__ __iter__ __next__ __getitem__ __array__ __repr__ __str__ __hash__
__float__ __int__ __index__ __getattribute__ __getattr__ __array_ufunc__ __array_function__ __format__ __sub__ __rsub__
__call__ __array_interface__ __array_finalize__ __length_hint__ shape dtype""".split()  # noqa: SIM905
BASES = (object, float, int, str, list, tuple, dict, np.ndarray, np.float64, Exception)
WRAPPED = (lambda x: x, lambda x: [x], lambda x: (1.0, x), lambda x: [[x]], lambda x: lambda *_: x, lambda x: type(x))


@st.composite
def hostile(draw):
    """What to make a hostile object of. Hypothesis shows what it drew, and would call the object's methods."""
    drawn = st.sampled_from(range(len(BASES))), st.sampled_from(range(len(WRAPPED)))
    return draw(st.sets(st.sampled_from(NAMES), min_size=1)), *map(draw, drawn)


def build(names, base, wrapped):
    """Return an object whose methods raise, and its type's too, alone or in something."""
    methods = dict.fromkeys(sorted(names), explode) | {"__class__": property(explode)}
    own = dict.fromkeys(["__eq__", "__instancecheck__", "__getattribute__", "__repr__"], explode)
    meta = type("Meta", (type,), own | {"__hash__": type.__hash__})
    kind = meta("Hostile", (BASES[base],), methods)
    new = BASES[base].__new__
    try:
        value = new(kind, 2) if BASES[base] is np.ndarray else new(kind)
    except Boom:  # __array_finalize__
        value = kind
    return WRAPPED[wrapped](value)


def endless():
    while True:
        yield 0.0


def circular():
    rows = []
    rows.append(rows)
    return rows


ODD = [
    *(
        None,
        ...,
        print,
        explode,
        endless(),
        itertools.count(),
        circular(),
        "1",
        b"1",
        {1: 2},
        {1},
        object(),
        type,
        10**400,
    ),
    *([1, [2, 3]], [[1, 2], [3]], [10**400], [None], np.array([None]), np.array("a"), np.datetime64("2020"), 1j, True),
    *(
        np.zeros((2, 0)),
        np.ma.masked_array(M),
        np.zeros(3, "i4,f8"),
        float("nan"),
        -0.0,
        [[[[[[[[[1.0]]]]]]]]],
    ),
    *(np.broadcast_to(0.0, (10**6, 10**6)), range(3), memoryview(b"abc"), np.longdouble(3), [0.0] * 110_000, M.T),
]


anything = arrays.arrays(arrays.scalar_dtypes(), arrays.array_shapes(max_side=3))


@settings(max_examples=200, deadline=None)
@given(hostile() | st.sampled_from(range(len(ODD))) | anything)
def test_no_check_fails_for_what_it_is_given(drawn):
    thing = build(*drawn) if type(drawn) is tuple else ODD[drawn] if type(drawn) is int else drawn
    lab = Lab("task", hints="none.toml")
    for expected in (0.5, M, np.array([], np.float32)):
        verdicts = [
            lab.check("task", thing, case(M, gives=expected)),
            lab.check("task", lambda _: thing, case(M, gives=expected)),
            lab.check("task", lambda _: (thing, thing), case(M, gives=(expected, M))),
            lab.check_value("task", thing, expected),
        ]
        assert all(type(verdict.right) is bool and len(verdict.sentence) < 500 for verdict in verdicts)
    lab.compare("task", thing, 3.0)
    lab.predicted("task", thing)
    lab.progress()


TINY = np.finfo(np.float64).smallest_subnormal
EXTREME = [TINY, -TINY, 0.0, 1.0, 1e308, -1e308, np.inf, np.nan, np.float16(6e-8), 2**62, -(2**63), np.uint64(2**63)]


@pytest.mark.parametrize("expected", EXTREME, ids=repr)
@pytest.mark.parametrize("value", EXTREME, ids=repr)
def test_numbers_at_the_ends_of_their_range_are_compared_too(value, expected):
    """A quotient of two may be 0, infinite or NaN."""
    right = float(value) == float(expected) or (value != value and expected != expected)
    lab = Lab("task", hints="/nowhere")
    for each in (lambda x: x, lambda x: np.array([x, x])):
        assert not lab.check_value("task", each(value), each(expected), rtol=0, atol=0) or right
    lab.compare("task", value, expected)
    lab.compare("task", value, expected, "%")


@settings(max_examples=50, deadline=None)
@given(hostile())
def test_nothing_hostile_is_right(drawn):
    thing = build(*drawn)
    assert not judge_value("it", thing, 7.25)
    assert not judge("it", lambda: thing, [case(gives=7.25)])


@pytest.mark.parametrize("error", [SystemExit, RecursionError, MemoryError, GeneratorExit, ZeroDivisionError])
def test_what_a_function_raises_becomes_a_sentence(error):
    def raises(x):
        raise error("no\nway")

    verdict = judge("f", raises, [case(M, gives=M)])
    assert not verdict
    assert f"it raised {error.__name__}: no way" in verdict.sentence


def test_an_exception_that_cannot_be_printed():
    kind = type("Mute", (Exception,), {"__str__": explode})

    def raises(x):
        raise kind

    assert "it raised Mute" in judge("f", raises, [case(M, gives=M)]).sentence


def test_of_what_numba_says_the_beginning_is_left():
    def unknown(x):
        return no_such_name + x  # noqa: F821

    def summed(x):
        return np.sum(x, keepdims=True)

    def product(x):
        return x @ x

    said = [judge("f", njit(one), [case(M, gives=M)]).sentence for one in (unknown, summed, product)]
    assert said[0].startswith("f: it raised TypingError: Numba can't compile this: ")
    assert "no_such_name" in said[0]
    assert "can't compile this: No implementation of function" in said[1]
    assert not any(word in " ".join(said) for word in ("pipeline", "File", "During", "candidate"))
    assert "write it as a loop" in said[2] or "scipy" in sys.modules


def test_a_long_message_ends_after_a_word():
    def raises(x):
        raise ValueError("seventy " * 70)

    assert judge("f", raises, [case(M, gives=M)]).sentence.endswith("seventy ...")


def test_ctrl_c_is_for_the_person_at_the_keyboard():
    def interrupted(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judge("f", interrupted, [case(M, gives=M)])


SYMPTOMS = {
    "return": (None, M),
    "not written": (..., M),
    "called": (print, M),
    "generator": (endless(), M),
    "differ in length": ([[1.0], [1.0, 2.0]], M),
    "exchanged": (M.T, M),
    "length 1": (M[:, :, None], M),
    "added up": (M.sum(axis=0), M),
    "one too few along axis 1": (M[:, :-1], M),
    "one too many along axis 0": (np.vstack([M, M[:1]]), M),
    "dtype int64": (M.astype(int), M),
    "dtype float64: whole numbers": (np.arange(3.0), np.arange(3)),
    "True or False": (np.arange(3), np.arange(3) > 1),
    "complex": (M + 0j, M),
    "masked": (np.ma.masked_array(M), M),
    "1 of 6 numbers that should be finite and is not: at [1, 2] it is NaN": (np.where(M == 5, np.nan, M), M),
    "infinite": (np.where(M == 5, np.inf, M), M),
    "1 of 6 numbers wrong: at [0, 0] it is 1, and should be 0": (np.where(M == 0, 1, M), M),
    "other sign": (-M, M),
    "Everything is 0": (0 * M, M),
    "moved by one along axis 1": (np.array([[9.0, 1, 2]]), np.array([[1.0, 2, 5]])),
    "Everything is 32 times what it should be: is a factor missing, or there twice?": (32 * M, M),
    "That is 1/2 of what it should be: is something counted twice": (3, 6),
    "1/32 of what it should be": (M / 32, M),
    "0.5 too large": (M + 0.5, M),
    "is 3, and should be 4": (3.0, 4.0),
    "is 0, and should be 4": (0.0, 4.0),
    "is 1.0, and should be 1.000002.": (np.ones(3), np.full(3, 1.000002)),
}


@pytest.mark.parametrize("symptom", SYMPTOMS)
def test_the_sentence_names_the_symptom(symptom):
    value, expected = SYMPTOMS[symptom]
    assert symptom in difference(value, expected)


def test_a_square_transpose_is_seen_by_its_numbers():
    square = np.arange(9.0).reshape(3, 3)
    assert "Rows and columns are exchanged" in difference(square.T, square)


@pytest.mark.parametrize(
    "right", [M, M + 1e-10, M.astype(np.float32), M.tolist(), tuple(map(tuple, M.tolist())), M.T.T]
)
def test_what_is_close_is_right(right):
    assert difference(right, M) is None


def test_a_whole_number_is_as_good_as_a_fraction_that_is_one():
    assert difference(3, 3.0) is None
    assert difference(np.float32(0.5), 0.5) is None
    assert difference([True, False], [True, False]) is None
    assert difference([np.nan, np.inf], [np.nan, np.inf]) is None
    assert difference([np.nan, 1.0], [1.0, 1.0]) is not None
    assert difference([np.inf, 1.0], [-np.inf, 1.0]) is not None


def test_the_dtype_counts_where_it_is_asked_for():
    assert "float64, and should have float32" in difference(M, M.astype(np.float32), same_dtype=True)
    assert difference(M.astype(np.float32), M.astype(np.float32), same_dtype=True) is None


def _in_place(x):
    x -= 1
    return x


def _reshapes(x):
    x.shape = (6,)
    return M


@pytest.mark.parametrize("surprise", [_in_place, _reshapes])
def test_an_argument_that_changes_is_noticed_and_whole_again(surprise):
    x = M + 1
    verdict = judge("f", surprise, [case(x, gives=M)])
    assert "changed its argument number 1" in verdict.sentence
    assert np.array_equal(x, M + 1)


def _puts_nearly_back(x):
    x += 1e-5
    x -= 2e-5
    x += 1e-5
    return x.round()


def test_rounding_is_all_that_is_left_of_a_change():
    x = np.array([1.0, -2.0, 0.1])
    assert "by 1.4e-17: x + h - h need not be x" in judge("f", _puts_nearly_back, [case(x, gives=x.round())]).sentence
    assert "the caller's" in judge("f", _in_place, [case(np.array([np.inf, np.nan, 1.0]), gives=x)]).sentence


def test_an_argument_may_be_meant_to_be_written_into():
    assert judge("f", _in_place, [case(M + 1, gives=M, may_change=[0])])


def test_lists_of_arrays_are_watched_too():
    def surprise(parts):
        parts[0][:] = 0
        return 1.0

    assert "changed" in judge("f", surprise, [case([M, M], gives=1.0)]).sentence


@pytest.mark.parametrize("put", [None, 5, 1.0, [1], "a", np.ones(2), np.ones(2).view(np.recarray)], ids=repr)
@pytest.mark.parametrize("there", [M, 1, [1, 2]], ids=["array", "number", "list"])
def test_what_is_put_into_a_list_is_noticed(put, there):
    def surprise(parts):
        parts[0] = put
        return 1.0

    assert "changed its argument number 1" in judge("f", surprise, [case([there, M], gives=1.0)]).sentence


def test_what_is_put_back_into_a_list_is_no_change():
    def swaps_and_swaps_back(parts):
        parts[0], parts[1] = parts[1], parts[0]
        parts[0], parts[1] = float(parts[1]), parts[0]
        return 1.0

    assert judge("f", swaps_and_swaps_back, [case([1.5, np.nan], gives=1.0)])


def test_several_results_are_counted_and_named():
    two = [case(M, gives=(M, 2.0))]
    assert judge("f", lambda x: (x, 2.0), two)
    assert judge("f", lambda x: [x, 2], two)
    assert "2 things, and returns None" in judge("f", lambda x: None, two).sentence
    assert "returns one float" in judge("f", lambda x: 2.0, two).sentence
    assert "number 2 is 3, and should be 2" in judge("f", lambda x: (x, 3.0), two).sentence


def test_the_note_says_which_case_failed():
    cases = [case(1.0, gives=1.0), case(2.0, gives=4.0, note="larger numbers")]
    assert "f (larger numbers): what it returns is 2" in judge("f", lambda x: x, cases).sentence


@pytest.fixture
def lab(tmp_path):
    path = tmp_path / "hints.toml"
    path.write_text('relu = ["What?", "Where?", "Nearly."]\n')
    return Lab("relu", "loss", hints=path)


def test_hints_come_one_at_a_time_and_stop(lab, capsys):
    for number, text in ((1, "What?"), (2, "Where?"), (3, "Nearly."), (3, "Nearly.")):
        lab.hint("relu")
        assert capsys.readouterr().out == f"relu, hint {number} of 3: {text}\n"
    lab.hint("loss")
    assert "no hints" in capsys.readouterr().out


def test_progress_follows_the_latest_check(lab, capsys):
    lab.check_value("relu", 1.0, 1.0)
    lab.progress()
    assert "[#.] 1 of 2 tasks\nstill open: loss" in capsys.readouterr().out
    lab.check_value("relu", 2.0, 1.0)
    assert 'lab.hint("relu")' in capsys.readouterr().out
    lab.progress()
    assert "[..] 0 of 2 tasks" in capsys.readouterr().out
    for task in ("relu", "loss"):
        lab.check_value(task, 1.0, 1.0)
    lab.progress()
    assert "2 of 2 tasks\nThe answer in words is not counted" in capsys.readouterr().out


def test_one_task_may_have_several_parts(lab, capsys):
    lab.check("relu", abs, case(-1.0, gives=1.0), which="plain")
    lab.check("relu", abs, case(-1.0, gives=2.0, note="twice"), which="compiled")
    lab.check_value("relu", 1.0, 2.0, which="what is in out")
    said = capsys.readouterr().out
    assert "✓ relu, plain: right." in said
    assert "✗ relu, compiled (twice): what it returns is 1" in said
    assert "✗ relu, what is in out: it is 1" in said


def test_the_measurement_is_for_those_who_predicted(lab, capsys):
    assert not lab.compare("time", None, 812.0, "us")
    assert "812" not in capsys.readouterr().out
    for guess, said in [
        (100, "a factor of 8.12 too low"),
        (811, "within 2 %"),
        (900, "11 % too high"),
        (-3, "815 apart"),
    ]:
        assert lab.compare("time", guess, 812.0, "us")
        assert said in capsys.readouterr().out


def test_a_prediction_is_any_finite_number(lab, capsys):
    assert lab.predicted("loss", 3, np.float32(2.5), np.array([1.0]))
    assert not lab.predicted("loss", 3, None, "2", float("nan"), [1, 2])
    said = capsys.readouterr().out
    assert (
        "number 2 is still missing; numbers 3, 4, 5 must be a number alone, such as 2.3: no comma, no text, no unit."
        in said
    )
    assert not lab.predicted("loss", None, ..., 3)
    assert "loss: numbers 1, 2 are still missing.\n" in capsys.readouterr().out


def test_percentages_are_apart_by_points(lab, capsys):
    for guess, said in [(60, "25.8 points too low"), (90, "4.2 points too high"), (85.8, "exactly")]:
        assert lab.compare("right", guess, 85.8, "%")
        assert f"you said {guess} %, measured 85.8 %; {said}.\n" in capsys.readouterr().out


def test_a_cell_waits_for_what_it_needs(lab, capsys):
    lab.check_value("relu", 1.0, 1.0)
    assert lab.ready("relu")
    assert not lab.ready("relu", "loss")
    assert "This cell needs loss:" in capsys.readouterr().out


def test_a_task_that_is_none_is_the_authors_mistake(lab):
    with pytest.raises(ValueError, match="no task of this lab; there are relu, loss"):
        lab.check_value("rleu", 1.0, 1.0)


def test_a_hint_for_what_is_no_task_is_a_sentence(lab, capsys):
    for name in ("rleu", "test-relu", None, 3, "loss"):
        lab.hint(name)
        assert capsys.readouterr().out.startswith("There are no hints for ")


def test_a_hint_goes_by_the_cells_name_too(tmp_path, capsys):
    (tmp_path / "hints.toml").write_text('break_even = ["first"]\n')
    Lab("break_even", hints=tmp_path / "hints.toml").hint("break-even")
    assert "first" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("raised", "shown"),
    [
        ("return y + [1, 2, 3, 4, 5]", "(5,), in the line `return y + [1, 2, 3, 4, 5]`\n"),
        ("raise MemoryError", "MemoryError, in the line `Lab("),
    ],
    ids=["a sum", "a line that only raises"],
)
def test_the_line_that_raised_is_shown(raised, shown):
    cell = f"""
def f(x):
    y = x + 1
    {raised}
"""
    notebook = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_code_cell(cell),
            nbformat.v4.new_code_cell(
                "import numpy as np\nfrom mlpkit.course import Lab, case\n"
                'Lab("f").check("f", lambda x: f(x), case(np.zeros(2), gives=np.zeros(2)))'
            ),
        ]
    )
    NotebookClient(notebook, kernel_name="python3").execute()
    assert shown in notebook.cells[1].outputs[0].text


def test_an_array_may_stand_for_several_things():
    assert judge("f", lambda: np.array([1.0, 2.0]), [case(gives=(1.0, 2.0))])
    assert "returns 3 things" in judge("f", lambda: np.zeros(3), [case(gives=(1.0, 2.0))]).sentence
    assert "returns one ndarray" in judge("f", lambda: np.array(1.0), [case(gives=(1.0, 2.0))]).sentence


def test_hints_for_nothing_are_the_authors_mistake(tmp_path):
    (tmp_path / "hints.toml").write_text('rleu = ["a"]\n')
    with pytest.raises(ValueError, match="hints for rleu"):
        Lab("relu", hints=tmp_path / "hints.toml")


def test_a_check_says_its_sentence_once():
    lines = 'from mlpkit.course import Lab\nLab("loss").check_value("loss", 1.0, 2.0)'
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(lines)])
    NotebookClient(notebook, kernel_name="python3").execute()
    (output,) = notebook.cells[0].outputs
    wanted = "it is 1, and should be 2. That is 1/2 of what it should be: is a factor missing, or there twice?"
    assert output.text == f"✗ loss: {wanted}\n"


def test_a_single_number_has_a_pattern_only_where_it_says_something():
    assert difference(3.0, 4.0) == "is 3, and should be 4."
    assert "should be 3. That is 32 times what it should be: is a factor missing, or there twice?" in difference(
        96.0, 3.0
    )


def test_the_room_gives_no_solution_away():
    """It imports nothing of the package, so nothing a lab asks for is in it."""
    for path in Path(room).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 1 or not node.module.startswith("mlpkit")
