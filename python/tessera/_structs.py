"""Structs, constants and prototypes of tessera.h, written by tools/scripts/python_structs.py."""
from ctypes import Structure, c_char, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_void_p

VERSION = "0.1.0"
TESS_REPORT_SIZE = 256

# tess_status
TESS_OK = 0
TESS_INVALID_ARGUMENT = 1
TESS_INVALID_LIST = 2
TESS_UNSUPPORTED = 3
TESS_OUT_OF_MEMORY = 4
TESS_WORKSPACE_TOO_SMALL = 5
TESS_NO_CUDA = 6
TESS_CUDA_ERROR = 7

# tess_list_fault
TESS_FAULT_NONE = 0
TESS_FAULT_NULL = 1
TESS_FAULT_NOT_MONOTONE = 2
TESS_FAULT_NEGATIVE = 3
TESS_FAULT_OUT_OF_RANGE = 4
TESS_FAULT_UNSORTED = 5
TESS_FAULT_DUPLICATE = 6
TESS_FAULT_OVERFLOW = 7

# tess_type
TESS_F32 = 0
TESS_F16 = 1
TESS_BF16 = 2
TESS_E4M3 = 3
TESS_E5M2 = 4

# tess_backend
TESS_CPU = 0
TESS_CUDA = 1

# tess_stage
TESS_STAGE_ATTENTION = 0
TESS_STAGE_SDDMM = 1
TESS_STAGE_SOFTMAX = 2
TESS_STAGE_SPMM = 3
TESS_STAGE_DELTA = 4
TESS_STAGE_GRADIENT_KEYS = 5
TESS_STAGE_GRADIENT_ROWS = 6
TESS_STAGE_SOFTMAX_BACKWARD = 7
TESS_STAGE_SPMM_TRANSPOSED = 8
TESS_STAGE_COLUMN_SUMS = 9
TESS_STAGE_MLP_UP = 10
TESS_STAGE_MLP_DOWN = 11

# tess_pipeline
TESS_FUSED = 0
TESS_STAGED = 1

# tess_operation
TESS_ATTENTION = 0
TESS_ATTENTION_BACKWARD = 1
TESS_MLP = 2

# tess_activation
TESS_GELU = 0
TESS_GELU_TANH = 1
TESS_SILU = 2
TESS_RELU = 3
TESS_IDENTITY = 4

# tess_scaling
TESS_SCALE_NONE = 0
TESS_SCALE_TENSOR = 1
TESS_SCALE_HEAD = 2
TESS_SCALE_TOKEN = 3
TESS_SCALE_GROUP = 4

# flags
TESS_GRADIENT_Q = 1
TESS_GRADIENT_K = 2
TESS_GRADIENT_V = 4
TESS_GRADIENT_ALIBI = 8
TESS_GRADIENT_SINK = 16

# tess_base
TESS_BASE_NONE = 0
TESS_BASE_MERGE = 1
TESS_BASE_ADD = 2

# tess_form
TESS_INDICES = 0
TESS_BLOCK_ROWS = 1
TESS_BLOCK_BITS = 2
TESS_RANGES = 3
TESS_MASK = 4

# tess_promise
TESS_DISTINCT = 1
TESS_ASCENDING = 2
TESS_PADDED_LAST = 4

# tess_pool_mode
TESS_POOL_MEAN = 0
TESS_POOL_MIN_MAX = 1
TESS_POOL_LSE = 2

# tess_select_mode
TESS_SELECT_EXACT = 0
TESS_SELECT_THRESHOLD = 1
TESS_SELECT_TOP_P = 2


class Error(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("status", c_int),
        ("fault", c_int),
        ("function", c_char_p),
        ("argument", c_char_p),
        ("batch", c_int64),
        ("head", c_int64),
        ("row", c_int64),
        ("position", c_int64),
        ("message", c_char * 256),
    ]


class Tensor(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("data", c_void_p),
        ("type", c_int),
        ("size", c_int64 * 4),
        ("stride", c_int64 * 4),
    ]


class PatternShape(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("n_q", c_int64),
        ("n_kv", c_int64),
        ("block_q", c_int64),
        ("block_kv", c_int64),
        ("batch", c_int64),
        ("heads", c_int64),
        ("threads", c_int64),
    ]


class Lists(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("n_q", c_int64),
        ("n_kv", c_int64),
        ("block_q", c_int64),
        ("block_kv", c_int64),
        ("batch", c_int64),
        ("heads", c_int64),
        ("n_tiles", c_int64),
        ("n_bands", c_int64),
        ("n_bitmasks", c_int64),
        ("row_ptr", c_void_p),
        ("col_idx", c_void_p),
        ("band_entry", c_void_p),
        ("band", c_void_p),
        ("bitmask_entry", c_void_p),
        ("bits", c_void_p),
        ("threads", c_int64),
    ]


class PatternInfo(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("n_q", c_int64),
        ("n_kv", c_int64),
        ("block_q", c_int64),
        ("block_kv", c_int64),
        ("batch", c_int64),
        ("heads", c_int64),
        ("full_tiles", c_int64),
        ("band_tiles", c_int64),
        ("bitmask_tiles", c_int64),
        ("pairs", c_int64),
        ("empty_rows", c_int64),
        ("memory_size", c_int64),
    ]


class Problem(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("pipeline", c_int),
        ("type", c_int),
        ("batch", c_int64),
        ("heads_q", c_int64),
        ("heads_kv", c_int64),
        ("n_q", c_int64),
        ("n_kv", c_int64),
        ("d_qk", c_int64),
        ("d_v", c_int64),
        ("scale", c_double),
        ("alignment", c_int64),
        ("threads", c_int64),
        ("kernel", c_char_p),
        ("tile_rows", c_int64),
        ("part_keys", c_int64),
        ("softcap", c_double),
        ("alibi", c_int64),
        ("sink", c_int64),
        ("dropout", c_double),
        ("batch_offset", c_int64),
        ("head_offset", c_int64),
        ("query_offset", c_int64),
        ("key_offset", c_int64),
        ("whole_heads_q", c_int64),
        ("whole_n_q", c_int64),
        ("whole_n_kv", c_int64),
        ("key_positions", c_int64),
        ("operation", c_int),
        ("gradients", c_int64),
        ("spill_size", c_int64),
        ("o_rest", c_int64),
        ("k_type", c_int),
        ("v_type", c_int),
        ("v_in_k", c_int64),
        ("page_size", c_int64),
        ("k_scale", c_int),
        ("v_scale", c_int),
        ("scale_group", c_int64),
        ("rope_dims", c_int64),
        ("k_rope_type", c_int),
        ("o_f32", c_int64),
        ("strict", c_int64),
        ("sum_rows", c_int64),
        ("sum_type", c_int),
        ("activation", c_int),
    ]


class Target(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("backend", c_int),
        ("device", c_int32),
        ("architecture", c_int32),
        ("multiprocessors", c_int32),
        ("shared_memory_per_block", c_int64),
        ("cache_size", c_int64),
        ("memory_rate", c_int64),
    ]


class Arguments(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("q", c_void_p),
        ("k", c_void_p),
        ("v", c_void_p),
        ("o", c_void_p),
        ("lse", c_void_p),
        ("scores", c_void_p),
        ("workspace", c_void_p),
        ("workspace_size", c_size_t),
        ("image", c_void_p),
        ("image_size", c_size_t),
        ("alibi", c_void_p),
        ("sink", c_void_p),
        ("seed", c_void_p),
        ("key_positions", c_void_p),
        ("o_rest", c_void_p),
        ("d_o", c_void_p),
        ("d_lse", c_void_p),
        ("delta", c_void_p),
        ("d_q", c_void_p),
        ("d_k", c_void_p),
        ("d_v", c_void_p),
        ("d_alibi", c_void_p),
        ("d_sink", c_void_p),
        ("page_table", c_void_p),
        ("k_scale", c_void_p),
        ("v_scale", c_void_p),
        ("q_rope", c_void_p),
        ("k_rope", c_void_p),
        ("page_table_stride", c_int64),
        ("base", c_int),
        ("base_o", c_void_p),
        ("base_lse", c_void_p),
        ("beta", c_double),
        ("lse_reference", c_void_p),
        ("column_sums", c_void_p),
        ("bias", c_void_p),
        ("bias_out", c_void_p),
        ("activations", c_void_p),
    ]


class PlanInfo(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("tile_rows", c_int64),
        ("query_tiles", c_int64),
        ("packed_keys", c_int64),
        ("pairs", c_int64),
        ("tile_heads", c_int64),
        ("work_items", c_int64),
        ("split_tiles", c_int64),
        ("memory_size", c_int64),
        ("predicted_seconds", c_double),
        ("tile_keys", c_int64),
        ("packed_queries", c_int64),
        ("bytes", c_int64),
        ("fill_run_exact", c_int64),
        ("fill_run_direct", c_int64),
    ]


class DevicePattern(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("form", c_int),
        ("n_q", c_int64),
        ("n_kv", c_int64),
        ("block_q", c_int64),
        ("block_kv", c_int64),
        ("batch", c_int64),
        ("heads", c_int64),
        ("capacity", c_int64),
        ("cut_lo", c_int64),
        ("cut_hi", c_int64),
        ("promises", c_int64),
        ("indices", c_void_p),
        ("counts", c_void_p),
        ("row_ptr", c_void_p),
        ("bits", c_void_p),
        ("lengths", c_void_p),
        ("mask", c_void_p),
    ]


class FillReport(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("faults", c_int64),
        ("overflows", c_int64),
        ("keys", c_int64),
        ("items", c_int64),
        ("pairs", c_int64),
        ("first_fault", c_int),
        ("batch", c_int64),
        ("head", c_int64),
        ("row", c_int64),
        ("position", c_int64),
    ]


class Pooling(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("mode", c_int),
        ("block", c_int64),
        ("lengths", c_void_p),
        ("begins", c_void_p),
    ]


class Scoring(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("scale", c_double),
        ("bounds", c_int64),
        ("causal", c_int64),
        ("block_q", c_int64),
        ("block_kv", c_int64),
        ("n_q", c_int64),
        ("n_kv", c_int64),
        ("lengths", c_void_p),
    ]


class Columns(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rows", c_int64),
        ("columns", c_int64),
        ("capacity", c_int64),
        ("bytes", c_void_p),
        ("bits", c_void_p),
        ("indices", c_void_p),
        ("counts", c_void_p),
    ]


class Selection(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("mode", c_int),
        ("threshold", c_float),
        ("p", c_float),
        ("k", c_int64),
        ("keep_first", c_int64),
        ("keep_last", c_int64),
        ("block_q", c_int64),
        ("block_kv", c_int64),
        ("causal", c_int64),
        ("n_q", c_int64),
        ("row_k", c_void_p),
        ("lengths", c_void_p),
        ("n_kv", c_int64),
        ("keep", c_void_p),
        ("keep_rows", c_int64),
    ]


class Selected(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("capacity", c_int64),
        ("indices", c_void_p),
        ("counts", c_void_p),
        ("bits", c_void_p),
        ("overflows", c_void_p),
    ]


class KernelInfo(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("backend", c_int),
        ("stage", c_int),
        ("unusable", c_char_p),
    ]


class DeviceInfo(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char * 128),
        ("architecture", c_int32),
        ("multiprocessors", c_int32),
        ("memory_size", c_int64),
        ("cache_size", c_int64),
    ]


STRUCTS = {
    "tess_error": Error,
    "tess_tensor": Tensor,
    "tess_pattern_shape": PatternShape,
    "tess_lists": Lists,
    "tess_pattern_info": PatternInfo,
    "tess_problem": Problem,
    "tess_target": Target,
    "tess_arguments": Arguments,
    "tess_plan_info": PlanInfo,
    "tess_device_pattern": DevicePattern,
    "tess_fill_report": FillReport,
    "tess_pooling": Pooling,
    "tess_scoring": Scoring,
    "tess_columns": Columns,
    "tess_selection": Selection,
    "tess_selected": Selected,
    "tess_kernel_info": KernelInfo,
    "tess_device_info": DeviceInfo,
}

# Types of the answer and of the arguments.
FUNCTIONS = {
    "tess_attention": (c_int, [c_int, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "tess_attention_backward": (c_int, [c_int, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p,
        c_void_p, c_void_p, c_void_p, c_void_p]),
    "tess_pattern_from_spec": (c_int, [c_void_p, c_char_p, c_void_p, c_void_p]),
    "tess_pattern_from_mask": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "tess_pattern_from_blocks": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "tess_pattern_from_bits": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "tess_pattern_from_counts": (c_int, [c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_void_p]),
    "tess_pattern_from_topk": (c_int, [c_void_p, c_void_p, c_int64, c_void_p, c_void_p]),
    "tess_pattern_from_lists": (c_int, [c_void_p, c_void_p, c_void_p]),
    "tess_pattern_union": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "tess_pattern_intersection": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "tess_pattern_concat": (c_int, [c_void_p, c_void_p, c_int64, c_void_p]),
    "tess_pattern_select": (c_int, [c_void_p, c_void_p, c_int64, c_int64, c_int64, c_int64, c_void_p]),
    "tess_pattern_transpose": (c_int, [c_void_p, c_void_p, c_void_p]),
    "tess_pattern_lists": (c_int, [c_void_p, c_void_p, c_void_p]),
    "tess_pattern_row": (c_int, [c_void_p, c_int64, c_int64, c_int64, c_void_p, c_int64, c_void_p, c_void_p]),
    "tess_pattern_describe": (c_int, [c_void_p, c_void_p, c_void_p]),
    "tess_pattern_free": (None, [c_void_p]),
    "tess_problem_from_tensors": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "tess_target_query": (c_int, [c_void_p, c_int, c_int32, c_void_p]),
    "tess_plan_create": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "tess_plan_free": (None, [c_void_p]),
    "tess_plan_workspace_size": (c_size_t, [c_void_p]),
    "tess_plan_image_size": (c_size_t, [c_void_p]),
    "tess_plan_upload": (c_int, [c_void_p, c_void_p, c_size_t, c_void_p, c_void_p]),
    "tess_run": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "tess_delta": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "tess_plan_describe": (c_int, [c_void_p, c_void_p, c_void_p]),
    "tess_plan_predict": (c_double, [c_void_p, c_int64]),
    "tess_plan_print": (c_size_t, [c_void_p, c_char_p, c_size_t]),
    "tess_plan_reserve": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "tess_plan_fill": (c_int, [c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p]),
    "tess_plan_fill_run": (c_int, [c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p, c_void_p, c_void_p]),
    "tess_plan_report": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "tess_plan_scores_count": (c_int64, [c_void_p]),
    "tess_plan_stage_workspace_size": (c_size_t, [c_void_p, c_int]),
    "tess_sddmm": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "tess_softmax": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "tess_spmm": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "tess_merge": (c_int, [c_int, c_int64, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "tess_unmerge": (c_int, [c_int, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "tess_pool": (c_int, [c_int, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "tess_pool_score": (c_int, [c_int, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "tess_columns_convert": (c_int, [c_int, c_void_p, c_void_p, c_void_p, c_void_p]),
    "tess_select": (c_int, [c_int, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "tess_version": (c_char_p, []),
    "tess_status_name": (c_char_p, [c_int]),
    "tess_status_text": (c_char_p, [c_int]),
    "tess_list_fault_name": (c_char_p, [c_int]),
    "tess_type_name": (c_char_p, [c_int]),
    "tess_type_size": (c_size_t, [c_int]),
    "tess_backend_name": (c_char_p, [c_int]),
    "tess_stage_name": (c_char_p, [c_int]),
    "tess_plan_kernel": (c_char_p, [c_void_p, c_int]),
    "tess_struct_size": (c_size_t, [c_char_p]),
    "tess_struct_init": (c_int, [c_char_p, c_void_p, c_size_t, c_void_p]),
    "tess_cpu_isa": (c_char_p, []),
    "tess_kernel_count": (c_int64, []),
    "tess_kernel_describe": (c_int, [c_int64, c_void_p, c_void_p]),
    "tess_device_count": (c_int32, [c_int]),
    "tess_device_describe": (c_int, [c_int, c_int32, c_void_p, c_void_p]),
}

# Functions whose last argument is a stream; the error is the one before it.
STREAMED = {
    "tess_plan_upload",
    "tess_run",
    "tess_delta",
    "tess_plan_fill",
    "tess_plan_fill_run",
    "tess_sddmm",
    "tess_softmax",
    "tess_spmm",
    "tess_merge",
    "tess_unmerge",
    "tess_pool",
    "tess_pool_score",
    "tess_columns_convert",
    "tess_select",
}
