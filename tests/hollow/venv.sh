#!/bin/sh
# Prepares a virtual environment for cuda-check: torch's CUDA build, and this checkout with its extension built for CUDA.
#   tests/hollow/venv.sh DIRECTORY PYTHON312        (from the top of the checkout)
# A copy of the sources is installed, so that the CUDA extension does not take the place of the one in the checkout.
set -e
venv=$1 python=$2 copy=$1/source
tracked() { git ls-files "$@"; }
fail() {
  echo "cuda-check: $1" >&2
  exit 1
}

# What another checkout or an older commit left there must go: a package psdrl/x/ would hide a module psdrl/x.py.
[ ! -d "$copy" ] || find "$copy" \( -type f -o -type l \) ! -name '*.so' ! -path '*.egg-info/*' -delete
mkdir -p "$copy"
tracked psdrl kernels csrc setup.py pyproject.toml MANIFEST.in README.md LICENSE | tar -T - -cf - | tar -xf - -C "$copy"

# By content, not by date: the extension of another branch may be newer.
key=$(tracked csrc setup.py pyproject.toml MANIFEST.in | xargs sha256sum | sha256sum | cut -c1-64)
[ "$(cat "$venv/.ready" 2> /dev/null)" != "$key" ] || exit 0
rm -f "$venv/.ready" "$copy"/psdrl/*.so
command -v nvcc > /dev/null || fail "nvcc must be on the PATH"
if [ ! -x "$venv/bin/python" ]; then
  "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2> /dev/null ||
    fail "$python is no Python 3.12 that runs: name one with PYTHON312=PATH, or an environment with CUDA_VENV=DIRECTORY"
  "$python" -m venv "$venv"
fi
"$venv/bin/python" -m pip install --quiet --upgrade "setuptools>=77" wheel ninja
"$venv/bin/python" -m pip install --quiet torch==2.13.0
"$venv/bin/python" -c 'import sys, torch; sys.exit(torch.version.cuda is None)' ||
  fail "pip installed a CPU build of torch into $venv"
PSDRL_CUDA=1 "$venv/bin/python" -m pip install --quiet --no-build-isolation -e "$copy"
echo "$key" > "$venv/.ready"
