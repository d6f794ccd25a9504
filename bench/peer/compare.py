#!/usr/bin/env python3
"""Times synod and llama.cpp on the same GGUF file in turn and prints the ratios.

Needs node and the package node-llama-cpp (npm install --prefix DIR node-llama-cpp@3.22.1), given by --peer DIR.
Each repetition runs both programs one after the other, so both see the same minutes of the machine. Medians.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent


def run(command, **kwargs):
    done = subprocess.run(command, capture_output=True, text=True, **kwargs)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout[done.stdout.index("{"):])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--synod", default=HERE.parent.parent / "build" / "release" / "synod")
    parser.add_argument("--peer", required=True, help="folder with node_modules/node-llama-cpp")
    parser.add_argument("-p", type=int, default=512, help="prefill tokens; 0 = none")
    parser.add_argument("-n", type=int, default=64, help="decode tokens; 0 = none")
    parser.add_argument("-d", type=int, default=0, help="tokens in the cache before")
    parser.add_argument("-r", type=int, default=3, help="repetitions")
    parser.add_argument("-t", type=int, default=os.cpu_count(), help="threads")
    options = parser.parse_args()

    # Module resolution starts at the script's folder.
    script = pathlib.Path(options.peer) / "synod_peer.mjs"
    shutil.copy(HERE / "peer.mjs", script)
    ours, theirs = {"prefill": [], "decode": []}, {"prefill": [], "decode": []}
    share = []
    for _ in range(options.r):
        result = run([options.synod, "bench", "-m", options.model, "-p", str(options.p), "-n", str(options.n), "-d",
                      str(options.d), "-r", "1", "-t", str(options.t), "-o", "json", "--no-progress"])
        for row in result["results"]:
            ours["prefill" if row["test"].startswith("pp") else "decode"].append(row["median_tps"])
            if "bandwidth_share" in row:
                share.append(row["bandwidth_share"])
        # The peer runs in its own folder.
        model = pathlib.Path(options.model).resolve()
        peer = run(["node", script, model, str(options.p), str(options.n), str(options.d), str(options.t)],
                   cwd=options.peer)
        for kind in theirs:
            if kind in peer:
                theirs[kind].append(peer[kind])
    print("| test | synod t/s | llama.cpp t/s | ratio | synod runs | llama.cpp runs |")
    print("|---|---:|---:|---:|---|---|")
    for kind, n in (("prefill", options.p), ("decode", options.n)):
        if not ours[kind] or not theirs[kind]:
            continue
        a, b = statistics.median(ours[kind]), statistics.median(theirs[kind])
        spread = lambda values: " ".join(f"{v:.2f}" for v in values)
        print(f"| {kind} {n} at depth {options.d} | {a:.2f} | {b:.2f} | {a / b:.2f} | {spread(ours[kind])} | "
              f"{spread(theirs[kind])} |")
    if share:
        print(f"\nshare of the measured read bandwidth at decode: {100 * statistics.median(share):.0f} %")


if __name__ == "__main__":
    main()
