"""Generate the Python code of the protocol: protos/ -> sdk/planaria/api.

Run by `make proto`. With --check nothing is written: the exit status says whether the committed
code is what the pinned grpcio-tools and mypy-protobuf make of the protos.
"""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
PACKAGE = Path("planaria/api")
TARGET = ROOT / "sdk" / PACKAGE
INIT = '"""Generated from protos/ by `make proto`: do not edit."""\n'


def protoc(sources: Sequence[str], outputs: Sequence[str]) -> None:
    """Run the pinned compiler over `sources`, paths below protos/."""
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        f"--proto_path={PROTOS}",
        f"--proto_path={files('grpc_tools') / '_proto'}",
        *outputs,
        *sources,
    ]
    # protoc finds the mypy plugins on the PATH: put those of this interpreter first.
    search_path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(command, check=True, env={**os.environ, "PATH": search_path})


def generate(into: Path) -> None:
    """Write the whole package `planaria/api` below `into`."""
    protos = {
        str(path.relative_to(PROTOS)): path.read_text(encoding="utf-8")
        for path in sorted(PROTOS.rglob("*.proto"))
    }
    services = [name for name, text in protos.items() if "\nservice " in text]
    protoc([*protos], [f"--python_out={into}", f"--mypy_out=quiet:{into}"])
    protoc(services, [f"--grpc_python_out={into}", f"--mypy_grpc_out=quiet:{into}"])
    package = into / PACKAGE
    for directory in [package, *sorted(p for p in package.rglob("*") if p.is_dir())]:
        (directory / "__init__.py").write_text(INIT, encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """What regenerating would do to the committed package; paths are relative to it."""

    missing: frozenset[Path]
    left_over: frozenset[Path]
    changed: frozenset[Path]

    def lines(self) -> list[str]:
        """Return one line per file, sorted."""
        named = {"missing": self.missing, "left over": self.left_over, "different": self.changed}
        return sorted(f"{path}: {why}" for why, paths in named.items() for path in paths)


def compare(generated: Path, committed: Path) -> Differences:
    """Compare two copies of the package, file by file."""
    fresh = {p.relative_to(generated) for p in generated.rglob("*.py*")}
    present = {
        p.relative_to(committed) for p in committed.rglob("*.py*") if "__pycache__" not in p.parts
    }
    changed = {
        p for p in fresh & present if (generated / p).read_bytes() != (committed / p).read_bytes()
    }
    return Differences(
        missing=frozenset(fresh - present),
        left_over=frozenset(present - fresh),
        changed=frozenset(changed),
    )


def apply(found: Differences, generated: Path, committed: Path) -> None:
    """Bring `committed` up to date; files that did not change keep their time stamps."""
    for path in found.missing | found.changed:
        (committed / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(generated / path, committed / path)
    for path in found.left_over:
        (committed / path).unlink()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    check_only = parser.parse_args(arguments).check
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        found = compare(Path(scratch) / PACKAGE, TARGET)
        if not check_only:
            apply(found, Path(scratch) / PACKAGE, TARGET)
            return 0
    if found.lines():
        print(
            *found.lines(),
            "the generated code is stale: run `make proto`",
            sep="\n",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
