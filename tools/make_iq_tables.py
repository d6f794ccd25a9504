#!/usr/bin/env python3
"""Writes src/quant/iq_codes.inc, the packed codebooks of the IQ types.

    tools/make_iq_tables.py [iq_grids.json] [iq_codes.inc]

The input maps a table name to its rows of coordinates. A coordinate takes one of 3 (IQ2, IQ1) or 8 (IQ3)
levels; its position in the ascending list of levels is its code. A row becomes one 16-bit word: code j at bit
2j (8 coordinates of 2 bits) or 3j (4 coordinates of 3 bits). src/quant/iq_tables.cpp holds the same lists of
levels and undoes this. Every table is checked against the known SHA-256 of its bytes first.
"""

import hashlib
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TERNARY_LEVELS = [8, 25, 43]
WIDTH = 108  # columns of the output

# key of the input, array name, levels, bits per code, first 16 bytes of the SHA-256 of all coordinates
TABLES = [
    ("iq2_xxs", "kIq2XxsCodes", TERNARY_LEVELS, 2, "05826b5d3e472a3a78f196be62ac78ac"),
    ("iq2_xs", "kIq2XsCodes", TERNARY_LEVELS, 2, "06e47aaca60b4dc1d9b5a3f345404370"),
    ("iq2_s", "kIq2SCodes", TERNARY_LEVELS, 2, "e1aa1473412b0552c2174c30ef22ab40"),
    ("iq3_xxs", "kIq3XxsCodes", [4, 12, 20, 28, 36, 44, 52, 62], 3, "46e35f5a997efdee6c99ce57854c8a0d"),
    ("iq3_s", "kIq3SCodes", [1, 3, 5, 7, 9, 11, 13, 15], 3, "bd1af4945a1717c65610b0284e4628b9"),
    ("iq1_s", "kIq1Codes", [-1, 0, 1], 2, "07540ffc1aeaf6ad4d97e96b0fcc765a"),
]


def packed(row, levels, bits):
    return sum(levels.index(value) << (bits * j) for j, value in enumerate(row))


def array_text(name, words):
    lines = [f"constexpr uint16_t {name}[{len(words)}] = {{"]
    line = "   "
    for word in words:
        item = f" 0x{word:04x},"
        if len(line) + len(item) > WIDTH:
            lines.append(line)
            line = "   "
        line += item
    return "\n".join([*lines, line, "};"])


def main(argv):
    source = pathlib.Path(argv[1]) if len(argv) > 1 else ROOT / "tests/data/quant/iq_grids.json"
    target = pathlib.Path(argv[2]) if len(argv) > 2 else ROOT / "src/quant/iq_codes.inc"
    grids = json.loads(source.read_text())
    header = "// Packed codebooks, written by tools/make_iq_tables.py, which explains the packing. Do not edit."
    parts = [header]
    for key, name, levels, bits, digest in TABLES:
        rows = grids[key]
        found = hashlib.sha256(bytes(value & 0xFF for row in rows for value in row)).hexdigest()
        if not found.startswith(digest):
            sys.exit(f"{source}: table {key}: expected SHA-256 {digest}..., got {found}")
        parts.append(array_text(name, [packed(row, levels, bits) for row in rows]))
    target.write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main(sys.argv)
