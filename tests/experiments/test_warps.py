"""What a warp's requests cost, on examples that can be counted by hand; and each number of C is some thread's."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from experiments.matmul_ladder import RUNGS, warps

LANES = np.arange(32)


def test_sectors_and_lines_are_counted():
    assert warps.sectors(LANES) == 4
    assert warps.lines(LANES) == 1
    assert warps.sectors(LANES + 4) == 5  # begins in the middle of a sector
    assert warps.sectors(0 * LANES) == warps.lines(0 * LANES) == 1
    assert warps.sectors(784 * LANES) == warps.lines(784 * LANES) == 32
    assert warps.sectors(LANES, size=2) == 2
    assert warps.lines(LANES, size=8) == 2


def test_turns_are_those_of_the_busiest_bank():
    assert warps.turns(LANES) == 1
    assert warps.turns(0 * LANES) == 1  # all want the same number
    assert warps.turns(32 * LANES) == 32
    assert warps.turns(33 * LANES) == 1
    assert warps.turns(36 * LANES) == 4
    assert warps.turns(np.ravel(4 * LANES[:, None] + np.arange(4))) == 4  # four neighbours each: 512 bytes


@pytest.mark.parametrize("name", RUNGS)
def test_each_number_of_the_tile_is_a_threads(name):
    rung, count = RUNGS[name], np.zeros(RUNGS[name].tile, int)
    slices = rung.threads_a_block // 8 if name == "slices" else 1  # there, each number is added up by many
    for hand in map(warps.HANDS[name], range(rung.threads_a_block)):
        count[np.ix_(hand.rows, hand.columns)] += 1
    assert_array_equal(count, slices)


@pytest.mark.parametrize("name", RUNGS)
def test_a_warp_reads_what_its_part_of_the_tile_needs(name):
    warp = [warps.HANDS[name](thread) for thread in range(32)]
    columns = {int(j) for hand in warp for j in hand.columns}
    assert columns == {int(j) for hand in warp for j in hand.b_columns}
    assert {int(k) for hand in warp for k in hand.a_ks} == {int(k) for hand in warp for k in hand.b_ks}


@pytest.mark.parametrize("name", RUNGS)
def test_a_block_is_drawn_with_its_warp_and_its_thread(name):
    found, hand = warps.touched(name), warps.HANDS[name](5)
    assert found["C"].shape == RUNGS[name].tile
    assert (len(found["A"]), found["B"].shape[1]) == RUNGS[name].tile
    assert found["A"].shape[1] == len(found["B"])
    assert np.sum(found["C"] == warps.THREADS) == hand.rows.size * hand.columns.size
    assert np.sum(found["A"] == warps.THREADS) == hand.rows.size * hand.a_ks.size
    assert np.sum(found["B"] == warps.THREADS) == hand.b_columns.size * hand.b_ks.size
    read_by_threads = "ABC" if hand.a_ks.size else "C"
    assert all((found[matrix] >= warps.WARPS).any() for matrix in read_by_threads)


def test_seven_of_eight_numbers_come_unasked_where_neighbours_stand_one_below_the_other():
    naive, coalesced = warps.touched("naive"), warps.touched("coalesced")
    assert np.sum(naive["A"] == warps.UNASKED) == 7 * 32
    assert np.sum(coalesced["A"] == warps.UNASKED) == 7
    assert np.sum(coalesced["B"] == warps.UNASKED) == 0
