"""Tessera's C API for the peer scripts: patterns, and attention on PyTorch tensors (ctypes)."""
import ctypes
import importlib.util
import itertools
import pathlib
from ctypes import POINTER, addressof, byref, c_int32, c_int64, c_void_p

import numpy

TYPES = {"f32": 0, "f16": 1, "bf16": 2, "e4m3": 3, "e5m2": 4}
PIPELINES = {"fused": 0, "staged": 1}
BACKENDS = {"cpu": 0, "cuda": 1}

# The package's mirror of tessera.h by itself: importing the package would load a library of its own.
MIRROR = pathlib.Path(__file__).resolve().parents[2] / "python" / "tessera" / "_structs.py"
spec = importlib.util.spec_from_file_location("tess_structs", MIRROR)
structs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(structs)


class Library:
    """libtessera.so, of this version or an earlier one, whose structs end sooner; every method raises RuntimeError with
    the library's own words."""

    def __init__(self, path):
        self.c = ctypes.CDLL(path)
        for name, (answer, kinds) in structs.FUNCTIONS.items():
            function = getattr(self.c, name, None)
            if function is not None:
                function.restype, function.argtypes = answer, kinds
        self.sizes = {struct: min(ctypes.sizeof(struct), self.c.tess_struct_size(name.encode()))
                      for name, struct in structs.STRUCTS.items()}

    def new(self, struct, **fields):
        """A struct at its defaults, but for `fields`."""
        return struct(struct_size=self.sizes[struct], **fields)

    def call(self, name, *arguments):
        """A call; of functions that take a stream it is the last argument, behind which the error goes."""
        error = self.new(structs.Error)
        head, tail = (arguments[:-1], arguments[-1:]) if name in structs.STREAMED else (arguments, ())
        if getattr(self.c, name)(*head, byref(error), *tail):
            raise RuntimeError(f"{(error.function or name.encode()).decode()}: {error.message.decode()}")


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
            lists = library.new(structs.Lists, n_tiles=len(column), row_ptr=ptr.ctypes.data,
                                col_idx=column.ctypes.data, **sizes)
            library.call("tess_pattern_from_lists", byref(self.handle), byref(lists))
        elif keys is not None:
            keys = numpy.ascontiguousarray(keys, numpy.int32)
            library.call("tess_pattern_from_topk", byref(self.handle), keys.ctypes.data, keys.shape[3],
                         byref(library.new(structs.PatternShape, **sizes)))
        else:
            library.call("tess_pattern_from_spec", byref(self.handle), spec.encode(),
                         byref(library.new(structs.PatternShape, **sizes)))

    def __del__(self):
        self.library.c.tess_pattern_free(self.handle)

    def info(self):
        info = self.library.new(structs.PatternInfo)
        self.library.call("tess_pattern_describe", self.handle, byref(info))
        return info

    def lists(self):
        """First tiles of block rows [lists, block rows + 1], block columns of tiles, and the places of
        those tiles that are listed in part."""
        lists = self.library.new(structs.Lists)
        self.library.call("tess_pattern_lists", self.handle, byref(lists))
        rows, n = -(-lists.n_q // lists.block_q), lists.batch * lists.heads

        def array(address, kind, shape):
            if not all(shape):
                return numpy.zeros(shape, int)
            return numpy.ctypeslib.as_array(ctypes.cast(address, POINTER(kind)), shape).copy()

        return (array(lists.row_ptr, c_int64, (n, rows + 1)), array(lists.col_idx, c_int32, (lists.n_tiles,)),
                numpy.concatenate([array(lists.band_entry, c_int64, (lists.n_bands,)),
                                   array(lists.bitmask_entry, c_int64, (lists.n_bitmasks,))]).astype(int))

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
                 promises=0, kernel="", split=0):
        import torch

        self.library, self.plan = library, c_void_p()
        k_type = k_type or dtype
        # whose memory runs use
        self.tensors = dict(q=q, k=k, v=v, o=o, lse=lse, k_scale=scale, k_rope=rope)
        types = dict(q=dtype, k=k_type, v=k_type, o=dtype, lse="f32", k_scale="f32", k_rope=dtype)
        self.views = views = {name: Attention.view(library, x, types[name]) for name, x in self.tensors.items()
                              if x is not None}
        problem, target = library.new(structs.Problem), library.new(structs.Target)
        library.call("tess_problem_from_tensors", byref(problem), *(byref(views[x]) for x in "qkvo"))
        problem.v_in_k = 1
        problem.kernel, problem.part_keys = kernel.encode() or None, split
        if scale is not None:
            problem.k_scale = self.SCALE_GROUP
        if rope is not None:
            problem.rope_dims = rope.shape[3]
        library.call("tess_target_query", byref(target), BACKENDS[backend], -1)
        sizes = dict(n_q=q.shape[2], n_kv=k.shape[2], block_q=1, block_kv=1, batch=1, heads=1,
                     capacity=indices[0].shape[1])
        library.call("tess_plan_reserve", byref(self.plan), byref(problem),
                     byref(library.new(structs.DevicePattern, **sizes)), byref(target))
        self.workspace_size, self.image_size = (
            library.c.tess_plan_workspace_size(self.plan), library.c.tess_plan_image_size(self.plan))
        # The CPU's tensors are aligned to less than images are.
        self.memory = [torch.empty(size + 256, dtype=torch.uint8, device=q.device)
                       for size in [self.workspace_size] + [self.image_size] * len(indices)]
        place = [(x.data_ptr() + 255) // 256 * 256 for x in self.memory]
        self.indices, self.images = indices, place[1:]
        self.patterns = [library.new(structs.DevicePattern, indices=x.data_ptr(), promises=promises, **sizes)
                         for x in indices]
        self.arguments = library.new(structs.Arguments, workspace=place[0], workspace_size=self.workspace_size,
                                     image_size=self.image_size)
        for name, view in views.items():
            if name != "v":
                setattr(self.arguments, name, addressof(view))

    def __del__(self):
        self.library.c.tess_plan_free(self.plan)

    def kernel(self):
        return self.library.c.tess_plan_kernel(self.plan, 0).decode()

    def fill(self, number, stream=0):
        self.library.call("tess_plan_fill", self.plan, byref(self.patterns[number]), self.images[number],
                          self.image_size, stream)

    def step(self, number, stream=0):
        """Fill and run."""
        self.arguments.image = None
        self.library.call("tess_plan_fill_run", self.plan, byref(self.patterns[number]),
                          self.images[number], self.image_size, None, byref(self.arguments), stream)

    def direct(self, number, stream=0):
        """Fill and run without an image: indices are distinct, and the kernel reads them."""
        self.arguments.image = None
        self.patterns[number].promises |= 1
        self.library.call("tess_plan_fill_run", self.plan, byref(self.patterns[number]), None, 0, None,
                          byref(self.arguments), stream)

    def run(self, number, stream=0):
        self.arguments.image = self.images[number]
        self.library.call("tess_run", self.plan, byref(self.arguments), stream)


class Plan:
    """A plan of the forward over views like `views`: q, k, v and o."""

    def __init__(self, library, pattern, views, backend, pipeline, threads=0, kernel=None, tile=0, split=0):
        self.library, self.handle = library, c_void_p()
        problem, target = library.new(structs.Problem), library.new(structs.Target)
        library.call("tess_problem_from_tensors", byref(problem), *(byref(x) for x in views))
        problem.pipeline = PIPELINES[pipeline]
        problem.threads = threads
        problem.kernel = kernel.encode() if kernel else None
        problem.tile_rows, problem.part_keys = tile, split
        library.call("tess_target_query", byref(target), BACKENDS[backend], -1)
        library.call("tess_plan_create", byref(self.handle), byref(problem), pattern.handle, byref(target))

    def __del__(self):
        self.library.c.tess_plan_free(self.handle)


class Attention:
    """A plan with its image and workspace, over PyTorch tensors [B, H, N, D] on one device: q, k, v, o and lse. Of
    several sets of them, each run takes the next."""

    def __init__(self, library, plan, dtype, *sets):
        import torch

        self.library, self.made, self.plan, self.sets = library, plan, plan.handle, sets
        sizes = [library.c.tess_plan_workspace_size(self.plan), library.c.tess_plan_image_size(self.plan)]
        # PyTorch aligns to 512 bytes on CUDA and 64 on the CPU.
        self.memory = [torch.empty(max(size, 1), dtype=torch.uint8, device=sets[0][0].device) for size in sizes]
        if sizes[1]:
            library.call("tess_plan_upload", self.plan, self.memory[1].data_ptr(), sizes[1], None)
            torch.cuda.synchronize()
        self.views = [[*self.inputs(library, x, dtype), self.view(library, x[4], "f32")] for x in sets]
        self.arguments = []
        for views in self.views:
            self.arguments.append(library.new(
                structs.Arguments, workspace=self.memory[0].data_ptr(), workspace_size=sizes[0],
                image=self.memory[1].data_ptr() if sizes[1] else None, image_size=sizes[1]))
            for name, view in zip(("q", "k", "v", "o", "lse"), views):
                setattr(self.arguments[-1], name, addressof(view))
        self.next = itertools.cycle(self.arguments)

    @staticmethod
    def inputs(library, tensors, dtype):
        """Views of q, k, v and o."""
        return [Attention.view(library, x, dtype) for x in tensors[:4]]

    @staticmethod
    def view(library, x, dtype):
        return library.new(structs.Tensor, data=x.data_ptr(), type=TYPES[dtype], size=(c_int64 * 4)(*x.shape),
                           stride=(c_int64 * 4)(*x.stride()))

    def kernel(self):
        names = (self.library.c.tess_plan_kernel(self.plan, stage) for stage in range(4))
        return "+".join(name.decode() for name in names if name)

    def info(self):
        info = self.library.new(structs.PlanInfo)
        self.library.call("tess_plan_describe", self.plan, byref(info))
        return info

    def run(self, stream=0):
        self.library.call("tess_run", self.plan, byref(next(self.next)), stream)


class Backward:
    """A plan of the backward with its image and workspace, over PyTorch tensors [B, H, N, D] on one device."""

    STAGES = 9

    def __init__(self, library, pattern, inputs, lse, gradients, dtype, backend="cpu", pipeline="fused",
                 threads=0, spill=0):
        """inputs: q, k, v, o, d_o; gradients: d_q, d_k, d_v; spill: bytes (spill_size)."""
        import torch

        self.library, self.plan = library, c_void_p()
        self.tensors = (*inputs, lse, *gradients)  # whose memory runs use
        self.views = [Attention.view(library, x, "f32" if x is lse else dtype) for x in self.tensors]
        problem, target = library.new(structs.Problem), library.new(structs.Target)
        library.call("tess_problem_from_tensors", byref(problem), *(byref(x) for x in self.views[:4]))
        problem.operation, problem.threads, problem.pipeline = 1, threads, PIPELINES[pipeline]
        problem.spill_size = spill
        library.call("tess_target_query", byref(target), BACKENDS[backend], -1)
        library.call("tess_plan_create", byref(self.plan), byref(problem), pattern.handle, byref(target))
        size, image = library.c.tess_plan_workspace_size(self.plan), library.c.tess_plan_image_size(self.plan)
        # The CPU's tensors may be aligned to less than 64 bytes.
        self.memory = [torch.empty(n + 64, dtype=torch.uint8, device=inputs[0].device) for n in (size, image)]
        self.arguments = library.new(structs.Arguments, workspace=(self.memory[0].data_ptr() + 63) // 64 * 64,
                                     workspace_size=size)
        if image:
            self.arguments.image, self.arguments.image_size = self.memory[1].data_ptr(), image
            library.call("tess_plan_upload", self.plan, self.arguments.image, image, None)
            torch.cuda.synchronize()
        for name, view in zip(("q", "k", "v", "o", "d_o", "lse", "d_q", "d_k", "d_v"), self.views):
            setattr(self.arguments, name, addressof(view))

    def __del__(self):
        self.library.c.tess_plan_free(self.plan)

    def kernel(self):
        names = (self.library.c.tess_plan_kernel(self.plan, stage) for stage in range(self.STAGES))
        return "+".join(name.decode() for name in names if name)

    def run(self, stream=0):
        self.library.call("tess_run", self.plan, byref(self.arguments), stream)
