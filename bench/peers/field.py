"""Who can run a case, and what a case is: its tensors and pattern, and functions that make of them a
function of no arguments, which runs and returns the output. A maker that does not have the case
raises Refused; what is not installed, or fails, raises as it likes."""
import os
import pathlib
import re
import statistics
import time

import numpy
import torch
import torch.nn.functional as F

import library as tessera
import turns

DEFAULTS = dict(b="1", h="8", n="4096", d="64", dtype="f32", block="64x64", pattern="dense", lists="q",
                seed="0", threads="0")
# --device and --peers say where and what runs, so a line's backend and pipeline say nothing here.
KEYS = (*DEFAULTS, "hkv", "nkv", "dv", "backend", "pipeline", "kernel", "tile", "split", "spill")
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
# Two right answers, each rounded and summed in its own order: relative, over a whole tensor.
TOLERANCE = {"f32": 2e-5, "f16": 2e-3, "bf16": 1e-2}


class Refused(RuntimeError):
    """Not a case of theirs."""


def needs(holds, what):
    if not holds:
        raise Refused(what)


def case_parse(line):
    """The case as a dict; ValueError for what would be measured otherwise than the line says."""
    case, depth, field = dict(DEFAULTS, line=line), 0, ""
    for c in line + ",":
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            key, equals, value = field.strip().partition("=")
            if not equals or key not in KEYS:
                raise ValueError(f"'{key}' in '{line}' is no key that the peers follow")
            case[key] = value
            field = ""
        else:
            field += c
    case.setdefault("hkv", case["h"])
    case.setdefault("nkv", case["n"])
    case.setdefault("dv", case["d"])
    case.setdefault("tile", 0)
    case.setdefault("split", 0)
    case.setdefault("spill", 0)
    for key in ("b", "h", "hkv", "n", "nkv", "d", "dv", "threads", "tile", "split", "spill"):
        case[key] = int(case[key])
    case["block_q"], case["block_kv"] = map(int, case["block"].split("x"))
    return case


def pattern_make(library, case):
    """The case's, of the library's words; or one of two more, drawn here:

    drawn(keep,seed)        as random, but rows that would be empty list the first block
    sliding(k,span,seed)    1x1: a query's keys lie k distances back, drawn once a head of the last span
    """
    c = case
    lists = {"q": c["h"], "kv": c["hkv"], "1": 1, "all": c["h"]}[c["lists"]]
    shape = (c["n"], c["nkv"], c["block_q"], c["block_kv"], lists, c["b"] if c["lists"] == "all" else 1)
    words = re.fullmatch(r"(drawn|sliding)\(([^()]*)\)", c["pattern"])
    if not words:
        return tessera.Pattern(library, c["pattern"], *shape)
    numbers = words[2].split(",")
    draw = numpy.random.default_rng(int(numbers[-1]))
    if words[1] == "drawn":
        size = (shape[5], lists, -(-c["n"] // c["block_q"]), -(-c["nkv"] // c["block_kv"]))
        listed = draw.random(size, numpy.float32) < float(numbers[0])
        listed[..., 0] |= ~listed.any(-1)
        return tessera.Pattern(library, None, *shape, listed=listed)
    k, span = int(numbers[0]), int(numbers[1])
    back = numpy.stack([draw.permutation(span)[:k] for _ in range(lists)])
    keys = numpy.arange(c["n"])[None, None, :, None] - back[None, :, None, :]
    return tessera.Pattern(library, None, *shape, keys=numpy.where(keys < 0, -1, keys))


class Work:
    """A case's tensors and pattern on one device; the first library's, which others take over."""

    def __init__(self, library, case, device):
        c, dtype = case, DTYPES[case["dtype"]]
        torch.manual_seed(int(c["seed"]))
        self.library, self.case, self.device = library, case, device
        self.q = torch.randn(c["b"], c["h"], c["n"], c["d"], device=device, dtype=dtype)
        self.k = torch.randn(c["b"], c["hkv"], c["nkv"], c["d"], device=device, dtype=dtype)
        self.v = torch.randn(c["b"], c["hkv"], c["nkv"], c["dv"], device=device, dtype=dtype)
        self.o = torch.empty(c["b"], c["h"], c["n"], c["dv"], device=device, dtype=dtype)
        self.lse = torch.empty(c["b"], c["h"], c["n"], 1, device=device, dtype=torch.float32)
        self.pattern = pattern_make(library, case)
        self.info = self.pattern.info()
        self.pairs = self.info.pairs * (c["b"] * c["h"] // (self.info.batch * self.info.heads))
        self.partial = self.info.band_tiles + self.info.bitmask_tiles
        # The same to a dense kernel, of which causal is a case of its own.
        self.dense = c["pattern"] == "causal" or self.pairs == self.dense_pairs()

    def tensors(self):
        return self.q, self.k, self.v, self.o, self.lse

    def flops(self):
        return 2 * (self.case["d"] + self.case["dv"]) * self.pairs

    def dense_pairs(self):
        """What dense attention computes of the case."""
        c = self.case
        return self.pairs if c["pattern"] == "causal" else c["b"] * c["h"] * c["n"] * c["nkv"]

    def listed_bytes(self):
        """Of keys and values, each once for every block row and head that lists them."""
        c, i = self.case, self.info
        tiles = (i.full_tiles + self.partial) * (c["b"] * c["h"] // (i.batch * i.heads))
        return tiles * c["block_kv"] * (c["d"] + c["dv"]) * self.q.element_size()

    def listed(self):
        """Whole blocks, bool [batch, query heads, block rows, block columns]."""
        c, i = self.case, self.info
        needs(not self.partial, "partial tiles")
        blocks = torch.from_numpy(self.pattern.blocks()[0]).to(self.device)
        blocks = blocks.reshape(i.batch, i.heads, *blocks.shape[1:])
        blocks = blocks.repeat_interleave(c["h"] // i.heads, 1)
        return blocks.expand(c["b"], -1, -1, -1).contiguous()


# ---- makers ----


def plan_make(library, work, case, pipeline):
    """A plan of the work's case, or of one that differs in threads, kernel, tile and split alone."""
    pattern = work.pattern if library is work.library else pattern_make(library, work.case)
    backend = "cuda" if work.device == "cuda" else "cpu"
    return tessera.Plan(library, pattern, tessera.Attention.inputs(library, work.tensors(), case["dtype"]), backend,
                        pipeline, case["threads"], case.get("kernel"), case["tile"], case["split"])


def ours(pipeline, library=None, plan=None, sets=()):
    """Of the work's case; or a plan that is given, over so many more sets of tensors."""

    def make(work):
        of = library or work.library
        a = tessera.Attention(of, plan or plan_make(of, work, work.case, pipeline), work.case["dtype"],
                              work.tensors(), *sets)

        def run():
            a.run(torch.cuda.current_stream().cuda_stream if work.device == "cuda" else 0)
            return work.o

        run.kernel, run.plan = a.kernel(), a.info()
        run.exact = True
        return run

    return make


def dense(backend_name):
    def make(work):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        needs(work.device == "cuda" or backend_name == "FLASH_ATTENTION", "CUDA only")
        needs(backend_name != "CUDNN_ATTENTION" or work.case["dtype"] != "f32", "16 bits only")
        which, causal = getattr(SDPBackend, backend_name), work.case["pattern"] == "causal"
        grouped = work.case["h"] != work.case["hkv"]

        def run():
            with sdpa_kernel(which):
                return F.scaled_dot_product_attention(work.q, work.k, work.v, is_causal=causal,
                                                      enable_gqa=grouped)

        run.exact = work.dense
        return run

    return make


def block_mask(work):
    """FlexAttention's mask of the case: whole tiles where its blocks are at least 64 wide, else a
    look-up of the fine blocks inside tiles of 128."""
    from torch.nn.attention.flex_attention import BlockMask

    c = work.case
    listed, partial = work.pattern.blocks()
    needs(not partial.any(), "the pattern has partial tiles: no mask is made for them")
    fine = torch.from_numpy(listed).to(work.device)[None]
    block = (c["block_q"], c["block_kv"])
    coarse, mod, size = fine, None, block
    if min(block) < 64:
        size = (128, 128)
        needs(all(128 % b == 0 for b in block), "its blocks do not divide 128")
        q, kv = size[0] // block[0], size[1] // block[1]
        lists, rows, columns = listed.shape
        coarse = F.max_pool2d(fine.float(), (q, kv), ceil_mode=True).bool()
        one = lists == 1

        def mod(b, h, i, j):
            return fine[0, 0 if one else h, i // block[0], j // block[1]]

    count = coarse.sum(-1).to(torch.int32)
    index = torch.argsort((~coarse).to(torch.int8), dim=-1, stable=True).to(torch.int32)
    none = torch.zeros_like(count)
    full, part = ((none, index), (count, index)) if mod else ((count, index), (none, index))
    return BlockMask.from_kv_blocks(*part, *full, BLOCK_SIZE=size, mask_mod=mod,
                                    seq_lengths=(c["n"], c["nkv"])), size


def flex(work):
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.config.recompile_limit = 256
    mask, size = block_mask(work)
    compiled = torch.compile(flex_attention, dynamic=False)
    # It refuses blocks under its own tile unless the tile is named.
    options = {"BLOCK_M": min(size[0], 128), "BLOCK_N": min(size[1], 128)} if min(size) < 128 else None
    grouped = work.case["h"] != work.case["hkv"]

    def run():
        return compiled(work.q, work.k, work.v, block_mask=mask, kernel_options=options,
                        enable_gqa=grouped)

    run.exact = True
    return run


def flashinfer(work):
    from flashinfer import BlockSparseAttentionWrapper

    c = work.case
    listed, partial = work.pattern.blocks()
    needs(not partial.any() and c["n"] % c["block_q"] == 0 and c["nkv"] % c["block_kv"] == 0,
          "whole blocks only")
    needs(c["b"] == 1 and len(listed) == 1, "one list for all heads only (lists=1)")
    rows, columns = (torch.from_numpy(x).to(torch.int32) for x in listed[0].nonzero())
    begin = torch.zeros(listed.shape[1] + 1, dtype=torch.int32)
    begin[1:] = torch.bincount(rows, minlength=listed.shape[1]).cumsum(0)
    wrapper = BlockSparseAttentionWrapper(torch.empty(128 << 20, dtype=torch.uint8, device=work.device))
    wrapper.plan(begin.to(work.device), columns.to(work.device), c["n"], c["nkv"], c["block_q"],
                 c["block_kv"], c["h"], c["hkv"], c["d"], q_data_type=work.q.dtype)
    q, k, v = (x[0].transpose(0, 1).contiguous() for x in (work.q, work.k, work.v))

    def run():
        return wrapper.run(q, k, v).transpose(0, 1)[None]

    run.exact = True
    return run


def triton(tuned=None, wider=False):
    """bench/peers/triton_lists.py; `tuned` remembers by case what was fastest."""
    tuned = {} if tuned is None else tuned

    def make(work):
        c, i = work.case, work.info
        needs(work.device == "cuda", "CUDA only")
        needs(not work.partial, "partial tiles")
        needs(c["d"] == c["dv"] and c["d"] in (16, 32, 64, 128, 256), "heads of 2^n dims to 256")
        needs(c["block_kv"] & (c["block_kv"] - 1) == 0 and c["block_kv"] <= 128, "blocks of 2^n keys to 128")
        import triton_lists

        first, column, _ = work.pattern.lists()
        needs(len(column) < 2**31, "fewer tiles")
        first, column = (torch.from_numpy(x.astype(numpy.int32)).to(work.device) for x in (first, column))
        # heads of a batch after one another; batches share lists, or do not
        lists = i.heads * i.batch
        shared = c["h"] // i.heads
        launch, o = triton_lists.launcher(work.q, work.k, work.v, first, column, lists * shared, shared,
                                          c["block_q"], c["block_kv"])
        f32, key = c["dtype"] == "f32", c["line"]
        if key not in tuned:
            tuned[key] = triton_lists.tune(
                launch, triton_lists.configs(c["block_q"], c["block_kv"], f32, wider))

        config = tuned[key]

        def run():
            launch(config)
            return o

        run.exact, run.config = True, "/".join(map(str, config))
        return run

    return make


def vsa(work):
    """FastVideo's, ThunderKittens on Hopper."""
    c = work.case
    needs(c["block"] == "64x64" and c["d"] in (64, 128) and c["dv"] == c["d"] and c["dtype"] == "bf16" and
          c["h"] == c["hkv"] and c["n"] == c["nkv"] and c["n"] % 64 == 0 and c["b"] == 1,
          "64x64 blocks of 64 or 128 dims, bf16")
    listed = work.listed()
    needs(listed.any(-1).all().item(), "no empty rows")
    import importlib

    os.environ["FASTVIDEO_VSA_TK"] = "1"
    theirs = importlib.import_module("fastvideo_kernel.block_sparse_attn")
    if None in theirs._get_sm90_ops():
        raise RuntimeError("fastvideo_kernel has no sm90 operations here")
    index, count = theirs._map_to_index(listed)
    sizes = torch.full((c["nkv"] // 64,), 64, dtype=torch.int32, device=work.device)

    def run():
        out = theirs.block_sparse_attn_from_indices(work.q, work.k, work.v, index, count, sizes)
        return out[0] if isinstance(out, tuple) else out

    run.exact = True
    return run


def flash4(work):
    """FlashAttention 4 (CuTe): dense, causal, windows, and lists of 128x128 blocks."""
    c, more = work.case, {}
    window = re.fullmatch(r"window\((\d+),(\d+)\)", c["pattern"])
    needs(c["dtype"] != "f32" and (max(c["d"], c["dv"]) <= 128 or (c["d"], c["dv"]) in ((192, 128), (256, 256))),
          "16 bits, heads to 128 dims, 192/128 or 256")
    needs(work.dense or window or c["block"] == "128x128" and not work.partial and c["n"] % 128 == 0 and
          c["nkv"] % 128 == 0, "dense, causal, windows, whole 128x128 blocks")
    from flash_attn.cute.interface import flash_attn_func

    if c["pattern"] == "causal":
        more["causal"] = True
    elif window:
        left, right = map(int, window.groups())
        more.update(causal=right == 0, window_size=(left, right))
    elif not work.dense:
        from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch

        listed = work.listed()
        count = listed.sum(-1).to(torch.int32).contiguous()
        index = torch.argsort((~listed).to(torch.int8), dim=-1, stable=True).to(torch.int32).contiguous()
        more["block_sparse_tensors"] = BlockSparseTensorsTorch(torch.zeros_like(count), index, count, index,
                                                               block_size=(128, 128))
    q, k, v = (x.transpose(1, 2).contiguous() for x in (work.q, work.k, work.v))

    def run():
        out = flash_attn_func(q, k, v, **more)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    run.exact = True
    return run


PEERS = {"tessera_fused": ours("fused"), "tessera_staged": ours("staged"),
         "cudnn_dense": dense("CUDNN_ATTENTION"), "flash2_dense": dense("FLASH_ATTENTION"), "flex": flex,
         "flashinfer": flashinfer, "triton": triton(), "vsa": vsa, "flash4": flash4}


def enter(makers, work, only_right=True, spent=None):
    """A row for each maker, and the replays of those that run; makers whose answer is wrong are no
    replay unless asked for. The first answer of the case's own pattern is what others are held
    against. `spent` counts the seconds of each maker and of captures."""
    rows, replays, answer, reference = {}, {}, None, None
    spent = {} if spent is None else spent
    for name, make in makers.items():
        begun = time.time()
        row = rows[name] = dict(case=work.case["line"], who=name, kernel=name, pairs=work.pairs)
        try:
            run = make(work)
            out = run().float().clone()
            row["kernel"] = getattr(run, "kernel", name)
            row["config"] = getattr(run, "config", None)
            if hasattr(run, "plan"):
                row.update(tile=run.plan.tile_rows, items=run.plan.work_items, split=run.plan.split_tiles)
            if getattr(run, "exact", False):
                if answer is None:
                    answer, reference = out, row["kernel"]
                row["difference"] = ((out - answer).norm() / answer.norm()).item()
                if not row["difference"] <= TOLERANCE[work.case["dtype"]]:
                    row["absent"] = f"WRONG: it differs from {reference} by {row['difference']:.2e}"
                    if only_right:
                        continue
            now = time.time()
            spent[name] = spent.get(name, 0) + now - begun
            replays[name] = turns.Replay(run, work.device)
            spent["captures"] = spent.get("captures", 0) + time.time() - now
            row.update(launches=replays[name].launches, timing=replays[name].timing)
        except Exception as why:  # peers fail in ways of their own; each is a row that says so
            row["absent"] = str(why).strip().split("\n")[0][:160] or type(why).__name__
            row["refused"] = isinstance(why, Refused)
    return rows, replays


def timed(row, ms, work):
    """What the row says of its times."""
    ms = sorted(ms)
    row.update(ms=statistics.median(ms), ms_min=ms[0], ms_max=ms[-1], runs=len(ms),
               tflops=work.flops() / statistics.median(ms) * 1e-9)


def device_name(device):
    if device == "cuda":
        return torch.cuda.get_device_name(0)
    with open("/proc/cpuinfo") as f:
        return next((line.split(":")[1].strip() for line in f if line.startswith("model name")), "cpu")


def commit_of(folder):
    """Of the library in a build folder, or in one that tools/scripts/gpu_stage.sh made."""
    for path in (pathlib.Path(folder) / "commit", pathlib.Path(folder) / "commit" / "commit.h"):
        if path.is_file():
            return path.read_text().split()[-1].strip('"')
    return "unknown"
