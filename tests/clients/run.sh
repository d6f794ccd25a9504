#!/usr/bin/env bash
# Runs the published client libraries against `synod serve`: run.sh PROGRAM MODELS_FOLDER. Exit code 77 (skipped)
# where Node or the packages cannot be had.
set -euo pipefail
program=$1
models=$2
cd "$(dirname "$0")"
command -v node >/dev/null || { echo "skipped: no node"; exit 77; }
(($(node -p 'process.versions.node.split(".")[0]') >= 20)) || { echo "skipped: node is older than 20"; exit 77; }
if [[ ! -d node_modules/openai ]]; then
  command -v npm >/dev/null || { echo "skipped: no npm"; exit 77; }
  timeout 120 npm ci --ignore-scripts --no-audit --no-fund >/dev/null 2>&1 || { echo "skipped: npm ci failed"; exit 77; }
fi
for model in gemma4-mini-q8_0 deepseek4-mini-q8_0; do
  echo "== $model"
  node run.mjs "$program" "$models/$model.gguf"
done
