# How every target of Tessera is compiled.
include(GNUInstallDirs)

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)

# A parent project's build type is its own matter; kernels are optimised in any.
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo" FORCE)
endif()

# Warnings are of the project's own C only: CUDA's and installed headers' are not ours to fix.
add_library(tessera_warnings INTERFACE)
target_compile_options(tessera_warnings INTERFACE
    $<$<COMPILE_LANGUAGE:C>:-Wall -Wextra -Wpedantic -Wconversion -Wshadow>
    $<$<AND:$<COMPILE_LANGUAGE:C>,$<BOOL:${TESSERA_WERROR}>>:-Werror>)

# tessera_room(NAME SOURCES ... INCLUDES ...): one room as an object library that can include
# nothing but its own listed directories. This is how the arrows of ARCHITECTURE.md are held.
function(tessera_room name)
    cmake_parse_arguments(ROOM "" "" "SOURCES;INCLUDES" ${ARGN})
    add_library(${name} OBJECT ${ROOM_SOURCES})
    target_include_directories(${name} PRIVATE ${ROOM_INCLUDES})
    target_link_libraries(${name} PRIVATE tessera_warnings ${TESSERA_THREADS})
    if(NOT TESSERA_OPENMP) # pragmas are passed over, and what only their clauses name is unused
        target_compile_options(${name} PRIVATE
            "$<$<COMPILE_LANGUAGE:C>:-Wno-unknown-pragmas;-Wno-unused>")
    endif()
endfunction()

# tessera_holds(ROOM): the library holds a room's objects.
function(tessera_holds room)
    target_sources(tessera_objects INTERFACE $<TARGET_OBJECTS:${room}>)
    set_property(GLOBAL APPEND PROPERTY TESSERA_ROOMS ${room})
endfunction()
