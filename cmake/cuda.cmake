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
# Asked of nvcc itself, for CMake asks an old one for architectures that it does not know.
if(CMAKE_CUDA_COMPILER)
    execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --version OUTPUT_VARIABLE version)
    string(REGEX REPLACE ".*release ([0-9.]+).*" "\\1" version "${version}")
endif()
if(NOT CMAKE_CUDA_COMPILER)
    set(lacks "a working nvcc: put it on PATH or set CMAKE_CUDA_COMPILER")
elseif(version VERSION_LESS 12.5) # tensor maps, by version
    set(lacks "nvcc of CUDA 12.5, and ${CMAKE_CUDA_COMPILER} is of ${version}: update it")
else()
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND TESSERA_CUDA_ALL)
        execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-code OUTPUT_VARIABLE known)
        foreach(architecture ${TESSERA_CUDA_RELEASE})
            string(REGEX MATCH "[0-9]+" number ${architecture})
            if(known MATCHES "sm_${number}[^0-9]")
                list(APPEND CMAKE_CUDA_ARCHITECTURES ${architecture})
            endif()
        endforeach()
    elseif(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
        set(CMAKE_CUDA_ARCHITECTURES 90a-real) # PTX of 90a runs on nothing else
    endif()
    set(CMAKE_CUDA_STANDARD 17)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(CMAKE_CUDA_EXTENSIONS OFF)
    set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
    enable_language(CUDA)
    find_package(CUDAToolkit)
    if(TARGET CUDA::cudart_static)
        set(TESSERA_WITH_CUDA ON)
    else()
        set(lacks "libcudart_static.a beside ${CMAKE_CUDA_COMPILER}")
    endif()
endif()
if(NOT TESSERA_WITH_CUDA AND TESSERA_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TESSERA_CUDA=ON needs ${lacks} (a CPU-only build is TESSERA_CUDA=OFF)")
elseif(NOT TESSERA_WITH_CUDA)
    message(STATUS "Without CUDA, which needs ${lacks}")
endif()

# A kernel that spills its registers is a mistake on the architecture that it is tuned for; a build
# for others says where it does. The stubs that nvcc writes for <<<>>> need the C++ runtime for a
# guarded static; kernels are launched by cudaLaunchKernel, which passes them by, and a C program
# links the static library without that runtime.
set(TESSERA_CUDA_OPTIONS
    "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xcompiler -fno-threadsafe-statics -Xcompiler -fno-exceptions>"
    "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xptxas -warn-spills>"
    "$<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${TESSERA_WERROR}>>:SHELL:-Werror all-warnings>")
if("${CMAKE_CUDA_ARCHITECTURES}" STREQUAL "90a-real")
    list(APPEND TESSERA_CUDA_OPTIONS "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xptxas -Werror>")
endif()
# Kernels take a sixth of the room; the driver then has to be of CUDA 12.4 at least (docs/install.md).
if(version VERSION_GREATER_EQUAL 12.8)
    list(APPEND TESSERA_CUDA_OPTIONS "$<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>")
endif()
