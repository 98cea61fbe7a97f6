"""Names have the words of the field: a thing is called what its readers find elsewhere.

Looked at are the words of names, split at _ and capitals, in the Python and the CUDA C of the package, the experiments
and the tests, and in the names of their files. Tests' own names are sentences, and may say what they like.
"""

import io
import re
import tokenize
from fnmatch import fnmatch
from functools import cache
from pathlib import Path, PurePath

import pytest

ROOT = Path(__file__).parents[2]
INSTEAD = {  # words, and what the thing is called elsewhere
    "held": "resident (in shared memory or registers), or padded",
    "packet packets": "message (with a flag, as in NCCL's LL protocol)",
    "planes": "blocked, nc8hw8 (the channel-blocked layout)",
    "halves": "fp16",
    "answers answering": "predictions, predicting",
    "ways": "variants, configurations",
    "places": "layers (bound ones), layout",
    "crew crews": "team (of threads)",
    "sharer sharers": "cta, ctas (of a cluster or a group)",
    "bundle bundles": "SIMD-blocked batch",
    "moments": "timestamps",
    "turned": "transposed, flipped",
    "joined": "merged, concatenated",
    "chains": "pipelines; dependency chains",
    "room rooms": "buffer, workspace, bytes; package",
    "digits": "bits, precision, splits",
    "numbers": "elements, values",
}
WORDS = {word: instead for words, instead in INSTEAD.items() for word in words.split()}
MEANT = {  # a word: where it stands for something else, and for what
    "planes": {
        "h x w, one of an image's channels": "*.cu *.cuh */blocked.py */data/look.py */engines/* */costs.py",
        "halves of a plot": "*/plots/*",
    },
    "halves": {
        "of an image, a batch or a sum": "*/column_blocks.cuh */cuda_conv_fused.py */test_limit.py */test_emulated.py",
        "of a rate, a batch": "*/test_schedules.py */test_optim.py",
    },
    "answers": {"of a process, a person, a service": "experiments/agreement/* tests/*"},
    "ways": {
        "that the threads of a warp go": "experiments/inside/* */test_inside.py",
        "into the workbook": "*/test_ways_in.py */test_readme.py",
    },
    "places": {
        "where something lies": "*.cu *.cuh */kernels/* */engines/* */data/* */plots/* */course/* experiments/* "
        "tests/experiments/* tests/executors/* tests/labs/* */test_browser.py"
    },
    "bundle": {"of MIME types": "*/test_plots.py"},
    "moments": {
        "a distribution's, as Adam's": (
            "*/lab/peers/* */norm_forward.cu */conv_11_blocked.cu */conv/blocked.py */cnn/norm.py */norm_blocks.py "
            "*/test_cnn_norm.py */test_norm_blocks.py */test_conv_blocked.py"
        ),
        "when a process is killed": "*/test_files.py */test_kills.py",
    },
    "turned": {
        "a picture": "*/picture.py */test_augment.py",
        'a field of the record "matmul"': "experiments/matmul/* */products.py */test_matmuls.py */test_passes.py",
    },
    "joined": {"records": "*/test_overview.py"},
    "chains": {
        "of multiply-adds that wait for each other": "*/fma.py */roofs.cu experiments/matmul/* */test_roofline.py",
        "of layers, beside each other": "*/concat.py */test_branches.py */test_fold.py",
        "Selenium's, of a mouse": "tests/serving/test_page.py",
    },
    "room": {"between signs of a plot": "*/plots/*", "what a test wants": "tests/*"},
    "rooms": {"packages, and what each may import": "tests/repository/*"},
    "digits": {"decimal, or written by hand": "*/rungs.py tests/*"},
    "numbers": {"settings, figures, Python's module": "*.py"},
}
FILES = (
    path
    for folder in ("mlpkit", "experiments", "tests")
    for kind in ("py", "cu", "cuh")
    for path in ROOT.glob(f"{folder}/**/*.{kind}")
)
CODE = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in FILES}


def words(name):
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


@cache
def names(path, text):
    """Return the names in the code of a file, and its own."""
    if path.endswith(".py"):
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        found = (token.string for token in tokens if token.type == tokenize.NAME and token.string[:5] != "test_")
    else:
        code = re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', "", text, flags=re.DOTALL)
        found = re.findall(r"[A-Za-z_]\w*", code)
    return {PurePath(path).stem, *found}


def wrong(path, text):
    """Return the names in a file that call a thing what nobody else does."""
    meant = {
        word for word, where in MEANT.items() if any(fnmatch(path, glob) for glob in " ".join(where.values()).split())
    }
    return sorted({name for name in names(path, text) if words(name) & (WORDS.keys() - meant)})


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        ("mlpkit/kernels/one.cuh", "struct Packet { int held_sizes; };  // planes", ["Packet", "held_sizes"]),
        ("mlpkit/kernels/held.cu", "#define MOST_HELD 1", ["MOST_HELD", "held"]),
        ("mlpkit/nn/one.py", 'places = network.layers  # held\nsharer = "packet"\n', ["places", "sharer"]),
        ("mlpkit/nn/one.py", "replaces, held2, aheld = 1, 2, 3\n", ["held2"]),
        ("tests/nn/test_one.py", "def test_what_is_held():\n    room = 1\n", []),
    ],
)
def test_words_of_names_are_found(path, text, found):
    assert wrong(path, text) == found


def test_things_have_the_names_of_the_field():
    assert len(CODE) > 400
    found = {path: wrong(path, text) for path, text in CODE.items()}
    assert not {path: names for path, names in found.items() if names}, INSTEAD


def test_every_exception_is_needed():
    found = {path: set().union(*map(words, names(path, text))) for path, text in CODE.items()}
    globs = [(word, glob) for word, where in MEANT.items() for glob in " ".join(where.values()).split()]
    assert not [each for each in globs if not any(each[0] in found[path] for path in CODE if fnmatch(path, each[1]))]
