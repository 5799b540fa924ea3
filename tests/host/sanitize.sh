#!/bin/sh
# The CPU part under AddressSanitizer and UndefinedBehaviorSanitizer: first the device kernels on the host,
# then the operations of psdrl._C themselves, built with the same flags and driven by the tests.
set -eu
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-.venv/bin/python}
OUT=${OUT:-build/sanitize}
FLAGS="-std=c++20 -g -O1 -fno-omit-frame-pointer -Wno-psabi -DPSDRL_SANITIZE -fsanitize=address,undefined -fno-sanitize-recover=undefined"
mkdir -p "$OUT/psdrl"

# The leak checker cannot follow fibers; use-after-return would replace their stacks.
c++ $FLAGS -Icsrc -Itests/host -o "$OUT/driver" tests/host/sanitize.cpp
ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0 "$OUT/driver"

INCLUDES=$("$PYTHON" -c "
import sysconfig, torch.utils.cpp_extension as e
print(' '.join('-isystem ' + p for p in [*e.include_paths(), sysconfig.get_paths()['include']]))")
LIBRARIES=$("$PYTHON" -c "import torch.utils.cpp_extension as e; print(e.library_paths()[0])")
SUFFIX=$("$PYTHON" -c "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))")
for source in csrc/*.cpp; do
  c++ $FLAGS -fPIC $INCLUDES -c "$source" -o "$OUT/$(basename "$source" .cpp).o"
done
c++ $FLAGS -shared -o "$OUT/psdrl/_C$SUFFIX" "$OUT"/*.o -L"$LIBRARIES" -lc10 -ltorch -ltorch_cpu

# Python itself leaks at exit, and PyTorch's own code is not instrumented: errors in ours are what is looked for.
PSDRL_EXTENSION="$OUT/psdrl/_C$SUFFIX" LD_PRELOAD="$(c++ -print-file-name=libasan.so) $(c++ -print-file-name=libubsan.so)" \
  ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0 "$PYTHON" tests/host/sanitize_ops.py
