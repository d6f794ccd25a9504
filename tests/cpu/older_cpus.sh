#!/bin/sh
# Runs the kernel tests and forward passes of small models on emulated CPUs without AVX-512 and without AVX2:
# an instruction that the CPU lacks ends the program. Exit code 77 (skipped) where qemu-x86_64 (qemu-user) is
# not installed.
# usage: older_cpus.sh KERNEL_TEST_PROGRAM [SYNOD_PROGRAM]
set -eu
test_program=$1
synod=${2:-}
data=$(dirname "$0")/../data/checkpoints
qemu=$(command -v qemu-x86_64) || {
  echo "qemu-x86_64 is not installed: skipped"
  exit 77
}
out=$(mktemp)
trap 'rm -f "$out"' EXIT
# Emulated, so a few widths and tokens only.
tests='*AnyRangeOfRows*:*EveryStorage.ASlice*:KernelTables*'
# Haswell: AVX2, FMA, F16C. Nehalem: SSE4.2.
for cpu in Haswell Nehalem; do
  echo "== kernels on $cpu"
  "$qemu" -cpu "$cpu" "$test_program" --gtest_brief=1 --gtest_filter="$tests"
  [ -n "$synod" ] || continue
  for model in gemma4-mlx4 gemma4-nvfp4 deepseek4-tiny; do
    echo "== logits of $model on $cpu"
    "$qemu" -cpu "$cpu" "$synod" logits "$data/$model" --ids 1,2,3 --backend cpu -t 1 --out "$out"
    [ -s "$out" ]
  done
done
