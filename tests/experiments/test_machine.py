"""The doctor knows this machine."""

import io
import json
import os
import platform
import sys
from pathlib import Path

import pytest

from experiments.lab import quiet
from mlpkit import engines, machine


def test_a_description_is_json_and_has_what_a_record_needs():
    facts = machine.describe()
    assert json.loads(json.dumps(facts)) == facts
    wanted = {"name", "cpu", "cores", "memory_gib", "system", "python", "libraries", "blas", "gpu"}
    assert wanted <= facts.keys()
    assert facts["cores"] >= 1
    assert facts["cpu"]
    assert facts["libraries"]["numpy"] == machine.np.__version__
    assert facts["blas"].keys() == {"name", "version", "kernels", "threads"}


@pytest.mark.skipif(sys.platform == "darwin", reason="threadpoolctl does not see Apple's Accelerate")
def test_the_blas_is_known():
    """Not knowing it would make every CPU number in the workbook worthless."""
    found = machine.blas()
    assert found["name"] in ("openblas", "mkl", "accelerate", "blis", "flexiblas")
    assert found["threads"] >= 1


def test_the_name_is_fit_for_a_folder(monkeypatch):
    assert machine.name()
    assert not set(machine.name()) - set("abcdefghijklmnopqrstuvwxyz0123456789-")
    monkeypatch.setattr(machine.gpu, "describe", lambda: {"found": True, "name": "NVIDIA H200 (SXM)"})
    assert machine.name() == "nvidia-h200-sxm"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells in a file")
@pytest.mark.parametrize(
    ("told", "name"),
    {
        "model name : AMD Ryzen 7 5800X\nmodel : 33\n": "AMD Ryzen 7 5800X",
        "cpu family : 25\nmodel : 1\nmodel name : AMD EPYC\n\ncpu family : 9\n": "AMD EPYC, family 25, model 1",
        "model name\t: Intel(R) Xeon(R) CPU @ 2.20GHz\nmodel\t\t: 79\n": "Intel(R) Xeon(R) CPU @ 2.20GHz, model 79",
        "CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n": f"{platform.machine()}, implementer 0x41, part 0xd0c",
    }.items(),
)
def test_a_processor_whose_name_is_that_of_many_has_its_numbers_too(told, name, monkeypatch):
    monkeypatch.setattr(machine, "open", lambda path: io.StringIO(told), raising=False)
    assert machine.cpu_model() == name


V1 = {"cpu.cfs_quota_us": "{}", "cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/", {"cpu.max": "150000 100000"}, 2),
        ("0::/", {"cpu.max": "20000 100000"}, 1),
        ("0::/", {"cpu.max": "max 100000"}, 64),
        ("0::/user/mine", {"cpu.max": "max 100000", "user/cpu.max": "300000 100000", "user/mine/cpu.max": "max 1"}, 3),
        ("0::/../other", {"cpu.max": "400000 100000"}, 4),
        (
            "4:cpu,cpuacct:/docker/12ab\n0::/",
            {"cpu,cpuacct/" + name: text.format(250000) for name, text in V1.items()},
            3,
        ),
        ("4:cpu:/a", {"cpu/a/" + name: text.format(100000) for name, text in V1.items()}, 1),
        ("4:cpu:/", {"cpu/" + name: text.format(-1) for name, text in V1.items()}, 64),
        ("", {}, 64),
    ],
)
def test_a_quota_of_time_is_a_smaller_number_of_cores(groups, files, cores, monkeypatch, tmp_path):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    real = machine._read
    monkeypatch.setattr(machine, "GROUPS", str(tmp_path))
    monkeypatch.setattr(machine, "_read", lambda path: groups if path == "/proc/self/cgroup" else real(path))
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda process: range(64), raising=False)
    monkeypatch.setattr(machine.os, "process_cpu_count", lambda: 64, raising=False)
    assert machine.cores() == cores


def test_python_says_how_many_cores_it_may_use(monkeypatch):
    """`PYTHON_CPU_COUNT` and `-X cpu_count`, since Python 3.13"""
    monkeypatch.setattr(machine, "_quotas", list)
    monkeypatch.setattr(machine.os, "process_cpu_count", lambda: 5, raising=False)
    assert machine.cores() == 5


def test_more_threads_than_cores_are_said(monkeypatch):
    monkeypatch.setattr(machine, "blas", lambda: {"name": "openblas", "version": "1", "kernels": None, "threads": 64})
    monkeypatch.setattr(machine, "cores", lambda: 2)
    assert "set OPENBLAS_NUM_THREADS=2 and NUMBA_NUM_THREADS=2" in " ".join(machine.doctor().split())
    monkeypatch.setattr(machine, "cores", lambda: 64)
    assert "set OPENBLAS_NUM_THREADS" not in machine.doctor()


def test_what_several_engines_lack_is_said_once(monkeypatch):
    found = {f"numba_{name}": f"engine numba_{name} can't run on this machine: Numba needs NumPy 2.3" for name in "abc"}
    monkeypatch.setattr(engines, "available", lambda: found | {"numpy_baseline": None})
    text = machine.doctor()
    assert text.count("Numba needs NumPy 2.3") == 1
    assert text.count("can't run, as numba_a") == 2
    assert text.endswith("ready")


def test_a_library_that_is_not_installed_has_no_version():
    assert machine.version("no-such-library") is None


def test_the_doctor_names_every_engine_and_library(monkeypatch):
    monkeypatch.setattr(engines, "available", lambda: {"numpy_baseline": None, "cupy_fused": "it needs a GPU"})
    text = machine.doctor()
    assert [line.split() for line in text.splitlines()[-2:]] == [
        ["numpy_baseline", "ready"],
        ["cupy_fused", "it", "needs", "a", "GPU"],
    ]
    for word in (*machine.libraries(), machine.cpu_model(), "GPU", "CUDA", "kernels", "BLAS", "cores"):
        assert word in text


def test_the_doctor_keeps_names_of_any_length_apart_from_what_they_can(monkeypatch):
    monkeypatch.setattr(engines, "available", lambda: {"numpy_baseline": None, "cuda_" + "x" * 30: "it needs a GPU"})
    *_, library, _, short, long = machine.doctor().splitlines()
    assert {line.index(line.split(maxsplit=1)[1]) for line in (library, short, long)} == {37}


def test_one_core_is_no_plural(monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 1)
    monkeypatch.setattr(machine, "load", lambda: 9.0)
    assert ", 1 core, " in machine.doctor().splitlines()[0] + ", "
    assert "on 1 core)" in machine.busy()


def test_the_doctor_is_brief():
    lines = machine.doctor().splitlines()
    assert len(lines) - len(engines.names()) < 20


def test_the_doctor_says_how_to_add_what_cuda_lacks(monkeypatch):
    monkeypatch.setattr(machine.gpu, "package", lambda: ("cupy-cuda13x", "14.2.0"))
    assert machine._how_to_add_cuda() == 'pip install "cupy-cuda13x[ctk]"'
    monkeypatch.setattr(machine.gpu, "package", lambda: ("cupy-cuda12x", "14.2.0"))
    monkeypatch.setattr(machine, "ROOT", Path("/somewhere/else"))
    assert machine._how_to_add_cuda() == 'python -m pip install -c constraints.txt -e ".[gpu]"'
    if os.name != "nt":
        monkeypatch.setattr(machine, "ROOT", Path(sys.prefix).parent)
        monkeypatch.setattr(sys, "prefix", str(machine.ROOT / ".venv"))
        assert machine._how_to_add_cuda() == "make run GPU=yes"


def test_the_doctor_lists_the_engines_there_are():
    text = machine.doctor()
    for name in engines.names():
        assert f"\n{name}" in text


@pytest.mark.parametrize(("load", "warned"), [(0.0, False), (1e6, True)])
def test_a_busy_machine_is_said_to_be_busy(load, warned, monkeypatch):
    monkeypatch.setattr(machine.os, "getloadavg", lambda: (load, load, load), raising=False)
    assert bool(machine.busy()) == warned
    assert ("this machine is busy" in machine.doctor()) == warned


def test_what_a_system_does_not_tell_is_left_out(monkeypatch):
    """As on Windows, which has neither sysconf nor a load, and on a Mac, whose BLAS threadpoolctl does not see."""

    def unknown(*arguments):
        raise OSError("load averages can't be had")

    monkeypatch.setattr(machine, "threadpool_info", list)
    monkeypatch.setattr(machine.os, "sysconf", unknown, raising=False)
    monkeypatch.setattr(machine.os, "getloadavg", unknown, raising=False)
    assert machine.busy() is None
    assert machine.describe()["load"] is None
    first, _, blas, *_ = machine.doctor().splitlines()
    assert first.endswith(" cores")
    assert "None" not in blas
    assert blas.split()[1] not in ("unknown", "")


class Spinning:
    """A clock by which a thread of this process computes until `until`; time passes only in sleeps and calls."""

    def __init__(self, until):
        self.now, self.until = 0.0, until

    def perf_counter(self):
        return self.now

    def process_time(self):
        return min(self.now, self.until)

    def sleep(self, seconds):
        self.now += seconds


@pytest.mark.parametrize(("until", "returned"), [(0.0, 0.25), (0.6, 1.0), (100.0, 4.0)], ids=["idle", "spins", "never"])
def test_rest_waits_for_a_thread_that_spins_and_not_for_ever(until, returned, monkeypatch):
    clock = Spinning(until)
    monkeypatch.setattr(quiet, "time", clock)
    quiet.rest(longest=4.0, look_every=0.25)
    assert clock.now == returned


@pytest.mark.parametrize(("seconds", "count"), [(2.0, 4), (0.0, 1)])
def test_settling_calls_for_as_long_as_it_is_told(seconds, count, monkeypatch):
    clock, calls = Spinning(until=0.0), []
    monkeypatch.setattr(quiet, "time", clock)
    quiet.settle(lambda: calls.append(clock.sleep(0.5)), seconds)
    assert len(calls) == count
