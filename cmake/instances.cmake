# Translation units of the rows of src/cuda/instances.def: the lists `units`, for every architecture
# that is built for, and `units_sm90`, of Hopper's own instructions; those that take longest come
# first. Units whose text stays are not written again, so that they are not compiled again.
set(table src/cuda/instances.def)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${table} src/cuda/instance.cu.in)
set(units)
set(units_sm90)

# unit(LIST NAME HEADER BODY): adds BODY to build/instances/NAME.cu, of LIST. CUDA's headers take more
# than a second, so kernels that take little more share a unit: of a type, for f16 can be left out.
function(unit list name header body)
    if(NOT DEFINED ${name}_body)
        set(${list} ${${list}} ${name} PARENT_SCOPE)
    endif()
    string(FIND "${${name}_headers}" "\"${header}\"" seen)
    if(seen EQUAL -1)
        set(${name}_headers "${${name}_headers}#include \"${header}\"\n" PARENT_SCOPE)
    endif()
    set(${name}_body "${${name}_body}\n${body}\n" PARENT_SCOPE)
endfunction()

set(staged_parameters "const struct staged_params *p, cudaStream_t stream")
set(forward_parameters "const struct attention_params *p, cudaStream_t stream")

# Types of a row, in the order of the table; and of each the C++ type.
set(types_f32 f32)
set(types_any f32)
set(types_16bit bf16 f16)
set(types_f32_f16 f16)
set(types_f32_bf16 bf16)
set(type_f32 float)
set(type_f16 __half)
set(type_bf16 __nv_bfloat16)

# Of each family: its list, folder of forward/, launch, and bytes of shared memory of a CTA, of its
# type and template arguments; and how many rows of a type share a unit.
foreach(family sm90 sm90_r192 sm90_r64 sm90_wide sm90_pair)
    set(${family}_list units_sm90)
    set(${family}_folder sm90)
    set(${family}_launch "attention_sm90_launch<@T@, sm90_shape<@arguments@>>(p, stream)")
    set(${family}_rows "int32_t")
    set(${family}_shared "sm90_shape<@arguments@>::BYTES")
    set(${family}_share 1)
endforeach()
foreach(family sm90_sums sm90_r192_sums)
    set(${family}_list units_sm90)
    set(${family}_folder sm90)
    set(${family}_launch "attention_sm90_launch_sums<@T@, sm90_shape<@arguments@>>(p, stream)")
    set(${family}_rows "int32_t")
    set(${family}_shared "sm90_shape<@arguments@>::BYTES")
    set(${family}_share 1)
endforeach()
foreach(family sm80 sm80_f32)
    set(${family}_list units)
    set(${family}_folder sm80)
    set(${family}_launch "attention_mma_launch<@T@, @arguments@>(p, stream)")
    set(${family}_rows "int32_t rows")
    set(${family}_shared "attention_mma_shared<@T@, @arguments@>(rows)")
    set(${family}_share 1)
endforeach()
foreach(family small_m small_m_16bit)
    set(${family}_list units)
    set(${family}_folder sm80_small_m)
    set(${family}_launch "attention_small_m_launch<@T@, @arguments@>(p, stream)")
    set(${family}_rows "int32_t rows")
    set(${family}_shared "attention_small_m_shared<@T@, @arguments@>(rows)")
    set(${family}_share 3)
endforeach()
set(sm90_r64_share 3)
set(sm90_r192_share 2)
set(sm90_wide_share 2)
set(sm90_pair_share 2)

file(READ ${table} rows)
string(REGEX REPLACE "/[*]([^*]|[*][^/])*[*]/" "" rows "${rows}")

# Decode. Rows of a tile are a number (16f: 16), or sm90: 64 by Hopper's own instructions; or blocks, blocks128, columns,
# columns128, columns192: by the fused forward's kernels of Hopper. Tensors that TMA cannot address go to the decode kernel of as many rows, where
# there is one, else they are refused before a run. Types are those of products; q and o are of the same, or of f32.
set(consumers_blocks 1)
set(consumers_blocks128 2)
set(consumers_columns 1)
set(consumers_columns128 2)
set(consumers_columns192 3)
string(REGEX MATCHALL "CUDA_DECODE[(][a-z0-9_]+, [a-z0-9_]+, [0-9]+, [0-9]+, [a-z0-9]+, [a-z]+," decode
    "${rows}")
foreach(row ${decode})
    string(REGEX MATCH "[(]([a-z0-9_]+), ([a-z0-9_]+), ([0-9]+, [0-9]+), ([a-z0-9]+), ([a-z]+)," row
        "${row}")
    set(types ${CMAKE_MATCH_1})
    set(name ${CMAKE_MATCH_2})
    set(list units)
    set(apart)
    set(folder decode)
    set(stem decode)
    set(dims ${CMAKE_MATCH_3})
    set(high ${CMAKE_MATCH_4})
    set(v_in_k ${CMAKE_MATCH_5})
    string(REGEX REPLACE "f$" "" tile_rows ${high})
    set(arguments "${dims}, ${tile_rows}, ${v_in_k}")
    if(high STREQUAL "sm90")
        set(list units_sm90)
        set(apart _sm90)
        set(folder decode/sm90)
        set(stem decode_sm90)
        set(arguments ${dims})
    elseif(DEFINED consumers_${high})
        set(list units_sm90)
        set(apart _blocks)
        set(folder forward/sm90/filled)
        set(stem attention_filled)
        set(arguments "${dims}, ${consumers_${high}}")
        if(high MATCHES "^columns")
            set(apart _columns)
            set(folder forward/sm90/filled/columns)
            set(stem attention_columns)
        endif()
    endif()
    set(other)
    if(high STREQUAL "blocks")
        string(REGEX REPLACE "^sm90_blocks_(.*)" "\\1_r64" other ${name})
    endif()
    foreach(type ${types_${types}})
        set(T "${type_${type}}, ${type_${type}}")
        if(types MATCHES "^f32_")
            set(T "${type_${type}}, float")
            set(type f32_${type})
        endif()
        set(then)
        if(other)
            set(then ", cuda_decode_${type}_${other}")
        endif()
        unit(${list} decode_${type}${apart} ${folder}/kernel.cuh
            "cudaError_t cuda_decode_${type}_${name}(const struct decode_params *p, cudaStream_t stream) {\n    return ${stem}_launch<${T}, ${arguments}>(p, stream${then});\n}\n\nint64_t cuda_decode_${type}_${name}_shared(int32_t rows) {\n    (void)rows;\n    return ${stem}_shared<${T}, ${arguments}>();\n}")
    endforeach()
endforeach()
unit(units_sm90 decode_bf16_blocks forward/sm90/filled/kernel.cuh
    "const char *cuda_decode_refuses_run(const struct decode_params *p, tess_type type) {\n    return type == TESS_F16 ? attention_filled_refuses_run<__half>(p)\n                            : attention_filled_refuses_run<__nv_bfloat16>(p);\n}")

# Fused.
string(REGEX MATCHALL "CUDA_FORWARD[(][a-z0-9]+, [a-z0-9_]+, [a-z0-9_]+, [0-9]+, [0-9]+, [(][A-Za-z0-9_, ]*[)]"
    forward "${rows}")
foreach(row ${forward})
    string(REGEX MATCH
        "[(]([a-z0-9]+), ([a-z0-9_]+), ([a-z0-9_]+), [0-9]+, [0-9]+, [(]([A-Za-z0-9_, ]*)[)]" row "${row}")
    set(types ${types_${CMAKE_MATCH_1}})
    set(name ${CMAKE_MATCH_2})
    set(family ${CMAKE_MATCH_3})
    set(arguments ${CMAKE_MATCH_4})
    if(NOT DEFINED ${family}_list)
        message(FATAL_ERROR "${table}: no family ${family}")
    endif()
    foreach(type ${types})
        set(T ${type_${type}})
        string(CONFIGURE "${${family}_launch}" launch @ONLY)
        string(CONFIGURE "${${family}_shared}" shared @ONLY)
        list(APPEND ${family}_${type} ${name})
        list(LENGTH ${family}_${type} number)
        math(EXPR first "(${number} - 1) / ${${family}_share} * ${${family}_share}")
        list(GET ${family}_${type} ${first} first)
        unit(${${family}_list} attention_${type}_${first} forward/${${family}_folder}/kernel.cuh
            "cudaError_t cuda_attention_${type}_${name}(${forward_parameters}) {\n    return ${launch};\n}\n\nint64_t cuda_attention_${type}_${name}_shared(${${family}_rows}) {\n    return ${shared};\n}")
    endforeach()
endforeach()

unit(units_sm90 attention_bf16_sm90_d128_sums forward/sm90/kernel.cuh
    "const char *cuda_sums_refuses_run(const struct attention_params *p, tess_type type) {\n    return attention_sm90_sums_refused(p, type);\n}")

# Backward.
string(REGEX MATCHALL "CUDA_BACKWARD[(][a-z0-9]+, [a-z0-9_]+, [a-z]+, [a-z0-9]+, [0-9]+,[^(]*[(][0-9]+" backward "${rows}")
foreach(row ${backward})
    string(REGEX MATCH "[(]([a-z0-9]+), ([a-z0-9_]+), ([a-z]+), ([a-z0-9]+), ([0-9]+),[^(]*[(]([0-9]+)" row "${row}")
    set(name gradient_${CMAKE_MATCH_3}_${CMAKE_MATCH_1}_${CMAKE_MATCH_2})
    set(over_keys false)
    if(CMAKE_MATCH_3 STREQUAL "keys")
        set(over_keys true)
    endif()
    set(arguments "${type_${CMAKE_MATCH_1}}, ${CMAKE_MATCH_5}, ${over_keys}")
    set(list units)
    set(folder backward)
    set(launch "gradient_launch<${arguments}>(p, stream)")
    set(shared "gradient_shared<${arguments}>(rows)")
    set(rows_name " rows")
    if(CMAKE_MATCH_4 STREQUAL "sm90" OR CMAKE_MATCH_4 STREQUAL "wide")
        set(arguments "${type_${CMAKE_MATCH_1}}, ${CMAKE_MATCH_5}, ${CMAKE_MATCH_6}, ${over_keys}")
        set(list units_sm90)
        set(folder backward/sm90)
        set(launch "gradient_sm90_launch<${arguments}>(p, stream)")
        set(shared "gradient_sm90_shared<${arguments}>()")
        set(rows_name "")
    endif()
    unit(${list} gradient_${CMAKE_MATCH_1}_${CMAKE_MATCH_2} ${folder}/kernel.cuh
        "cudaError_t cuda_${name}(const struct gradient_params *p, cudaStream_t stream) {\n    return ${launch};\n}\n\nint64_t cuda_${name}_shared(int32_t${rows_name}) {\n    return ${shared};\n}")
endforeach()

# The MLP's products.
string(REGEX MATCHALL "CUDA_MLP_(UP|DOWN)[(][a-z0-9]+" mlp "${rows}")
foreach(row ${mlp})
    string(REGEX MATCH "MLP_(UP|DOWN)[(]([a-z0-9]+)" row "${row}")
    set(down false)
    string(TOLOWER ${CMAKE_MATCH_1} pass)
    set(name ${CMAKE_MATCH_2})
    set(list units)
    set(apart)
    if(pass STREQUAL "down")
        set(down true)
    endif()
    if(name STREQUAL "sm90")
        set(list units_sm90)
        set(apart _sm90)
    endif()
    foreach(type ${types_16bit})
        set(T ${type_${type}})
        unit(${list} mlp_${type}${apart} mlp/${name}/kernel.cuh
            "cudaError_t cuda_mlp_${pass}_${type}_${name}(const struct mlp_params *p, cudaStream_t stream) {\n    return mlp_${name}_launch<${T}, ${down}>(p, stream);\n}")
        if(pass STREQUAL "up")
            unit(${list} mlp_${type}${apart} mlp/${name}/kernel.cuh
                "int64_t cuda_mlp_up_${type}_${name}_shared(int32_t rows) {\n    return mlp_${name}_shared(rows);\n}")
        endif()
    endforeach()
endforeach()
unit(units_sm90 mlp_bf16_sm90 mlp/sm90/kernel.cuh
    "const char *cuda_mlp_refuses_run(const struct mlp_params *p, tess_type type, bool down) {\n    return mlp_sm90_refuses_run(p, type, down);\n}")

# Of the stages.
string(REGEX MATCHALL "CUDA_STAGED[(][a-z0-9]+, [a-z_]+, [a-z]+, [A-Z_]+," staged "${rows}")
foreach(row ${staged})
    string(REGEX MATCH "[(]([a-z0-9]+), ([a-z_]+), ([a-z]+)," row "${row}")
    set(types ${CMAKE_MATCH_1})
    set(stem ${CMAKE_MATCH_2})
    set(variant ${CMAKE_MATCH_3})
    foreach(type ${types_${types}})
        set(arguments "<${type_${type}}>")
        if(types STREQUAL "any")
            set(arguments)
        endif()
        unit(units ${stem}_${type} staged/${stem}/${variant}.cuh
            "cudaError_t cuda_${stem}_${type}_${variant}(${staged_parameters}) {\n    return ${stem}_${variant}_launch${arguments}(p, stream);\n}")
    endforeach()
endforeach()

# One of each.
unit(units delta backward/delta.cuh
    "cudaError_t cuda_delta(const struct delta_params *p, cudaStream_t stream) {\n    return delta_launch(p, stream);\n}")

unit(units column_sums forward/column_sums/kernel.cuh
    "cudaError_t cuda_column_sums(const struct column_sums_params *p, cudaStream_t stream) {\n    return column_sums_launch(p, stream);\n}")
unit(units staged staged/image.cuh
    "cudaError_t cuda_image_derive(${staged_parameters}) {\n    return image_derive(p, stream);\n}")
unit(units fill fill/launch.cuh
    "cudaError_t cuda_fill(const struct fill_params *p, cudaStream_t stream) {\n    return fill_launch(p, stream);\n}")
unit(units staged staged/sddmm/modify.cuh
    "cudaError_t cuda_sddmm_modify(${staged_parameters}) {\n    return sddmm_modify_launch(p, stream);\n}")
unit(units combine work/combine.cuh
    "cudaError_t cuda_attention_combine(const struct attention_params *p, tess_type o,\n                                   cudaStream_t stream) {\n    return combine_launch_type(p, o, stream);\n}")
unit(units combine work/combine.cuh
    "cudaError_t cuda_decode_combine(const struct decode_params *p, tess_type o, cudaStream_t stream) {\n    return combine_launch_type(p, o, stream);\n}")
unit(units select select/launch.cuh
    "cudaError_t cuda_select(const struct select_params *p, cudaStream_t stream) {\n    return select_launch(p, stream);\n}")
unit(units combine forward/merge.cuh
    "cudaError_t cuda_merge(const struct merge_params *p, tess_type in, tess_type out,\n                       cudaStream_t stream) {\n    return merge_launch(p, in, out, stream);\n}")
unit(units combine forward/unmerge.cuh
    "cudaError_t cuda_unmerge(const struct merge_params *p, tess_type in, tess_type out,\n                         cudaStream_t stream) {\n    return unmerge_launch(p, in, out, stream);\n}")
unit(units select_blocks select/pool.cuh
    "cudaError_t cuda_pool(const struct pool_params *p, tess_type type, cudaStream_t stream) {\n    return pool_launch(p, type, stream);\n}")
unit(units select_blocks select/score.cuh
    "cudaError_t cuda_score(const struct score_params *p, tess_type type, bool pairs,\n                       cudaStream_t stream) {\n    return score_launch(p, type, pairs, stream);\n}")
unit(units select_blocks select/columns.cuh
    "cudaError_t cuda_columns(const struct columns_params *p, cudaStream_t stream) {\n    return columns_launch(p, stream);\n}")

list(LENGTH forward forward_rows)
list(LENGTH staged staged_rows)
list(LENGTH backward backward_rows)
list(LENGTH decode decode_rows)
if(decode_rows EQUAL 0 OR forward_rows EQUAL 0 OR staged_rows EQUAL 0 OR backward_rows EQUAL 0)
    message(FATAL_ERROR "no rows were read from ${table}")
endif()

foreach(list units units_sm90)
    set(files)
    foreach(name ${${list}})
        set(HEADERS "${${name}_headers}")
        set(BODY "${${name}_body}")
        configure_file(src/cuda/instance.cu.in ${PROJECT_BINARY_DIR}/instances/${name}.cu @ONLY)
        list(APPEND files ${PROJECT_BINARY_DIR}/instances/${name}.cu)
    endforeach()
    set(${list} ${files})
endforeach()

if(NOT TESSERA_CUDA_F16)
    list(FILTER units EXCLUDE REGEX "/[a-z]+(_[a-z]+)*_f16[_.]")
    list(FILTER units_sm90 EXCLUDE REGEX "/[a-z]+(_[a-z]+)*_f16[_.]")
    list(APPEND units tests/support/cuda_f16.c)
endif()
