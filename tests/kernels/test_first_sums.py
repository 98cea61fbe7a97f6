"""What an input gradient's kernel does with its sums for the first convolution, by the emulator, with no GPU.

Products of tensor cores by `wgmma` are not emulated: the kernel here has the sums from memory, as a lane would.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "engines"))

import emulator
from test_kernels import needs_compiler as needs_nvrtc

from experiments.lab import ptxas
from mlpkit import kernels
from mlpkit.kernels.cnn import between
from mlpkit.kernels.conv import Shape, blocked

needs_compiler = pytest.mark.skipif(emulator.why_not() is not None, reason=emulator.why_not() or "")
KERNEL = """
extern "C" __global__ void made(const __grid_constant__ Problem p, const __grid_constant__ First f, const float* all,
                                int tiles)
{
    float* lines = reinterpret_cast<float*>(shared_bytes) + threadIdx.x / 32 * 8 * LINE;
    float* room = reinterpret_cast<float*>(shared_bytes) + SPLIT * 4 * 8 * LINE;
    int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, part = threadIdx.x / 128;
    float* totals = first_totals(room, part * 64 + warp * 16);
    for (int i = lane; i < 16 * FIRST_EACH; i += 32) totals[i] = 0;
    for (int tile = 0; tile < tiles; ++tile) {
        ask_for_first<128 * SPLIT>(f, tile / p.bands, threadIdx.x, room);
        float sums[MINE / 2];
        for (int i = 0; i < MINE / 2; ++i) {
            int channel = warp * 16 + lane / 4 + i % 4 / 2 * 8;
            int window = part * MINE + i / 4 * 8 + lane % 4 * 2 + i % 2;
            sums[i] = all[(tile * 64 + channel) * WIDTH + window];
        }
        cp_async_wait_all();
        __syncthreads();
        add_to_first(p, f, tile, part, warp * 16, sums, 0.5f, room, lines, totals);
        __syncthreads();
    }
    for (int i = lane; part == 0 && i < 16 * FIRST_EACH; i += 32)
        f.sums[warp * 16 * FIRST_EACH + i] = totals[i] + (SPLIT > 1 ? totals[64 * FIRST_EACH + i] : 0);
}
"""


def between_lines(text, first, last):
    begin = text.index(first)
    return text[begin : text.index(last, begin)]


def source():
    """Return the text of what is tested, and a kernel that calls it."""
    forward, blocked_cuh = kernels.source("conv_11_blocked"), (kernels.FOLDER / "conv/blocked.cuh").read_text("utf-8")
    first = (kernels.FOLDER / "first_sums.cuh").read_text("utf-8")
    return "".join([
        "extern __shared__ __align__(128) unsigned char shared_bytes[];\n",
        between_lines(blocked_cuh, "#ifndef LACKS", "// The pieces by which"),
        first, "\n", between_lines(forward, "constexpr int MINE", "\n"), "\n",
        between_lines(forward, "constexpr int LINE_WORDS", "\n"), "\n",
        between_lines(forward, "// Add what a tile's sums mean", '#endif\n\n#if FIRST\nusing After'), KERNEL,
    ])  # fmt: skip


def wanted(shape, about, x, kept, dx):
    """Return the sums of each filter: those of its taps, and of its bias."""
    k, s = shape.kernel, about.pool
    padded = np.pad(x, ((0, 0), (shape.padding,) * 2, (shape.padding,) * 2))
    found = np.zeros((64, k * k + 1))
    for image, channel, y, z in np.ndindex(dx.shape):
        at = kept[image, channel, y, z]
        if at != 15:
            d, row, column = dx[image, channel, y, z] / 2, s * y + at // s, s * z + at % s
            found[channel, :-1] += d * padded[image, row : row + k, column : column + k].ravel()
            found[channel, -1] += d
    return found


@needs_compiler
@pytest.mark.parametrize(("n", "channels", "height", "width", "kernel", "padding", "pool", "next_padding"), [
    (3, 40, 12, 13, 3, 0, 2, 0), (2, 64, 10, 8, 5, 2, 2, 1), (2, 20, 9, 7, 2, 1, 1, 0),
])  # fmt: skip
def test_sums_are_the_gradients_of_taps(folder, n, channels, height, width, kernel, padding, pool, next_padding):
    shape, rng = Shape(n, 1, channels, height, width, kernel, padding=padding), np.random.default_rng(0)
    about = between.Pooled(n, channels, shape.out_height // pool * pool, shape.out_width // pool * pool, pool, True)
    down, across, groups = about.down, about.across, about.groups
    second = Shape(n, channels, 16, down, across, 3, padding=next_padding)
    ((conv, _, _),) = blocked.convolutions(second, "input_gradient")
    tiling = next(one for one in blocked.tilings(conv, blocked.MODES["bf16"]) if one.tiles == one.heights == 1)
    rows, bands = tiling.rows(conv)
    x, dx = rng.integers(-3, 4, (n, height, width)), rng.integers(-3, 4, (n, channels, down, across))
    kept = rng.choice([*range(pool * pool), 15], (n, 8 * groups, down, across))
    words = sum(
        kept.reshape(n, groups, 8, down, across)[:, :, j].astype(np.uint64) << np.uint64(4 * j) for j in range(8)
    )
    sums = np.full((n * bands, 64, tiling.width), 99, "f4")
    for tile, row, column in np.ndindex(n * bands, rows, across):
        if tile % bands * rows + row < down:
            sums[tile, :channels, row * conv.pitch + column] = dx[tile // bands, :, tile % bands * rows + row, column]
    sums[:, channels:] = 0
    found = np.full((64, kernel**2 + 1), np.nan, "f4").view(emulator.Array)
    arrays = [each.view(emulator.Array) for each in (x.astype("f4"), words.astype("u4"), sums)]
    pointers = [arrays[0].data.ptr, arrays[1].data.ptr, found.data.ptr, groups]
    macros = {"WIDTH": tiling.width, "SPLIT": tiling.split, "FIRST": 1, "FIRST_KEEPS": 1, "FIRST_KERNEL": kernel}
    macros |= {"FIRST_PADDING": padding, "FIRST_POOL": pool, "FIRST_HEIGHT": height, "FIRST_WIDTH": width}
    macros |= {"FIRST_DOWN": down, "FIRST_ACROSS": across}
    made = emulator.File(folder, 0, "first_sums", source(), **macros).get_function("made")
    problem = blocked.problem(conv, rows, bands, conv.pieces(rows), blocked.padded(channels, 8))
    made.max_dynamic_shared_size_bytes = 200 << 10
    mine = tiling.width // tiling.split + 4
    line = mine + (40 - mine % 32) % 32
    shared = between.behind(shape, about) + tiling.split * 4 * 4 * 8 * line
    of = problem, np.array(pointers, np.uint64).view("V32"), arrays[2], np.int32(n * bands)
    made((1,), (128 * tiling.split,), of, shared)
    filters = min(channels, 64)
    right = wanted(shape, about, x, kept, dx)
    np.testing.assert_array_equal(found[:filters], right[:filters])


@needs_nvrtc
@pytest.mark.parametrize("mode", ["fp16x3", "bf16"])
def test_no_number_leaves_the_registers(mode):
    mode, about = blocked.MODES[mode], between.Pooled(128, 64, 26, 26, 2, True)
    room = between.behind(Shape(128, 1, 64, 28, 28, 3), about)
    second = blocked.Cropped(128, 64, 128, 13, 13, 3, rows=10, columns=10, pool=2, behind=room)
    (one,) = blocked.launches(mode, second, "input_gradient")
    assert between.why_not_first_sums(mode, second, Shape(128, 1, 64, 28, 28, 3), about) is None
    found = ptxas.resources(blocked.FORWARD, MODE=mode.number, FIRST=1, **one.tiling.macros)["convolve"]
    assert found.spilled_bytes == 0
    assert found.registers <= 255
