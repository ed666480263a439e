# CPU kernels: the sources of the stems, compiled once for each level (src/cpu/cpu.h).
set(TESSERA_CPU_LEVELS ALL CACHE STRING
    "CPU levels: ALL; PRESENT, which this machine has; NATIVE, portable and its best; or names")
# With checks gcc takes six times as long at -O3; at -O1 it contracts among expensive optimisations alone.
set(TESSERA_CPU_OPTIMISE -O3 CACHE STRING "How CPU kernels are optimised")
mark_as_advanced(TESSERA_CPU_OPTIMISE)

# Levels of this architecture, the best last; the flags of each, and the level that has all that it has no kernel of.
set(cpu_levels portable)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    list(APPEND cpu_levels avx2 avx512 avx512bf16 amx)
    set(cpu_flags_avx2 -mavx2 -mfma -mf16c)
    set(cpu_flags_avx512 -mavx512f -mavx512dq -mavx512bw -mavx512vl -mfma -mf16c
        -mprefer-vector-width=512)
    set(cpu_flags_avx512bf16 ${cpu_flags_avx512} -mavx512bf16)
    set(cpu_flags_amx ${cpu_flags_avx512bf16} -mamx-tile -mamx-bf16)
    set(cpu_rest_avx512bf16 avx512)
    set(cpu_rest_amx avx512)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    list(APPEND cpu_levels neon)
    set(cpu_flags_neon -DCPU_NEON) # shapes for 32 registers; NEON itself needs no flag
endif()

# cpu_levels_present(OUT): levels whose flags the compiler has, unasked, for the machine that it runs on.
function(cpu_levels_present out)
    if(CMAKE_CROSSCOMPILING)
        message(FATAL_ERROR "TESSERA_CPU_LEVELS=${TESSERA_CPU_LEVELS}: kernels for another machine are named")
    endif()
    # A compiler without -march=native has portable, and levels that no flag asks for.
    execute_process(COMMAND ${CMAKE_C_COMPILER} -march=native -dM -E -x c /dev/null
        OUTPUT_VARIABLE macros ERROR_QUIET)
    set(present)
    foreach(level ${cpu_levels})
        set(has TRUE)
        foreach(flag ${cpu_flags_${level}})
            if(flag MATCHES "^-m([a-z0-9-]+)$") # -mamx-tile: __AMX_TILE__
                string(TOUPPER "${CMAKE_MATCH_1}" macro)
                string(REPLACE "-" "_" macro "${macro}")
                if(NOT macros MATCHES " __${macro}__ ")
                    set(has FALSE)
                endif()
            endif()
        endforeach()
        if(has)
            list(APPEND present ${level})
        endif()
    endforeach()
    set(${out} ${present} PARENT_SCOPE)
endfunction()

set(asked ${TESSERA_CPU_LEVELS})
if(asked STREQUAL "ALL")
    set(asked ${cpu_levels})
elseif(asked MATCHES "^(PRESENT|NATIVE)$")
    cpu_levels_present(present)
    set(asked ${present})
    if(TESSERA_CPU_LEVELS STREQUAL "NATIVE")
        list(POP_BACK present best)
        set(asked portable ${cpu_rest_${best}} ${best})
    endif()
endif()
foreach(level ${asked})
    if(NOT level IN_LIST cpu_levels OR (cpu_rest_${level} AND NOT cpu_rest_${level} IN_LIST asked))
        set(asked)
    endif()
endforeach()
if(NOT asked)
    message(FATAL_ERROR "TESSERA_CPU_LEVELS is ALL, PRESENT, NATIVE or some of ${cpu_levels} (amx and avx512bf16 "
        "with avx512), not \"${TESSERA_CPU_LEVELS}\"")
endif()
set(cpu_built)
foreach(level ${cpu_levels})
    if(level IN_LIST asked)
        list(APPEND cpu_built ${level})
    endif()
endforeach()
message(STATUS "CPU: kernels of ${cpu_built}")

set(cpu_calls src/cpu/forward/merge.c src/cpu/select/columns.c src/cpu/select/pool.c src/cpu/select/select.c)
tessera_room(tessera_cpu SOURCES src/cpu/fill.c src/cpu/table.c ${cpu_calls} INCLUDES include src src/cpu)
set_source_files_properties(${cpu_calls} PROPERTIES COMPILE_OPTIONS -O3)
list(TRANSFORM cpu_built REPLACE "(.+)" "X(\\1)" OUTPUT_VARIABLE cpu_rows)
list(REVERSE cpu_rows) # the best first
list(JOIN cpu_rows " " cpu_rows)
set_source_files_properties(src/cpu/table.c PROPERTIES COMPILE_OPTIONS "-DCPU_BUILT(X)=${cpu_rows}")
tessera_holds(tessera_cpu)

# tessera_cpu_level(NAME): its kernels: all, or those of its own where another level has the rest. Contraction is on
# because -std=c11 would otherwise keep multiplies and adds apart.
function(tessera_cpu_level level)
    set(stems forward/attention backward/keys backward/rows)
    if(NOT DEFINED cpu_rest_${level})
        list(APPEND stems forward/column_sums backward/delta staged/sddmm staged/softmax staged/spmm
            staged/softmax_backward staged/spmm_transposed)
    endif()
    if(NOT level STREQUAL "avx512bf16") # whose MLPs avx512 has
        list(APPEND stems mlp/up mlp/down)
    endif()
    list(TRANSFORM stems REPLACE "(.+)" "src/cpu/\\1.c")
    tessera_room(tessera_cpu_${level} SOURCES ${stems} INCLUDES include src src/cpu)
    target_compile_definitions(tessera_cpu_${level} PRIVATE CPU_LEVEL=${level})
    target_compile_options(tessera_cpu_${level} PRIVATE ${TESSERA_CPU_OPTIMISE} -ffp-contract=fast
        ${cpu_flags_${level}})
    tessera_holds(tessera_cpu_${level})
endfunction()
foreach(level ${cpu_built})
    tessera_cpu_level(${level})
endforeach()
