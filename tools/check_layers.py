#!/usr/bin/env python3
"""Fails when a file of src/ includes a folder that is not below its own.

The folders of one level are siblings and do not include each other; a model family sees src/models itself but no
other family. Also fails on source files of more than 800 lines.
"""
import pathlib
import re
import sys

# Folder -> folders it may include (besides itself). Lowest first; see docs/architecture.md.
BASE = {"base"}
L1 = BASE | {"quant", "formats", "text"}
OPS = BASE | {"quant"}
KV = OPS | {"ops"}
L3 = KV | {"kv"}
MODELS = L1 | {"ops", "kv", "models"}
ENGINE = MODELS | {"wrap"}
ALLOWED = {
    "base": set(),
    "quant": BASE,
    "formats": BASE,
    "text": BASE,
    "ops": OPS,
    "kv": KV,
    "ref": L3,
    "cpu": L3,
    "cuda": L3,
    "wrap": L3,
    "models": MODELS,
    "engine": ENGINE | {"engine"},
    "backends": ENGINE | {"engine", "ref", "cpu", "cuda"},
    "api": ENGINE | {"engine", "backends", "synod"},  # synod/ is include/synod
    "convert": MODELS | {"engine", "wrap"},
    "server": ENGINE | {"engine"},
    "cli": ENGINE | {"engine", "convert", "server", "backends", "cpu"},
}
MAX_LINES = 800


def main() -> int:
    root = pathlib.Path(__file__).resolve().parent.parent
    problems = []
    for path in sorted((root / "src").rglob("*")):
        if path.suffix not in {".h", ".cpp", ".inl", ".cu", ".cuh", ".def"}:
            continue
        parts = path.relative_to(root / "src").parts
        folder = parts[0]
        family = parts[1] if folder == "models" and len(parts) == 3 else None
        if folder not in ALLOWED:
            problems.append(f"{path}: folder {folder} has no layer; add it to ALLOWED")
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if not match or "/" not in match.group(1):
                continue
            target = match.group(1).split("/")
            if target[0] != folder and target[0] not in ALLOWED[folder]:
                problems.append(f"{path}:{number}: {folder} must not include {match.group(1)}")
            if family and target[0] == "models" and len(target) == 3 and target[1] != family:
                problems.append(f"{path}:{number}: {family} must not include another family: {match.group(1)}")
            # Only the registry names the families.
            in_family = target[0] == "models" and len(target) == 3
            if folder == "models" and not family and in_family and path.name != "registry.cpp":
                problems.append(f"{path}:{number}: only registry.cpp may include a family: {match.group(1)}")
    for pattern in ("src", "tests", "tools", "bench"):
        for path in sorted((root / pattern).rglob("*")):
            if path.suffix in {".h", ".cpp", ".py", ".inl", ".cu"} and "node_modules" not in path.parts:
                lines = len(path.read_text().splitlines())
                if lines > MAX_LINES:
                    problems.append(f"{path}: {lines} lines, at most {MAX_LINES}")
    print("\n".join(problems) if problems else "layers: ok")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
