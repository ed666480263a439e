# The lab, the tessera program and the demonstration; the programs stand at the top of the build
# folder.
find_package(PNG)
find_package(PkgConfig)
if(PKG_CONFIG_FOUND)
    pkg_check_modules(JANSSON IMPORTED_TARGET jansson)
endif()
if(NOT PNG_FOUND OR NOT JANSSON_FOUND)
    message(FATAL_ERROR "The tessera program needs libpng and jansson:\n"
        "  apt-get install -y pkg-config libpng-dev libjansson-dev\n"
        "Without it, configure with -DTESSERA_BUILD_TOOLS=OFF -DTESSERA_BUILD_TESTS=OFF.")
endif()

# What tests, bench and tools share. It sees the public header only; device_cuda.c and the kernel
# that empties the cache for it see CUDA too.
if(TESSERA_WITH_CUDA)
    tessera_room(lab_flush SOURCES tests/lab/device_flush.cu INCLUDES tests/lab)
    target_compile_options(lab_flush PRIVATE ${TESSERA_CUDA_OPTIONS})
    target_include_directories(lab_flush SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
endif()
add_library(lab STATIC
    tests/lab/case.c tests/lab/check.c tests/lab/compare.c tests/lab/device.c tests/lab/fill.c
    tests/lab/guard.c tests/lab/half.c tests/lab/mirror.c tests/lab/oracle.c tests/lab/output.c
    tests/lab/run.c tests/lab/source.c tests/lab/timer.c
    tests/lab/device_$<IF:$<BOOL:${TESSERA_WITH_CUDA}>,cuda,none>.c
    $<$<BOOL:${TESSERA_WITH_CUDA}>:$<TARGET_OBJECTS:lab_flush>>)
if(TESSERA_WITH_CUDA)
    target_link_libraries(lab PRIVATE CUDA::cudart_static)
endif()
target_include_directories(lab INTERFACE tests)
target_link_libraries(lab PRIVATE tessera_warnings PUBLIC tessera_static OpenMP::OpenMP_C m)

# Readers and writers of files, which the tests use as well.
add_library(tool_files STATIC
    tools/lists_file.c tools/mapped_file.c tools/npy.c tools/report.c tools/safetensors.c
    tools/tensor.c tools/tensor_file.c)
target_include_directories(tool_files INTERFACE tools)
target_link_libraries(tool_files PRIVATE tessera_warnings PUBLIC lab PkgConfig::JANSSON)

# Kernels for the benchmark alone; cuBLAS, cuSPARSE, OpenBLAS and NVML are looked for when it runs.
set(bench_kernels bench/cuda/none.c)
if(TESSERA_WITH_CUDA)
    tessera_room(bench_cuda SOURCES bench/cuda/dense.cu bench/cuda/read.cu INCLUDES include bench)
    target_compile_options(bench_cuda PRIVATE ${TESSERA_CUDA_OPTIONS})
    target_include_directories(bench_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
    set(bench_kernels $<TARGET_OBJECTS:bench_cuda>)
endif()

add_custom_target(bench_commit
    COMMAND ${CMAKE_COMMAND} -D SOURCE=${PROJECT_SOURCE_DIR} -D OUT=${PROJECT_BINARY_DIR}/commit/commit.h
        -P ${PROJECT_SOURCE_DIR}/cmake/commit.cmake
    BYPRODUCTS ${PROJECT_BINARY_DIR}/commit/commit.h)
add_library(bench STATIC
    bench/against.c bench/baseline.c bench/bench.c bench/blocks.c bench/cases.c bench/cublas.c
    bench/cusparse.c bench/dense.c bench/floor.c bench/layer.c bench/library.c bench/measure.c
    bench/naive.c bench/openblas.c bench/options.c bench/peak.c bench/peer.c bench/peer_check.c
    bench/place.c bench/results.c bench/sample.c bench/sparse.c bench/throttle.c
    bench/timing.c ${bench_kernels})
add_dependencies(bench bench_commit)
target_include_directories(bench PRIVATE ${PROJECT_BINARY_DIR}/commit)
target_include_directories(bench PUBLIC bench)
target_link_libraries(bench PRIVATE tessera_warnings
    PUBLIC lab PkgConfig::JANSSON ${CMAKE_DL_LIBS})

add_executable(tessera_tool
    tools/arguments.c tools/attention_input.c tools/attention_output.c tools/info.c tools/main.c
    tools/memory_limit.c tools/pattern.c tools/pattern_options.c tools/picture.c
    tools/picture_svg.c tools/plan.c tools/run.c tools/sweep.c tools/verify.c)
set_target_properties(tessera_tool PROPERTIES OUTPUT_NAME tessera)
target_link_libraries(tessera_tool PRIVATE tessera_warnings bench tool_files PNG::PNG)
install(TARGETS tessera_tool COMPONENT tools)
install(FILES docs/man/tessera.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT tools)

add_executable(tessera_demo tools/demo.c tools/demo_blocks.c)
target_link_libraries(tessera_demo PRIVATE tessera_warnings tool_files)
