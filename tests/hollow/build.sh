#!/bin/sh
# Builds OUT/lib/libcuda.so.1 (the driver) and OUT/lib/libhollow.so (runtime and maths libraries, to be preloaded).
#   PYTHON=<python of a venv with the CUDA build of torch> ./build.sh OUT
# Needs gcc and nvcc's headers; CUDA_HOME says where they are, otherwise nvcc itself is asked (it may be a wrapper).
set -e
src=$(cd "$(dirname "$0")" && pwd)
out=${1:?usage: build.sh OUT}
mkdir -p "$out/lib" "$out/obj"
cd "$out"
SITE=$("${PYTHON:-python3}" -c 'import importlib.util, pathlib; print(pathlib.Path(importlib.util.find_spec("torch").origin).parents[1])')
echo 'int x;' > obj/x.cu
CUDA_HOME=${CUDA_HOME:-$(nvcc --dryrun obj/x.cu 2>&1 | sed -n 's/^#\$ TOP=//p')}
FLAGS="-std=gnu11 -O2 -g -Wall -Wextra -Werror -fPIC -fvisibility=hidden
  -I$CUDA_HOME/include -I$SITE/nvidia/cu13/include -I$SITE/nvidia/cudnn/include"
gcc $FLAGS -shared -Wl,-soname,libcuda.so.1 -o obj/libcuda.so.1 "$src"/driver/*.c -ldl -lpthread
mv obj/libcuda.so.1 lib/ # not written in place: a process may have the old one mapped
ln -sf libcuda.so.1 lib/libcuda.so
for file in "$src"/runtime/*.c "$src"/maths/*.c; do
  gcc $FLAGS -c "$file" -o "obj/$(basename "$(dirname "$file")")_$(basename "$file" .c).o"
done
# A stub for every other function of the maths libraries that torch imports.
nm obj/maths_*.o | awk '$2 == "T" {print $3}' | sort -u > obj/have
nm -D --undefined-only "$SITE"/torch/lib/libtorch_cuda.so "$SITE"/torch/lib/libtorch_cuda_linalg.so \
  "$SITE"/torch/lib/libtorch_python.so | sed -n 's/.* U \(\(cublas\|cusolver\|cudnn\)[A-Za-z0-9_]*\).*/\1/p' | sort -u > obj/want
{
  echo 'int hollow_call(void *, const char *);'
  comm -13 obj/have obj/want | sed 's/.*/int &(void *first) { return hollow_call(first, "&"); }/'
} > obj/stubs.c
gcc -O2 -fPIC -c obj/stubs.c -o obj/stubs.o
gcc -shared -o obj/libhollow.so obj/runtime_*.o obj/maths_*.o obj/stubs.o -Llib -lcuda -ldl -lpthread
mv obj/libhollow.so lib/
