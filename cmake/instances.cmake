# A translation unit of each row of src/cuda/instances.def: the lists `units`, for every architecture
# that is built for, and `units_sm90`, of Hopper's own instructions. Units whose text stays are not
# written again, so that they are not compiled again.
set(table src/cuda/instances.def)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${table} src/cuda/instance.cu.in)
set(units)
set(units_sm90)

# unit(LIST NAME HEADER BODY): adds build/instances/NAME.cu to LIST.
function(unit list name HEADER BODY)
    set(file ${PROJECT_BINARY_DIR}/instances/${name}.cu)
    configure_file(src/cuda/instance.cu.in ${file} @ONLY)
    set(${list} ${${list}} ${file} PARENT_SCOPE)
endfunction()

set(staged_parameters "const struct staged_params *p, cudaStream_t stream")
set(forward_parameters "const struct attention_params *p, cudaStream_t stream")
set(types_f32 f32)
set(types_16bit bf16 f16)
set(type_f32 float)
set(type_f16 __half)
set(type_bf16 __nv_bfloat16)

# Of the stages: a kernel that is faster on Hopper where TMA can fetch keys is asked first.
file(READ ${table} rows)
string(REGEX REPLACE "/[*]([^*]|[*][^/])*[*]/" "" rows "${rows}")
string(REGEX MATCHALL
    "CUDA_STAGED[(][a-z0-9_]+, [A-Z]+, [a-z0-9]+, [a-z_/]+, [a-z0-9_<>]+,[ \n]+[a-z0-9_/:<>]+,"
    staged "${rows}")
foreach(row ${staged})
    string(REGEX MATCH
        "[(]([a-z0-9_]+), [A-Z]+, [a-z0-9]+, ([a-z_/]+), ([a-z0-9_<>]+),[ \n]+([a-z0-9_/:<>]+)," row
        "${row}")
    set(name ${CMAKE_MATCH_1})
    set(header staged/${CMAKE_MATCH_2}.cuh)
    set(launch "${CMAKE_MATCH_3}(p, stream)")
    set(body "cudaError_t cuda_${name}(${staged_parameters}) {\n")
    if(CMAKE_MATCH_4 STREQUAL "none")
        string(APPEND body "    return ${launch};\n}")
    else()
        string(REPLACE ":" ";" hopper ${CMAKE_MATCH_4})
        list(GET hopper 0 hopper_header)
        list(GET hopper 1 hopper_launch)
        string(APPEND body "    const cudaError_t code = cuda_${name}_sm90(p, stream);\n"
            "    return code == cudaErrorNotSupported ? ${launch} : code;\n}")
        unit(units_sm90 ${name}_sm90 staged/${hopper_header}.cuh
            "cudaError_t cuda_${name}_sm90(${staged_parameters}) {\n    return ${hopper_launch}(p, stream);\n}")
    endif()
    unit(units ${name} ${header} "${body}")
endforeach()

# Fused.
string(REGEX MATCHALL "CUDA_FORWARD[(][a-z0-9]+, [a-z0-9_]+, [a-z0-9_]+, [0-9]+, [0-9]+, [(][0-9, ]*[)]"
    forward "${rows}")
foreach(row ${forward})
    string(REGEX MATCH
        "[(]([a-z0-9]+), ([a-z0-9_]+), ([a-z0-9_]+), [0-9]+, [0-9]+, [(]([0-9, ]*)[)]" row "${row}")
    set(types ${types_${CMAKE_MATCH_1}})
    set(name ${CMAKE_MATCH_2})
    set(family ${CMAKE_MATCH_3})
    set(arguments ${CMAKE_MATCH_4})
    foreach(type ${types})
        set(T ${type_${type}})
        set(height "int32_t rows")
        if(family MATCHES "^sm90")
            set(list units_sm90)
            set(folder sm90)
            set(launch "attention_sm90_launch<${T}, sm90_shape<${arguments}>>")
            set(height int32_t)
            set(shared "sm90_shape<${arguments}>::BYTES")
        else()
            set(list units)
            set(folder sm80)
            set(stem mma)
            if(family MATCHES "^small_m")
                set(folder sm80_small_m)
                set(stem small_m)
            endif()
            set(launch "attention_${stem}_launch<${T}, ${arguments}>")
            set(shared "attention_${stem}_shared<${T}, ${arguments}>(rows)")
        endif()
        unit(${list} attention_${type}_${name} forward/${folder}/kernel.cuh
            "cudaError_t cuda_attention_${type}_${name}(${forward_parameters}) {\n    return ${launch}(p, stream);\n}\n\nint64_t cuda_attention_${type}_${name}_shared(${height}) {\n    return ${shared};\n}")
    endforeach()
endforeach()

# Backward.
string(REGEX MATCHALL "CUDA_BACKWARD[(][a-z0-9]+, [a-z0-9]+, [a-z]+, [0-9]+," backward "${rows}")
foreach(row ${backward})
    string(REGEX MATCH "[(]([a-z0-9]+), ([a-z0-9]+), ([a-z]+), ([0-9]+)," row "${row}")
    set(name gradient_${CMAKE_MATCH_3}_${CMAKE_MATCH_1}_${CMAKE_MATCH_2})
    set(over_keys false)
    if(CMAKE_MATCH_3 STREQUAL "keys")
        set(over_keys true)
    endif()
    set(arguments "${type_${CMAKE_MATCH_1}}, ${CMAKE_MATCH_4}, ${over_keys}")
    unit(units ${name} backward/kernel.cuh
        "cudaError_t cuda_${name}(const struct gradient_params *p, cudaStream_t stream) {\n    return gradient_launch<${arguments}>(p, stream);\n}\n\nint64_t cuda_${name}_shared(int32_t rows) {\n    return gradient_shared<${arguments}>(rows);\n}")
endforeach()
unit(units delta backward/delta.cuh
    "cudaError_t cuda_delta(const struct delta_params *p, cudaStream_t stream) {\n    return delta_launch(p, stream);\n}")

unit(units image staged/image.cuh
    "cudaError_t cuda_image_derive(${staged_parameters}) {\n    return image_derive(p, stream);\n}")
unit(units merge forward/merge.cuh
    "cudaError_t cuda_merge(const struct merge_params *p, tess_type in, tess_type out,\n                       cudaStream_t stream) {\n    return merge_launch(p, in, out, stream);\n}")
list(LENGTH forward forward_rows)
list(LENGTH staged staged_rows)
list(LENGTH backward backward_rows)
if(forward_rows EQUAL 0 OR staged_rows EQUAL 0 OR backward_rows EQUAL 0)
    message(FATAL_ERROR "no rows were read from ${table}")
endif()
