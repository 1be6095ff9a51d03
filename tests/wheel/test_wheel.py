"""The wheel that `pip install .` makes: what is in it, and that it works where nothing of the source tree is in reach.

It is built as a user's is but for isolation, which would ask the network for scikit-build-core, and with the build's compilers.
Its folder stays, and a second build compiles what has changed; the first finds its objects in ccache, which the build put there.
"""

import email
import json
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[2]
CACHE = os.environ["ROWJIT_CACHE_DIR"]  # of all tests of the package: kernels and the node of autograd are compiled once


def run(*command, **named):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ROWJIT_", "VIRTUAL_ENV"))}
    environment["ROWJIT_CACHE_DIR"] = CACHE
    result = subprocess.run(map(str, command), env=environment, capture_output=True, text=True, check=False, **named)
    assert result.returncode == 0, f"{' '.join(map(str, command))}\n{result.stdout[-4000:]}\n{result.stderr[-4000:]}"
    return result.stdout


def pip(*arguments, **named):
    return run(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments, **named)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", folder, ROOT)
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """A fresh one with the wheel, in a folder of its own; of the tests' environment it sees the packages, torch among them."""
    folder = tmp_path_factory.mktemp("installed") / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    pip("--python", folder / "bin/python", "install", "--no-index", "--no-deps", wheel)
    packages = pathlib.Path(run(folder / "bin/python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (packages / "tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def python(environment, text):
    """What the text prints, run in the environment and its own folder."""
    return run(environment / "bin/python", "-c", text, cwd=environment)


def test_its_name_says_that_one_serves_every_python(wheel):
    version = re.search(r"project\(rowjit VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
    assert re.fullmatch(rf"rowjit-{re.escape(version)}-cp311-abi3-linux_\w+\.whl", wheel.name)


def test_it_holds_the_package_the_command_and_nothing_else(wheel):
    name = "-".join(wheel.name.split("-")[:2])
    tracked = run("git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "python/rowjit").split()
    expected = {path.removeprefix("python/") for path in tracked} | {"rowjit/_core.abi3.so", f"{name}.data/scripts/rowjit"}
    expected |= {f"{name}.dist-info/{each}" for each in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}
    assert set(zipfile.ZipFile(wheel).namelist()) == expected


def test_no_file_names_a_folder_of_the_machine_that_built_it(wheel):
    places = [str(place).encode() for place in (ROOT, pathlib.Path.home(), sys.prefix)]
    archive = zipfile.ZipFile(wheel)
    assert [(name, place) for name in archive.namelist() for place in places if place + b"/" in archive.read(name)] == []


def test_its_metadata_asks_for_no_framework(wheel):
    archive = zipfile.ZipFile(wheel)
    (place,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
    metadata = email.message_from_bytes(archive.read(place))
    assert metadata["License-Expression"] == "Apache-2.0"
    assert all("extra ==" in each for each in metadata.get_all("Requires-Dist"))
    assert {"torch", "transformers"} <= set(metadata.get_all("Provides-Extra"))


def test_it_links_no_library_of_a_gpu_nor_of_torch(environment):
    linked = run("readelf", "--dynamic", environment / "bin/rowjit", *environment.rglob("_core.abi3.so"))
    needed = re.findall(r"NEEDED.*\[(.+)\]", linked)
    assert [name for name in needed if re.match(r"lib(cuda|nv|amd|hip|roc|torch|c10|python)", name)] == []
    assert not re.search(r"\((RPATH|RUNPATH)\)", linked)


def test_the_package_imports_no_framework(environment):
    found = python(environment, "import sys, rowjit; print(rowjit.__file__, rowjit.__version__, 'torch' in sys.modules)").split()
    assert pathlib.Path(found[0]).is_relative_to(environment)
    assert found[1:] == [run(environment / "bin/rowjit", "--version").split()[1], "False"]


def test_an_operation_computes_what_torchs_does_forward_and_backward(environment):
    python(environment, """
import torch
import rowjit.torch as rt
from rowjit.torch import native

assert native.load(wait=True)
x, weight = torch.randn(3, 64, requires_grad=True), torch.randn(64, requires_grad=True)
cotangent = torch.randn(3, 64)
results = [norm(x) for norm in (lambda x: rt.rms_norm(x, weight, eps=1e-6), lambda x: torch.nn.functional.rms_norm(x, (64,), weight, 1e-6))]
torch.testing.assert_close(*results)
torch.testing.assert_close(*(torch.autograd.grad(y, (x, weight), cotangent) for y in results))
""")


def test_torch_compile_finds_the_backend_by_its_entry_point(environment):
    python(environment, """
import sys
import torch

assert "rowjit" in torch._dynamo.list_backends()
assert "rowjit" not in sys.modules
x = torch.randn(3, 64, requires_grad=True)
function = lambda x: torch.nn.functional.silu(x) * x.softmax(-1)
results = torch.compile(function, backend="rowjit")(x), function(x)
torch.testing.assert_close(*results)
torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x) for y in results))
""")


def test_the_build_folders_package_has_the_same_backend(environment):
    text = "from importlib.metadata import entry_points as e; print(*(p.value for p in e(group='torch_dynamo_backends') if p.name == 'rowjit'))"
    of_build = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout
    assert python(environment, text) == of_build


def test_the_command_is_installed_and_finds_what_its_environment_has(environment):
    (packages,) = environment.glob("lib/python3*/site-packages")
    library = packages / "nvidia/cu13/lib/libnvrtc.so.13"  # where NVIDIA's wheels put it
    library.parent.mkdir(parents=True)
    library.write_text("no library\n")
    found = json.loads(run(environment / "bin/rowjit", "doctor", "--json", cwd=environment))
    rows = {row["target"]: row for row in found["toolchains"]}
    assert rows["cpu"]["found"]
    assert rows["sm_90a"]["found"] or str(library) in rows["sm_90a"]["what"]
    run(environment / "bin/rowjit", "verify", "--op", "rms_norm", "--columns", 64, "--dtype", "f32", "--device", "cpu", cwd=environment)
