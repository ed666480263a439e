# Finds CUDA as TESSERA_CUDA asks; sets TESSERA_WITH_CUDA. Architectures are set explicitly: CMake
# 3.25 would choose one that the toolkit may not know, and "native" fails on a machine without GPU.
# Left to itself a build is for Hopper; TESSERA_CUDA_ALL builds what a release holds, of these
# those that nvcc knows.
set(TESSERA_CUDA_RELEASE 80-real 90a-real 100-real 120) # the last also as PTX, for what comes
set(TESSERA_WITH_CUDA OFF)
if(NOT TESSERA_CUDA MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "TESSERA_CUDA is AUTO, ON or OFF, not \"${TESSERA_CUDA}\"")
endif()
if(TESSERA_CUDA STREQUAL "OFF")
    return()
endif()

set(ENV{PATH} "$ENV{PATH}:/usr/local/cuda/bin")
include(CheckLanguage)
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND TESSERA_CUDA_ALL)
        execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-code OUTPUT_VARIABLE known)
        foreach(architecture ${TESSERA_CUDA_RELEASE})
            string(REGEX MATCH "[0-9]+" number ${architecture})
            if(known MATCHES "sm_${number}[^0-9]")
                list(APPEND CMAKE_CUDA_ARCHITECTURES ${architecture})
            endif()
        endforeach()
    elseif(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
        set(CMAKE_CUDA_ARCHITECTURES 90a)
    endif()
    set(CMAKE_CUDA_STANDARD 17)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(CMAKE_CUDA_EXTENSIONS OFF)
    set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
    enable_language(CUDA)
    find_package(CUDAToolkit)
endif()
if(CMAKE_CUDA_COMPILER AND CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.5) # tensor maps, by version
    message(FATAL_ERROR "nvcc is ${CMAKE_CUDA_COMPILER_VERSION}, Hopper's kernels need CUDA 12.5: "
        "update it, or build without (TESSERA_CUDA=OFF)")
elseif(CMAKE_CUDA_COMPILER AND TARGET CUDA::cudart_static)
    set(TESSERA_WITH_CUDA ON)
elseif(TESSERA_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TESSERA_CUDA=ON needs a working nvcc and libcudart_static.a: put nvcc on "
        "PATH or set CMAKE_CUDA_COMPILER (a CPU-only build is TESSERA_CUDA=OFF)")
endif()

# A kernel that spills its registers is a mistake on the architecture that it is tuned for; a build
# for all says where it does. The stubs that nvcc writes for <<<>>> need the C++ runtime for a
# guarded static; kernels are launched by cudaLaunchKernel, which passes them by, and a C program
# links the static library without that runtime.
set(TESSERA_CUDA_OPTIONS
    "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xcompiler -fno-threadsafe-statics -Xcompiler -fno-exceptions>"
    "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xptxas -warn-spills>"
    "$<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<NOT:$<BOOL:${TESSERA_CUDA_ALL}>>>:SHELL:-Xptxas -Werror>"
    "$<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${TESSERA_WERROR}>>:SHELL:-Werror all-warnings>")
