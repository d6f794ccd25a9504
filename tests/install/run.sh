#!/usr/bin/env bash
# Installs the library from a build folder to a fresh prefix and builds the examples against it, by find_package and by
# pkg-config: run.sh SOURCE_FOLDER BUILD_FOLDER CXX.
set -euo pipefail
source=$1 build=$2 cxx=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix

cmake --install "$build" --prefix "$prefix" --component library >"$work/log" || { cat "$work/log"; exit 1; }
for file in include/synod/synod.h include/synod/synod.hpp; do
  [[ -f $prefix/$file ]] || { echo "$file was not installed"; exit 1; }
done
foreign=$(find "$prefix" -type f ! -name '*.h' ! -name '*.hpp' ! -name 'libsynod.a' ! -name 'synod*.cmake' \
  ! -name 'synod.pc')
[[ -z $foreign ]] || { echo "installed, but no part of the library: $foreign"; exit 1; }

cmake -S "$source/tests/install" -B "$work/consumer" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_CXX_COMPILER="$cxx" \
  -DEXAMPLES="$source/examples" >"$work/log" || { cat "$work/log"; exit 1; }
cmake --build "$work/consumer" >"$work/log" || { cat "$work/log"; exit 1; }

pc=$(dirname "$(find "$prefix" -name synod.pc)")
export PKG_CONFIG_PATH=$pc
read -ra flags <<<"$(pkg-config --cflags --libs synod)"
"$cxx" -std=c++20 "$source/examples/chat.cpp" "${flags[@]}" -o "$work/chat_pc"

want="In the beginning God created the heaven and the earth."
for program in consumer/chat consumer/chat_c chat_pc; do
  got=$("$work/$program" "$source/models/gemma4-mini-q8_0.gguf" "Quote Genesis 1:1." 2>"$work/log") ||
    { cat "$work/log"; exit 1; }
  # The C++ example has a system text, which changes the words.
  [[ -n $got ]] || { echo "$program wrote nothing"; exit 1; }
  [[ $program != consumer/chat_c || $got == "$want" ]] || { echo "$program wrote: $got"; exit 1; }
done
