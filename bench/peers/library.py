"""Tessera's C API for the peer scripts: patterns, and attention on PyTorch tensors (ctypes)."""
import ctypes
from ctypes import POINTER, byref, c_char, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_void_p

import numpy

TYPES = {"f32": 0, "f16": 1, "bf16": 2, "e4m3": 3, "e5m2": 4}
PIPELINES = {"fused": 0, "staged": 1}
BACKENDS = {"cpu": 0, "cuda": 1}


class Struct(ctypes.Structure):
    """A public struct: begins with its size, zero means the default."""

    def __init__(self, **fields):
        super().__init__(struct_size=ctypes.sizeof(self), **fields)


class Error(Struct):
    _fields_ = [("struct_size", c_size_t), ("status", c_int), ("fault", c_int), ("function", c_char_p),
                ("argument", c_char_p), ("batch", c_int64), ("head", c_int64), ("row", c_int64),
                ("position", c_int64), ("message", c_char * 256)]


class Shape(Struct):
    _fields_ = [("struct_size", c_size_t)] + [
        (name, c_int64) for name in ("n_q", "n_kv", "block_q", "block_kv", "batch", "heads")]


class Lists(Struct):
    _fields_ = [("struct_size", c_size_t)] + [
        (name, c_int64) for name in ("n_q", "n_kv", "block_q", "block_kv", "batch", "heads", "n_tiles",
                                     "n_bands", "n_bitmasks")] + [
        ("row_ptr", POINTER(c_int64)), ("col_idx", POINTER(c_int32)), ("band_entry", POINTER(c_int64)),
        ("band", POINTER(c_int32)), ("bitmask_entry", POINTER(c_int64)), ("bits", c_void_p)]


class PatternInfo(Struct):
    _fields_ = [("struct_size", c_size_t)] + [
        (name, c_int64) for name in ("n_q", "n_kv", "block_q", "block_kv", "batch", "heads", "full_tiles",
                                     "band_tiles", "bitmask_tiles", "pairs", "empty_rows", "memory_size")]


class Problem(Struct):
    _fields_ = [("struct_size", c_size_t), ("pipeline", c_int), ("type", c_int)] + [
        (name, c_int64) for name in ("batch", "heads_q", "heads_kv", "n_q", "n_kv", "d_qk", "d_v")] + [
        ("scale", c_double), ("alignment", c_int64), ("threads", c_int64), ("kernel", c_char_p),
        ("tile_rows", c_int64), ("part_keys", c_int64)]


class BackwardProblem(Problem):
    """With the fields after those, up to the backward's."""

    _fields_ = [("softcap", c_double), ("alibi", c_int64), ("sink", c_int64), ("dropout", c_double)] + [
        (name, c_int64) for name in ("batch_offset", "head_offset", "query_offset", "key_offset",
                                     "whole_heads_q", "whole_n_q", "whole_n_kv", "key_positions")] + [
        ("operation", c_int), ("gradients", c_int64), ("spill_size", c_int64), ("o_rest", c_int64)]


class DecodeProblem(BackwardProblem):
    """The whole of it: keys and values as caches hold them."""

    _fields_ = [("k_type", c_int), ("v_type", c_int), ("v_in_k", c_int64), ("page_size", c_int64),
                ("k_scale", c_int), ("v_scale", c_int), ("scale_group", c_int64), ("rope_dims", c_int64),
                ("k_rope_type", c_int), ("o_f32", c_int64)]


class PlanInfo(Struct):
    _fields_ = [("struct_size", c_size_t)] + [
        (name, c_int64) for name in ("tile_rows", "query_tiles", "packed_keys", "pairs", "tile_heads",
                                     "work_items", "split_tiles", "memory_size")] + [
        ("predicted_seconds", c_double)]


class Target(Struct):
    _fields_ = [("struct_size", c_size_t), ("backend", c_int), ("device", c_int32),
                ("architecture", c_int32), ("multiprocessors", c_int32),
                ("shared_memory_per_block", c_int64), ("cache_size", c_int64), ("memory_rate", c_int64)]


class Tensor(Struct):
    _fields_ = [("struct_size", c_size_t), ("data", c_void_p), ("type", c_int), ("size", c_int64 * 4),
                ("stride", c_int64 * 4)]


class Arguments(Struct):
    _fields_ = [("struct_size", c_size_t)] + [(name, POINTER(Tensor)) for name in "qkvo"] + [
        ("lse", POINTER(Tensor)), ("values", c_void_p), ("workspace", c_void_p),
        ("workspace_size", c_size_t), ("image", c_void_p), ("image_size", c_size_t)]


class BackwardArguments(Arguments):
    _fields_ = [(name, c_void_p) for name in ("alibi", "sink", "seed", "key_positions")] + [
        (name, POINTER(Tensor)) for name in ("o_rest", "d_o", "d_lse", "delta", "d_q", "d_k", "d_v")] + [
        (name, c_void_p) for name in ("d_alibi", "d_sink")]


class DecodeArguments(BackwardArguments):
    _fields_ = [("page_table", c_void_p)] + [
        (name, POINTER(Tensor)) for name in ("k_scale", "v_scale", "q_rope", "k_rope")]


class DevicePattern(Struct):
    _fields_ = [("struct_size", c_size_t), ("form", c_int)] + [
        (name, c_int64) for name in ("n_q", "n_kv", "block_q", "block_kv", "batch", "heads", "capacity",
                                     "cut_lo", "cut_hi", "promises")] + [
        (name, c_void_p) for name in ("indices", "counts", "row_ptr", "bits", "lengths")]


class Library:
    """libtessera.so; every method raises RuntimeError with the library's own words."""

    def __init__(self, path):
        self.c = ctypes.CDLL(path)
        for name in ("tess_plan_workspace_size", "tess_plan_image_size"):
            getattr(self.c, name).restype = c_size_t
        self.c.tess_plan_kernel.restype = c_char_p

    def call(self, name, *arguments):
        error = Error()
        function = getattr(self.c, name)
        if function(*arguments[:-1], byref(error), arguments[-1]) if name in WITH_STREAM else \
                function(*arguments, byref(error)):
            raise RuntimeError(f"{(error.function or name.encode()).decode()}: {error.message.decode()}")


# These take the stream after the error.
WITH_STREAM = ("tess_run", "tess_plan_upload", "tess_plan_fill", "tess_plan_fill_run")


class Pattern:
    """Of a spec; or of `listed`, bool [batch, heads, block rows, block columns] of whole blocks; or of
    `keys`, int32 [batch, heads, n_q, k]: the keys of each query, -1 for none."""

    def __init__(self, library, spec, n_q, n_kv, block_q, block_kv, heads, batch=1, listed=None, keys=None):
        self.library, self.handle = library, c_void_p()
        sizes = dict(n_q=n_q, n_kv=n_kv, block_q=block_q, block_kv=block_kv, batch=batch, heads=heads)
        if listed is not None:
            ptr = numpy.zeros(listed.shape[:2] + (listed.shape[2] + 1,), numpy.int64)
            ptr[..., 1:] = listed.sum(-1).cumsum(-1)
            ends = ptr[..., -1].cumsum().reshape(listed.shape[:2])
            ptr += (ends - ptr[..., -1])[..., None]
            column = numpy.ascontiguousarray(listed.nonzero()[3], numpy.int32)
            lists = Lists(n_tiles=len(column), row_ptr=ptr.ctypes.data_as(POINTER(c_int64)),
                          col_idx=column.ctypes.data_as(POINTER(c_int32)), **sizes)
            library.call("tess_pattern_from_lists", byref(self.handle), byref(lists))
        elif keys is not None:
            keys = numpy.ascontiguousarray(keys, numpy.int32)
            library.call("tess_pattern_from_topk", byref(self.handle), c_void_p(keys.ctypes.data),
                         c_int64(keys.shape[3]), byref(Shape(**sizes)))
        else:
            library.call("tess_pattern_from_spec", byref(self.handle), spec.encode(), byref(Shape(**sizes)))

    def __del__(self):
        self.library.c.tess_pattern_free(self.handle)

    def info(self):
        info = PatternInfo()
        self.library.call("tess_pattern_describe", self.handle, byref(info))
        return info

    def lists(self):
        """First tiles of block rows [lists, block rows + 1], block columns of tiles, and the places of
        those tiles that are listed in part."""
        lists = Lists()
        self.library.call("tess_pattern_lists", self.handle, byref(lists))
        rows, n = -(-lists.n_q // lists.block_q), lists.batch * lists.heads

        def array(pointer, shape):
            return numpy.ctypeslib.as_array(pointer, shape).copy() if all(shape) else numpy.zeros(shape, int)

        return (array(lists.row_ptr, (n, rows + 1)), array(lists.col_idx, (lists.n_tiles,)),
                numpy.concatenate([array(lists.band_entry, (lists.n_bands,)),
                                   array(lists.bitmask_entry, (lists.n_bitmasks,))]).astype(int))

    def blocks(self):
        """Which tiles are listed, bool [lists, block rows, block columns], and which of those in part."""
        info = self.info()
        ptr, column, parts = self.lists()
        n, rows, columns = len(ptr), ptr.shape[1] - 1, -(-info.n_kv // info.block_kv)
        place = numpy.repeat(numpy.arange(n * rows), numpy.diff(ptr, axis=1).reshape(-1)) * columns + column
        listed = numpy.zeros(n * rows * columns, bool)
        partial = numpy.zeros_like(listed)
        listed[place] = True
        partial[place[parts]] = True
        return listed.reshape(n, rows, columns), partial.reshape(n, rows, columns)


class Decode:
    """A reserved plan over padded indices [n_q, capacity], shared by all heads: an image for each of several
    sets of them, which take turns. Over PyTorch tensors [1, H, N, D] on one device. v is the first dims of k;
    `scale`, [1, H, N, D / 128], are k's, of k_type e4m3; `rope`, k's last dims in a view of their own, which q
    has behind the others. `promises` are those of the lists (tess_promise)."""

    SCALE_GROUP = 4

    def __init__(self, library, q, k, v, o, lse, indices, dtype, backend, k_type=None, scale=None, rope=None,
                 promises=0):
        import torch

        self.library, self.plan = library, c_void_p()
        k_type = k_type or dtype
        # whose memory runs use
        self.tensors = dict(q=q, k=k, v=v, o=o, lse=lse, k_scale=scale, k_rope=rope)
        types = dict(q=dtype, k=k_type, v=k_type, o=dtype, lse="f32", k_scale="f32", k_rope=dtype)
        self.views = views = {name: Attention.view(x, types[name]) for name, x in self.tensors.items()
                              if x is not None}
        problem, target = DecodeProblem(), Target()
        library.call("tess_problem_from_tensors", byref(problem), *(byref(views[x]) for x in "qkvo"))
        problem.v_in_k = 1
        if scale is not None:
            problem.k_scale = self.SCALE_GROUP
        if rope is not None:
            problem.rope_dims = rope.shape[3]
        library.call("tess_target_query", byref(target), BACKENDS[backend], -1)
        sizes = dict(n_q=q.shape[2], n_kv=k.shape[2], block_q=1, block_kv=1, batch=1, heads=1,
                     capacity=indices[0].shape[1])
        library.call("tess_plan_reserve", byref(self.plan), byref(problem), byref(DevicePattern(**sizes)),
                     byref(target))
        self.workspace_size, self.image_size = (
            library.c.tess_plan_workspace_size(self.plan), library.c.tess_plan_image_size(self.plan))
        # The CPU's tensors are aligned to less than images are.
        self.memory = [torch.empty(size + 256, dtype=torch.uint8, device=q.device)
                       for size in [self.workspace_size] + [self.image_size] * len(indices)]
        place = [(x.data_ptr() + 255) // 256 * 256 for x in self.memory]
        self.indices, self.images = indices, place[1:]
        self.patterns = [DevicePattern(indices=x.data_ptr(), promises=promises, **sizes) for x in indices]
        self.arguments = DecodeArguments(workspace=place[0], workspace_size=self.workspace_size,
                                         image_size=self.image_size)
        for name, view in views.items():
            if name != "v":
                setattr(self.arguments, name, ctypes.pointer(view))

    def __del__(self):
        self.library.c.tess_plan_free(self.plan)

    def kernel(self):
        return self.library.c.tess_plan_kernel(self.plan, 0).decode()

    def fill(self, number, stream=0):
        self.library.call("tess_plan_fill", self.plan, byref(self.patterns[number]),
                          c_void_p(self.images[number]), c_size_t(self.image_size), c_void_p(stream))

    def step(self, number, stream=0):
        """Fill and run."""
        self.arguments.image = None
        self.library.call("tess_plan_fill_run", self.plan, byref(self.patterns[number]),
                          c_void_p(self.images[number]), c_size_t(self.image_size), c_void_p(),
                          byref(self.arguments), c_void_p(stream))

    def run(self, number, stream=0):
        self.arguments.image = self.images[number]
        self.library.call("tess_run", self.plan, byref(self.arguments), c_void_p(stream))


class Attention:
    """A plan with its image and workspace, over PyTorch tensors [B, H, N, D] on one device."""

    def __init__(self, library, pattern, q, k, v, o, lse, dtype, backend, pipeline, threads=0,
                 kernel=None):
        import torch

        self.library, self.plan = library, c_void_p()
        views = [self.view(x, dtype) for x in (q, k, v, o)]
        problem, target = Problem(), Target()
        library.call("tess_problem_from_tensors", byref(problem), *(byref(x) for x in views))
        problem.pipeline = PIPELINES[pipeline]
        problem.threads = threads
        problem.kernel = kernel.encode() if kernel else None
        library.call("tess_target_query", byref(target), BACKENDS[backend], -1)
        library.call("tess_plan_create", byref(self.plan), byref(problem), pattern.handle, byref(target))
        sizes = [library.c.tess_plan_workspace_size(self.plan), library.c.tess_plan_image_size(self.plan)]
        # PyTorch aligns to 512 bytes on CUDA and 64 on the CPU.
        self.memory = [torch.empty(max(size, 1), dtype=torch.uint8, device=q.device) for size in sizes]
        if sizes[1]:
            library.call("tess_plan_upload", self.plan, c_void_p(self.memory[1].data_ptr()),
                         c_size_t(sizes[1]), None)
            torch.cuda.synchronize()
        self.arguments = Arguments(workspace=self.memory[0].data_ptr(), workspace_size=sizes[0],
                                   image=self.memory[1].data_ptr() if sizes[1] else None,
                                   image_size=sizes[1])
        self.views = views + [self.view(lse, "f32")]
        for name, view in zip(("q", "k", "v", "o", "lse"), self.views):
            setattr(self.arguments, name, ctypes.pointer(view))

    def __del__(self):
        self.library.c.tess_plan_free(self.plan)

    @staticmethod
    def view(x, dtype):
        return Tensor(data=x.data_ptr(), type=TYPES[dtype], size=(c_int64 * 4)(*x.shape),
                      stride=(c_int64 * 4)(*x.stride()))

    def kernel(self):
        names = (self.library.c.tess_plan_kernel(self.plan, stage) for stage in range(4))
        return "+".join(name.decode() for name in names if name)

    def info(self):
        info = PlanInfo()
        self.library.call("tess_plan_describe", self.plan, byref(info))
        return info

    def run(self, stream=0):
        self.library.call("tess_run", self.plan, byref(self.arguments), c_void_p(stream))


class Backward:
    """A plan of the backward with its image and workspace, over PyTorch tensors [B, H, N, D] on one device."""

    STAGES = 9

    def __init__(self, library, pattern, inputs, lse, gradients, dtype, backend="cpu", pipeline="fused",
                 threads=0):
        """inputs: q, k, v, o, d_o; gradients: d_q, d_k, d_v."""
        import torch

        self.library, self.plan = library, c_void_p()
        self.tensors = (*inputs, lse, *gradients)  # whose memory runs use
        self.views = [Attention.view(x, "f32" if x is lse else dtype) for x in self.tensors]
        problem, target = BackwardProblem(), Target()
        library.call("tess_problem_from_tensors", byref(problem), *(byref(x) for x in self.views[:4]))
        problem.operation, problem.threads, problem.pipeline = 1, threads, PIPELINES[pipeline]
        library.call("tess_target_query", byref(target), BACKENDS[backend], -1)
        library.call("tess_plan_create", byref(self.plan), byref(problem), pattern.handle, byref(target))
        size, image = library.c.tess_plan_workspace_size(self.plan), library.c.tess_plan_image_size(self.plan)
        # The CPU's tensors may be aligned to less than 64 bytes.
        self.memory = [torch.empty(n + 64, dtype=torch.uint8, device=inputs[0].device) for n in (size, image)]
        self.arguments = BackwardArguments(workspace=(self.memory[0].data_ptr() + 63) // 64 * 64,
                                           workspace_size=size)
        if image:
            self.arguments.image, self.arguments.image_size = self.memory[1].data_ptr(), image
            library.call("tess_plan_upload", self.plan, c_void_p(self.arguments.image), c_size_t(image), None)
            torch.cuda.synchronize()
        for name, view in zip(("q", "k", "v", "o", "d_o", "lse", "d_q", "d_k", "d_v"), self.views):
            setattr(self.arguments, name, ctypes.pointer(view))

    def __del__(self):
        self.library.c.tess_plan_free(self.plan)

    def kernel(self):
        names = (self.library.c.tess_plan_kernel(self.plan, stage) for stage in range(self.STAGES))
        return "+".join(name.decode() for name in names if name)

    def run(self, stream=0):
        self.library.call("tess_run", self.plan, byref(self.arguments), c_void_p(stream))
