"""Tessera from Python in forty lines, by ctypes alone: python3 attention.py [libtessera.so]"""
import ctypes as c, sys

lib = c.CDLL(sys.argv[1] if len(sys.argv) > 1 else "libtessera.so")
I64, P = c.c_int64, c.c_void_p
FIELDS = {"tess_error": [("status", c.c_int), ("fault", c.c_int), ("function", c.c_char_p),
                         ("argument", c.c_char_p), ("place", I64 * 4), ("message", c.c_char * 256)],
          "tess_tensor": [("data", P), ("type", c.c_int), ("size", I64 * 4), ("stride", I64 * 4)],
          "tess_pattern_shape": [("n_q", I64), ("n_kv", I64), ("block_q", I64), ("block_kv", I64),
                                 ("batch", I64), ("heads", I64)]}
lib.tess_struct_size.restype = c.c_size_t
STRUCTS = {name: type(name, (c.Structure,), {"_fields_": [("struct_size", c.c_size_t), *fields]})
           for name, fields in FIELDS.items()}

def new(name, **values):
    """A struct at its defaults; a layout of another version of the library is told apart here."""
    struct = STRUCTS[name]()
    if c.sizeof(struct) > lib.tess_struct_size(name.encode()):
        raise RuntimeError(f"{name} is {c.sizeof(struct)} bytes here: not this library's version")
    lib.tess_struct_init(name.encode(), c.byref(struct), c.c_size_t(c.sizeof(struct)), None)
    for field, value in values.items():
        setattr(struct, field, value)
    return struct

def call(function, *arguments):
    error = new("tess_error")
    if getattr(lib, function)(*arguments, c.byref(error)):
        raise ValueError(f"{function}: {error.message.decode()}")

def tensor(x, b, h, n, d):  # a c_float array; of numpy's float32 array x, x.ctypes.data is data
    return new("tess_tensor", data=c.cast(x, P), size=(b, h, n, d), stride=(h * n * d, n * d, d, 1))

N, D = 256, 32
q, k, v, o = ((c.c_float * (N * D))(*[(i * p % 997) / 498.5 - 1 for i in range(N * D)])
              for p in (7, 31, 101, 1))
pattern = P()
call("tess_pattern_from_spec", c.byref(pattern), b"causal&window(31,0)",
     c.byref(new("tess_pattern_shape", n_q=N)))
views = [tensor(x, 1, 1, N, D) for x in (q, k, v, o)]
call("tess_attention", 0, *map(c.byref, views[:3]), pattern, c.byref(views[3]), None)
lib.tess_pattern_free(pattern)

# By hand: query 200 sees keys 169 ... 200.
from math import exp, sqrt
w = {j: exp(sum(q[200 * D + d] * k[j * D + d] for d in range(D)) / sqrt(D)) for j in range(169, 201)}
worst = max(abs(sum(w[j] * v[j * D + d] for j in w) / sum(w.values()) - o[200 * D + d])
            for d in range(D))
print(f"query 200: largest error {worst:.1e}")
sys.exit(worst > 1e-6)
