#!/usr/bin/env python3
"""Makes the tables of docs/quantization.md: quality of every mix on small models, size of every mix on published ones.

    tools/quantization_table.py --synod build/release/synod [--chunks 120] NAME=MODEL ...

MODEL is a 16-bit checkpoint (folder or GGUF). Needs the Debian package bible-kjv (scripts/bible-text): importance is
collected on the Old Testament, perplexity is measured on the New. Prints Markdown, and below each table the pairs of
files of which the smaller one is the better one by more than two standard errors. Takes some minutes.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Mix, and whether importance data is used.
MIXES = [("bf16", False), ("q8_0", False), ("q6_k", False), ("q5_k_m", False), ("q4_k_m", False), ("q4_k_m", True),
         ("synod_g4_q4", False), ("synod_g4_q4", True), ("q4_0", False), ("iq4_xs", False), ("iq4_xs", True),
         ("mxfp4_moe", False), ("q3_k_m", False), ("q3_k_m", True), ("iq3_xxs", True), ("q2_k", False),
         ("q2_k", True), ("synod_v4_q2", True), ("iq2_xxs", True), ("iq1_m", True)]
CONFIGS = [("gemma4-26b-a4b", ["bf16", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "synod_g4_q4", "q4_k_s", "q4_0", "iq4_xs",
                               "q3_k_m", "q2_k", "iq2_xxs"]),
           ("deepseek4-flash", ["mxfp4_bf16", "q8_0", "mxfp4_moe", "q4_k_m", "iq4_xs", "q3_k_m", "q2_k",
                                "synod_v4_q2", "iq2_xxs"])]


def run(synod, *arguments):
    out = subprocess.run([synod, *map(str, arguments), "--json", "--no-progress", "-q"], check=True,
                         capture_output=True, text=True)
    return json.loads(out.stdout)


def text(folder, name, passages):
    path = folder / name
    path.write_text(subprocess.run([ROOT / "scripts" / "bible-text", passages], check=True, capture_output=True,
                                   text=True).stdout)
    return path


def quality(synod, name, model, folder, calibration, held_out, chunks, threads, only):
    print(f"\n### {name}\n")
    print("| mix | MB | bits per value | MB per token | perplexity | KL to bf16, mean | 99 % | same top token |")
    print("|---|---|---|---|---|---|---|---|")
    rows = []
    base, imatrix = folder / f"{name}.gguf", folder / f"{name}.imatrix"
    run(synod, "convert", model, base, "--type", "bf16", "--no-receipt")
    run(synod, "imatrix", base, "-f", calibration, "-o", imatrix, "--chunks", chunks, "-t", threads)
    for mix, with_importance in MIXES:
        if only and mix not in only:
            continue
        if (mix.startswith("synod_g4") and "gemma" not in name) or (
                (mix.startswith("synod_v4") or mix == "mxfp4_moe") and "deepseek" not in name):
            continue
        file = folder / "mix.gguf"
        options = ["--imatrix", imatrix] if with_importance else []
        made = run(synod, "quantize", base, file, mix, "--force", "--no-receipt", *options)
        plan = run(synod, "inspect", file, "--plan")["plan"]
        p = run(synod, "perplexity", file, "-f", held_out, "--chunks", chunks, "--kl", base, "-t", threads)
        label = mix + (" + imatrix" if with_importance else "")
        rows.append((label, with_importance, made["bytes"], p["kl"]["mean"], p["kl"]["error"]))
        print(f"| {label} | {made['bytes'] / 1e6:.2f} | {made['bits_per_value']:.2f} | {plan['bytes_per_token'] / 1e6:.2f} "
              f"| {p['perplexity']:.3f} ± {p['perplexity_error']:.3f} | {p['kl']['mean']:.5f} ± {p['kl']['error']:.5f} "
              f"| {p['kl']['p99']:.4f} | {100 * p['same_top']['mean']:.2f} ± {100 * p['same_top']['error']:.2f} % |",
              flush=True)
    print_inversions(rows)


def print_inversions(rows):
    """rows: (label, with importance, bytes, mean divergence, its standard error)"""
    found = [f"{small[0]} over {large[0]}" for small in rows for large in rows
             if small[1] == large[1] and small[2] < large[2]
             and large[3] - small[3] > 2 * (large[4] ** 2 + small[4] ** 2) ** 0.5]
    print(f"\nSmaller and better: {', '.join(found) or 'none'}", flush=True)


def sizes(synod, config, mixes):
    print(f"\n### {config}\n")
    print("| mix | GB | GB per token | tokens/s at 25 GB/s | at 4.8 TB/s |")
    print("|---|---|---|---|---|")
    for mix in mixes:
        plan = run(synod, "inspect", ROOT / "tests" / "data" / "configs" / f"{config}.json", "--type", mix)["plan"]
        per_token = plan["bytes_per_token"] / 1e9
        print(f"| {mix} | {plan['weights'] / 1e9:.2f} | {per_token:.3f} | {25 / per_token:.2f} | {4800 / per_token:.0f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--synod", default=ROOT / "build" / "release" / "synod")
    parser.add_argument("--chunks", default=120, type=int, help="chunks of 512 tokens")
    parser.add_argument("--threads", default=0, type=int, help="0 = all")
    parser.add_argument("--mix", action="append", default=[], help="only this row; may be given again")
    parser.add_argument("models", nargs="*", metavar="NAME=MODEL")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        if args.models:
            calibration = text(folder, "old.txt", "gen1:1-mal4:6")
            held_out = text(folder, "new.txt", "mat1:1-rev22:21")
        for model in args.models:
            name, path = model.split("=", 1)
            quality(args.synod, name, path, folder, calibration, held_out, args.chunks, args.threads, args.mix)
    for config, mixes in CONFIGS:
        sizes(args.synod, config, mixes)


if __name__ == "__main__":
    main()
