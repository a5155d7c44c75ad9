#!/usr/bin/env bash
# Makes $VENV and installs Planaria with everything it needs, at the versions of constraints.txt.
#
# PYTHON       the interpreter to use (default: python3, or the newest of python3.13 .. python3.11 where that is too old)
# ACCELERATOR  cpu | cuda (default: cuda where an NVIDIA driver is loaded, else cpu)
# TORCH_INDEX  where CPU wheels of torch are (default: the index PyTorch documents)
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
torch_index=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
log="$venv/install.log"

fail() {
  printf 'planaria: %s\n' "$1" >&2
  exit 1
}

# One line that installs PACKAGE, in the words of this machine's package manager.
how_to_install() {
  local prefix="sudo "
  if [[ $(id -u) == 0 ]]; then prefix=""; fi
  if command -v apt-get >/dev/null; then
    echo "${prefix}apt-get update && ${prefix}apt-get install -y $1"
  elif command -v dnf >/dev/null; then
    echo "${prefix}dnf install -y ${1/python3-venv/python3}"
  elif command -v pacman >/dev/null; then
    echo "${prefix}pacman -S ${1/python3-venv/python}"
  else
    echo "install $1 with the package manager of this system"
  fi
}

# A name may be on the PATH and still not run (pyenv's shims), so each one is asked.
find_python() {
  local name
  for name in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      echo "$name"
      return
    fi
  done
  fail "Python 3.11 or newer is missing. Install it with: $(how_to_install python3)"
}

make_venv() {
  local python=$1
  "$python" -c 'import ensurepip, venv' >/dev/null 2>&1 ||
    fail "Python's venv is missing. Install it with: $(how_to_install python3-venv)"
  "$python" -m venv "$venv" || fail "cannot make a virtual environment in $venv"
}

pip_install() {
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" >>"$log" 2>&1
}

wanted_accelerator() {
  case ${ACCELERATOR:-} in
    cpu | cuda) echo "$ACCELERATOR" ;;
    "") if [[ -e /proc/driver/nvidia/version ]]; then echo cuda; else echo cpu; fi ;;
    *) fail "ACCELERATOR is '$ACCELERATOR'; it must be cpu or cuda" ;;
  esac
}

# The installed version of torch, or nothing. PyPI's CUDA build has no local version, the CPU build has `+cpu`.
installed_torch() {
  "$venv/bin/python" -c 'import importlib.metadata as m; print(m.version("torch"))' 2>/dev/null || true
}

# PyPI's wheel for Linux brings gigabytes of CUDA. The CPU build has the local version `+cpu`, which PyPI never
# serves: asking for it finds a mirror or folder that has it, or fails at once, and then PyTorch's own index is asked.
install_torch() {
  local accelerator=$1 version present
  version=$(sed -n 's/^torch==//p' constraints.txt)
  present=$(installed_torch)
  if [[ ${present%+*} == "$version" && ($accelerator == cpu || $present != *+cpu) ]]; then return; fi
  echo "installing torch $version ($accelerator)"
  if [[ $accelerator == cuda ]]; then
    if [[ -n $present ]]; then "$venv/bin/python" -m pip uninstall --quiet --yes torch; fi
    pip_install "torch==$version,!=$version+cpu" -c constraints.txt ||
      fail "cannot install torch $version for CUDA: see $log"
    return
  fi
  pip_install "torch==$version+cpu" -c constraints.txt ||
    pip_install "torch==$version+cpu" -c constraints.txt --extra-index-url "$torch_index" ||
    fail "no CPU build of torch $version for this Python and machine in pip's indexes or $torch_index (see $log). \
TORCH_INDEX=URL names another index; ACCELERATOR=cuda takes the large CUDA build"
}

enough_disk() {
  local free_mb
  free_mb=$(df -Pm . | awk 'NR == 2 {print $4}')
  ((free_mb >= 3000)) || fail "only $free_mb MB of disk are free here and 3000 MB are needed: free some space"
}

main() {
  local accelerator python
  accelerator=$(wanted_accelerator)
  if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    enough_disk
    python=$(find_python)
    echo "making $venv with $("$python" --version)"
    make_venv "$python"
  fi
  : >"$log"
  install_torch "$accelerator"
  echo "installing Planaria and its tools (a few minutes the first time)"
  pip_install -e '.[dev]' -c constraints.txt || {
    tail -5 "$log" >&2
    fail "installing the packages failed: the lines above are the end of $log"
  }
  # Compiles the planner's inner loops, so that no first start has to.
  "$venv/bin/python" -m planaria_planner.warm_up >>"$log" 2>&1 || fail "the planner does not start: see $log"
}

main
