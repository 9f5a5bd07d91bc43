#!/usr/bin/env bash
# Installs a wheel in a clean environment and runs it where no compiler is to be found: try_wheel.sh WHEEL TORCH
set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
wheel=$(realpath "$1")
outside=$(mktemp -d)
trap 'rm -rf "$outside"' EXIT
"${PYTHON:-python3}" -m venv "$outside/venv"
"$outside/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$2" "$wheel"
cp "$here/try_wheel.py" "$outside"
cd "$outside"
env --ignore-environment PATH="$outside/venv/bin" ingot info
env --ignore-environment PATH="$outside/venv/bin" python try_wheel.py
