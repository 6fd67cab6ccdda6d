"""Make a folder in which elman runs on 64-bit ARM, emulated: a Python, its packages, a wrapper.

    python release/arm64.py FOLDER
    FOLDER/python -m pytest -q tests/engines/test_c_agreement.py -k gru

Needs root, and Debian's packages debootstrap, qemu-user-static, gcc-aarch64-linux-gnu. Nothing is
installed outside of the folder (3 GB). The cross compiler, which is not emulated, stands as gcc and
cc on the wrapper's PATH. What is emulated keeps its machine's order of loads and stores: code that
is right by that alone passes here (tests/engines/test_c_races.py looks for such). Programs that
tests compile and then start are not emulated, and fail.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
RELEASE, PYTHON = "bookworm", "3.11"  # Debian's, and the Python in it
ARCHITECTURE = "aarch64-linux-gnu"
TOOLS = {"gcc": "gcc", "cc": "gcc", "objdump": "objdump"}  # names, and those of the cross compiler
LIBRARIES = (f"python{PYTHON}", "libc6-dev", "libgomp1", "libstdc++6")
# what `import elman`, its training and its tests need; without torch's dependencies of CUDA
PACKAGES = """
torch filelock fsspec jinja2 markupsafe mpmath networkx setuptools sympy typing-extensions
numpy lightning-fabric lightning-utilities packaging platformdirs pyyaml safetensors
rich markdown-it-py mdurl pygments typer annotated-doc shellingham
pydantic pydantic-core annotated-types typing-inspection
matplotlib contourpy cycler fonttools kiwisolver pillow pyparsing python-dateutil six
tensorboard absl-py grpcio markdown protobuf tensorboard-data-server werkzeug
pytest pytest-timeout pluggy iniconfig expecttest hypothesis sortedcontainers
"""
GLIBC = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")
UNDEFINED = re.compile(r"^ *\d+: .* UND +(\w+)(?:@(\S+))?", re.MULTILINE)
NEEDED = re.compile(r"\(NEEDED\).*\[(.*)\]")
NVIDIA = re.compile(r"(?:lib)?_*(?:cu|nv|nccl)")  # its libraries, and their functions
# what programs read of the processor past emulation
PROCESSOR = """\
processor\t: {number}
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1

"""
REGISTER = "sys/devices/system/cpu/cpu{number}/regs/identification/midr_el1"
WRAPPER = """\
#!/bin/sh
# Python on an emulated 64-bit ARM: see release/arm64.py
export QEMU_LD_PREFIX={root} QEMU_CPU=neoverse-n1 PYTHONHOME={root}/usr PYTHONNOUSERSITE=1
export PYTHONPATH="${{PYTHONPATH:-{source}}}:{packages}" PATH={tools}:"$PATH"
exec qemu-aarch64-static -0 "$0" {root}/usr/bin/python{python} "$@"
"""


def main() -> None:
    """Make the folder that the command names; what is there already is kept."""
    folder = Path(sys.argv[1]).resolve()
    root, packages, tools = (folder / name for name in ("root", "packages", "bin"))
    for made, make in ((root, unpack), (packages, install)):
        if not made.exists():
            part = made.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            make(part)
            part.rename(made)
    tools.mkdir(exist_ok=True)
    for name, tool in TOOLS.items():
        script(tools / name, f'#!/bin/sh\nexec {ARCHITECTURE}-{tool} "$@"\n')
    places = {"root": root, "packages": packages, "source": REPOSITORY / "src", "tools": tools}
    quoted = {name: shlex.quote(str(path)) for name, path in places.items()}
    script(folder / "python", WRAPPER.format(**quoted, python=PYTHON))
    run(folder / "python", "-c", "import elman, platform; print(elman, platform.machine())")


def script(path: Path, text: str) -> None:
    """Write a program."""
    path.write_text(text)
    path.chmod(0o755)


def run(*command: str | Path) -> None:
    """Run a command that has to succeed."""
    subprocess.run([str(word) for word in command], check=True)


def read(path: Path, *options: str) -> str:
    """What readelf says of a library."""
    command = [f"{ARCHITECTURE}-readelf", "--wide", *options, str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def unpack(root: Path) -> None:
    """A Debian that is not set up: for that its programs would have to run."""
    included = f"--include={','.join(LIBRARIES)}"
    run("debootstrap", "--arch=arm64", "--foreign", "--variant=minbase", included, RELEASE, root)
    for package in sorted((root / "var/cache/apt/archives").glob("*.deb")):
        paths = [shlex.quote(str(path)) for path in (package, root)]
        options = "--keep-directory-symlink --exclude='./dev/*'"
        run("sh", "-c", f"dpkg-deb --fsys-tarfile {paths[0]} | tar -x {options} -C {paths[1]}")
    (root / "proc").unlink()  # files that are not here are the machine's own
    (root / "proc").mkdir()
    cores = range(os.cpu_count() or 1)
    (root / "proc/cpuinfo").write_text("".join(PROCESSOR.format(number=core) for core in cores))
    for core in cores:
        register = root / REGISTER.format(number=core)
        register.parent.mkdir(parents=True)
        register.write_text("0x413fd0c1\n")


def install(packages: Path) -> None:
    """Wheels for 64-bit ARM, of the versions that are pinned."""
    platforms = [word for name in GLIBC for word in ("--platform", f"{name}_aarch64")]
    target = ["--no-deps", "--only-binary=:all:", "--target", packages, *platforms]
    wanted = ["--implementation", "cp", "--python-version", PYTHON, *PACKAGES.split()]
    pins = ["--constraint", REPOSITORY / "constraints.txt"]
    run(sys.executable, "-m", "pip", "install", "--quiet", *target, *pins, *wanted)
    stand_ins(packages / "torch/lib")


def stand_ins(folder: Path) -> None:
    """Libraries of CUDA that torch's are linked with: 2 GB for functions that nobody calls here."""
    libraries = sorted(path for path in folder.glob("*.so*") if path.is_file())
    needed = {name for path in libraries for name in NEEDED.findall(read(path, "--dynamic"))}
    there = {path.name for path in libraries}
    missing = sorted(name for name in needed - there if NVIDIA.match(name))
    symbols: dict[str, dict[str, set[str]]] = {
        name: defaultdict(set) for name in missing
    }  # by library and version
    for path in libraries:
        library_of = dict(versions(read(path, "--version-info")))
        for name, version in UNDEFINED.findall(read(path, "--dyn-syms")):
            unversioned = missing[0] if not version and NVIDIA.match(name) else ""
            library = library_of.get(version, unversioned)
            if library in symbols:
                symbols[library][version].add(name)
    for name in missing:
        stand_in(folder / name, symbols[name])


def versions(text: str) -> Iterator[tuple[str, str]]:
    """Versions of symbols that a library needs, and the library that each is of."""
    file = ""
    for kind, name in re.findall(r"(File|Name): (\S+)", text):
        if kind == "File":
            file = name
        else:
            yield name, file


def stand_in(path: Path, symbols: dict[str, set[str]]) -> None:
    """A library whose functions return 100: that there is no device."""
    names = sorted({name for group in symbols.values() for name in group})
    code = "".join(f"int {name}(void) {{ return 100; }}\n" for name in names)
    labels = {version: group for version, group in symbols.items() if version}
    lines = [f"{version} {{ {'; '.join(sorted(group))}; }};" for version, group in labels.items()]
    with tempfile.TemporaryDirectory() as name:
        source, script = Path(name, "library.c"), Path(name, "versions")
        source.write_text(code)
        script.write_text("\n".join(lines))
        labelled = [f"-Wl,--version-script,{script}"] if lines else []
        flags = ["-shared", "-fPIC", "-w", f"-Wl,-soname,{path.name}", *labelled]
        run(f"{ARCHITECTURE}-gcc", *flags, source, "-o", path)


if __name__ == "__main__":
    main()
