"""What mixed-precision training costs and gains: quality over seeds, FP16 with and without a scale, speed, memory.

    python scripts/bench_amp.py quality [--recipes digits_cnn,…] [--seeds 5] [--levels …]
    python scripts/bench_amp.py scaling
    python scripts/bench_amp.py speed [--fabric-python PATH]
    python scripts/bench_amp.py operators

All ratios come from one run.  `speed` takes a step of each contender in turn, so that a machine that gets slower or
faster meets all alike, and compares steps that stood side by side; memory is measured in processes of their own.
For Fabric name the Python of an environment with `lightning-fabric`, `torch` of the same version, and this package.
Results are printed as tables, and as JSON with --json FILE.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

WORKER = Path(__file__).with_name("bench_amp_worker.py")
RECIPES = ("digits_cnn", "vit_digits", "lstm_digits", "unet_denoise", "char_gpt", "resnet18_digits")
LEVELS = ("fp32", "bf16-mixed", "bf16-master", "fp16-mixed", "fp16-master")
CASES = {
    "resnet18": "ResNet-18, 32 × 32 pixels, batch 32",
    "resnet18_224": "ResNet-18, 224 × 224 pixels, batch 4",
    "gpt": "GPT, 6 layers of 384, 16 × 64 characters",
}


def call(python: str, *words: object) -> dict:
    done = subprocess.run([python, str(WORKER), *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def quality(options: argparse.Namespace) -> list[dict]:
    rows = []
    for recipe in options.recipes.split(","):
        metrics: dict[str, list[float]] = {}
        for level in options.levels.split(","):
            for seed in range(options.seeds):
                result = call(
                    sys.executable, "train", "--recipe", recipe, "--level", level, "--seed", seed,
                    "--threads", options.threads, "--epochs", options.epochs or 0,
                )  # fmt: skip
                if "error" in result or result["metric"] is None:
                    print(f"{recipe} {level} seed {seed}: {result.get('error', 'metric not finite')}", file=sys.stderr)
                    break
                metrics.setdefault(level, []).append(result["metric"])
        reference = metrics.get("fp32", [])
        for level, values in metrics.items():
            mean = statistics.fmean(values)
            inside = bool(reference) and min(reference) <= mean <= max(reference)
            better = bool(reference) and (
                (mean > max(reference)) if result_is_higher(recipe) else mean < min(reference)
            )
            rows.append(
                {"recipe": recipe, "level": level, "metrics": values, "mean": mean,
                 "spread": max(values) - min(values), "within_fp32_spread": inside, "better": better}
            )  # fmt: skip
            print(
                f"{recipe:16} {level:12} mean {mean:8.4f}  from {min(values):8.4f} to {max(values):8.4f}  "
                f"{'within the spread of fp32' if inside else 'better than fp32' if better else 'OUTSIDE'}",
                flush=True,
            )
    return rows


def result_is_higher(recipe: str) -> bool:
    return recipe != "char_gpt"  # bits per character; the others are accuracies and decibels


def scaling(options: argparse.Namespace) -> list[dict]:
    rows = []
    for level in ("fp32", "fp16-mixed", "fp16-mixed-unscaled"):
        values, zero = [], None
        for seed in range(options.seeds):
            result = call(
                sys.executable, "scaling", "--level", level, "--seed", seed, "--threads", options.threads,
                "--steps", options.steps,
            )  # fmt: skip
            if "error" in result:
                sys.exit(f"{level}: {result['error']}")
            values.append(result["metric"])
            zero = result["zero"]
        rows.append({"level": level, "metrics": values, "mean": statistics.fmean(values), "zero_gradients": zero})
        share = f", {100 * zero:.1f} % of the gradient elements are zero" if zero is not None else ""
        print(f"U-Net {level:20} {statistics.fmean(values):6.2f} dB ({min(values):.2f} to {max(values):.2f}){share}",
              flush=True)  # fmt: skip
    return rows


def speed(options: argparse.Namespace) -> list[dict]:
    gpu, low = machine(options)
    ways = ["hand:fp32", "ours:fp32"]
    for name in low:
        ways += [f"hand:{name}-mixed", *([f"fabric:{name}-mixed"] if options.fabric_python else [])]
        ways += [f"ours:{name}-mixed", f"ours:{name}-master"]
    python = options.fabric_python or sys.executable
    rows = []
    for case in options.cases.split(","):
        found = checked(options, python, "speed", "--case", case, "--ways", ",".join(ways))
        base = statistics.median(found["ms"]["hand:fp32"])
        print(f"\n{CASES[case]}{' on ' + gpu if gpu else ''}: median of {options.steps} steps")
        for way, times in found["ms"].items():
            kind, _, level = way.partition(":")
            by_hand = found["ms"]["hand:fp32" if level == "fp32" else f"hand:{level[:4]}-mixed"]
            ratio = statistics.median(a / b for a, b in zip(times, by_hand, strict=True))
            ms = statistics.median(times)
            peak = checked(options, python, "memory", "--case", case, "--ways", way)["peak_mb"]
            rows.append({"case": case, "way": kind, "level": level, "ms": ms, "steps": times, "peak_mb": peak,
                         "times_fp32": base / ms, "of_hand_written": ratio})  # fmt: skip
            print(
                f"  {kind:7} {level:12} {ms:8.2f} ms  {base / ms:5.2f} × fp32  "
                f"{ratio:6.3f} of the hand-written step  peak {peak:7.0f} MB",
                flush=True,
            )
    return rows


def operators(options: argparse.Namespace) -> list[dict]:
    """Print for each product what torch's own kernels and FP32 rounded once take here, and what the engine takes."""
    machine(options)
    rows = checked(options, sys.executable, "operators")["rows"]
    print(f"\n{'forward and backward':28} {'native':>10} {'fp32, once':>11} {'engine':>10}   error native, engine")
    for row in rows:
        ways = [row[way] for way in ("native", "rounded", "engine")]
        times = [f"{found['ms']:.3f} ms" if found else "no kernel" for found in ways]
        errors = ", ".join(f"{found['error']:.1e}" if found else "none" for found in (ways[0], ways[2]))
        print(f"{row['format']} {row['operator']:23} {times[0]:>10} {times[1]:>11} {times[2]:>10}   {errors}")
    return rows


def checked(options: argparse.Namespace, python: str, what: str, *words: object) -> dict:
    result = call(python, what, *words, "--steps", options.steps, "--threads", options.threads)
    if "error" in result:
        sys.exit(f"{what} {' '.join(map(str, words))}: {result['error']}")
    return result


def machine(options: argparse.Namespace) -> tuple[str, tuple[str, ...]]:
    found = call(sys.executable, "machine")
    if found["gpu"]:
        print(f"GPU: {found['gpu']}, torch {found['torch']}")
        return found["gpu"], ("bf16", "fp16")
    units = " and ".join(found["bf16_units"])
    print(
        f"CPU: {found['cpu']}, {options.threads or 'all'} threads, torch {found['torch']}; "
        + (f"BF16 by {units}" if units else "NO BF16 UNITS: BF16 is emulated here, and slower than FP32")
    )
    return "", ("bf16",)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["quality", "scaling", "speed", "operators"])
    parser.add_argument("--recipes", default=",".join(RECIPES))
    parser.add_argument("--levels", default=",".join(LEVELS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, help="passes over the data; each recipe's own by default")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--steps", type=int, default=40, help="steps that are timed, or trained by `scaling`")
    parser.add_argument("--threads", type=int, default=0, help="threads of torch; 0 leaves them to torch")
    parser.add_argument("--fabric-python")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = {"quality": quality, "scaling": scaling, "speed": speed, "operators": operators}[options.what](options)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
