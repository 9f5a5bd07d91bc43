#!/usr/bin/env bash
# Builds a manylinux wheel of the native core into dist/: build_wheels.sh ENVIRONMENT [x86_64|aarch64]
#
# ENVIRONMENT has the tools of requirements-wheel.txt. The C++ library is linked in, and with it the wheel asks for no newer glibc than
# torch's wheels do, though it is built on a newer system. aarch64 is cross-compiled with Debian's g++-aarch64-linux-gnu.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
environment=$(realpath "$1")
machine=${2:-x86_64}
export PATH="$environment/bin:$PATH" INGOT_REQUIRE_NATIVE=1

compiler=${CXX:-c++}
settings=()
if [ "$machine" != "$(uname -m)" ]; then
    compiler=$machine-linux-gnu-g++
    command -v "$compiler" > /dev/null || { echo "no $compiler: on Debian, apt install g++-${machine}-linux-gnu"; exit 1; }
    # Python's headers serve every machine with 64-bit pointers: the module uses the stable ABI only.
    export _PYTHON_HOST_PLATFORM=linux-$machine
    settings+=("-Ccmake.define.CMAKE_SYSTEM_NAME=Linux" "-Ccmake.define.CMAKE_SYSTEM_PROCESSOR=$machine")
fi
export CXX=$compiler

work=build/wheel-$machine
rm -rf "$work"
mkdir -p "$work" dist
"$CXX" -x c -fPIC -O2 -c packaging/single_threaded.c -o "$work/single_threaded.o"
export LDFLAGS="-static-libstdc++ -Wl,--gc-sections -Wl,--version-script=$PWD/packaging/exports.map $PWD/$work/single_threaded.o"
python -m build --wheel --no-isolation --outdir "$work" "-Cbuild-dir=$work/cmake" "${settings[@]}" . > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
# "auto": cross-compiled, auditwheel knows no name of the other machine. A tag above torch's own 2_28 is a mistake.
auditwheel repair --plat auto --wheel-dir dist "$work"/ingot-*.whl 2>> "$work/log" || { cat "$work/log"; exit 1; }
compgen -G "dist/ingot-*manylinux_2_[12]?_$machine*.whl" || { ls dist; echo "needs a newer glibc than torch does"; exit 1; }
