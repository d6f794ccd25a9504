#!/usr/bin/env python3
"""Compares our quantized files with llama.cpp's, tensor by tensor.

    tools/peer_quantize.py --synod build/release/synod --lib FOLDER MODEL.gguf q4_k_m q6_k ...

FOLDER holds libllama and libggml-base, e.g. node_modules/@node-llama-cpp/linux-x64/bins/linux-x64 of the npm package
node-llama-cpp (3.22.1 was used): the package has no quantize function, but its library has llama_model_quantize.
With --imatrix both quantizers get the same importance data. Exit code 1 when a tensor differs.
"""
import argparse
import array
import collections
import ctypes
import glob
import mmap
import os
import struct
import subprocess
import sys
import tempfile

FILE_TYPES = dict(q4_0=2, q4_1=3, q8_0=7, q5_0=8, q5_1=9, q2_k=10, q3_k_s=11, q3_k_m=12, q3_k_l=13, q4_k_s=14, q4_k_m=15,
                  q5_k_s=16, q5_k_m=17, q6_k=18, iq2_xxs=19, iq2_xs=20, q2_k_s=21, iq3_xs=22, iq3_xxs=23, iq1_s=24,
                  iq4_nl=25, iq3_s=26, iq3_m=27, iq2_s=28, iq2_m=29, iq4_xs=30, iq1_m=31, tq1_0=36, tq2_0=37,
                  mxfp4_moe=38)
# Values and bytes per block of the types that occur, by GGUF id.
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84),
          11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 16: (256, 66), 17: (256, 74), 18: (256, 98),
          19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136), 26: (1, 4), 29: (256, 56),
          30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17)}
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class QuantizeParams(ctypes.Structure):
    _fields_ = [("threads", ctypes.c_int32), ("file_type", ctypes.c_int), ("output_type", ctypes.c_int),
                ("embedding_type", ctypes.c_int), ("allow_requantize", ctypes.c_bool), ("quantize_output", ctypes.c_bool),
                ("only_copy", ctypes.c_bool), ("pure", ctypes.c_bool), ("keep_split", ctypes.c_bool),
                ("dry_run", ctypes.c_bool), ("imatrix", ctypes.c_void_p), ("kv_overrides", ctypes.c_void_p),
                ("tensor_types", ctypes.c_void_p), ("prune_layers", ctypes.c_void_p)]


class ImatrixData(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("data", ctypes.POINTER(ctypes.c_float)), ("size", ctypes.c_size_t)]


def tensors(path):
    """name -> (type id, dims innermost first, bytes)"""
    with open(path, "rb") as file:
        data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    at = 8

    def number(code):
        nonlocal at
        value = struct.unpack_from("<" + code, data, at)[0]
        at += struct.calcsize("<" + code)
        return value

    def text():
        nonlocal at
        n = number("Q")
        at += n
        return data[at - n:at].decode("utf-8", "surrogateescape")

    def skip(kind):
        if kind == 8:
            text()
        elif kind == 9:
            element, count = number("I"), number("Q")
            for _ in range(count):
                skip(element)
        else:
            number(SCALARS[kind])

    n_tensors, n_keys = number("Q"), number("Q")
    alignment = 32
    for _ in range(n_keys):
        key, kind = text(), number("I")
        if key == "general.alignment":
            alignment = number("I")
        else:
            skip(kind)
    infos = []
    for _ in range(n_tensors):
        name, rank = text(), number("I")
        dims = [number("Q") for _ in range(rank)]
        infos.append((name, number("I"), dims, number("Q")))
    base = (at + alignment - 1) // alignment * alignment
    result = {}
    for name, kind, dims, offset in infos:
        values, size = BLOCKS[kind]
        for d in dims:
            size *= d
        result[name] = (kind, dims, data[base + offset:base + offset + size // values])
    return result


def importance(path):
    stored = tensors(path)
    result = {}
    for name, (_, dims, raw) in stored.items():
        if not name.endswith(".in_sum2"):
            continue
        sums, counts = array.array("f", raw), array.array("f", stored[name[:-8] + ".counts"][2])
        values = array.array("f", [s / counts[i // dims[0]] if counts[i // dims[0]] > 0 else 1.0
                                   for i, s in enumerate(sums)])
        result[name[:-8]] = values
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--synod", required=True)
    parser.add_argument("--lib", required=True)
    parser.add_argument("--imatrix")
    parser.add_argument("model")
    parser.add_argument("mixes", nargs="+")
    args = parser.parse_args()
    for pattern in ("libggml-base.so", "libggml.*so*"):
        for file in glob.glob(os.path.join(args.lib, pattern)):
            ctypes.CDLL(file, mode=ctypes.RTLD_GLOBAL)
    llama = ctypes.CDLL(glob.glob(os.path.join(args.lib, "libllama.*so*"))[0])
    llama.llama_model_quantize_default_params.restype = QuantizeParams
    llama.llama_backend_init()
    keep, entries = [], importance(args.imatrix) if args.imatrix else {}
    table = (ImatrixData * (len(entries) + 1))()
    for i, (name, values) in enumerate(entries.items()):
        keep.append((ctypes.c_float * len(values))(*values))
        table[i].name, table[i].data, table[i].size = name.encode(), keep[-1], len(values)
    all_equal = True
    for mix in args.mixes:
        with tempfile.TemporaryDirectory() as folder:
            ours, theirs = os.path.join(folder, "ours.gguf"), os.path.join(folder, "theirs.gguf")
            options = ["--imatrix", args.imatrix] if args.imatrix else []
            subprocess.run([args.synod, "quantize", args.model, ours, mix, "--quantize-all", "--no-receipt", "-q", *options],
                           check=True)
            params = llama.llama_model_quantize_default_params()
            params.file_type, params.allow_requantize = FILE_TYPES[mix], True
            params.imatrix = ctypes.cast(table, ctypes.c_void_p) if entries else None
            if llama.llama_model_quantize(args.model.encode(), theirs.encode(), ctypes.byref(params)) != 0:
                sys.exit(f"{mix}: llama.cpp refused")
            a, b = tensors(ours), tensors(theirs)
            counts = collections.Counter("equal" if a.get(n) == t else "different" for n, t in b.items())
            counts["missing"] = len(a.keys() ^ b.keys())
        print(mix, dict(counts), flush=True)
        all_equal = all_equal and counts["different"] == 0 and counts["missing"] == 0
    sys.exit(0 if all_equal else 1)


if __name__ == "__main__":
    main()
